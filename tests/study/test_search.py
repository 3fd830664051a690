"""A study's search: what is tried, what is stopped, what an interruption leaves."""

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlplast.core.errors import ConfigError
from rlplast.study.search_config import SearchConfig
from rlplast.study.spec import StudyConfig
from tests.cli.commands import command, printed
from tests.marks import slow
from tests.runs import killed_at_rename
from tests.study.inline import arm_folders, inline, journal, run_study, write_study

BASE: dict[str, Any] = {
    "kind": "supervised",
    "data": {"name": "digits"},
    "model": {"name": "mlp", "hidden": [8]},
    "stream": {"name": "single_task", "epochs": 4},
    "batch_size": 300,
    "device": "cpu",
    "threads": 1,
    "log": {"every": "1 epochs", "to": []},
    "evaluate": {"every": "1 epochs"},
    "metrics": {"every": None},
    "checkpoint": {"every": "25%"},
}
KEYS = {
    "optimizer.lr": {"low": 1e-4, "high": 1e-1, "log": True},
    "model.hidden": [[4], [8], [8, 8]],
    "model.activation": ["relu", "tanh"],
    "optimizer.warmup": {"low": 0, "high": 0.5},
}
ARMS = {"none": {"hooks": []}, "tuned": {"sample": {"keys": KEYS}}}
SEARCH = {"metric": "eval/accuracy", "trials": 8, "startup_trials": 3}


def search_study(folder: Path, arms: Any = ARMS, base: Any = BASE, **search: Any) -> Path:
    folder.mkdir(exist_ok=True)
    return write_study(folder, base, arms, seeds=[1, 2], search=SEARCH | search)


def trials(out: Path) -> dict[int, Any]:
    """What Optuna's storage says of each trial: how it ended, values, evaluations."""
    import optuna
    from optuna.storages.journal import JournalFileBackend

    storage = optuna.storages.JournalStorage(JournalFileBackend(str(out / "search.log")))
    (summary,) = optuna.get_all_study_summaries(storage)
    stored = optuna.load_study(study_name=summary.study_name, storage=storage)
    return {
        t.user_attrs["number"]: (t.state.name, t.value, t.params, t.intermediate_values)
        for t in stored.trials
    }


