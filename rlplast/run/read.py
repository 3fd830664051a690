"""What a run's folder says: the one reader of its files."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rlplast.core.errors import ConfigError, DamagedFile, RlplastError, did_you_mean
from rlplast.run.shapes import CONFIG, RUN_INFO, check_keys, check_line
from rlplast.run.shipped import shipped_configs
from rlplast.training import best
from rlplast.training.best import Best
from rlplast.training.config import parse_yaml
from rlplast.training.files import read

__all__ = [
    "check_is_run",
    "last_line",
    "meant",
    "read_best",
    "read_config",
    "read_info",
    "read_json",
    "read_lines",
    "status",
    "status_in",
    "unaltered",
]

_TAIL = 1 << 14  # bytes of a file that are sure to hold its last line


def check_is_run(folder: Path) -> None:
    """Check that a folder is a run's, else raise ConfigError."""
    started = any((folder / name).is_file() for name in ("run.json", "metrics.jsonl"))
    if not started or not (folder / "config.yaml").is_file():
        why = "it has no config.yaml and run.json" if folder.is_dir() else "there is no such folder"
        raise ConfigError(f"{folder} is no run's folder: {why}{meant(folder)}")


def meant(folder: Path) -> str:
    """Say what may have been meant by what is no folder of a run or a study; "" if unknown."""
    if folder.as_posix() in shipped_configs() or folder.suffix in (".yaml", ".yml"):
        return f"; a config is shown by `rlplast train {folder} --print_config`"
    places = [place for place in (folder, folder.parent, Path("runs")) if place.is_dir()]
    found = {
        str(path)
        for place in places
        for path in place.iterdir()
        if (path / "run.json").is_file() or (path / "study.json").is_file()
    }
    given = "" if folder.is_dir() else str(folder)  # of a folder all that lie in it may be meant
    return f"; {did_you_mean(given, found)}" if found else ""


@contextmanager
def unaltered(folder: object) -> Iterator[None]:
    """Raise DamagedFile, naming the folder, if the block trips over what nothing of ours wrote."""
    try:
        yield
    except RlplastError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise DamagedFile(f"{folder} holds what nothing of ours wrote: {error!r}") from error


def read_info(folder: Path) -> dict[str, Any]:
    """Read a run's run.json; {} for a run killed before it was written; DamagedFile if altered."""
    path = folder / "run.json"
    if not path.is_file():
        return {}
    info = read_json(path)
    check_keys(info, RUN_INFO, path)
    return info


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds one object; DamagedFile if it does not, or cannot be read."""
    try:
        value = json.loads(read(path))
    except OSError as error:
        raise DamagedFile(f"{path} cannot be read: {error}") from error
    except (ValueError, RecursionError) as error:
        raise DamagedFile(f"{path} is no valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise DamagedFile(f"{path} holds {type(value).__name__}: expected is one JSON object")
    return value


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read a .jsonl file; a last line that a stopped process left unfinished is passed over.

    Raises:
        DamagedFile: naming the first other line that is no JSON object, or has a number too long to
            be one of ours, or a value of another type than its key has.
    """
    try:
        lines = read(path).split(b"\n")
    except OSError as error:
        raise DamagedFile(f"{path} cannot be read: {error}") from error
    while lines and not lines[-1].strip():
        lines.pop()
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            row = _DECODER.decode(line.decode(json.detect_encoding(line), "surrogatepass"))
        except (ValueError, RecursionError):
            row = None
        if isinstance(row, dict):
            check_line(row, path.name == "receipts.jsonl", f"{path}, line {number}")
            rows.append(row)
        elif number < len(lines):
            raise DamagedFile(
                f"{path}, line {number} is no JSON object of ours: {line[:60]!r}; only a last line "
                "may be cut. Restore the file, or leave this run out"
            )
    return rows


def _count(digits: str) -> int:
    """Return an integer of a line; floats can be made of those of up to 20 digits."""
    if len(digits) > 20:
        raise ValueError(f"an integer of {len(digits)} digits")
    return int(digits)


_DECODER = json.JSONDecoder(parse_int=_count)  # making one takes as long as a line


def read_config(folder: Path) -> dict[str, Any]:
    """Read a run's config.yaml; DamagedFile if it is absent or no mapping."""
    path = folder / "config.yaml"
    try:
        config = parse_yaml(read(path).decode(), str(path))
    except ConfigError as error:
        raise DamagedFile(str(error)) from error
    except (OSError, UnicodeDecodeError) as error:
        raise DamagedFile(f"{path} cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise DamagedFile(f"{path} holds no config: expected is a mapping of keys")
    check_keys(config, CONFIG, path)
    return config


def read_best(folder: Path) -> Best | None:
    """Return a run's best evaluation, if it keeps the checkpoint of that."""
    try:
        return best.read_best(folder / "checkpoints")
    except ConfigError:
        return None


def status(folder: Path) -> str:
    """Return the status in a run's run.json; ``absent`` or ``damaged`` if there is none."""
    try:
        return status_in(read_info(folder))
    except DamagedFile:
        return "damaged"


def status_in(info: Mapping[str, Any]) -> str:
    """Return the status that a run.json says; ``absent`` or ``damaged`` if there is none."""
    return str(info.get("status", "damaged")) if info else "absent"


def last_line(path: Path) -> dict[str, Any]:
    """Return the newest whole line of a .jsonl file; {} if there is none."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _TAIL))
            lines = file.read().splitlines()
        whole = (line for line in reversed(lines) if line.endswith(b"}"))
        return json.loads(next(whole), parse_int=_count)
    except (OSError, ValueError, StopIteration):
        return {}
