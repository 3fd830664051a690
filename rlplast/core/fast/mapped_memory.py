"""Big arrays that files are mapped into: processes share the pages until they write to them."""

import ctypes
import mmap
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt

__all__ = ["PAGE", "fill", "zeros"]

PAGE = 4096  # the unit in which a place in memory and one in a file have to agree
_MAP_FIXED = 0x10  # of Linux on x86, ARM, POWER and RISC-V; Python's mmap has no name for it
_HUGE = 1 << 22  # from here on NumPy asks for huge pages too: random rows are read 1.25 × as fast


def zeros(shape: tuple[int, ...], dtype: np.dtype) -> npt.NDArray:
    """Return an array of zeros that begins with a page; pages are committed when written to."""
    size = int(np.prod([dtype.itemsize, *shape], dtype=object))
    try:
        pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError, ValueError) as error:
        raise MemoryError(f"unable to allocate {size / 2**30:.3g} GiB ({error})") from error
    if size >= _HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without them
            pages.madvise(mmap.MADV_HUGEPAGE)
    return np.ndarray(shape, dtype, buffer=pages)


def fill(array: npt.NDArray, rows: slice, path: Path, offset: int) -> None:
    """Fill rows of `array` with a file's bytes from `offset` on; whole pages are mapped.

    The array is one of `zeros`, the rows have no step, and the file must not change as long as the
    array is in use.

    Raises:
        OSError: if the file cannot be read or is too short.
    """
    into = array[rows].reshape(-1).view(np.uint8)
    with path.open("rb") as file:
        start, stop = _map(array, into, file.fileno(), offset)
        for part, begin in ((into[:start], offset), (into[stop:], offset + stop)):
            file.seek(begin)
            if file.readinto(part.data) != part.size:
                raise OSError(f"{path} ends too early")


def _map(
    array: npt.NDArray, into: npt.NDArray[np.uint8], descriptor: int, offset: int
) -> tuple[int, int]:
    """Map pages of a file, copy-on-write; return the first and last byte of `into` replaced."""
    address = into.ctypes.data
    start, stop = -address % mmap.PAGESIZE, into.size - (address + into.size) % mmap.PAGESIZE
    aligned = (offset - address) % mmap.PAGESIZE == 0
    ours = isinstance(array.base, mmap.mmap)
    if sys.platform != "linux" or stop <= start or not aligned or not ours:
        return 0, 0
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    access, flags = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | _MAP_FIXED
    place = address + start
    done = libc.mmap(place, stop - start, access, flags, descriptor, offset + start) == place
    return (start, stop) if done else (0, 0)
