"""`rlplast data`: tiny archives in the published formats, whole, cut, missing, altered."""

import errno
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlplast.cli.data_command import BUILT_IN, SETS
from rlplast.supervised import downloads
from rlplast.supervised.corrupted import CORRUPTIONS
from rlplast.supervised.data import DataConfig, load_data
from tests.cli.commands import Outcome, command
from tests.cli.runs import refused
from tests.supervised.published import (
    cifar_archive,
    tiny_set,
    write_cifar,
    write_corrupted,
    write_mnist,
    write_tiny_imagenet,
    zip_folder,
)

IMAGES = ("mnist", "cifar10", "cifar100", "tiny_imagenet", "cifar10_c", "cifar100_c")


def archives(name: str, folder: Path) -> Path:
    """Write the tiny archives of a set, as they are published."""
    folder.mkdir()
    if name == "mnist":
        write_mnist(folder, train=20, test=10, packed=True)
    elif name in ("cifar10", "cifar100"):
        cifar_archive(folder, name, each=10)
    elif name == "tiny_imagenet":
        write_tiny_imagenet(folder / "tiny-imagenet-200")
        zip_folder(folder / "tiny-imagenet-200", folder / "tiny-imagenet-200.zip")
        shutil.rmtree(folder / "tiny-imagenet-200")
    else:
        inner = folder / SETS[name].downloads[0].unpacked
        write_corrupted(inner, tuple(sorted(CORRUPTIONS)), count=2)
        shutil.make_archive(str(inner), "tar", folder, inner.name)
        shutil.rmtree(inner)
    return folder


