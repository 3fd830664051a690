"""TensorBoard, Weights & Biases and MLflow, offline: what a run's lines become there."""

import json
import random
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rlplast.core.errors import ConfigError, RlplastError
from rlplast.run import api
from rlplast.run.loggers import logger as loggers
from tests.run import wandb_files
from tests.runs import Killed, at_step, final, kill
from tests.supervised_runs import small_supervised

pytestmark = pytest.mark.filterwarnings(
    "ignore:The ``noload`` loader strategy is deprecated"  # MLflow's tables, with SQLAlchemy 2.1
)
AFTER_A_CHECKPOINT = 23  # steps: lines are written after the checkpoint of update 20
STUDY = {"study": "trial", "task": "digits", "seed": 3, "arm": "fire"}


@pytest.fixture(scope="module", autouse=True)
def offline() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_MODE", "offline")
        patch.setenv("WANDB_SILENT", "true")
        for name in ("WANDB_PROJECT", "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
            patch.delenv(name, raising=False)
        yield


def config(*to: str, **changes: Any) -> dict[str, Any]:
    return small_supervised(log={"every": "1 epochs", "to": list(to)}, **changes)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without loggers; tests only read it."""
    folder = tmp_path_factory.mktemp("loggers") / "plain"
    api.train(small_supervised(), folder)
    return folder


@pytest.fixture(scope="module")
def logged(offline: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same one with all three, killed after a checkpoint and resumed; a study's cell."""
    folder = tmp_path_factory.mktemp("loggers") / "logged"
    given = config("tensorboard", "wandb", "mlflow")
    with pytest.raises(Killed):
        api.train(given, folder, observer=at_step(AFTER_A_CHECKPOINT, kill), study=STUDY)
    assert api.resume(folder).info["status"] == "done"
    return folder


def rows(run: Path, file: str = "metrics") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / f"{file}.jsonl").read_text().splitlines()]


def series(run: Path, key: str) -> list[tuple[int, float]]:
    return [(row["updates"], row[key]) for row in rows(run) if key in row]


def mlflow_runs(uri: str) -> list[Any]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    found = [e.experiment_id for e in client.search_experiments()]
    return [(client, run) for run in client.search_runs(found)]


def mlflow_of(run: Path) -> Any:
    (found,) = mlflow_runs(f"sqlite:///{run / 'mlflow.db'}")
    return found


def mlflow_series(run: Path, key: str) -> list[tuple[int, float]]:
    client, found = mlflow_of(run)
    return [(m.step, m.value) for m in client.get_metric_history(found.info.run_id, key)]


# Training does not notice.


def test_loggers_change_nothing_of_a_run_killed_and_resumed(plain: Path, logged: Path) -> None:
    assert final(logged) == final(plain)


class Drawing:
    """A logger that draws from every global generator."""

    resumed = None

    def __init__(self, about: loggers.About) -> None:
        self.draw()

    def draw(self, *given: object) -> None:
        random.random()
        np.random.random()
        np.random.seed(0)

    log = receipt = flush = close = draw


