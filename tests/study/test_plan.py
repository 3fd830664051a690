"""The prefix tree, compared with what a clock that is looked at in every moment says."""

import inspect
import itertools
import json
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplast.core.clock import Clock, Time
from rlplast.core.errors import ConfigError
from rlplast.run.config_file import read_config
from rlplast.study.plan import Cell, PlannedRun, cost, plan
from rlplast.training.config import RunConfig
from tests.runs import TINY

END = 24  # updates
few = settings(max_examples=30)
Hook = dict[str, Any]


def runs(*lists: Sequence[Hook], total: str = f"{END} updates", **keys: Any) -> list[PlannedRun]:
    return [
        PlannedRun("", 1, f"arm{i}", RunConfig(total=total, hooks=list(hooks), **keys))
        for i, hooks in enumerate(lists)
    ]


def text(hook: Hook) -> str:
    return json.dumps(hook, sort_keys=True)


def at(*when: str, method: str = "fire", **keys: Any) -> Hook:
    return {"method": method, "at": when[0] if len(when) == 1 else list(when), **keys}


def stops(cells: Sequence[Cell]) -> list[str]:
    return [" or ".join(map(str, cell.stops)) for cell in cells if cell.arm is None]


def chain(arm: str, cells: Sequence[Cell]) -> list[Cell]:
    """An arm's cells, from the start of training on."""
    by_key = {cell.key: cell for cell in cells}
    found = [next(cell for cell in cells if cell.arm == arm)]
    while found[0].parent is not None:
        found.insert(0, by_key[found[0].parent])
    return found


def penalised(*lists: Sequence[Hook], **keys: Any) -> list[PlannedRun]:
    """Runs that differ in penalties, `hooks` of all."""
    return [
        PlannedRun("", 1, f"arm{i}", run.config)
        for i, rows in enumerate(lists)
        for run in runs(keys.get("hooks", []), penalties=list(rows))
    ]


def late(method: str = "l2", **keys: Any) -> Hook:
    return {"method": method, "from": "50%", **keys}


def test_penalties_that_begin_later_share_what_is_before_with_runs_without_them():
    cells = plan([*penalised([], [late()], [late("parseval")], [late("l2", until="80%")])])
    assert stops(cells) == ["11 updates"]  # a penalty from update 12 on is in that update
    assert cells[0].config.penalties == []
    assert all(len(chain(f"arm{i}", cells)) == 2 for i in range(4))
    (fire,) = runs([at("50%")])
    cells = plan([*penalised([], [late()]), PlannedRun("", 1, "fire", fire.config)])
    assert stops(cells) == ["11 updates", "12 updates"]


def test_penalties_that_all_have_are_in_the_prefix_and_what_follows_another_is_not():
    first, second = {"method": "l2"}, late("parseval")
    cells = plan(penalised([first], [first, second], [first, second, late("l2_init")]))
    assert [c.config.penalties for c in cells if c.arm is None] == [[first]]
    # The state of a penalty is named by its place, which would be another in the prefix.
    cells = plan(penalised([second, first], [late("l2_init"), first]))
    assert stops(cells) == []
    quarter = late("parseval", **{"from": "25%"})
    cells = plan(penalised([quarter, second], [quarter], []))
    assert stops(cells) == ["5 updates", "11 updates"]
    assert [c.config.penalties for c in cells if c.arm is None] == [[], [quarter]]


@pytest.mark.parametrize(
    "row",
    [
        {"method": "l2"},
        {"method": "l2", "from": "0%"},
        {"method": "l2", "until": "50%"},
        late("spectral"),  # its plan acts at every update, in its window or not
    ],
)
def test_penalties_that_act_from_the_start_share_nothing(row: Hook):
    cells = plan(penalised([], [row], [late()], hooks=[at("75%")]))
    assert stops(cells) == ["11 updates"]
    assert chain("arm1", cells) == [next(c for c in cells if c.arm == "arm1")]


def test_penalties_of_an_agent_whose_updates_may_be_compiled_share_nothing():
    for accelerate, expected in (("off", 1), ("graph", 1), ("auto", 0), ("compile", 0)):
        base = TINY | {"hooks": [], "agent": TINY["agent"] | {"accelerate": accelerate}}
        lists = {"none": [], "late": [late()]}
        configs = {n: read_config(base, {"penalties": rows}) for n, rows in lists.items()}
        cells = plan([PlannedRun("", 1, name, config) for name, config in configs.items()])
        assert len(stops(cells)) == expected


