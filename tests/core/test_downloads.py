"""Archives: what is compared with what was published, and unpacked."""

import gzip
import hashlib
import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from rlplast.core.downloads import Download, find_download, unpack
from rlplast.core.errors import RlplastError

CONTENT = {"set/a.bin": b"one", "set/inner/b.bin": b"two" * 1000, "other.txt": b"three"}


def archive(folder: Path, suffix: str) -> Path:
    path = folder / f"set{suffix}"
    if suffix == ".zip":
        with zipfile.ZipFile(path, "w") as zipped:
            for name, data in CONTENT.items():
                zipped.writestr(name, data)
    elif suffix == ".gz":
        path.write_bytes(gzip.compress(CONTENT["set/a.bin"]))
    else:
        with tarfile.open(path, "w:gz" if suffix == ".tar.gz" else "w") as tar:
            for name, data in CONTENT.items():
                member = tarfile.TarInfo(name)
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    return path


@pytest.mark.parametrize("suffix", [".tar", ".tar.gz", ".zip", ".gz"])
def test_what_is_packed_appears_beside_it(tmp_path: Path, suffix: str):
    path = archive(tmp_path, suffix)
    unpack(path, "set")
    files = {str(p.relative_to(tmp_path)): p for p in tmp_path.rglob("*") if p.is_file()}
    found = {name: file.read_bytes() for name, file in files.items() if file != path}
    expected = {n: data for n, data in CONTENT.items() if n.startswith("set/")}
    assert found == ({"set": b"one"} if suffix == ".gz" else expected)


def test_what_is_there_already_stays(tmp_path: Path):
    path = archive(tmp_path, ".zip")
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
