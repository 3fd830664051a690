"""What an offline run of Weights & Biases left: logs of records, as LevelDB writes them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_BLOCK, _HEAD, _MAGIC = 32768, 7, 7  # bytes: of a block, of a chunk's head, before the first one


def _records(data: bytes) -> Iterator[bytes]:
    """Yield the records: each one chunk (type 1), or a first, middle ones, a last (2, 3, 4)."""
    at, whole = _MAGIC, b""
    while at + _HEAD <= len(data):
        left = _BLOCK - at % _BLOCK
        if left < _HEAD:
            at += left
            continue
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        if kind == 0:
            at += left
            continue
        whole += data[at + _HEAD : at + _HEAD + size]
        at += _HEAD + size
        if kind in (1, 4):
            yield whole
            whole = b""


def records(run: Path) -> list[Any]:
    """All records of a run's folder, over all its processes, in order."""
    from wandb.proto.wandb_internal_pb2 import Record

    files = sorted(
        run.glob("wandb/offline-run-*/run-*.wandb"), key=lambda path: path.stat().st_mtime
    )
    found = []
    for file in files:
        for data in _records(file.read_bytes()):
            record = Record()
            record.ParseFromString(data)
            found.append(record)
    return found


def history(run: Path) -> list[dict[str, Any]]:
    """The rows that were logged, without Weights & Biases' own keys."""
    rows = []
    for record in records(run):
        if record.WhichOneof("record_type") == "history":
            items = {
                ".".join(i.nested_key) or i.key: json.loads(i.value_json)
                for i in record.history.item
            }
            rows.append({k: v for k, v in items.items() if not k.startswith("_")})
    return rows
