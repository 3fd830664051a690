"""Studies: one prefix and many arms, planned, run by an executor, resumed."""

from rlplast.core.optional import callable_package

callable_package(__name__, "api")  # `rlplast.study(…)` runs a study
