import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from rlplast.core.errors import ConfigError, DamagedFile
from rlplast.training import checkpoint
from rlplast.training.best import Best, best_checkpoint, improved, write_best
from rlplast.training.loop import Loop
from tests.core.toy import loop, run
from tests.runs import final


def test_losses_are_best_when_low_and_all_else_when_high() -> None:
    cases: list[tuple[Best | None, str, float, bool]] = [
        (None, "loss", 3.0, True),
        (Best("loss", 2.0, "step-1"), "loss", 1.9, True),
        (Best("loss", 2.0, "step-1"), "loss", 2.0, False),
        (Best("loss", 2.0, "step-1"), "loss", 2.1, False),
        (Best("stdlib/loss", 2.0, "step-1"), "stdlib/loss", 1.9, True),
        (Best("accuracy", 0.5, "step-1"), "accuracy", 0.6, True),
        (Best("accuracy", 0.5, "step-1"), "accuracy", 0.4, False),
        (Best("return_mean", -5.0, "step-1"), "return_mean", -4.0, True),
        (None, "loss", float("nan"), False),
        (None, "loss", float("-inf"), False),
        (Best("loss", 2.0, "step-1"), "loss", float("nan"), False),
        (Best("accuracy", 0.5, "step-1"), "loss", 9.0, True),  # the config names another one now
    ]
    for best, metric, value, expected in cases:
        found = improved(best, metric, {"other": 0.0, metric: value})
        assert found == (Best(metric, value) if expected else None)


def test_best_checkpoint_is_the_one_written_last_or_there_is_none_or_it_is_damaged(
    tmp_path: Path,
) -> None:
    for name in ("step-1", "best-2"):
        checkpoint.save(tmp_path / name, (1,), {}, {})
        write_best(tmp_path, Best("loss", 2.0, name))
    assert best_checkpoint(tmp_path) == tmp_path / "best-2"
    write_best(tmp_path, None)
    write_best(tmp_path, None)
    with pytest.raises(ConfigError, match=r"checkpoint\.best"):
        best_checkpoint(tmp_path)
    write_best(tmp_path, Best("loss", 2.0, "step-7"))
    with pytest.raises(DamagedFile, match="step-7"):
        best_checkpoint(tmp_path)
    for text in ("{", "[]", "{}", '{"checkpoint": 3}'):
        (tmp_path / "best.json").write_text(text)
        with pytest.raises(DamagedFile, match=r"best\.json"):
            best_checkpoint(tmp_path)


# In a run of 12 env_steps and 6 updates, one evaluation each; test_loop_resume.py kills such runs.

SCORES = {1: 5.0, 2: 3.0, 3: 4.0, 4: 2.0, 5: 2.0, 6: float("nan")}


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


def test_best_moment_is_kept_beside_the_newest(through: Path, tmp_path: Path) -> None:
    assert kept(through) == {"step-12": 6, "step-9": 4, "best-8": 4}
    when = {"env_steps": 8, "updates": 4}
    expected = {"metric": "loss", "value": 2.0, "checkpoint": "best-8", "clock": when}
    assert about(through) == expected
    assert best_checkpoint(through / "checkpoints").name == "best-8"
    run(best_loop(tmp_path, save="2 env_steps"))
    # At 8 env_steps one is saved before the update that is owed, and one after it.
    assert kept(tmp_path)[about(tmp_path)["checkpoint"]] == 4


def test_keeping_the_best_changes_nothing_in_training(through: Path, tmp_path: Path) -> None:
    run(best_loop(tmp_path, best=None))
    assert not (tmp_path / "checkpoints" / "best.json").exists()
    assert set(kept(tmp_path)) == {"step-12", "step-9"}
    without, having = final(tmp_path), final(through)
    assert without["state.json"] == having["state.json"] | {"best": None}
    for name in ("metrics", "receipts", "tensors.safetensors", "points.npy"):
        assert without[name] == having[name]


def test_score_that_no_evaluation_has_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"checkpoint\.best = 'los'"):
        run(best_loop(tmp_path, best="los"))
