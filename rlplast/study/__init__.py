"""Studies: one prefix and many arms, planned, run by an executor, resumed.

The package may be called, as a study is run from Python: ``rlplast.study("study/demo")``.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlplast.study.api import StudyResult


def study(
    config: "str | Path",
    out: "str | Path | None" = None,
    *,
    executor: str | None = None,
    jobs: int | None = None,
    observer: Callable[[Any], object] = lambda progress: None,
    report: Callable[[str], object] = lambda text: None,
) -> "StudyResult":
    """Run a study, or go on with it, as `rlplast study` does.

    Args:
        config: a path, or a shipped name such as ``study/demo``.
        out: the study's folder; default: ``runs/study-NAME``.
        executor: local, ray or slurm; default: the config's.
        jobs: runs at the same time; default: the config's, else as many as there is room for.
        observer: told of every event, and about twice a second; gets
            `rlplast.study.scheduler.Progress`.
        report: told of each environment that cannot be resumed exactly.

    Returns:
        The folder, and what has become of each cell. A cell that failed raises nothing.
    """
    from rlplast.study.api import read_study, run_study

    return run_study(read_study(config, out, executor, jobs), observer, report)


class _Study(ModuleType):
    """This package: a package and a function of `rlplast` would else have one name."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return study(*args, **kwargs)


sys.modules[__name__].__class__ = _Study
