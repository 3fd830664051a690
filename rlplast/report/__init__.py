"""Pictures and reports of runs."""

from rlplast.core.optional import callable_package

callable_package(__name__, "contents")  # `rlplast.report(…)` writes a report
