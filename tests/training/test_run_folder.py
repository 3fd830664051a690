import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlplast.core.clock import Clock
from rlplast.core.errors import ConfigError, DamagedFile, RlplastError
from rlplast.training.run_folder import RunFolder, clock_fields, write_json, write_text


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[RunFolder]:
    made = RunFolder(tmp_path / "run")
    yield made
    made.close()


def rows(folder: RunFolder, name: str = "metrics") -> list[dict[str, Any]]:
    return [json.loads(x) for x in (folder.path / f"{name}.jsonl").read_text().splitlines()]


def fill(folder: RunFolder, first: int, last: int) -> None:
    for count in range(first, last):
        folder.metrics({"updates": count}, {"x": float(count)})
        folder.receipt({"number": count})


def full(*args: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_folder_has_both_files_and_one_writer(folder: RunFolder) -> None:
    assert rows(folder) == rows(folder, "receipts") == []
    with pytest.raises(ConfigError, match="in use"):
        RunFolder(folder.path)
    folder.close()
    RunFolder(folder.path).close()


def test_lines_are_flat_exact_and_readable_after_a_flush(folder: RunFolder) -> None:
    heard = []
    folder.listener = lambda lines: heard.extend(
        (file, clock["updates"], len(rows(folder, file))) for file, clock, _ in lines
    )
    clock = clock_fields(Clock(updates=3, env_steps=9, frames=36), ("updates", "frames"))
    values = {"a": 0.1 + 0.2, "b": 5e-324, "c": 2.0**60 + 1, "d": -0.0}
    folder.metrics(clock, values | {"e": float("nan"), "f": float("inf"), "g": -float("inf")})
    folder.receipt({"method": "fire", "clock": clock, "dfi_after": None, "sfe": float("nan")})
    assert heard == []
    folder.flush()
    folder.flush()
    assert heard == [("metrics", 3, 1), ("receipts", 3, 1)]  # once the lines are in the file
    none = dict.fromkeys("efg")
    assert json.dumps(rows(folder)) == json.dumps([{"updates": 3, "frames": 36, **values, **none}])
    [receipt] = rows(folder, "receipts")
    assert (receipt["clock"], receipt["sfe"]) == ({"updates": 3, "frames": 36}, None)


@pytest.mark.parametrize("leftover", [b"", b'{"updates": 9, "x"', b"\xff\xfe"])
def test_lines_after_a_checkpoint_are_cut_whole_or_half(folder: RunFolder, leftover: bytes) -> None:
    fill(folder, 0, 5)
    lengths = folder.lengths()
    assert lengths == {name: (folder.path / name).stat().st_size for name in lengths}
    fill(folder, 5, 9)
    folder.close()
    with (folder.path / "metrics.jsonl").open("ab") as file:
        file.write(leftover)  # a killed process's last write
    again = RunFolder(folder.path)
    again.cut(lengths)
    assert again.lost == {"metrics": 4, "receipts": 4}  # whole ones
    fill(again, 5, 7)
    again.cut(again.lengths())
    again.close()
    assert [r["updates"] for r in rows(folder)] == list(range(7))
    assert [r["number"] for r in rows(folder, "receipts")] == list(range(7))


def test_file_that_lacks_lines_of_its_checkpoint_is_refused(folder: RunFolder) -> None:
    fill(folder, 0, 5)
    lengths = folder.lengths()
    path = folder.path / "receipts.jsonl"
    whole = path.read_bytes()
    for text in (b"", whole[:5], whole.replace(b"\n", b"\n\n", 1), whole[:-1]):
        path.write_bytes(text)
        with pytest.raises(DamagedFile, match=rf"receipts\.jsonl.*{len(whole)} bytes"):
            folder.cut(lengths)
    path.write_bytes(whole + whole)
    folder.cut(lengths)
    assert path.read_bytes() == whole


@pytest.mark.parametrize("method", ["flush", "sync"])
def test_disk_that_fails_is_an_error_and_the_folder_is_free_again(
    folder: RunFolder, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        if method == "flush":
            file = type("Full", (), {"flush": full, "close": full})
            patch.setitem(folder._files, "metrics.jsonl", file())
        with pytest.raises(RlplastError, match=r"metrics\.jsonl .*No space left"):
            getattr(folder, method)()
        folder.close()
    RunFolder(folder.path).close()


def test_json_is_written_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.json"
    write_json(path, {"status": "running", "path": tmp_path})
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RlplastError, match=r"run\.json"):
        write_text(path, "x")
    assert json.loads(path.read_text()) == {"status": "running", "path": str(tmp_path)}