def test_a_penalty_that_is_never_added_is_refused_with_its_arm_and_place():
    with pytest.raises(
        ConfigError, match=r"arm 'arm1': penalties\[0\] \(l2\).from = 24 updates is"
    ):
        plan(penalised([], [late(**{"from": "100%"})]))


def test_runs_that_differ_in_a_hook_that_follows_every_update_share_nothing():
    cells = plan(runs([at("50%")], [at("75%", method="hare_tortoise")]))
    assert [(cell.arm, cell.parent) for cell in cells] == [("arm0", None), ("arm1", None)]


# A random hook: what it says, and by when it may have changed something, both in updates.


@st.composite
def hook(draw: st.DrawFn, method: str) -> Hook:
    def when(count: int) -> str:
        percent = 100 * count / END
        return draw(st.sampled_from([f"{count} updates", f"{percent:g}%"]))

    kind = draw(st.sampled_from(["at", "every", "inside"]))
    row: Hook = {"method": method}
    if kind == "at":
        points = draw(st.lists(st.integers(0, END - 1), min_size=1, max_size=3))
        return row | {"at": [when(p) for p in points]}
    period = 1 if kind == "inside" else draw(st.integers(2, END))
    row["every"] = f"{period} updates"
    if draw(st.booleans()):
        latest = END // period * period
        row["from"] = when(draw(st.integers(0, min(END - 1, latest))))
    return row


def count(text: str) -> int:
    if text.endswith("%"):
        return round(float(text[:-1]) * END / 100)
    return int(text.split()[0])


def touches(row: Hook, update: int) -> bool:
    """Whether a hook has changed something before the end of an update, counted from 1."""
    if "at" in row:
        points = [row["at"]] if isinstance(row["at"], str) else row["at"]
        return any(count(p) < update for p in points)
    period, start = count(row["every"]), count(row.get("from", "0 updates"))
    last = update if period == 1 else update - 1  # others fire after the update that is due
    return any(u % period == 0 and u >= start for u in range(1, last + 1))


@st.composite
def hook_lists(draw: st.DrawFn) -> list[list[Hook]]:
    rows = [draw(hook(f"m{i}")) for i in range(draw(st.integers(1, 6)))]
    kept = st.lists(st.booleans(), min_size=len(rows), max_size=len(rows))
    choices = draw(st.lists(kept, min_size=1, max_size=7, unique_by=tuple))
    return [list(itertools.compress(rows, keep)) for keep in choices]


def length(cell: Cell) -> tuple[int, int]:
    """First and last update of a cell."""
    start = int(cell.starts[0].value) if cell.starts else 0
    return start + 1, int(cell.stops[0].value) if cell.stops else END


@given(hook_lists())
def test_two_runs_share_an_update_if_and_only_if_the_same_hooks_came_before(lists):
    cells = plan(runs(*lists))
    where = []  # by arm, the cell that does each update
    for i in range(len(lists)):
        done = {}
        for cell in chain(f"arm{i}", cells):
            first, last = length(cell)
            assert first == len(done) + 1
            done |= dict.fromkeys(range(first, last + 1), cell.key)
        assert len(done) == END
        where.append(done)
    for update in range(1, END + 1):
        came = [{text(row) for row in rows if touches(row, update)} for rows in lists]
        for i, j in itertools.combinations(range(len(lists)), 2):
            assert (where[i][update] == where[j][update]) == (came[i] == came[j]), (i, j, update)


@few
@given(hook_lists())
def test_cost_counts_every_different_update_once(lists):
    different = sum(
        len({frozenset(text(r) for r in rows if touches(r, update)) for rows in lists})
        for update in range(1, END + 1)
    )
    alone = len(lists) == 1  # nothing to compare it with, and nothing to share
    assert cost(plan(runs(*lists))) == (
        pytest.approx(1 if alone else different / END),
        len(lists),
    )


@few
@given(hook_lists())
def test_every_run_is_one_arm_and_prefixes_have_the_hooks_that_are_shared(lists):
    cells = plan(runs(*lists))
    assert sorted(c.arm for c in cells if c.arm is not None) == [
        f"arm{i}" for i in range(len(lists))
    ]
    assert len({c.key for c in cells}) == len({c.folder for c in cells}) == len(cells)
    followers: dict[str, list[list[Hook]]] = {}
    for i, rows in enumerate(lists):
        *prefixes, arm = chain(f"arm{i}", cells)
        assert arm.config.hooks == rows
        assert arm.stops == ()
        for cell, after in itertools.pairwise([*prefixes, arm]):
            assert after.starts == cell.stops
            followers.setdefault(cell.key, []).append(rows)
    for cell in cells:
        if cell.parent is not None:
            assert [c.key for c in cells].index(cell.parent) < cells.index(cell)
        else:
            assert cell.starts == ()
        if cell.arm is None:
            assert len(followers[cell.key]) > 1
            rows = followers[cell.key]
            assert cell.config.hooks == [r for r in rows[0] if all(r in other for other in rows)]


