"""Lines that fit a terminal: what is most worth saying, within so many columns.

- `fitted`: the parts of a line that have room, each as long as there is room for.
- `middle`: a name shortened in its middle, where names of one list are most alike.
- `bar`, `count`, `rate`, `clock_time`: how progress is written.
- `Pace`: how fast a count grows, and when it is where it should be.
"""

from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size

__all__ = ["GAP", "Pace", "bar", "clock_time", "count", "fitted", "middle", "rate"]

GAP = "  "  # between the parts of a line
_WINDOW = 30.0  # seconds that a rate is measured over, at least


def fitted(parts: Sequence[Sequence[str]], columns: int) -> list[str]:
    """Return what a line says of each part; joined by `GAP` it fits the columns.

    Args:
        parts: the most important one first; of each what could be said, the longest first.
        columns: how many there are. What has no room even in its shortest form is left out; then
            each becomes as long as there is room for, the most important one first.

    Examples:
        >>> parts = [["training"], ["next: fire at 3,000 env_steps", "fire at 3k"], ["loss 0.1"]]
        >>> fitted(parts, 30), fitted(parts, 20)
        (['training', 'fire at 3k', 'loss 0.1'], ['training', 'fire at 3k'])
    """
    left = columns + len(GAP)
    chosen: list[tuple[Sequence[str], str]] = []
    for forms in parts:
        shortest = min(forms, key=cell_len)
        if cell_len(shortest) + len(GAP) <= left:
            left -= cell_len(shortest) + len(GAP)
            chosen.append((forms, shortest))
    found = []
    for forms, shortest in chosen:
        longest = max((f for f in forms if cell_len(f) <= cell_len(shortest) + left), key=cell_len)
        left -= cell_len(longest) - cell_len(shortest)
        found.append(longest)
    return found


def middle(name: str, columns: int) -> str:
    """Return a name in at most so many columns (at least 3), its middle left out if need be.

    Examples:
        >>> middle("seed-1/shrink_perturb", 12), middle("fire", 12)
        ('seed-1…rturb', 'fire')
    """
    if cell_len(name) <= columns:
        return name
    front, back = columns // 2, (columns - 1) // 2
    ending = name[-back:] if back else ""
    while cell_len(ending) > back:  # letters of two columns
        ending = ending[1:]
    return set_cell_size(name, front).rstrip() + "…" + ending


def bar(share: float, columns: int, plain: bool = False) -> str:
    """Return a bar that is full at a share of 1.

    Examples:
        >>> bar(0.5, 8), bar(0.5, 8, plain=True)
        ('━━━━╺───', '####....')
    """
    full = min(columns, max(0, int(share * columns)))
    if plain:
        return "#" * full + "." * (columns - full)
    return "━" * full + "╺"[: columns - full] + "─" * (columns - full - 1)


def count(number: float) -> str:
    """Return a count in few letters.

    Examples:
        >>> count(850), count(3000), count(12_345), count(2_252_800)
        ('850', '3k', '12.3k', '2.25M')
    """
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{letter}"
    return f"{number:.0f}"


def rate(per_second: float, unit: str) -> str:
    """Return a rate with its unit.

    Examples:
        >>> rate(67.4, "env_steps"), rate(0.4, "epochs"), rate(0.001, "updates")
        ('67 env_steps/s', '24 epochs/min', '3.6 updates/h')
    """
    for seconds, letter in ((1, "s"), (60, "min"), (3600, "h")):
        value = per_second * seconds
        if value >= 1 or letter == "h":
            break
    return f"{f'{value:.2g}' if value < 10 else count(value)} {unit}/{letter}"


def clock_time(seconds: float) -> str:
    """Return a length of time.

    Examples:
        >>> clock_time(51), clock_time(3725), clock_time(200_000)
        ('0:51', '1:02:05', '2 d 7 h')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 24:
        return f"{hours // 24} d {hours % 24} h"
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class Pace:
    """How fast a count grows.

    The rate is that of the later half of the time, and of 30 s at least: what is slow at first
    (or fast, as an agent before its first update) is soon forgotten, and pauses count.
    """

    def __init__(self) -> None:
        self._points: list[tuple[float, float]] = []

    def add(self, now: float, done: float) -> None:
        """Note the count at a moment, in seconds; only changes matter."""
        points = self._points
        if not points or (done != points[-1][1] and now > points[-1][0]):
            points.append((now, done))
        if len(points) > 400:
            del points[1:-1:2]

    def rate(self) -> float | None:
        """Return counts per second; None before the second count."""
        if len(self._points) < 2:
            return None
        (began, _), (now, done) = self._points[0], self._points[-1]
        since = min(now - _WINDOW, (began + now) / 2)
        moment, before = next(point for point in self._points if point[0] >= min(since, now))
        if moment == now:
            moment, before = self._points[-2]
        return (done - before) / (now - moment)

    def left(self, now: float, total: float) -> float | None:
        """Return the seconds until the count is `total`; None while it does not grow."""
        speed = self.rate()
        if speed is None or speed <= 0:
            return None
        moment, done = self._points[-1]
        return max(0.0, (total - done) / speed - (now - moment))
