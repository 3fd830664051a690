import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import pytest

from rlplast.core.errors import ConfigError
from rlplast.training import checkpoint
from rlplast.training.best import best_checkpoint
from rlplast.training.loop import Loop
from tests.core.toy import interrupted_and_resumed, killed_and_resumed, loop, run
from tests.marks import every_step
from tests.runs import Killed, at_step, final

# One score per evaluation of a run of 12 env_steps and 6 updates: its lowest is at update 4.
SCORES = {1: 5.0, 2: 3.0, 3: 4.0, 4: 2.0, 5: 2.0, 6: float("nan")}
STEPS = 18


def best_loop(folder: Path, best: str | None = "loss", save: str = "3 env_steps") -> Loop:
    made = loop(folder, total="12 env_steps", evaluate="1 updates", metrics=None, save=save)
    made.intervals = dataclasses.replace(made.intervals, best=best)
    toy: Any = made.trainable
    toy.evaluate = lambda number, episodes: {"loss": SCORES[toy.clock.updates]}
    return made


def kept(folder: Path) -> dict[str, int]:
    """Return the updates of every checkpoint there is."""
    found = checkpoint.complete(folder / "checkpoints")
    return {path.name: checkpoint.load(path)[1]["clock"]["updates"] for path in found}


def about(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "checkpoints" / "best.json").read_text())


@pytest.fixture(scope="module")
def through(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("through")
    run(best_loop(folder))
    return folder


def test_best_moment_is_kept_beside_the_newest(through: Path) -> None:
    assert kept(through) == {"step-12": 6, "step-9": 4, "best-8": 4}
    when = {"env_steps": 8, "updates": 4}
    about_it = {"metric": "loss", "value": 2.0, "checkpoint": "best-8", "clock": when}
    assert about(through) == about_it
    assert best_checkpoint(through / "checkpoints").name == "best-8"


def test_checkpoint_due_at_the_best_moment_is_the_best_one(tmp_path: Path) -> None:
    run(best_loop(tmp_path, save="2 env_steps"))
    # At 8 env_steps one is saved before the update that is owed, and one after it.
    assert about(tmp_path)["checkpoint"] in kept(tmp_path)
    assert kept(tmp_path)[about(tmp_path)["checkpoint"]] == 4


def test_keeping_the_best_changes_nothing_in_training(through: Path, tmp_path: Path) -> None:
    run(best_loop(tmp_path, best=None))
    assert not (tmp_path / "checkpoints" / "best.json").exists()
    assert set(kept(tmp_path)) == {"step-12", "step-9"}
    without, having = final(tmp_path), final(through)
    assert without["state.json"] == having["state.json"] | {"best": None}
    for name in ("metrics", "receipts", "tensors.safetensors", "points.npy"):
        assert without[name] == having[name]


@every_step(STEPS)
def test_run_killed_after_any_step_and_resumed_keeps_the_same_best(
    step: int, through: Path, tmp_path: Path
) -> None:
    killed_and_resumed(lambda: best_loop(tmp_path), step)
    assert final(tmp_path) == final(through)
    assert about(tmp_path) == about(through)
    assert kept(tmp_path) == kept(through)


def test_run_interrupted_at_every_step_keeps_the_same_best(through: Path, tmp_path: Path) -> None:
    interrupted_and_resumed(lambda: best_loop(tmp_path), STEPS - 1)
    assert final(tmp_path) == final(through)
    assert kept(tmp_path)[about(tmp_path)["checkpoint"]] == 4


def test_damaged_best_is_found_again(through: Path, tmp_path: Path) -> None:
    def damage() -> None:
        while made.saving:
            time.sleep(0.001)
        newest, _ = checkpoint.newest(tmp_path / "checkpoints")
        assert newest.name == "best-8"
        (newest / "state.json").write_text("{}")
        raise Killed

    made = best_loop(tmp_path)
    made.observer = at_step(12, damage)
    with pytest.raises(Killed):
        run(made)
    made = best_loop(tmp_path)
    assert about(tmp_path)["value"] == 3.0  # what was the best up to the checkpoint before
    run(made)
    assert final(tmp_path) == final(through)
    assert about(tmp_path) == about(through)


def test_score_that_no_evaluation_has_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"checkpoint\.best = 'los'"):
        run(best_loop(tmp_path, best="los"))