@pytest.fixture(params=IMAGES)
def published(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[str, Path]:
    """Each set with its archives in a folder, and told that they are what is published."""
    name, root = request.param, archives(request.param, tmp_path / "root")
    train, test = {"mnist": (20, 10), "tiny_imagenet": (6, 4)}.get(name, (50, 10))
    train, test = (0, 2) if name.endswith("_c") else (train, test)
    own = tiny_set(name, root, train, test)
    monkeypatch.setitem(downloads.IMAGE_SETS, name, own)
    monkeypatch.setitem(SETS, name, own)
    return name, root


def not_ready(outcome: Outcome) -> str:
    """The one error of a refused check; what was found is printed before it."""
    assert outcome.code == 2
    assert len(outcome.err.splitlines()) == 1
    assert "remedy: " in outcome.err
    return outcome.err


def test_the_list_has_every_set_with_its_use_and_licence():
    outcome = command("data")
    assert (outcome.code, outcome.err) == (0, "")
    for name, own in SETS.items():
        line = next(text for text in outcome.out.splitlines() if f" {name} " in text)
        assert own.purpose in line
        assert own.licence in line
        assert own.page in line


def test_archives_are_unpacked_once_and_read(published: tuple[str, Path]):
    name, root = published
    packed = {path.name: path.read_bytes() for path in root.iterdir()}
    outcome = command("data", name, "--root", root)
    assert (outcome.code, outcome.err) == (0, "")
    for download in SETS[name].downloads:
        assert f"{download.name}: is whole" in outcome.out
        assert download.url in outcome.out
        assert (root / download.unpacked).exists()
        assert (root / download.name).read_bytes() == packed.pop(download.name)
    assert not packed
    assert len(list(root.iterdir())) == 2 * len(SETS[name].downloads)  # no temporary file is left
    unpacked = root / SETS[name].downloads[0].unpacked
    own = downloads.IMAGE_SETS[name]
    downloads.IMAGE_SETS[name] = replace(own, test=own.test + 1)  # the fixture puts it back
    output = not_ready(command("data", name, "--root", root))
    assert f"and {own.test:,} test images" in output
    assert f"and {own.test + 1:,} test images" in output
    downloads.IMAGE_SETS[name] = own
    files = [unpacked] if unpacked.is_file() else sorted(unpacked.rglob("*.*"))
    path = next(p for p in reversed(files) if p.suffix in ("", ".bin", ".JPEG", ".npy"))
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    output = not_ready(command("data", name, "--root", root))
    assert "cannot be used: " in output and f"delete {unpacked}" in output
    if name == "cifar10_c":
        path.unlink()
        output = not_ready(command("data", name, "--root", root))
        assert f"has no {path.stem} of 15 corruptions" in output
    path.write_bytes(whole)

    for path in [root / download.name for download in SETS[name].downloads]:
        path.unlink()
    again = command("data", name, "--root", root)
    assert again.code == 0
    assert "is whole" not in again.out
    last = again.out.splitlines()[-1]
    if name.endswith("_c"):
        assert last == f"{name} is ready: --data.corrupted {unpacked}"
    else:
        assert last == f"{name} is ready: --data.name {name} --data.folder {root}"
        load_data(DataConfig(name=name, folder=str(root)), 0)


@pytest.mark.parametrize("published", ["mnist"], indirect=True)
def test_a_cut_an_altered_and_a_missing_archive_are_named(published: tuple[str, Path]):
    name, root = published
    download = SETS[name].downloads[-1]
    path = root / download.name
    whole = path.read_bytes()
    half = len(whole) // 2
    altered = whole[:half] + bytes([whole[half] ^ 1]) + whole[half + 1 :]
    for content, says in (
        (whole[:half], f"{path.name} has {half:,} of {len(whole):,} bytes"),
        (altered, f"published is {download.md5}"),
        (None, f"{path.name} is not there; remedy: curl"),
    ):
        path.unlink()
        if content:
            path.write_bytes(content)
        output = not_ready(command("data", name, "--root", root))
        assert says in output and download.url in output
        assert not (root / download.unpacked).exists()


@pytest.mark.parametrize("published", ["mnist"], indirect=True)
def test_a_link_that_leads_nowhere_is_neither_replaced_nor_taken_for_nothing(
    published: tuple[str, Path],
):
    name, root = published
    download = SETS[name].downloads[0]
    unpacked, archive = root / download.unpacked, root / download.name
    unpacked.symlink_to("an unmounted disk")
    command("data", name, "--root", root)
    assert unpacked.is_symlink()
    archive.unlink()
    outcome = command("data", name, "--root", root)
    assert outcome.code == 2
    assert f"remedy: delete {unpacked}" in outcome.out
    unpacked.unlink()
    archive.symlink_to("an unmounted disk")
    output = not_ready(command("data", name, "--root", root))
    assert f"{archive.name} is no file; remedy: delete it, then curl" in output


@pytest.mark.parametrize("published", ["cifar10"], indirect=True)
@pytest.mark.parametrize("unpacked", [False, True])
def test_what_may_not_be_read_is_not_to_be_deleted(
    published: tuple[str, Path], unpacked: bool, monkeypatch: pytest.MonkeyPatch
):
    name, root = published
    path = root / SETS[name].downloads[0].name
    if unpacked:
        command("data", name, "--root", root)
        path = root / SETS[name].downloads[0].unpacked / "data_batch_1.bin"
    whole = Path.open

    def denied(self: Path, *how: Any, **more: Any) -> Any:  # for the superuser may read anything
        if self == path:
            raise PermissionError(errno.EACCES, "Permission denied", str(self))
        return whole(self, *how, **more)

    monkeypatch.setattr(Path, "open", denied)
    output = not_ready(command("data", name, "--root", root))
    assert f"{path} may not be read or written; remedy: fix permissions" in output
    assert "delete" not in output


def test_a_set_may_lie_in_the_folder_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_cifar(tmp_path, "cifar10", each=10)
    own = replace(downloads.IMAGE_SETS["cifar10"], train=50, test=10)
    monkeypatch.setitem(downloads.IMAGE_SETS, "cifar10", own)
    assert command("data", "cifar10", "--root", tmp_path).code == 0


def test_bad_usage_is_named(tmp_path: Path):
    assert "did you mean 'cifar10'?" in refused(command("data", "cifar_10"))
    assert "allowed with --root are mnist" in refused(command("data", "--root", tmp_path))
    output = refused(command("data", "mnist", "--root", tmp_path, "--download"))
    assert "--download: mnist is not fetched" in output
    outcome = command("data", "mnist", "--root", __file__)
    assert (outcome.code, "is a file: allowed is" in outcome.err) == (2, True)
    none = tmp_path / "none"  # a folder that is not there yet is an empty one
    outcome = command("data", "mnist", "--root", none)
    assert "and 3 more, above" in not_ready(outcome)
    assert outcome.out.count("ubyte.gz: is not there") == 4
    not_ready(command("data", "wikipedia", "--root", none))
    assert not none.exists()


def test_a_run_without_its_data_names_the_command(tmp_path: Path):
    words = ("train", "supervised/digits_warm_start", "--out", tmp_path / "run", "--data.name")
    for name in ("mnist", "tiny_imagenet"):
        message = refused(command(*words, name, "--data.folder", tmp_path))
        assert f"`rlplast data {name} --root {tmp_path}`" in message
        assert f"`rlplast data {name} --root DIR`" in refused(command(*words, name))


def test_data_that_comes_with_the_library_needs_no_file():
    for name in BUILT_IN:
        outcome = command("data", name)
        assert (outcome.code, outcome.err) == (0, "")
        assert "needs no file" in outcome.out
        assert f"data.name: {name}" in outcome.out