def test_draws_of_a_logger_move_no_generator(
    tmp_path: Path, plain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = SimpleNamespace(check=lambda: None, start=Drawing, REMEDY="")
    monkeypatch.setattr(loggers, "_module", lambda name: module)
    random.seed(5)
    np.random.seed(5)
    api.train(config("wandb"), tmp_path / "run")
    mine, numbers = random.random(), np.random.random()
    random.seed(5)
    np.random.seed(5)
    assert (mine, numbers) == (random.random(), np.random.random())
    assert final(tmp_path / "run") == final(plain)


# TensorBoard.


def test_tensorboard_shows_what_a_resumed_run_wrote_last(logged: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(logged))
    events.Reload()
    shown = [(event.step, event.value) for event in events.Scalars("train/loss")]
    assert shown == [(step, pytest.approx(x)) for step, x in series(logged, "train/loss")]


# Weights & Biases.


def test_wandb_has_every_line_and_receipt_once_in_order(logged: Path) -> None:
    history = wandb_files.history(logged)
    for key in ("train/loss", "eval/accuracy", "metric/srank/model"):
        assert [(r["updates"], r[key]) for r in history if key in r] == series(logged, key)
    fired = [r["updates"] for r in history if "receipt/fire/model/sfe" in r]
    assert fired == [
        r["clock"]["updates"] for r in rows(logged, "receipts") if r["method"] == "fire"
    ]
    assert len(history) == len(rows(logged)) + len(rows(logged, "receipts"))
    steps = [row["updates"] for row in history]
    assert steps == sorted(steps)


def test_wandb_run_has_name_group_tags_and_config_and_stays_one_run(logged: Path) -> None:
    records = wandb_files.records(logged)
    runs = [r.run for r in records if r.WhichOneof("record_type") == "run"]
    identity = json.loads((logged / "run.json").read_text())["id"]
    assert {run.run_id for run in runs} == {identity}
    last = runs[-1]
    assert (last.display_name, last.run_group, last.job_type) == ("logged", "trial", "fire")
    assert list(last.tags) == ["arm:fire", "task:digits", "seed:3"]
    stored = {
        item.key: json.loads(item.value_json)
        for record in records
        if record.WhichOneof("record_type") == "config"
        for item in record.config.update
    }
    assert stored["optimizer"]["lr"] == 3e-3 and stored["hooks"][0]["method"] == "fire"
    assert stored["study"] == STUDY


def test_wandb_draws_lines_over_the_clock(logged: Path) -> None:
    metrics = [
        r.metric for r in wandb_files.records(logged) if r.WhichOneof("record_type") == "metric"
    ]
    assert {(m.name or m.glob_name, m.step_metric) for m in metrics} >= {
        ("updates", ""),
        ("*", "updates"),
    }


def test_wandb_is_told_how_each_process_ended(logged: Path) -> None:
    ends = [r.exit for r in wandb_files.records(logged) if r.WhichOneof("record_type") == "exit"]
    assert [end.exit_code for end in ends] == [1, 0]


# MLflow.


def test_mlflow_has_every_line_once(logged: Path) -> None:
    for key in ("train/loss", "eval/accuracy", "metric/srank/model"):
        assert mlflow_series(logged, key) == series(logged, key)
    lines = [row["updates"] for row in rows(logged)]
    receipts = [row["clock"]["updates"] for row in rows(logged, "receipts")]
    steps = [int(x) for _, x in mlflow_series(logged, "updates")]  # equal points count once there
    assert steps == sorted(steps) and set(steps) == {*lines, *receipts}
    assert [step for step, _ in mlflow_series(logged, "receipt/fire/model/sfe")] == [
        row["clock"]["updates"] for row in rows(logged, "receipts") if row["method"] == "fire"
    ]


def test_mlflow_run_has_name_experiment_params_tags_and_status(logged: Path) -> None:
    client, run = mlflow_of(logged)
    assert client.get_experiment(run.info.experiment_id).name == "trial"
    assert (run.info.run_name, run.info.status) == ("logged", "FINISHED")
    assert run.data.params["optimizer.lr"] == "0.003"
    assert json.loads(run.data.params["hooks"])[0] == {"method": "fire", "on": "phase_start"}
    assert {k: run.data.tags[k] for k in STUDY} == {k: str(v) for k, v in STUDY.items()}


def test_mlflow_goes_to_the_store_of_the_environment_and_says_what_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"sqlite:///{tmp_path / 'shared.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    api.train(config("mlflow"), tmp_path / "one")
    with pytest.raises(Killed):
        api.train(config("mlflow"), tmp_path / "two", observer=at_step(9, kill))
    found = {run.info.run_name: run.info.status for _, run in mlflow_runs(uri)}
    assert found == {"one": "FINISHED", "two": "FAILED"}
    assert not (tmp_path / "one" / "mlflow.db").exists()


def test_value_that_is_not_finite_is_left_out_of_mlflow(tmp_path: Path) -> None:
    from rlplast.run.loggers import mlflow_logger

    about = loggers.About(tmp_path, "x", {"a": 1}, ("updates",), {})
    log = mlflow_logger.start(about)
    log.log({"updates": 1}, {"good": 1.0, "bad": float("nan"), "worse [%]": float("inf")})
    log.log({"updates": 2}, {"size [%]": 3.0})
    log.flush()
    log.close("done")
    _, run = mlflow_of(tmp_path)
    assert run.data.metrics == {"updates": 2.0, "good": 1.0, "size ___": 3.0}


# A run that was branched.


def test_branched_run_is_shown_from_its_start(tmp_path: Path) -> None:
    from rlplast.core.clock import Time

    stop = (Time(12, "updates"),)
    api.train(config(), tmp_path / "prefix", until=stop)
    given = api.read_config(config("wandb", "mlflow"))
    api.branch(tmp_path / "prefix", tmp_path / "arm", given, stop, STUDY)
    api.resume(tmp_path / "arm")
    expected = series(tmp_path / "arm", "train/loss")
    assert min(expected)[0] < 12
    history = wandb_files.history(tmp_path / "arm")
    assert [(r["updates"], r["train/loss"]) for r in history if "train/loss" in r] == expected
    assert mlflow_series(tmp_path / "arm", "train/loss") == expected


def test_branched_run_is_shown_from_its_start_though_the_first_start_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import wandb

    from rlplast.core.clock import Time

    stop = (Time(12, "updates"),)
    api.train(config(), tmp_path / "prefix", until=stop)
    api.branch(tmp_path / "prefix", tmp_path / "arm", api.read_config(config("wandb")), stop)

    def fail(**given: Any) -> None:
        (Path(given["dir"]) / "wandb").mkdir()
        raise ConnectionError("no such host")

    with monkeypatch.context() as patch:
        patch.setattr(wandb, "init", fail)
        with pytest.raises(RlplastError, match="WANDB_MODE=offline, then `rlplast resume"):
            api.resume(tmp_path / "arm")
    api.resume(tmp_path / "arm")
    history = wandb_files.history(tmp_path / "arm")
    logged = [(r["updates"], r["train/loss"]) for r in history if "train/loss" in r]
    assert logged == series(tmp_path / "arm", "train/loss")


# Failures.


def test_unknown_logger_is_named_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"log\.to\[0\] = 'wandbb': did you mean 'wandb'"):
        api.read_config({"kind": "supervised", "log": {"to": ["wandbb"]}})
    with pytest.raises(ConfigError, match=r"log\.to = .*: allowed is each once"):
        api.read_config({"kind": "supervised", "log": {"to": ["wandb", "wandb"]}})