def evaluations(folder: Path) -> list[float]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row["eval/accuracy"] for row in rows if "eval/accuracy" in row]


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A search nobody interrupted; tests only read it."""
    folder = tmp_path_factory.mktemp("search")
    outcome, _ = run_study(search_study(folder), folder / "study")
    assert outcome.code == 0, outcome
    (folder / "output").write_text(outcome.out)
    return folder / "study"


# What a trial is.


def test_value_of_a_trial_is_the_mean_over_seeds_of_the_last_evaluation(searched: Path) -> None:
    folders = arm_folders(searched)
    done = {n: value for n, (state, value, _, _) in trials(searched).items() if state == "COMPLETE"}
    assert len(done) >= 3
    for number, value in done.items():
        last = [evaluations(folders[f"seed-{s}/tuned #{number}"])[-1] for s in (1, 2)]
        assert value == pytest.approx(sum(last) / 2)


def test_trial_is_a_cell_whose_config_has_its_values(searched: Path) -> None:
    folders = arm_folders(searched)
    for number, (_, _, params, _) in trials(searched).items():
        config = yaml.safe_load((folders[f"seed-1/tuned #{number}"] / "config.yaml").read_text())
        assert config["optimizer"]["lr"] == params["optimizer.lr"]
        assert config["model"]["hidden"] == json.loads(params["model.hidden"])
        assert KEYS["optimizer.lr"]["low"] <= config["optimizer"]["lr"] <= 0.1
    stored = json.loads((searched / "study.json").read_text())
    assert stored["arms"] == ["none", *(f"tuned #{n}" for n in range(1, 9))]


def test_best_trial_is_printed_as_a_command_that_runs(searched: Path, tmp_path: Path) -> None:
    done = {n: value for n, (state, value, _, _) in trials(searched).items() if state == "COMPLETE"}
    best = max(done, key=done.__getitem__)
    output = (searched.parent / "output").read_text()
    assert f"best is #{best} with eval/accuracy = {done[best]:g}:" in output
    line = next(line for line in output.splitlines() if "rlplast train" in line)
    words = shlex.split(line)[1:]
    assert command(*words, "--out", tmp_path / "run").code == 0
    cell = arm_folders(searched)[f"seed-1/tuned #{best}"]
    assert evaluations(tmp_path / "run") == evaluations(cell)


# Interruptions.


@pytest.mark.parametrize(
    "at", [slow("seed-1/tuned #2"), "seed-1/tuned #5", slow("seed-1/tuned #8")]
)
def test_interrupted_search_goes_on_as_if_it_had_not_been(
    at: str, searched: Path, tmp_path: Path
) -> None:
    def stop(name: str, attempt: int) -> None:
        if name == at:
            raise KeyboardInterrupt

    config, out = search_study(tmp_path), tmp_path / "study"
    assert run_study(config, out, fault=stop)[0].code == 130
    outcome, started = run_study(config, out)
    assert outcome.code == 0 and started[0] == at
    assert trials(out) == trials(searched)


def test_search_that_is_done_runs_nothing_and_more_trials_run_alone(
    searched: Path, tmp_path: Path
) -> None:
    config, out = search_study(tmp_path, trials=6), tmp_path / "study"
    run_study(config, out)
    before = trials(out)
    outcome, started = run_study(config, out)
    assert (outcome.code, started) == (0, []) and f"{out} is done" in outcome.out
    _, started = run_study(search_study(tmp_path), out)
    assert {name.split("/")[1] for name in started} <= {"tuned #7", "tuned #8"}
    assert trials(out) == trials(searched) and before.items() <= trials(searched).items()


def test_changed_space_is_another_search(tmp_path: Path) -> None:
    out = tmp_path / "study"
    run_study(search_study(tmp_path, trials=2, sampler="random"), out)
    arms = {"tuned": {"sample": {"keys": {"optimizer.lr": [0.1, 0.2]}}}}
    outcome, started = run_study(search_study(tmp_path, arms, trials=2), out)
    assert outcome.code == 0 and len(started) >= 2


# Pruning.


def naive_medians(records: dict[int, Any], startup: int) -> dict[int, bool]:
    """Which trials the median rule stops, from their evaluations alone."""
    finished: list[dict[int, float]] = []
    stopped = {}
    for number, (_, _, _, values) in sorted(records.items()):
        steps, stopped[number] = sorted(values), False
        for place, step in enumerate(steps):
            others = sorted(run[step] for run in finished if step in run)
            ends = step % 1_000_000 == 3  # the last evaluation of a seed
            if len(finished) >= startup and others and not ends:
                middle = len(others) // 2
                median = (others[middle] + others[~middle]) / 2
                if max(values[s] for s in steps[: place + 1]) < median:
                    stopped[number] = True
                    assert place == len(steps) - 1
        if not stopped[number]:
            finished.append(values)
    return stopped


def test_trials_worse_than_the_median_are_stopped_and_no_others(searched: Path) -> None:
    records = trials(searched)
    expected = naive_medians(records, startup=3)
    assert {n: state == "PRUNED" for n, (state, *_) in records.items()} == expected
    assert any(expected.values())


def test_without_pruner_every_trial_comes_to_its_end(tmp_path: Path) -> None:
    out = tmp_path / "study"
    run_study(search_study(tmp_path, pruner="none", trials=5), out)
    records = trials(out)
    assert {state for state, *_ in records.values()} == {"COMPLETE"}
    assert all(len(values) == 8 for *_, values in records.values())


def test_process_of_a_pruned_trial_is_stopped_and_counts_as_finished(tmp_path: Path) -> None:
    # The first learns; the others do not, and are stopped long before their end.
    keys = {"optimizer.lr": [1e-2, 1e-9], "batch_size": [50, 51, 52, 53, 54]}
    long = BASE | {
        "stream": {"name": "single_task", "epochs": 80},
        "evaluate": {"every": "4 epochs"},
    }
    config, out = tmp_path / "study.yaml", tmp_path / "study"
    search = SEARCH | {"startup_trials": 1, "trials": 3, "sampler": "random", "seed": 6}
    arms = {"tuned": {"sample": {"keys": keys}}}
    config.write_text(yaml.safe_dump({"base": long, "arms": arms, "search": search}))
    outcome = command("study", config, "--out", out, "--jobs", 1)
    assert outcome.code == 0, outcome
    pruned = list(journal(out, "pruned"))
    states = {n: state for n, (state, *_) in trials(out).items()}
    assert pruned and not list(journal(out, "failed"))
    assert {f"seed-1/tuned #{n}" for n, state in states.items() if state == "PRUNED"} >= set(pruned)
    again = command("study", config, "--out", out)
    assert again.code == 0 and f"{out} is done" in again.out


# Failures.


def test_trial_whose_run_fails_counts_and_the_others_go_on(tmp_path: Path) -> None:
    def fail(name: str, attempt: int) -> int | None:
        return 1 if name == "seed-1/tuned #2" else None

    out = tmp_path / "study"
    outcome, started = run_study(search_study(tmp_path, trials=3), out, fault=fail)
    assert outcome.code == 1 and "failed: seed-1/tuned #2" in outcome.out
    assert started.count("seed-1/tuned #2") == 2 and "seed-2/tuned #2" not in started
    states = {n: state for n, (state, *_) in trials(out).items()}
    assert states[2] == "FAIL" and len(states) == 3 and "1 failed" in outcome.out
    assert "1 cell of trials failed. Such a trial counts, and is not tried again." in outcome.out
    cells = printed("show", out)["cells"]
    assert cells == {"failed": 1, "pruned": 1, "done": cells["done"]}


@pytest.mark.parametrize("failing", ["", "seed-1/tuned #1"], ids=["stopped", "failed"])
def test_search_goes_on_after_trials_that_equal_those_before(failing: str, tmp_path: Path) -> None:
    arms = {"tuned": {"sample": {"keys": {"optimizer.lr": [1e-2, 1e-9]}}}}
    search = {"sampler": "random", "startup_trials": 1, "trials": 9}
    out = tmp_path / "study"
    config = search_study(tmp_path, arms, **search)
    run_study(config, out, fault=lambda name, attempt: 2 if name == failing else None)
    states = {state for state, *_ in trials(out).values()}
    assert len(trials(out)) == 9 and {"FAIL" if failing else "PRUNED"} <= states
    failed, pruned = ([*journal(out, event)] for event in ("failed", "pruned"))
    assert len({*pruned}) == len(pruned) and {*failed} == ({failing} if failing else set())
    assert not {*failed} & {*pruned}


def test_equal_trials_run_once(tmp_path: Path) -> None:
    arms = {"tuned": {"sample": {"keys": {"optimizer.lr": [0.01, 0.02]}}}}
    out = tmp_path / "study"
    outcome, started = run_study(search_study(tmp_path, arms, trials=6, pruner="none"), out)
    assert outcome.code == 0 and len(started) == 4
    assert len(trials(out)) == 6
    assert len({(v, tuple(p.items())) for _, v, p, _ in trials(out).values()}) == 2


def test_metric_that_nothing_measures_is_named_with_the_nearest(tmp_path: Path) -> None:
    outcome, _ = run_study(search_study(tmp_path, metric="eval/acuracy"), tmp_path / "study")
    assert outcome.code == 2
    assert "search.metric = 'eval/acuracy'" in outcome.err and "'eval/accuracy'" in outcome.err


def test_missing_optuna_is_said_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    outcome, started = run_study(search_study(tmp_path), tmp_path / "study")
    assert (outcome.code, started) == (2, [])
    assert 'pip install "rlplast[search]"' in outcome.err


def test_arm_that_is_never_evaluated_is_refused(tmp_path: Path) -> None:
    base = BASE | {"evaluate": {"every": None}}
    outcome, started = run_study(search_study(tmp_path, base=base), tmp_path / "study")
    assert (outcome.code, started) == (2, [])
    assert "evaluate.every = null with search" in outcome.err
    assert not (tmp_path / "study").exists()


def test_search_that_died_before_its_plan_was_written_starts_again(tmp_path: Path) -> None:
    config, out = search_study(tmp_path, trials=1), tmp_path / "study"
    with killed_at_rename(1):
        run_study(config, out)
    assert (out / "search.log").exists() and not (out / "study.json").exists()
    assert run_study(config, out)[0].code == 0


def test_trial_that_equals_another_arm_is_that_one(tmp_path: Path) -> None:
    arms = {
        "plain": {"overrides": {"optimizer.lr": 0.01}},
        "tuned": {"sample": {"keys": {"optimizer.lr": [0.01]}}},
    }
    out = tmp_path / "study"
    outcome, started = run_study(search_study(tmp_path, arms, trials=1), out)
    assert (outcome.code, started) == (0, ["seed-1/plain", "seed-2/plain"])
    folders = arm_folders(out)
    last = [evaluations(folders[f"seed-{seed}/plain"])[-1] for seed in (1, 2)]
    assert trials(out)[1][1] == pytest.approx(sum(last) / 2)
    assert command("study", tmp_path / "study.yaml", "--plan").code == 0


# What is known before.


def test_plan_draws_as_many_as_there_are_trials(tmp_path: Path) -> None:
    with inline() as backend:
        outcome = command("study", search_study(tmp_path), "--out", tmp_path / "study", "--plan")
    assert (outcome.code, backend.started) == (0, [])
    assert "tuned #8" in outcome.out and "18 cells" in outcome.out
    assert "search: 8 trials of tuned, 2 runs each, for the highest eval/accuracy" in outcome.out


def test_plan_of_few_different_values_counts_these(tmp_path: Path) -> None:
    arms = {"tuned": {"sample": {"keys": {"optimizer.lr": [0.01, 0.02]}}}}
    outcome = command("study", search_study(tmp_path, arms), "--plan")
    assert outcome.code == 0 and "4 cells" in outcome.out


def test_shipped_demo_of_a_search_has_a_plan() -> None:
    outcome = command("study", "study/search_demo", "--plan")
    assert outcome.code == 0 and "42 cells" in outcome.out


def test_smoke_tries_one_draw_of_what_is_searched(tmp_path: Path) -> None:
    outcome = command("study", search_study(tmp_path), "--out", tmp_path / "smoke", "--smoke")
    assert outcome.code == 0, outcome
    assert "tuned #1" in outcome.out and "tuned #2" not in outcome.out


# The key.


def test_bad_value_is_named() -> None:
    for key, value in {"metric": "train/loss", "arm": "none", "trails": 3}.items():
        with pytest.raises(ConfigError, match=rf"search\.{key} = '{value}'|'{key}'"):
            StudyConfig.parse({"base": BASE, "arms": ARMS, "search": SEARCH | {key: value}})


def test_what_is_needed_is_named() -> None:
    for search, message in (
        ([], "search = \\[\\]: allowed is a mapping"),
        ({"trials": 3}, "search has no metric"),
        ({"metric": "eval/loss"}, "search has no trials"),
    ):
        with pytest.raises(ConfigError, match=message):
            StudyConfig.parse({"base": BASE, "arms": ARMS, "search": search})
    with pytest.raises(ConfigError, match="search: no arm has a sample"):
        StudyConfig.parse({"base": BASE, "arms": {"none": {"hooks": []}}, "search": SEARCH})
    with pytest.raises(ConfigError, match=r"arms\.tuned\.sample has no count"):
        StudyConfig.parse({"base": BASE, "arms": ARMS})


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"metric": "eval/accuracy"}, True),
        ({"metric": "eval/loss"}, False),
        ({"metric": "eval/a/loss"}, False),
        ({"metric": "eval/loss", "direction": "maximize"}, True),
        ({"metric": "eval/ece"}, False),
        ({"metric": "eval/ece", "direction": "maximize"}, True),
    ],
)
def test_direction_is_that_of_the_metric_unless_said(keys: dict[str, Any], expected: bool) -> None:
    assert SearchConfig.parse({"trials": 1, **keys}, ["a"]).maximizes is expected


def test_all_arms_with_a_sample_are_searched_unless_one_is_named() -> None:
    arms = ARMS | {"other": {"sample": {"count": 2, "keys": KEYS}}}
    both = StudyConfig.parse({"base": BASE, "arms": arms, "search": SEARCH})
    assert list(both.searched()) == ["tuned", "other"]
    assert [name for name, _ in both.expanded()] == ["none"]
    one = StudyConfig.parse({"base": BASE, "arms": arms, "search": SEARCH | {"arm": "tuned"}})
    assert list(one.searched()) == ["tuned"]
    assert [name for name, _ in one.expanded()] == ["none", "other #1", "other #2"]