@few
@given(hook_lists(), st.randoms(use_true_random=False))
def test_order_of_the_arms_changes_no_cell(lists, random):
    shuffled = runs(*lists)
    random.shuffle(shuffled)
    assert {c.key for c in plan(shuffled)} == {c.key for c in plan(runs(*lists))}


# Units whose rates are not known in advance.

UNITS = ("updates", "env_steps", "frames")


@st.composite
def mixed_lists(draw: st.DrawFn) -> list[list[Hook]]:
    points = st.tuples(st.integers(0, 20), st.sampled_from(UNITS))
    rows = []
    for i in range(draw(st.integers(1, 6))):
        words = [f"{n} {unit}" for n, unit in draw(st.lists(points, min_size=1, max_size=3))]
        rows.append({"method": f"m{i}", "at": words})
    kept = st.lists(st.booleans(), min_size=len(rows), max_size=len(rows))
    choices = draw(st.lists(kept, min_size=2, max_size=6, unique_by=tuple))
    return [list(itertools.compress(rows, keep)) for keep in choices]


def due(row: Hook, clock: Clock) -> bool:
    return any(clock[p.split()[1]] >= int(p.split()[0]) for p in row["at"])


def reached(times: tuple[Time, ...], clock: Clock) -> bool:
    return any(clock[time.unit] >= time.value for time in times)


@few
@given(mixed_lists(), st.lists(st.tuples(*3 * [st.integers(0, 7)]), min_size=1, max_size=20))
def test_whatever_the_clock_does_runs_part_before_a_hook_that_only_one_has(lists, steps):
    cells = plan(runs(*lists, total="90 updates"))
    chains = [chain(f"arm{i}", cells) for i in range(len(lists))]
    clock = Clock()
    for step in steps:
        # The step from here on is done by the first cell whose end is not reached.
        where = [
            next((c.key for c in cells if c.stops and not reached(c.stops, clock)), cells[-1].key)
            for cells in chains
        ]
        came = [{text(row) for row in rows if due(row, clock)} for rows in lists]
        for i, j in itertools.combinations(range(len(lists)), 2):
            if where[i] == where[j]:
                assert came[i] == came[j], clock
        clock = clock.advance(**dict(zip(UNITS, step, strict=True)))


def test_only_the_start_counts_where_something_is_due_at_it():
    cells = plan(
        runs([at("0%")], [at("0%"), at("5 updates")], [], [at("9 env_steps")], [at("12 updates")])
    )
    assert stops(cells) == ["5 updates", "9 env_steps or 12 updates"]


# Order, twins, and what is the same.


def test_runs_that_list_two_hooks_in_another_order_part_before_both_can_be_due():
    first, second = at("25%"), at("50%", method="swr")
    assert stops(plan(runs([first, second], [second, first]))) == ["6 updates"]
    # One step may jump over both moments: a prefix ends before anything is done after it.
    cells = plan(runs([first, second], [second, first], [first]))
    assert stops(cells) == ["12 updates"]
    assert [len(chain(f"arm{i}", cells)) for i in range(3)] == [2, 2, 2]


def test_a_hook_that_installs_modules_is_in_the_prefix_whatever_its_place():
    inject, fire = at("50%", method="plasticity_injection"), at("50%")
    cells = plan(runs([inject, fire], [fire, inject]))
    assert stops(cells) == ["12 updates"]
    assert cells[0].config.hooks == [inject]


def test_order_of_hooks_that_came_before_two_runs_parted_does_not_part_others():
    a, b, c = at("25%"), at("50%", method="swr"), at("75%", method="head_reset")
    cells = plan(runs([], [a, b, c], [a, c, b], [c, a, b]))
    assert stops(cells) == ["6 updates", "12 updates"]
    assert [len(chain(f"arm{i}", cells)) for i in range(4)] == [2, 3, 3, 2]


def test_hook_whose_twin_only_one_run_has_is_not_in_the_prefix():
    # In a hook list the second of two with one method and schedule has another name, and another
    # random stream: which is the second differs between these runs.
    one, other = at("50%", networks=["actor"]), at("50%", networks=["critic"])
    kept = at("50%", method="swr")
    cells = plan(runs([kept, one], [kept, other, one]))
    assert cells[0].config.hooks == [kept]


def test_hook_listed_twice_is_more_than_listed_once():
    assert stops(plan(runs([at("25%")], [at("25%"), at("25%")]))) == ["6 updates"]


