import itertools
import json
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplast.agents.replay import Replay
from rlplast.agents.replay_files import Segment, plan
from rlplast.core.errors import ConfigError, DamagedFile
from tests.agents.replay_episodes import Episodes, assert_equal, fill, make, save

SEGMENT = 8
LAYOUT: dict[str, Any] = {"rows": 4 * SEGMENT, "num_envs": 2, "segment_rows": SEGMENT}
KINDS = ("frames", "records")


def restored(folder: Path, state: dict[str, Any], **options: Any) -> Replay:
    """A replay that was full of something else, and loaded."""
    replay = make(seed=99, **options)
    episodes = Episodes(options.get("num_envs", 1), 99, action_dim=options.get("action_dim"))
    replay.start(episodes.start())
    fill(replay, episodes, 70)
    replay.load(folder, json.loads(json.dumps(state)))
    return replay


def saved(folder: Path, steps: int) -> tuple[Replay, Episodes]:
    """A replay of two environments, rings of four segments and no episode ends, and its save."""
    replay = make(**LAYOUT)
    episodes = Episodes(2, seed=0, p_terminated=0, p_truncated=0)
    replay.start(episodes.start())
    fill(replay, episodes, steps)
    save(replay, folder)
    return replay, episodes


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def rows_of(files: set[str], kind: str) -> set[tuple[int, int, int]]:
    """Return environment, first row and end of the files of a kind, by their names."""
    found = [re.fullmatch(rf"env(\d+)-{kind}-(\d+)-(\d+)\.npy", name) for name in files]
    return {(int(m[1]), int(m[2]), int(m[3])) for m in found if m}


@settings(max_examples=100, deadline=None)
@given(
    size=st.integers(1, 60),
    longest=st.integers(1, 30),
    steps=st.lists(st.integers(0, 80), min_size=1, max_size=8),
    lost=st.sets(st.integers(0, 20)),
)
def test_plan_holds_every_row_once_and_writes_what_is_new(
    size: int, longest: int, steps: list[int], lost: set[int]
) -> None:
    there: list[Segment] = []
    stop = 0
    for step in steps:
        known = {row for part in there for row in range(part.first, part.stop)}
        stop += step
        held = Segment("frames", 3, max(stop - size, 0), stop)
        shared, new = plan(there, held, size, longest)
        assert set(shared) <= set(there)
        assert all(part.stop > held.first for part in shared)  # some of it is in memory
        rows = sorted(row for part in shared + new for row in range(part.first, part.stop))
        assert rows == list(range(rows[0], stop)) if rows else held.first == stop
        assert set(range(held.first, stop)) <= set(rows)
        written = {row for part in new for row in range(part.first, part.stop)}
        assert written <= set(range(held.first, stop))
        assert len(written & known) * 8 < longest  # those of one short segment at most
        for part in new:
            assert part[:2] == ("frames", 3)
            assert 0 < part.stop - part.first <= longest
            assert part.first // size == (part.stop - 1) // size  # does not pass the seam
        there = [part for i, part in enumerate(shared + new) if i not in lost]