@pytest.mark.parametrize(
    ("name", "module"), [("wandb", "wandb.sdk"), ("mlflow", "mlflow.tracking")]
)
def test_missing_package_stops_a_run_before_its_folder_is_made(
    name: str, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=rf'pip install "rlplast\[{name}\]"'):
        api.train(config(name), tmp_path / "run")
    assert not (tmp_path / "run").exists()


class Failing:
    """A logger of which one method raises."""

    resumed = None

    def __init__(self, method: str) -> None:
        self.method, self.calls = method, []

    def __getattr__(self, name: str) -> Any:
        def call(*given: object) -> None:
            self.calls.append(name)
            if name == self.method:
                raise ConnectionError("the network\nis down")

        return call


@pytest.mark.parametrize("method", ["log", "receipt", "flush", "close"])
def test_logger_that_fails_is_let_go_with_one_warning(
    method: str, tmp_path: Path, plain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = Failing(method)
    module = SimpleNamespace(check=lambda: None, start=lambda about: failing, REMEDY="")
    monkeypatch.setattr(loggers, "_module", lambda name: module)
    with pytest.warns(
        RuntimeWarning, match=r"wandb takes no more lines .*the network is down"
    ) as warned:
        api.train(config("wandb"), tmp_path / "run")
    assert len(warned) == 1 and failing.calls.count(method) == 1
    assert final(tmp_path / "run") == final(plain)


def test_logger_that_cannot_be_started_stops_the_run_and_resume_begins_it(
    tmp_path: Path, plain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(about: loggers.About) -> None:
        raise ConnectionError("no such host")

    steps: list[object] = []
    with monkeypatch.context() as patch:
        module = SimpleNamespace(check=lambda: None, start=start, REMEDY="plug it in")
        patch.setattr(loggers, "_module", lambda name: module)
        message = (
            r"log\.to: mlflow could not be started \(no such host\): plug it in, then `rlplast "
        )
        with pytest.raises(RlplastError, match=message):
            api.train(config("mlflow"), tmp_path / "run", observer=steps.append)
    assert steps == []
    assert api.resume(tmp_path / "run").info["status"] == "done"
    assert final(tmp_path / "run") == final(plain)


def test_receipts_become_numbers() -> None:
    row: Mapping[str, Any] = {
        "method": "cbp", "network": "q", "clock": {"updates": 3}, "sfe": 0.5, "dfi_after": None,
        "optimizer_policy": "keep", "units": {"fc1": 2, "fc2": 3},
    }  # fmt: skip
    assert loggers.receipt_values(row) == {"receipt/cbp/q/sfe": 0.5, "receipt/cbp/q/units_reset": 5}
