"""MLflow: one run there for each run here, found again by a tag that has its id."""

import math
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rlplast.run.loggers.logger import About, flat
from rlplast.training.files import lock

__all__ = ["LIBRARY", "REMEDY", "MLflow", "start"]

LIBRARY = ("mlflow.tracking", "mlflow")  # a module, and the extra that has it

EXPERIMENT = "rlplast"  # unless MLFLOW_EXPERIMENT_NAME is set, or the run is a study's
REMEDY = "look at MLFLOW_TRACKING_URI"
ID = "rlplast.id"  # the tag
_STATUS = {"done": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}
_MOST_METRICS, _MOST_PARAMS = 1000, 100  # of one request
_SQLITE = "sqlite:///"
_PATIENCE = 120.0  # seconds for other processes that make the tables of one file
_FOREIGN = re.compile(r"[^\w\-. :/]", re.ASCII)  # characters that no name may have there


class MLflow:
    """Logs lines and receipts as metrics, whose step is env_steps or updates.

    Without MLFLOW_TRACKING_URI the store is a file of the run's folder, ``mlflow.db``.
    """

    def __init__(self, about: About) -> None:
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        store = f"{_SQLITE}{about.folder.resolve() / 'mlflow.db'}"
        uri = os.environ.get("MLFLOW_TRACKING_URI") or store
        study = about.study
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or study.get("study") or EXPERIMENT
        with _alone(uri):
            self._client = MlflowClient(tracking_uri=uri)
            known = self._client.get_experiment_by_name(name)
            experiment = known.experiment_id if known else self._client.create_experiment(name)
        found = self._client.search_runs([experiment], f"tags.`{ID}` = '{about.id}'")
        self.resumed = bool(found)
        self._axis = about.axis
        self._waiting: list[Any] = []
        if found:
            self._id = found[0].info.run_id
            self._client.update_run(self._id, status="RUNNING")
            return
        tags = {key: str(value) for key, value in study.items()} | {ID: about.id}
        self._id = self._client.create_run(experiment, tags=tags, run_name=about.name).info.run_id
        params = [Param(_FOREIGN.sub("_", k), v) for k, v in flat(about.config).items()]
        for part in _parts(params, _MOST_PARAMS):
            self._client.log_batch(self._id, params=part)

    def log(self, clock: Mapping[str, int], values: Mapping[str, float]) -> None:
        """Take one line, the clock's counters too; what is not finite is left out."""
        from mlflow.entities import Metric

        step, now = clock.get(self._axis, 0), int(time.time() * 1000)
        self._waiting += [
            Metric(_FOREIGN.sub("_", key), float(value), now, step)
            for key, value in {**clock, **values}.items()
            if math.isfinite(value)
        ]

    def flush(self) -> None:
        """Send what waits."""
        waiting, self._waiting = self._waiting, []
        for part in _parts(waiting, _MOST_METRICS):
            self._client.log_batch(self._id, metrics=part)

    def close(self, status: str) -> None:
        """Say how the run ended."""
        self._client.set_terminated(self._id, _STATUS[status])


start = MLflow


def _parts(items: Sequence[Any], most: int) -> list[Sequence[Any]]:
    return [items[i : i + most] for i in range(0, len(items), most)]


@contextmanager
def _alone(uri: str) -> Iterator[None]:
    """Keep others away from a store that is a file while its tables are made."""
    path = Path(f"{uri.removeprefix(_SQLITE)}.lock")
    until, taken = time.monotonic() + _PATIENCE, None
    while uri.startswith(_SQLITE) and taken is None and time.monotonic() < until:
        path.parent.mkdir(parents=True, exist_ok=True)
        taken = lock(path)
        if taken is None:
            time.sleep(0.1)
    try:
        yield
    finally:
        if taken is not None:
            taken.close()
