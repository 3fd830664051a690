import gc
import json
import mmap
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplast.agents import mapped_memory
from rlplast.agents.replay import Replay

linux = pytest.mark.skipif(sys.platform != "linux", reason="pages are mapped on Linux only")


def mapped_bytes(path: Path) -> int:
    """Return how many bytes of a file this process has mapped."""
    total = 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith(str(path)):
            first, stop = line.split()[0].split("-")
            total += int(stop, 16) - int(first, 16)
    return total


def test_array_begins_with_a_page_and_holds_zeros() -> None:
    array = mapped_memory.zeros((3, 5), np.dtype([("a", "<f4"), ("b", "u1")]))
    assert array.ctypes.data % mmap.PAGESIZE == 0
    assert array.shape == (3, 5) and array.flags.writeable and array.flags.c_contiguous
    assert not array.view(np.uint8).any()


@pytest.mark.parametrize("length", [2**50, 2**80])
def test_more_memory_than_there_is_is_refused(length: int) -> None:
    with pytest.raises(MemoryError, match=r"unable to allocate .* GiB"):
        mapped_memory.zeros((length,), np.dtype("u1"))


@settings(max_examples=100, deadline=None)
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


def test_file_that_is_too_short_is_refused(tmp_path: Path) -> None:
    array = mapped_memory.zeros((10, 100), np.dtype("u1"))
    (tmp_path / "file").write_bytes(b"x" * 499)
    with pytest.raises(OSError, match="ends too early"):
        mapped_memory.fill(array, slice(0, 5), tmp_path / "file", 0)


def test_array_that_is_not_ours_is_filled_by_reading(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 50_000)
    array = np.zeros((5, 10_000), np.uint8)
    mapped_memory.fill(array, slice(0, 5), tmp_path / "file", 0)
    assert (array == ord("x")).all()


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


# Loads a replay, as an arm of a study does, then says so and reports its memory once asked.
ARM = """
import json, sys
from pathlib import Path
import numpy as np
from rlplast.agents.replay import Replay

folder, state = Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text())
rows = state["rows_written"][0]
replay = Replay(2 * rows, 2, (64, 64), "uint8", 4, 1, 0.9, 32, np.random.default_rng(0))

def memory():
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]
    sizes = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    return {key: sizes[key] for key in ("Rss", "Pss", "Private_Dirty")}

before = memory()
replay.load(folder, state)
seen = int(replay._frames.sum())  # every page
print("loaded", flush=True)
sys.stdin.readline()
after = memory()
print(json.dumps({key: after[key] - before[key] for key in after} | {"seen": seen}), flush=True)
sys.stdin.readline()
"""


def asked(arm: "subprocess.Popen[str]") -> str:
    """Give a process its next line and return what it says."""
    assert arm.stdin is not None and arm.stdout is not None
    arm.stdin.write("\n")
    arm.stdin.flush()
    return arm.stdout.readline()


@linux
def test_processes_that_load_one_replay_share_its_memory(tmp_path: Path) -> None:
    steps, rng = 1000, np.random.default_rng(0)
    replay = Replay(2 * (steps + 1), 2, (64, 64), "uint8", 4, 1, 0.9, 32, rng)
    frames = rng.integers(0, 256, (steps + 1, 2, 64, 64), np.uint8)
    no = np.zeros(2, bool)
    replay.start(frames[0])
    for step in range(steps):
        replay.add(np.zeros(2, int), np.zeros(2), no, no, frames[step + 1], frames[0])
    replay.save(tmp_path / "save")
    (tmp_path / "state").write_text(json.dumps(replay.state_dict()))
    arms = [
        subprocess.Popen(
            [sys.executable, "-c", ARM, str(tmp_path / "save"), str(tmp_path / "state")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    assert [arm.stdout and arm.stdout.readline() for arm in arms] == ["loaded\n"] * 2
    found = [json.loads(asked(arm)) for arm in arms]
    for arm in arms:
        arm.communicate("\n", timeout=60)
    kib = frames.nbytes / 1024
    for arm in found:
        assert arm["seen"] == int(frames.sum())
        assert arm["Rss"] > 0.95 * kib  # all of it is in memory,
        assert arm["Private_Dirty"] < 0.1 * kib  # next to nothing as a copy of its own,
        assert arm["Pss"] < 0.6 * kib  # and half of it on the account of the other one
