"""Times and counts as people say them."""

__all__ = ["counted", "duration"]


def duration(seconds: float) -> str:
    """Return a time as people say it.

    Examples:
        >>> duration(42), duration(600), duration(7200), duration(1e6)
        ('42 s', '10 min', '2.0 h', '11.6 days')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 360_000 else f"{seconds / 86_400:.1f} days"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
