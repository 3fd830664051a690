import json
from pathlib import Path

import pytest

from rlplast.core.errors import ConfigError, DamagedFile
from rlplast.training import checkpoint
from rlplast.training.best import Best, best_checkpoint, improved, write_best


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


def test_score_that_no_evaluation_has_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="'accurcy'"):
        improved(None, "accurcy", {"accuracy": 0.5, "loss": 1.0})


def test_best_checkpoint_is_the_one_written_last(tmp_path: Path) -> None:
    for name in ("step-1", "best-2"):
        checkpoint.save(tmp_path / name, (1,), {}, {})
        write_best(tmp_path, Best("loss", 2.0, name))
    assert best_checkpoint(tmp_path) == tmp_path / "best-2"
    assert json.loads((tmp_path / "best.json").read_text()) == {
        "metric": "loss",
        "value": 2.0,
        "checkpoint": "best-2",
        "clock": {},
    }
    write_best(tmp_path, None)
    write_best(tmp_path, None)
    with pytest.raises(ConfigError, match=r"checkpoint\.best"):
        best_checkpoint(tmp_path)


def test_unreadable_file_or_lost_checkpoint_is_damaged(tmp_path: Path) -> None:
    for text in ("{", "[]", "{}", '{"checkpoint": 3}'):
        (tmp_path / "best.json").write_text(text)
        with pytest.raises(DamagedFile, match=r"best\.json"):
            best_checkpoint(tmp_path)
    write_best(tmp_path, Best("loss", 2.0, "step-7"))
    with pytest.raises(DamagedFile, match="step-7"):
        best_checkpoint(tmp_path)
