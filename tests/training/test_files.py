import random
import zlib
from pathlib import Path

import pytest

from rlplast.training import files
from rlplast.training.files import checksum, fsync, link, lock

SIZES = [0, 1, files._PIECE - 1, files._PIECE, files._PIECE + 1, 3 * files._PIECE + 5]


@pytest.mark.parametrize("size", SIZES)
def test_checksum_is_that_of_the_whole(size: int, tmp_path: Path) -> None:
    data = random.Random(size).randbytes(size)
    (tmp_path / "file").write_bytes(data)
    assert checksum(tmp_path / "file") == zlib.crc32(data)


def test_link_is_the_same_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"rows")
    link(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "a").samefile(tmp_path / "b")


def test_without_hard_links_a_copy_is_forced_to_disk(
    tmp_path: Path, no_hard_links: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    forced: list[Path] = []
    monkeypatch.setattr(files, "fsync", forced.append)
    (tmp_path / "a").write_bytes(b"rows")
    link(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == b"rows" and forced == [tmp_path / "b"]
    assert not (tmp_path / "a").samefile(tmp_path / "b")


def test_fsync_takes_files_and_folders_and_names_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"rows")
    fsync(tmp_path / "a")
    fsync(tmp_path)
    with pytest.raises(FileNotFoundError, match="absent"):
        fsync(tmp_path / "absent")


def test_locked_file_is_free_again_once_closed_and_keeps_its_content(tmp_path: Path) -> None:
    (tmp_path / "l").write_text("whose")
    first = lock(tmp_path / "l")
    assert first is not None and lock(tmp_path / "l") is None
    first.close()
    again = lock(tmp_path / "l")
    assert again is not None and (tmp_path / "l").read_text() == "whose"
    again.close()
