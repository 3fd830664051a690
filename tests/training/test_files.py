import os
import random
import zlib
from pathlib import Path

import pytest

from rlplast.training import files
from rlplast.training.files import checksum, link, lock, whole

SIZES = [0, 1, files._PIECE - 1, files._PIECE, files._PIECE + 1, 3 * files._PIECE + 5]


def test_checksum_is_that_of_the_whole(tmp_path: Path) -> None:
    for size in SIZES:
        data = random.Random(size).randbytes(size)
        (tmp_path / "file").write_bytes(data)
        assert checksum(tmp_path / "file") == zlib.crc32(data)


def test_without_hard_links_a_copy_is_forced_to_disk(
    tmp_path: Path, no_hard_links: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    forced: list[Path] = []
    monkeypatch.setattr(files, "fsync", forced.append)
    (tmp_path / "a").write_bytes(b"rows")
    link(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == b"rows" and forced == [tmp_path / "b"]
    assert not (tmp_path / "a").samefile(tmp_path / "b")


def test_locked_file_is_free_again_once_closed_and_keeps_its_content(tmp_path: Path) -> None:
    (tmp_path / "l").write_text("whose")
    first = lock(tmp_path / "l")
    assert first is not None and lock(tmp_path / "l") is None
    first.close()
    again = lock(tmp_path / "l")
    assert again is not None and (tmp_path / "l").read_text() == "whose"
    again.close()


def test_a_file_or_folder_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    file, folder = tmp_path / "file", tmp_path / "folder"
    os.mkfifo(tmp_path / ".file.tmp")  # a killed process's
    (tmp_path / ".folder.tmp").mkdir()
    for path, content in ((file, file), (folder, folder / "inner")):
        with whole(path) as temporary:
            if path is folder:
                temporary.mkdir()
            (temporary / content.relative_to(path)).write_text("one")
            assert not path.exists()
        assert content.read_text() == "one"
        with pytest.raises(ZeroDivisionError), whole(path) as temporary:
            temporary.write_text("half")
            raise ZeroDivisionError
        assert content.read_text() == "one"
    assert {path.name for path in tmp_path.iterdir()} == {"file", "folder"}
