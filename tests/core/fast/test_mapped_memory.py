import gc
import mmap
import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplast.core.fast import mapped_memory
from tests.agents.replay_episodes import make, save

linux = pytest.mark.skipif(sys.platform != "linux", reason="pages are mapped on Linux only")


def mapped_bytes(path: Path) -> int:
    """Return how many bytes of a file this process has mapped."""
    total = 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith(str(path)):
            first, stop = line.split()[0].split("-")
            total += int(stop, 16) - int(first, 16)
    return total


def test_arrays_begin_with_a_page_and_hold_zeros_and_too_large_ones_are_refused() -> None:
    array = mapped_memory.zeros((3, 5), np.dtype([("a", "<f4"), ("b", "u1")]))
    assert array.ctypes.data % mmap.PAGESIZE == 0
    assert array.shape == (3, 5) and array.flags.writeable and array.flags.c_contiguous
    assert not array.view(np.uint8).any()
    for length in (2**50, 2**80):
        with pytest.raises(MemoryError):
            mapped_memory.zeros((length,), np.dtype("u1"))


@settings(max_examples=30, deadline=None)
@given(
    row=st.integers(1, 3000),
    first=st.integers(0, 20),
    count=st.integers(0, 20),
    shift=st.integers(0, 5000),
    aligned=st.booleans(),
)
def test_rows_become_those_of_the_file_and_others_stay(
    row: int,
    first: int,
    count: int,
    shift: int,
    aligned: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    rng = np.random.default_rng(row)
    array = mapped_memory.zeros((40, row), np.dtype("u1"))
    array[:] = expected = rng.integers(0, 256, array.shape, np.uint8)
    offset = first * row % mapped_memory.PAGE if aligned else shift
    data = rng.integers(0, 256, (count, row), np.uint8)
    path = tmp_path_factory.mktemp("rows") / "file"
    path.write_bytes(b"#" * offset + data.tobytes() + b"more")
    expected[first : first + count] = data
    mapped_memory.fill(array, slice(first, first + count), path, offset)
    np.testing.assert_array_equal(array, expected)
    array += 1  # wherever it lies
    np.testing.assert_array_equal(array, expected + 1)
    assert path.read_bytes() == b"#" * offset + data.tobytes() + b"more"


def test_array_that_is_not_ours_is_filled_by_reading_and_short_files_are_refused(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_bytes(b"x" * 50_000)
    array = np.zeros((5, 10_000), np.uint8)
    mapped_memory.fill(array, slice(0, 5), tmp_path / "file", 0)
    assert (array == ord("x")).all()
    (tmp_path / "short").write_bytes(b"x" * 499)
    ours = mapped_memory.zeros((10, 100), np.dtype("u1"))
    with pytest.raises(OSError, match="too early"):
        mapped_memory.fill(ours, slice(0, 5), tmp_path / "short", 0)


@linux
def test_whole_pages_are_mapped_until_the_array_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 10 * 7056)
    array = mapped_memory.zeros((10, 7056), np.dtype("u1"))
    mapped_memory.fill(array, slice(0, 10), path, 0)
    assert mapped_bytes(path) == 10 * 7056 // mmap.PAGESIZE * mmap.PAGESIZE
    assert (array == ord("x")).all()
    path.unlink()  # as a checkpoint that is pruned
    assert (array == ord("x")).all()
    del array
    gc.collect()
    assert mapped_bytes(Path(f"{path} (deleted)")) == 0


@linux
def test_where_pages_cannot_be_mapped_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 10 * 7056)
    array = mapped_memory.zeros((10, 7056), np.dtype("u1"))
    monkeypatch.setattr(mapped_memory, "_MAP_FIXED", -1)  # flags that no kernel takes
    mapped_memory.fill(array, slice(0, 10), path, 0)
    assert mapped_bytes(path) == 0
    assert (array == ord("x")).all()


@linux
def test_processes_that_load_one_replay_share_its_memory(tmp_path: Path) -> None:
    steps, rng, options = 1000, np.random.default_rng(0), {"num_envs": 2, "frame_stack": 4}
    options |= {"rows": steps + 1, "obs_shape": (64, 64), "obs_dtype": "uint8"}
    replay, again = make(**options), make(**options)
    frames = rng.integers(0, 256, (steps + 1, 2, 64, 64), np.uint8)
    no = np.zeros(2, bool)
    replay.start(frames[0])
    for step in range(steps):
        replay.add(np.zeros(2, int), np.zeros(2), no, no, frames[step + 1], frames[0])
    save(replay, tmp_path)
    for file in tmp_path.rglob("*.npy"):  # what waits for the disk counts as dirty
        with file.open("rb") as opened:
            os.fdatasync(opened.fileno())
    again.load(tmp_path, replay.state_dict())
    assert int(again._frames.sum()) == int(frames.sum())  # every page
    # All of it is the files' own pages, and next to nothing of that a copy of this process.
    mapped = Path("/proc/self/smaps").read_text().split("VmFlags")
    sizes = [
        dict(re.findall(r"(\w+): +(\d+) kB", part)) for part in mapped if str(tmp_path) in part
    ]
    kib = {key: sum(int(size[key]) for size in sizes) for key in ("Rss", "Private_Dirty")}
    assert kib["Rss"] > 0.95 * frames.nbytes / 1024
    assert kib["Private_Dirty"] < 0.1 * frames.nbytes / 1024
