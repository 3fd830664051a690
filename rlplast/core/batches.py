"""How data are cut into batches."""

from itertools import pairwise

__all__ = ["batch_slices"]


def batch_slices(count: int, size: int) -> list[slice]:
    """Return where each batch of one pass lies; `count` and `size` are at least 1.

    The last one holds the rest. A rest of one joins the batch before it: BatchNorm needs two.

    Examples:
        >>> [part.stop - part.start for part in batch_slices(7, 3)]
        [3, 4]
    """
    ends = [*range(size, count - (size > 1), size), count]
    return [slice(start, end) for start, end in pairwise([0, *ends])]
