"""Files that a user downloads: what is published, checks, unpacking; nothing opens a connection."""

import gzip
import hashlib
import os
import shlex
import shutil
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from rlplast.core.errors import RlplastError

__all__ = ["Download", "Finding", "Published", "find_download", "unpack"]


@dataclass(frozen=True)
class Download:
    """A published archive: size in bytes, md5, and the file or folder that it unpacks to."""

    name: str
    url: str
    size: int
    md5: str
    unpacked: str

    def command(self, folder: Path) -> str:
        """Return the shell command that downloads it, or the rest of it, into a folder."""
        out = shlex.quote(str(folder / self.name))
        return f"curl -fL -C - --create-dirs -o {out} {shlex.quote(self.url)}"


@dataclass(frozen=True)
class Published:
    """A published set of data: the config key it serves, and its files if their sizes are fixed."""

    title: str
    purpose: str
    licence: str
    page: str
    downloads: tuple[Download, ...] = ()


@dataclass(frozen=True)
class Finding:
    """What a check found of a file or folder; without a remedy all is well."""

    what: str
    state: str
    remedy: str = ""


def find_download(path: Path, download: Download) -> Finding:
    """Return whether a file is the published one: by its size, then its checksum."""
    command = download.command(path.parent)
    if not path.is_file():
        if os.path.lexists(path):
            return Finding(path.name, "is no file", f"delete it, then {command}")
        parts = sorted(p.name for p in path.parent.glob(f"{path.name}.*"))
        state = f"is not there, {parts[0]} is: half a download?" if parts else "is not there"
        return Finding(path.name, state, command)
    size = path.stat().st_size
    again = f"delete it, then {command}"
    if size < download.size:
        state = f"has {size:,} of {download.size:,} bytes: the download was cut"
        return Finding(path.name, state, f"{command} (goes on with it), or {again}")
    if size > download.size:
        state = f"has {size:,} bytes, the published file {download.size:,}: it is another file"
        return Finding(path.name, state, again)
    with path.open("rb") as file:
        md5 = hashlib.file_digest(file, "md5").hexdigest()
    if md5 != download.md5:
        state = f"has md5 {md5}, published is {download.md5}: it is damaged, or another file"
        return Finding(path.name, state, again)
    return Finding(path.name, f"is whole: {size:,} bytes, md5 as published")


def unpack(archive: Path, target: str) -> None:
    """Unpack a published archive: a file or folder of it appears next to it, whole or not at all.

    It is a ``.tar``, ``.tar.gz`` or ``.zip``, or one file as ``.gz``, of which `find_download` has
    found nothing wrong.

    Raises:
        RlplastError: if the disk is full or not writable.
    """
    try:
        with tempfile.TemporaryDirectory(".tmp", f".{target}.", archive.parent) as temporary:
            inner = Path(temporary)
            _extract(archive, inner, target)
            os.sync()  # at once, for a set may be 100 000 files
            (inner / target).rename(archive.parent / target)
    except OSError as error:
        raise RlplastError(
            f"{archive} could not be unpacked ({error}): free space or fix permissions"
        ) from error


def _extract(archive: Path, folder: Path, target: str) -> None:
    if archive.name.endswith((".tar", ".tar.gz")):
        with tarfile.open(archive) as tar:
            tar.extraction_filter = getattr(tarfile, "data_filter", None)  # from 3.11.4 on
            tar.extractall(folder)
    elif archive.suffix == ".zip":
        with zipfile.ZipFile(archive) as zipped:
            zipped.extractall(folder)
    else:
        with gzip.open(archive) as file, (folder / target).open("wb") as out:
            shutil.copyfileobj(file, out)