@pytest.mark.parametrize(
    "lists",
    [
        ([], []),
        ([at("50%")], [], [at("50%")]),
        ([at("50%"), at("75%")], [at("50%")], [at("50%"), at("75%")]),
    ],
)
def test_arms_that_are_the_same_run_are_refused_by_name(lists):
    first, second = (i for i, rows in enumerate(lists) if rows == lists[0])
    with pytest.raises(ConfigError, match=f"arms 'arm{first}', 'arm{second}' are the same run"):
        plan(runs(*lists))


def test_tasks_that_are_the_same_run_are_refused_by_name():
    config = RunConfig(total="24 updates")
    with pytest.raises(ConfigError, match="tasks 'one' and 'two' are the same run"):
        plan([PlannedRun(task, 1, "none", config) for task in ("one", "two")])


def test_hook_that_is_never_due_is_refused_with_its_arm_and_place():
    with pytest.raises(
        ConfigError, match=r"arm 'arm1': hooks\[1\] \(fire\).at = 24 updates is at or past the end"
    ):
        plan(runs([at("50%")], [at("50%"), at("100%")]))


def test_seeds_and_tasks_and_all_other_keys_share_nothing():
    def run(task: str, seed: int, threads: int, *hooks: Hook) -> PlannedRun:
        config = RunConfig(total="24 updates", seed=seed, threads=threads, hooks=list(hooks))
        return PlannedRun(task, seed, f"{threads} {len(hooks)}", config)

    kinds = itertools.product([1, 2], [1, 2], [(), (at("50%"),)])
    cells = plan([run("task", seed, threads, *hooks) for seed, threads, hooks in kinds])
    assert len(stops(cells)) == 4
    assert cost(cells) == (4 * 1.5, 8)


# Names.


def test_folders_are_named_by_content_and_are_names_everywhere():
    long = "x" * 300 + "/../ [red]"
    config = RunConfig(total="24 updates")
    (cell,) = plan([PlannedRun("minatar/breakout", 3, long, config)])
    start, task, seed, own = cell.folder.split("/")
    assert (start, task, seed) == ("cells", "minatar-breakout", "seed-3")
    assert own.endswith(f"-{cell.key[:8]}")
    assert len(own) < 100
    (again,) = plan([PlannedRun("minatar/breakout", 3, long, RunConfig(total="25 updates"))])
    assert again.folder != cell.folder


def test_arms_of_two_hundred_moments_are_a_chain_of_prefixes():
    moments = 200
    lists = [[at(f"{i + 1} updates")] for i in range(moments)]
    before, depth = sys.getrecursionlimit(), len(inspect.stack())
    sys.setrecursionlimit(depth + 150)
    try:
        cells = plan(runs(*lists, total=f"{2 * moments} updates"))
    finally:
        sys.setrecursionlimit(before)
    # The last two arms part at the last prefix's end.
    assert stops(cells) == [f"{i + 1} updates" for i in range(moments - 1)]
    for i in range(moments):
        assert len(chain(f"arm{i}", cells)) == min(i + 2, moments)


def test_arms_go_on_from_their_prefix_as_often_as_the_study_says():
    planned = runs([], [at("50%")], [at("75%")])
    once, thrice = plan(planned), plan(planned, 3)
    assert [cell for cell in thrice if cell.config.continuation == 1] == once
    for cell in once:
        more = [c for c in thrice if c.arm == cell.arm and c.config.continuation > 1]
        own = [c for c in more if c.starts == cell.starts and c.stops == cell.stops]
        assert [c.config.continuation for c in own] == ([] if cell.arm is None else [2, 3])
        assert {c.parent for c in own} <= {cell.parent}
    assert len({cell.key for cell in thrice}) == len({cell.folder for cell in thrice}) == 2 + 9
    assert cost(thrice) == (pytest.approx(0.5 + 0.25 + 3 * 0.5 + 3 * 0.25 * 2), 9)


def test_an_arm_that_shares_nothing_runs_once():
    cells = plan(runs([], [at("50%")], [at("0%")]), 2)
    counted = [(cell.arm, cell.config.continuation) for cell in cells if cell.arm is not None]
    assert sorted(counted) == [("arm0", 1), ("arm0", 2), ("arm1", 1), ("arm1", 2), ("arm2", 1)]


@pytest.mark.parametrize("lists", [[[]], [[], [at("0%")]]])
def test_continuations_without_a_prefix_are_refused(lists: list[list[Hook]]):
    with pytest.raises(ConfigError, match="continuations = 4: no arms share a prefix"):
        plan(runs(*lists), 4)
