"""Studies: one prefix and many arms, planned, run by an executor, resumed."""

import sys
from types import ModuleType
from typing import Any


class _Study(ModuleType):
    """This package, since `rlplast.study` is what runs a study from Python too."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call `rlplast.study.api.study`."""
        from rlplast.study.api import study

        return study(*args, **kwargs)


sys.modules[__name__].__class__ = _Study
