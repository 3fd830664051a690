"""TensorBoard, Weights & Biases, MLflow and Trackio, offline: what a run's lines become there."""

import json
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rlplast.core.clock import Time
from rlplast.core.errors import ConfigError, RlplastError
from rlplast.run import api
from rlplast.run.loggers import logger as loggers
from tests.run import wandb_files
from tests.runs import Killed, at_step, final, kill, lines
from tests.supervised_runs import small_supervised

pytestmark = pytest.mark.filterwarnings(
    "ignore:The ``noload`` loader strategy is deprecated"  # MLflow's tables, with SQLAlchemy 2.1
)
AFTER_A_CHECKPOINT = 23  # steps: lines are written after the checkpoint of update 20
STUDY = {"study": "trial", "task": "digits", "seed": 3, "arm": "fire"}
Series = list[tuple[int, float]]


@pytest.fixture(scope="module", autouse=True)
def offline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRACKIO_DIR", str(tmp_path_factory.mktemp("trackio")))  # read on import
        for name in ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL"):
            patch.delenv(name, raising=False)
        patch.setenv("WANDB_MODE", "offline")
        patch.setenv("WANDB_SILENT", "true")
        for name in ("WANDB_PROJECT", "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
            patch.delenv(name, raising=False)
        yield


def config(*to: str, **changes: Any) -> dict[str, Any]:
    return small_supervised(log={"every": "1 epochs", "to": list(to)}, **changes)


@pytest.fixture(scope="module")
def plain(run_of: Callable[[str], Path]) -> Path:
    """A run without loggers; tests only read it."""
    return run_of("supervised")


@pytest.fixture(scope="module")
def logged(offline: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same one with all, killed after a checkpoint and resumed; a study's cell."""
    folder = tmp_path_factory.mktemp("loggers") / "logged"
    given = config("tensorboard", "wandb", "mlflow", "trackio")
    with pytest.raises(Killed):
        api.train(given, folder, observer=at_step(AFTER_A_CHECKPOINT, kill), study=STUDY)
    assert api.resume(folder).info["status"] == "done"
    return folder


@pytest.fixture
def shared(logged: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The store of MLflow of that run is everybody's, as making another one takes seconds."""
    uri = f"sqlite:///{logged / 'mlflow.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    return uri


def series_in(rows: list[dict[str, Any]], key: str) -> Series:
    return [(row["updates"], row[key]) for row in rows if key in row]


def series(run: Path, key: str) -> Series:
    return series_in(lines(run, "metrics"), key)


def fired(run: Path) -> list[int]:
    return [r["clock"]["updates"] for r in lines(run, "receipts") if r["method"] == "fire"]


def mlflow_runs(store: str) -> list[tuple[Any, Any]]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=store)
    experiments = [e.experiment_id for e in client.search_experiments()]
    return [(client, run) for run in client.search_runs(experiments)]


def mlflow_of(store: str, name: str) -> tuple[Any, Any]:
    (found,) = (pair for pair in mlflow_runs(store) if pair[1].info.run_name == name)
    return found


def mlflow_series(store: str, name: str, key: str) -> Series:
    client, found = mlflow_of(store, name)
    return [(m.step, m.value) for m in client.get_metric_history(found.info.run_id, key)]


def trackio_rows(run: Path) -> list[dict[str, Any]]:
    from trackio.sqlite_storage import SQLiteStorage

    return SQLiteStorage.get_logs("rlplast", trackio_name(run))


def trackio_name(run: Path) -> str:
    identity = json.loads((run / "run.json").read_text())["id"]
    return f"{run.name}-{identity[:8]}"


# Training does not notice.


def test_loggers_change_nothing_of_a_run_killed_and_resumed(plain: Path, logged: Path) -> None:
    assert final(logged) == final(plain)


def logger_is(patch: pytest.MonkeyPatch, act: Callable[[str], object]) -> None:
    """Put a logger in the place of all, which does this when a method of a name is called."""
    names = ("log", "flush", "close")
    made = SimpleNamespace(resumed=None, **{n: lambda *_, n=n: act(n) for n in names})
    module = SimpleNamespace(LIBRARY=("json", ""), start=lambda about: act("start") or made)
    patch.setattr(loggers, "_module", lambda name: module)


def test_draws_of_a_logger_move_no_generator(
    tmp_path: Path, plain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def draw(name: str) -> None:
        random.random()
        np.random.random()
        np.random.seed(0)

    logger_is(monkeypatch, draw)
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


@pytest.mark.parametrize("rows_of", [wandb_files.history, trackio_rows])
def test_wandb_and_trackio_have_every_line_and_receipt_once_in_order(
    rows_of: Callable[[Path], list[dict[str, Any]]], logged: Path
) -> None:
    rows = rows_of(logged)
    for key in ("train/loss", "eval/accuracy", "metric/srank/model"):
        assert series_in(rows, key) == series(logged, key)
    assert [step for step, _ in series_in(rows, "receipt/fire/model/sfe")] == fired(logged)
    assert len(rows) == len(lines(logged, "metrics")) + len(lines(logged, "receipts"))
    steps = [row["updates"] for row in rows]
    assert steps == sorted(steps) == [row.get("step", row["updates"]) for row in rows]


def test_wandb_run_has_name_group_tags_config_axis_and_ends_and_stays_one_run(logged: Path) -> None:
    def of(kind: str) -> list[Any]:
        found = wandb_files.records(logged)
        return [getattr(r, kind) for r in found if r.WhichOneof("record_type") == kind]

    runs, identity = of("run"), json.loads((logged / "run.json").read_text())["id"]
    assert {run.run_id for run in runs} == {identity}
    last = runs[-1]
    assert (last.display_name, last.run_group, last.job_type) == ("logged", "trial", "fire")
    assert list(last.tags) == ["arm:fire", "task:digits", "seed:3"]
    items = [item for record in of("config") for item in record.update]
    stored = {item.key: json.loads(item.value_json) for item in items}
    assert stored["optimizer"]["lr"] == 3e-3 and stored["hooks"][0]["method"] == "fire"
    assert stored["study"] == STUDY
    axes = {(m.name or m.glob_name, m.step_metric) for m in of("metric")}
    assert axes >= {("updates", ""), ("*", "updates")}
    assert [end.exit_code for end in of("exit")] == [1, 0]


# MLflow.


def test_mlflow_has_every_line_once(logged: Path, shared: str) -> None:
    for key in ("train/loss", "eval/accuracy", "metric/srank/model"):
        assert mlflow_series(shared, "logged", key) == series(logged, key)
    written = {row["updates"] for row in lines(logged, "metrics")}
    written |= {row["clock"]["updates"] for row in lines(logged, "receipts")}
    # Equal points count once there.
    steps = [int(x) for _, x in mlflow_series(shared, "logged", "updates")]
    assert steps == sorted(steps) and set(steps) == written
    receipts = mlflow_series(shared, "logged", "receipt/fire/model/sfe")
    assert [step for step, _ in receipts] == fired(logged)


def test_mlflow_run_has_name_experiment_params_tags_and_status(logged: Path, shared: str) -> None:
    client, run = mlflow_of(shared, "logged")
    assert client.get_experiment(run.info.experiment_id).name == "trial"
    assert run.info.status == "FINISHED"
    assert run.data.params["optimizer.lr"] == "0.003"
    assert json.loads(run.data.params["hooks"])[0] == {"method": "fire", "on": "phase_start"}
    assert {k: run.data.tags[k] for k in STUDY} == {k: str(v) for k, v in STUDY.items()}


def test_mlflow_goes_to_the_store_of_the_environment_and_says_what_failed(
    tmp_path: Path, shared: str
) -> None:
    with pytest.raises(Killed):
        api.train(config("mlflow"), tmp_path / "failed", observer=at_step(9, kill))
    assert mlflow_of(shared, "failed")[1].info.status == "FAILED"
    assert not (tmp_path / "failed" / "mlflow.db").exists()


def test_value_that_is_not_finite_is_left_out_of_mlflow(tmp_path: Path, shared: str) -> None:
    from rlplast.run.loggers import mlflow_logger

    about = loggers.About(tmp_path / "odd", "x", {"a": 1}, ("updates",), {})
    log = mlflow_logger.start(about)
    log.log({"updates": 1}, {"good": 1.0, "bad": float("nan"), "worse [%]": float("inf")})
    log.log({"updates": 2}, {"size [%]": 3.0})
    log.flush()
    log.close("done")
    _, run = mlflow_of(shared, "odd")
    assert run.data.metrics == {"updates": 2.0, "good": 1.0, "size ___": 3.0}


# Trackio.


def test_trackio_run_has_config_and_group(logged: Path) -> None:
    import trackio

    runs = {run.name: run for run in trackio.Api().runs("rlplast")}
    stored = runs[trackio_name(logged)].config
    assert stored is not None and stored["_Group"] == "trial"
    assert stored["optimizer"]["lr"] == 3e-3 and stored["study"] == STUDY


# Failures, and a run that was branched.


def test_branched_run_is_shown_from_its_start_though_the_first_start_failed(
    tmp_path: Path, shared: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import wandb

    prefix, arm, stop = tmp_path / "prefix", tmp_path / "arm", (Time(12, "updates"),)
    api.train(config(), prefix, until=stop)
    api.branch(prefix, arm, api.read_config(config("wandb", "mlflow", "trackio")), stop, STUDY)

    def fail(**given: Any) -> None:
        (Path(given["dir"]) / "wandb").mkdir()
        raise ConnectionError("no such host")

    steps: list[object] = []
    with monkeypatch.context() as patch:
        patch.setattr(wandb, "init", fail)
        with pytest.raises(RlplastError, match="WANDB_MODE=offline, then `rlplast resume"):
            api.resume(arm, observer=steps.append)
    assert steps == []
    api.resume(arm)
    expected = series(arm, "train/loss")
    assert min(expected)[0] < 12
    for rows in (wandb_files.history(arm), trackio_rows(arm)):
        assert series_in(rows, "train/loss") == expected
    assert mlflow_series(shared, "arm", "train/loss") == expected


def test_missing_package_stops_a_run_before_its_folder_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    libraries = {"wandb": "wandb.sdk", "mlflow": "mlflow.tracking", "trackio": "trackio"}
    for name, module in libraries.items():
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(ConfigError, match=rf'pip install "rlplast\[{name}\]"'):
            api.train(config(name), tmp_path / "run")
    for names, message in ((["wandbb"], "'wandb'"), (["wandb", "wandb"], "each once")):
        with pytest.raises(ConfigError, match=rf"log\.to.*{message}"):
            api.train(config(*names), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("method", ["log", "close"])
def test_logger_that_fails_is_let_go_with_one_warning(
    method: str, tmp_path: Path, plain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def note(name: str) -> None:
        calls.append(name)
        if name == method:
            raise ConnectionError("the network\nis down")

    logger_is(monkeypatch, note)
    with pytest.warns(RuntimeWarning, match=r"wandb takes no.*the network is down") as warned:
        api.train(config("wandb"), tmp_path / "run")
    assert len(warned) == 1 and calls.count(method) == 1
    assert final(tmp_path / "run") == final(plain)