@pytest.mark.parametrize(
    ("steps", "more", "new"),
    [
        (20, 9, [(21, 25), (25, 30)]),  # more than a segment's worth: two, about equal
        (28, 9, [(29, 32), (32, 38)]),  # split at the seam of the ring
        (20, 0, []),
        (20, 70, [(59, 64), (64, 70), (70, 77), (77, 84), (84, 91)]),  # all overwritten
    ],
)
def test_new_rows_are_written_and_files_with_older_ones_hard_linked(
    steps: int, more: int, new: list[tuple[int, int]], tmp_path: Path
) -> None:
    old, folder = tmp_path / "old", tmp_path / "new"
    replay, episodes = saved(old, steps)
    fill(replay, episodes, more)
    save(replay, folder, previous=old)
    written, shared = names(folder) - names(old), names(folder) & names(old)
    assert all(os.path.samefile(old / name, folder / name) for name in shared)
    assert rows_of(written, "frames") == {(env, *rows) for env in range(2) for rows in new}
    oldest = max(steps + more + 1 - 4 * SEGMENT, 0)
    for kind in KINDS:
        assert all(first >= oldest for _, first, _ in rows_of(written, kind))
    # What the ring has overwritten wholly is left out.
    there = {part for part in rows_of(names(old), "frames") if part[2] > oldest}
    assert rows_of(shared, "frames") == there
    damaged = sorted(old.iterdir())[1]  # is not carried on, and other lengths of segments are
    os.truncate(damaged, damaged.stat().st_size - 1)
    save(replay, tmp_path / "again", previous=old)
    again = restored(tmp_path / "again", replay.state_dict(), **LAYOUT | {"segment_rows": 5})
    assert_equal(again.sample(), replay.sample())


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_any_of_a_run_of_saves_restores_the_memory_of_its_moment(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    # Rows are added while saves are written, and every row is as long as a page or so.
    folder, draw = tmp_path_factory.mktemp("saves"), data.draw
    options = {
        "num_envs": draw(st.integers(1, 3)),
        "rows": draw(st.integers(6, 40)),
        "frame_stack": draw(st.integers(1, 3)),
        "n_step": draw(st.integers(1, 3)),
        "obs_shape": (3, draw(st.sampled_from([1, 100, 400]))),
        "action_dim": draw(st.sampled_from([None, 3])),
    }
    replay = make(**options, segment_rows=draw(st.integers(1, 24)))
    ends = {"p_truncated": 0.2, "action_dim": options["action_dim"]}
    episodes = Episodes(options["num_envs"], draw(st.integers(0, 99)), **ends)

    def wide(frames: np.ndarray) -> np.ndarray:
        return np.repeat(frames[..., None], options["obs_shape"][1], axis=-1)

    def add(steps: int, *others: Replay) -> None:
        for _ in range(steps):
            *row, obs, final = episodes.step()
            for each in (replay, *others):
                each.add(*row, wide(obs), wide(final))

    replay.start(wide(episodes.start()))
    saves, previous = [], None
    for number in range(draw(st.integers(1, 5))):
        add(draw(st.integers(0, 60)))
        state, then, size = replay.state_dict(), content(replay), replay.size
        saving = replay.begin_save(previous)
        thread = threading.Thread(target=saving, args=(folder / str(number),), daemon=True)
        thread.start()
        add(draw(st.integers(0, 60)))
        thread.join()
        previous = folder / str(number)
        saves.append((previous, state, then, size))
    for path, state, then, size in draw(st.permutations(saves)):
        again = make(**options)
        again.load(path, json.loads(json.dumps(state)))
        for ours, theirs in zip(content(again), then, strict=True):
            np.testing.assert_array_equal(ours, theirs, strict=True)
        assert again.size == size
    save(replay, folder / "last", previous)
    again = make(**options, seed=99)
    again.load(folder / "last", replay.state_dict())
    for steps in (8, 30):  # goes on like the uninterrupted one
        add(steps, again)
        assert again.size == replay.size
        if replay.size:
            assert_equal(again.sample(), replay.sample())


def content(replay: Replay) -> list[np.ndarray]:
    found = []
    for env, written in enumerate(replay._written):
        rows = np.arange(max(written - replay._rows, 0), written) % replay._rows
        at = env * replay._rows + rows
        found += [replay._frames[at], replay._records[at]]
    return found


def test_rows_are_overwritten_only_once_they_are_on_disk(tmp_path: Path) -> None:
    replay, episodes = saved(tmp_path / "old", steps=20)
    fill(replay, episodes, 7)
    state, then = replay.state_dict(), content(replay)
    saving = replay.begin_save(tmp_path / "old")
    fill(replay, episodes, 24)  # the next row goes where row 20 is, whose record is new
    assert replay._written.tolist() == [52, 52]
    adding = threading.Thread(target=fill, args=(replay, episodes, 20), daemon=True)
    adding.start()
    adding.join(0.2)
    assert adding.is_alive() and replay._written.tolist() == [52, 52]
    saving(tmp_path / "new")
    adding.join(10)
    assert not adding.is_alive() and replay._written.tolist() == [72, 72]
    again = restored(tmp_path / "new", state, **LAYOUT)
    for ours, theirs in zip(content(again), then, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_saves_are_synced_and_may_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced, folder = set(), tmp_path / "old"
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.add(os.fstat(descriptor).st_ino))
    replay, episodes = saved(folder, steps=20)
    assert synced == {path.stat().st_ino for path in [folder, *folder.iterdir()]}
    saving = replay.begin_save(None)
    (tmp_path / "file").write_text("a file where the folder should be")
    with pytest.raises(OSError):
        saving(tmp_path / "file")
    fill(replay, episodes, 9 * SEGMENT)


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "cut short": lambda path: os.truncate(path, path.stat().st_size - 1),
    "overwritten": lambda path: path.write_bytes(b"PK\x03\x04 not an array"),
    "a row less": lambda path: np.save(path, np.load(path)[1:]),
    "other type": lambda path: np.save(path, np.zeros(len(np.load(path)), "float64")),
    "missing": lambda path: path.unlink(),
    "pickled": lambda path: np.save(path, np.array([None] * len(np.load(path)))),
}


def test_damage_and_other_layouts_are_refused_by_name(tmp_path: Path) -> None:
    for number, (kind, damage) in enumerate(itertools.product(KINDS, DAMAGE)):
        folder = tmp_path / str(number)
        replay, _ = saved(folder, steps=20)
        victim = sorted(folder.glob(f"env0001-{kind}-*.npy"))[1]
        DAMAGE[damage](victim)
        with pytest.raises(DamagedFile, match=victim.name if victim.exists() else "environment 1"):
            replay.load(folder, replay.state_dict())
    replay, _ = saved(tmp_path / "sound", steps=20)
    for options, key in (
        ({"rows": 33}, "rows_per_env"),
        ({"frame_stack": 2}, "frame_stack"),
        ({"action_dim": 3}, "action_dim"),
        ({"obs_dtype": "int64"}, "obs_dtype"),
        ({"rng": np.random.Generator(np.random.SFC64(0))}, "bit_generator"),
    ):
        with pytest.raises(ConfigError, match=key):
            make(**(LAYOUT | options)).load(tmp_path / "sound", replay.state_dict())
