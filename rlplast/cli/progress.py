"""The progress bar: rate, return or loss, time left, next hook; off when not a terminal."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from rlplast.core.training.distributed import rank
from rlplast.core.training.loop import Loop

__all__ = ["progress"]

SHOWN = ("train/return", "train/loss", "eval/return_mean", "eval/accuracy", "eval/loss")


def describe(loop: Loop) -> str:
    """Return the words after the bar: latest figures and the next hook."""
    words = [f"{k.removeprefix('train/')} {loop.latest[k]:.3g}" for k in SHOWN if k in loop.latest]
    following = loop.hooks.next_due(loop.trainable.clock)
    if following is not None:
        words.append(f"next: {following[0]} at {following[1]}")
    return "  ".join(words)


@contextmanager
def progress() -> Iterator[Callable[[Loop], None]]:
    """Show a progress bar while the block runs; yields the loop's observer."""
    if not sys.stderr.isatty() or rank() > 0:
        yield lambda loop: None
        return
    from rich.console import Console

    bar = Progress(
        TextColumn("{task.completed:,.0f}/{task.total:,.0f} {task.fields[unit]}"),
        BarColumn(),
        TextColumn("{task.fields[rate]:,.0f}/s"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[words]}"),
        console=Console(stderr=True),
    )
    started = time.monotonic()
    shown, first, task = 0.0, 0, None

    def observe(loop: Loop) -> None:
        nonlocal shown, first, task
        now = time.monotonic()
        compiling = getattr(loop.trainable, "about_to_compile", False)
        if now - shown < 0.2 and not loop.done() and not compiling:
            return
        shown = now
        done = loop.trainable.clock[loop.total.unit]
        if task is None:
            first = done
            task = bar.add_task(
                "", total=loop.total.value, unit=loop.total.unit, rate=0.0, words=""
            )
        rate = (done - first) / max(now - started, 1e-9)
        words = "compiling the update: up to a minute" if compiling else describe(loop)
        bar.update(task, completed=done, rate=rate, words=words, refresh=compiling)

    with bar:
        yield observe
