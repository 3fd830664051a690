"""Loggers: services such as W&B that get a run's lines while it runs.

A line goes to the run's files first, then to loggers. One that fails is dropped with a warning, and
the run goes on. Loggers leave random generators alone.
"""

import dataclasses
import importlib
import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rlplast.core.errors import RlplastError
from rlplast.core.optional import import_optional
from rlplast.core.rng import preserve_global_rng
from rlplast.run.differences import leaves
from rlplast.run.info import reporting_outcome
from rlplast.run.read import read_lines
from rlplast.training import distributed
from rlplast.training.config import RunConfig
from rlplast.training.run_folder import RunFolder

__all__ = ["About", "Logger", "check_loggers", "logged", "receipt_values"]


@dataclass(frozen=True)
class About:
    """What a logger knows of a run.

    The id stays after every resume; ``study``, of a study's cell, has ``study``, ``task``, ``seed``
    and ``arm``.
    """

    folder: Path
    id: str
    config: Mapping[str, Any]
    units: Sequence[str]
    study: Mapping[str, Any]

    @property
    def name(self) -> str:
        """What people call the run: its folder's name."""
        return self.folder.resolve().name

    @property
    def axis(self) -> str:
        """The counter that lines are drawn over."""
        return "env_steps" if "env_steps" in self.units else "updates"


class Logger(Protocol):
    """Shows a run somewhere.

    ``resumed``: whether it has the lines of earlier processes; None for one that hides repeats
    itself.
    """

    resumed: bool | None

    def log(self, clock: Mapping[str, int], values: Mapping[str, float]) -> None:
        """Take one line or receipt: the clock's counters, and numbers by name."""

    def flush(self) -> None:
        """Show what was taken."""

    def close(self, status: str) -> None:
        """End the log of a run that is done, interrupted or failed."""


def check_loggers(config: RunConfig) -> None:
    """Check that the packages of a run's loggers are there, else raise ConfigError."""
    for name in config.log.to:
        import_optional(*_module(name).LIBRARY)


def _module(name: str) -> Any:
    return importlib.import_module(f"rlplast.run.loggers.{name}_logger")


@contextmanager
def logged(folder: RunFolder, config: RunConfig, info: Mapping[str, Any]) -> Iterator[None]:
    """Start a run's loggers, give them its lines, and close them with its outcome.

    The folder is cut back to where the run goes on; `info` is its run.json.

    Raises:
        RlplastError: if one cannot be started.
    """
    names = config.log.to if distributed.rank() == 0 else []
    about = About(
        folder.path,
        str(info.get("id") or folder.path.resolve().name),
        dataclasses.asdict(config),
        config.units,
        info.get("study", {}),
    )
    listeners: dict[str, _Listener] = {}

    def close(ended: str) -> None:
        with suppress(RlplastError):  # the disk is full: another error reports it
            folder.flush()
        folder.listener = None
        for each in listeners.values():
            each.attempt(lambda logger: logger.close(ended))

    with reporting_outcome(close):
        for name in names:
            listeners[name] = _started(name, about, folder.lost)
        folder.listener = lambda lines: [each.take(lines) for each in listeners.values()]
        yield


def _started(name: str, about: About, lost: Mapping[str, int]) -> "_Listener":
    """Start a logger, and give it the lines from before this process if it has none of them."""
    module = _module(name)
    try:
        with preserve_global_rng():
            logger = module.start(about)
    except RlplastError:
        raise
    except Exception as error:  # whatever other people's libraries raise
        text = " ".join(str(error).split()) or type(error).__name__
        raise RlplastError(
            f"log.to: {name} could not be started ({text}): {module.REMEDY}, then `rlplast "
            f"resume {about.folder}`; or take {name} out of log.to"
        ) from error
    listener = _Listener(name, logger, dict(lost) if logger.resumed else {})
    if logger.resumed is False:
        for file in ("metrics", "receipts"):
            rows = read_lines(about.folder / f"{file}.jsonl")
            listener.take([_line(file, row, about.units) for row in rows])
    return listener


Line = tuple[str, Mapping[str, Any], Mapping[str, Any]]  # file, clock, values or the receipt


def _line(file: str, row: Mapping[str, Any], units: Sequence[str]) -> Line:
    """Return a line of a file as `RunFolder` gives new ones to its listener."""
    if file == "receipts":
        return file, row["clock"], row
    clock = {unit: row[unit] for unit in units if unit in row}
    return file, clock, {k: v for k, v in row.items() if k not in clock and v is not None}


@dataclass
class _Listener:
    """Gives lines to a logger."""

    name: str
    logger: Logger | None
    held: dict[str, int]

    def take(self, lines: Sequence[Line]) -> None:
        for file, clock, values in lines:
            if self.held.get(file, 0) > 0:
                self.held[file] -= 1
            else:
                numbers = receipt_values(values) if file == "receipts" else values
                self.attempt(lambda logger, at=clock, row=numbers: logger.log(at, row))
        if lines:
            self.attempt(lambda logger: logger.flush())

    def attempt(self, act: Callable[[Logger], None]) -> None:
        """Do something with the logger; drop one that fails."""
        if self.logger is None:
            return
        try:
            with preserve_global_rng():
                act(self.logger)
        except Exception as error:  # whatever other people's libraries raise
            self.logger = None
            text = " ".join(str(error).split()) or type(error).__name__
            warnings.warn(
                f"{self.name} takes no more lines of this process ({text}); the run goes on, and "
                "its files have all of them",
                RuntimeWarning,
                stacklevel=2,
            )


def receipt_values(row: Mapping[str, Any]) -> dict[str, float]:
    """Return a receipt's numbers by name.

    Examples:
        >>> row = {"method": "cbp", "network": "q", "sfe": 0.5, "dfi_after": None}
        >>> receipt_values(row | {"units": {"fc1": 2, "fc2": 3}})
        {'receipt/cbp/q/sfe': 0.5, 'receipt/cbp/q/units_reset': 5}
    """
    head = f"receipt/{row['method']}/{row['network']}"
    numbers = {k: v for k, v in row.items() if isinstance(v, int | float) and type(v) is not bool}
    units = row.get("units")
    if isinstance(units, Mapping):
        numbers["units_reset"] = sum(units.values())
    return {f"{head}/{key}": value for key, value in numbers.items()}


def flat(config: Mapping[str, Any]) -> dict[str, str]:
    """Return a config's values as text by dotted key; lists as JSON.

    Examples:
        >>> flat({"agent": {"lr": 0.1}, "hooks": [{"at": "50%"}], "seed": 1})
        {'agent.lr': '0.1', 'hooks': '[{"at": "50%"}]', 'seed': '1'}
    """
    return {k: v if isinstance(v, str) else json.dumps(v) for k, v in leaves(config)}
