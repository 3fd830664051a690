"""Reports: curves, intervals and tables of many runs in one page, and the picture of a run.

The package may be called, as a report is written from Python: ``rlplast.report("runs/demo")``.
"""

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any


def report(
    *folders: "str | Path",
    out: "str | Path | None" = None,
    told: Callable[[str], object] = warnings.warn,
) -> Path:
    """Write a report of studies and runs, as `rlplast report` does.

    Args:
        *folders: of studies, of runs, or with such folders somewhere in them.
        out: the folder to write, in which pictures and ``summary.csv`` lie beside the page;
            default: ``report`` in the first one.
        told: told in a line of a chart that could not be drawn as a picture.

    Returns:
        The page.

    Raises:
        ConfigError: if no run is done, or the runs cannot be compared.
        DamagedFile: if a file is cut or altered.
    """
    from rlplast.report.contents import report_of

    paths = [Path(folder) for folder in folders]
    return report_of(paths, None if out is None else Path(out), told).page


class _Report(ModuleType):
    """This package: a package and a function of `rlplast` would else have one name."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return report(*args, **kwargs)


sys.modules[__name__].__class__ = _Report
