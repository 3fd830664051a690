"""A study whose cells, in processes of their own, log to one MLflow store and W&B."""

from pathlib import Path

import pytest

from tests.cli.commands import command
from tests.run import wandb_files
from tests.run.test_loggers import mlflow_runs, series
from tests.study.inline import arm_folders, write_study
from tests.supervised_runs import small_supervised


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated")
def test_cells_that_begin_at_once_share_a_store_and_say_where_they_belong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"sqlite:///{tmp_path / 'shared.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("WANDB_MODE", "offline")
    base = small_supervised(log={"every": "1 epochs", "to": ["wandb", "mlflow"]})
    arms = {"none": {"hooks": []}, "late": {"hooks": [{"method": "fire", "at": "50%"}]}}
    arms["apart"] = {"hooks": [], "overrides": {"batch_size": 50}}
    config = write_study(tmp_path, base, arms, jobs=2)
    outcome = command("study", config, "--out", tmp_path / "study")
    assert outcome.code == 0, outcome
    runs = mlflow_runs(uri)
    logged = {(r.data.tags["arm"], r.data.tags["seed"], r.info.status) for _, r in runs}
    expected = {(arm, "3", "FINISHED") for arm in ("none", "late", "apart", "prefix")}
    assert logged == expected and len(runs) == 4
    assert {client.get_experiment(r.info.experiment_id).name for client, r in runs} == {"study"}
    for name, folder in arm_folders(tmp_path / "study").items():
        history = wandb_files.history(folder)
        logged = [(r["updates"], r["train/loss"]) for r in history if "train/loss" in r]
        assert logged == series(folder, "train/loss"), name
