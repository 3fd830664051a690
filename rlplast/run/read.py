"""What a run's folder says: the one reader of its files.

- `read_info`, `read_config`, `read_lines`: run.json, config.yaml, and a .jsonl file.
- `read_json`: any JSON file that holds one object.
- `status`: how far a run came; `last_line`: the newest line of a file that is being written.
"""

import json
from pathlib import Path
from typing import Any

from rlplast.core.checkpoint.files import read
from rlplast.core.errors import ConfigError, DamagedFile
from rlplast.core.training.config import parse_yaml

__all__ = ["last_line", "read_config", "read_info", "read_json", "read_lines", "status"]

_TAIL = 1 << 14  # bytes of a file that are sure to hold its last line


def read_info(folder: Path) -> dict[str, Any]:
    """Read a run's run.json; {} for a run killed before it was written.

    Raises:
        DamagedFile: if it is cut or altered.
    """
    path = folder / "run.json"
    return read_json(path) if path.is_file() else {}


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds one object.

    Raises:
        DamagedFile: if it cannot be read, or is anything else.
    """
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
        DamagedFile: naming the first other line that is no JSON object.
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
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if isinstance(row, dict):
            rows.append(row)
        elif number < len(lines):
            raise DamagedFile(
                f"{path}, line {number} is no JSON object: {line[:60]!r}; only a last line may "
                "be cut. Restore the file, or leave this run out"
            )
    return rows


def read_config(folder: Path) -> dict[str, Any]:
    """Read a run's config.yaml.

    Raises:
        DamagedFile: if it is absent or no mapping.
    """
    path = folder / "config.yaml"
    try:
        config = parse_yaml(read(path).decode(), str(path))
    except ConfigError as error:
        raise DamagedFile(str(error)) from error
    except (OSError, UnicodeDecodeError) as error:
        raise DamagedFile(f"{path} cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise DamagedFile(f"{path} holds no config: expected is a mapping of keys")
    return config


def status(folder: Path) -> str:
    """Return the status in a run's run.json; ``absent`` or ``damaged`` if there is none."""
    try:
        info = read_info(folder)
    except DamagedFile:
        return "damaged"
    return str(info.get("status", "damaged")) if info else "absent"


def last_line(path: Path) -> dict[str, Any]:
    """Return the newest whole line of a .jsonl file; {} if there is none."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _TAIL))
            lines = file.read().splitlines()
        return next(json.loads(line) for line in reversed(lines) if line.endswith(b"}"))
    except (OSError, ValueError, StopIteration):
        return {}
