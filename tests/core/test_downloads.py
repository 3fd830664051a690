"""Archives: whole ones are unpacked whole, dangerous and cut ones leave nothing behind."""

import gzip
import hashlib
import io
import tarfile
import zipfile
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


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("suffix", [".tar", ".tar.gz", ".zip"])
def test_a_folder_in_an_archive_appears_beside_it(tmp_path: Path, suffix: str):
    path = archive(tmp_path, suffix, CONTENT)
    unpack(path, "set")
    path.unlink()
    assert contents(tmp_path) == {n: data for n, data in CONTENT.items() if n.startswith("set/")}


def test_a_packed_file_appears_beside_it(tmp_path: Path):
    path = archive(tmp_path, ".gz", {})
    unpack(path, "set")
    assert (tmp_path / "set").read_bytes() == b"one"
    assert {p.name for p in tmp_path.iterdir()} == {"set", "set.gz"}


def test_what_leads_out_of_the_folder_is_refused(tmp_path: Path):
    for i, suffix in enumerate((".tar", ".tar.gz", ".zip")):
        for j, name in enumerate(("../evil", "/evil", "set/../../evil")):
            outer = tmp_path / f"{i}{j}"
            (outer / "in").mkdir(parents=True)
            path = archive(outer / "in", suffix, CONTENT | {name: b"evil"})
            with pytest.raises(DamagedFile, match="evil'"):
                unpack(path, "set")
            assert {p.name for p in outer.rglob("*")} == {"in", path.name}
    with tarfile.open(tmp_path / "set.tar", "w") as tar:
        member = tarfile.TarInfo("set")
        member.type, member.linkname = tarfile.SYMTYPE, "/etc"
        tar.addfile(member)
    with pytest.raises(DamagedFile, match="link"):
        unpack(tmp_path / "set.tar", "set")


@pytest.mark.parametrize("suffix", [".tar", ".tar.gz", ".zip", ".gz"])
def test_half_an_archive_is_refused_and_leaves_nothing(tmp_path: Path, suffix: str):
    path = archive(tmp_path, suffix, CONTENT)
    path.write_bytes(path.read_bytes()[: len(path.read_bytes()) // 2])
    with pytest.raises(DamagedFile, match=r"set\."):
        unpack(path, "set")
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


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
