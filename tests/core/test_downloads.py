"""Archives: whole ones are unpacked whole, dangerous and cut ones leave nothing behind."""

import gzip
import hashlib
import io
import tarfile
import zipfile
from contextlib import suppress
from pathlib import Path

import pytest

from rlplast.core.downloads import Download, find_download, unpack
from rlplast.core.errors import DamagedFile, RlplastError

CONTENT = {"set/a.bin": b"one", "set/inner/b.bin": b"two" * 1000, "other.txt": b"three"}


def archive(folder: Path, suffix: str, members: dict[str, bytes]) -> Path:
    path = folder / f"set{suffix}"
    if suffix == ".zip":
        with zipfile.ZipFile(path, "w") as zipped:
            for name, data in members.items():
                zipped.writestr(name, data)
    elif suffix == ".gz":
        path.write_bytes(gzip.compress(CONTENT["set/a.bin"]))
    else:
        with tarfile.open(path, "w:gz" if suffix == ".tar.gz" else "w") as tar:
            for name, data in members.items():
                member = tarfile.TarInfo(name)
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    return path


@pytest.mark.parametrize("suffix", [".tar", ".tar.gz", ".zip", ".gz"])
def test_what_is_packed_appears_beside_it_and_of_half_an_archive_nothing(
    tmp_path: Path, suffix: str
):
    (tmp_path / "half").mkdir()
    cut = archive(tmp_path / "half", suffix, CONTENT)
    cut.write_bytes(cut.read_bytes()[: len(cut.read_bytes()) // 2])
    with pytest.raises(DamagedFile, match=r"set\."):
        unpack(cut, "set")
    assert [p.name for p in cut.parent.iterdir()] == [cut.name]
    (tmp_path / "whole").mkdir()
    path = archive(tmp_path / "whole", suffix, CONTENT)
    unpack(path, "set")
    files = {str(p.relative_to(path.parent)): p for p in path.parent.rglob("*") if p.is_file()}
    found = {name: file.read_bytes() for name, file in files.items() if file != path}
    expected = {n: data for n, data in CONTENT.items() if n.startswith("set/")}
    assert found == ({"set": b"one"} if suffix == ".gz" else expected)


def test_nothing_is_unpacked_out_of_the_folder(tmp_path: Path):
    for i, suffix in enumerate((".tar", ".tar.gz", ".zip")):
        for j, name in enumerate(("../evil", "/evil", "set/../../evil")):
            outer = tmp_path / f"{i}{j}"
            (outer / "in").mkdir(parents=True)
            path = archive(outer / "in", suffix, CONTENT | {name: b"evil"})
            with suppress(DamagedFile):  # or it stays inside
                unpack(path, "set")
            assert list(outer.iterdir()) == [outer / "in"]
            assert {p.name for p in (outer / "in").iterdir()} <= {path.name, "set"}
    with tarfile.open(tmp_path / "set.tar", "w") as tar:
        member = tarfile.TarInfo("set")
        member.type, member.linkname = tarfile.SYMTYPE, "/etc"
        tar.addfile(member)
    with pytest.raises(DamagedFile, match="link"):
        unpack(tmp_path / "set.tar", "set")


def test_what_is_there_already_stays(tmp_path: Path):
    path = archive(tmp_path, ".zip", CONTENT)
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "mine").write_text("keep")
    with pytest.raises(RlplastError, match="could not be unpacked"):
        unpack(path, "set")
    assert (tmp_path / "set" / "mine").read_text() == "keep"


def test_a_download_is_compared_with_what_was_published(tmp_path: Path):
    data = b"published"
    md5 = hashlib.md5(data).hexdigest()
    own = Download("set.zip", "https://example.org/set.zip?x=1", len(data), md5, "set")
    path = tmp_path / "set.zip"
    fetch = f"curl -fL -C - --create-dirs -o {path} 'https://example.org/set.zip?x=1'"
    assert find_download(path, own).state == "is not there"
    (tmp_path / "set.zip.part").write_bytes(b"pub")
    assert find_download(path, own).state != "is not there"
    for content, message in ((data[:4], "4 of 9"), (data + b"!", "10 bytes"), (b"pub1ished", md5)):
        path.write_bytes(content)
        found = find_download(path, own)
        assert message in found.state
        assert fetch in found.remedy
    path.write_bytes(data)
    found = find_download(path, own)
    assert not found.remedy
