import errno
import json
import os
import zlib
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from rlplast.core.clock import Clock
from rlplast.core.errors import ConfigError, DamagedFile, RlplastError
from rlplast.training.run_folder import RunFolder, clock_fields, write_json, write_text
from tests.runs import files_up_to


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
    lengths, checksums = folder.lengths(), folder.checksums()
    for name, size in lengths.items():
        data = (folder.path / name).read_bytes()
        assert size == len(data) and checksums[name] == [(5, len(data), zlib.crc32(data))]
    fill(folder, 5, 9)
    folder.close()
    with (folder.path / "metrics.jsonl").open("ab") as file:
        file.write(leftover)  # a killed process's last write
    again = RunFolder(folder.path)
    again.cut(lengths, checksums)
    assert again.lost == {"metrics": 4, "receipts": 4}  # whole ones
    fill(again, 5, 7)
    again.cut(again.lengths(), again.checksums())
    again.close()
    assert again.altered == {}
    assert [r["updates"] for r in rows(folder)] == list(range(7))
    assert [r["number"] for r in rows(folder, "receipts")] == list(range(7))


def test_file_that_lacks_lines_of_its_checkpoint_is_refused(folder: RunFolder) -> None:
    fill(folder, 0, 5)
    lengths, checksums = folder.lengths(), folder.checksums()
    path = folder.path / "receipts.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[1:]))
    with pytest.raises(DamagedFile, match="4 lines"):
        folder.cut(lengths, checksums)
    os.truncate(path, 5)
    with pytest.raises(DamagedFile, match="5 bytes"):
        folder.cut(lengths, {})


def flip(text: bytes) -> bytes:
    """Flip one bit of a digit: the line stays JSON of the same length."""
    place = next(i for i, letter in enumerate(text) if chr(letter).isdigit())
    return text[:place] + bytes([text[place] ^ 1]) + text[place + 1 :]


ALTERED: list[Callable[[bytes], bytes]] = [
    flip,
    lambda line: line + b"     ",  # blanks, which JSON does not mind
    lambda line: line.replace(b" ", b""),
]


@pytest.mark.parametrize(("line", "between"), [(1, (1, 3)), (3, (1, 3)), (4, (4, 6)), (9, (7, 9))])
def test_altered_line_is_found_between_two_checkpoints(
    line: int, between: tuple[int, int], tmp_path: Path
) -> None:
    for number, alter in enumerate(ALTERED):
        folder = RunFolder(tmp_path / str(number))
        for last in (3, 6, 9):
            fill(folder, last - 3, last)
            lengths, checksums = folder.lengths(), folder.checksums()
        fill(folder, 9, 12)
        folder.close()
        path = folder.path / "receipts.jsonl"
        lines = path.read_bytes().splitlines()
        lines[line - 1] = alter(lines[line - 1])
        path.write_bytes(b"".join(text + b"\n" for text in lines))
        again = RunFolder(folder.path)
        again.cut(lengths, json.loads(json.dumps(checksums)))
        assert again.altered == {"receipts.jsonl": between}, number
        assert len(rows(again)) == len(rows(again, "receipts")) == 9
        assert again.lost == {"metrics": 3, "receipts": 3}
        fill(again, 9, 10)  # what follows is compared with the file as it is now
        lengths, checksums = again.lengths(), again.checksums()
        again.close()
        third = RunFolder(folder.path)
        third.cut(lengths, checksums)
        assert third.altered == {}
        third.close()


def test_a_long_run_keeps_few_checksums_spread_over_all_lines(folder: RunFolder) -> None:
    for count in range(1000):
        fill(folder, count, count + 1)
        marks = folder.checksums()["metrics.jsonl"]
    assert len(marks) <= 64
    assert [n for n, _, _ in marks] == sorted({n for n, _, _ in marks})
    gaps = [b - a for (a, _, _), (b, _, _) in pairwise([(0, 0, 0), *marks])]
    assert marks[-1][0] == 1000 and max(gaps) <= 4 * 1000 / 64


def test_lines_that_do_not_fit_are_an_error_and_cutting_back_works(folder: RunFolder) -> None:
    fill(folder, 0, 5)
    lengths = folder.lengths()
    with files_up_to(8192), pytest.raises(RlplastError, match=r"metrics\.jsonl .*free space"):
        for count in range(100):
            folder.metrics({"updates": count}, {"words" * 20: 1.0})
            folder.flush()
    folder.close()
    again = RunFolder(folder.path)
    again.cut(lengths, {})
    again.close()
    assert [r["updates"] for r in rows(folder)] == list(range(5))


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
