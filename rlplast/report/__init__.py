"""Pictures and reports of runs."""

import sys
from types import ModuleType
from typing import Any


class _Report(ModuleType):
    """This package, since `rlplast.report` is what writes a report from Python too."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call `rlplast.report.contents.report`."""
        from rlplast.report.contents import report

        return report(*args, **kwargs)


sys.modules[__name__].__class__ = _Report
