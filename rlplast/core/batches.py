"""How data are cut into batches."""

from itertools import pairwise

__all__ = ["batch_slices"]


def batch_slices(count: int, size: int) -> list[slice]:
    """Return where each batch of one pass lies.

    The last one holds what is left. A single one joins the batch before: BatchNorm finds no
    variance in one.

    Args:
        count: samples, at least 1.
        size: samples of a batch, at least 1.

    Examples:
        >>> [part.stop - part.start for part in batch_slices(8, 3)]
        [3, 3, 2]
        >>> [part.stop - part.start for part in batch_slices(7, 3)]
        [3, 4]
    """
    ends = [*range(size, count - (size > 1), size), count]
    return [slice(start, end) for start, end in pairwise([0, *ends])]
