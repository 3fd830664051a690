"""One canonical case per registered intervention; it drives the universal tests.

A method that is registered without a case fails `test_every_method_has_a_case`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rlplast.core.method.hooks import Hooks
from rlplast.core.method.method import has_face
from rlplast.core.method.once import fire_once
from rlplast.core.method.receipt import Receipt
from rlplast.core.network.network import Network
from rlplast.core.registry import rows
from tests.models import FAMILIES

__all__ = [
    "ACCEPTED",
    "CASES",
    "REFUSED",
    "Case",
    "fire",
    "hooks",
    "missing_cases",
    "of_weights",
    "stale_cases",
]


@dataclass(frozen=True)
class Case:
    """How the universal tests use a method.

    Attributes:
        params: parameters of the firing.
        scope: its scope.
        without_draws: parameters under which the method draws nothing, for tests that
            compare networks with streams of their own; None: `params` draws nothing.
        refuses: model family → what the refusal says; it names the tensor or the place.
        refuses_zero: whether a zero matrix is refused by name.
        cures_nan: whether the method works on weights that are not finite.
        made_for_every_update: whether it is meant to run inside each update.
    """

    params: Mapping[str, Any] = field(default_factory=dict)
    scope: str = "all"
    without_draws: Mapping[str, Any] | None = None
    refuses: Mapping[str, str] = field(default_factory=dict)
    refuses_zero: bool = False
    cures_nan: bool = False
    made_for_every_update: bool = False

    @property
    def drawless(self) -> dict[str, Any]:
        """Parameters under which the method draws nothing."""
        return dict(self.params if self.without_draws is None else self.without_draws)


CASES: dict[str, Case] = {
    "fire": Case({"iterations": 8}, refuses_zero=True),
    "full_reset": Case({"init": "fresh"}, without_draws={"init": "stored"}, cures_nan=True),
    "head_reset": Case(
        {"init": "fresh"},
        without_draws={"init": "stored"},
        refuses={"tied": r"net\.embed\.weight is tied to head\.weight"},
    ),
    "shrink_perturb": Case(
        {"coef": 0.8, "init": "fresh"}, without_draws={"coef": 0.8, "init": "stored"}
    ),
    "swr": Case(
        {"coef": 0.1, "coef_head": 0.3},
        refuses={
            "residual": r"net branches: add joins inp, relu",
            "tied": r"net\.embed\.weight is tied to head\.weight",
        },
        made_for_every_update=True,
    ),
}


ACCEPTED = [(m, f) for m, case in CASES.items() for f in FAMILIES if f not in case.refuses]
REFUSED = [(m, f) for m, case in CASES.items() for f in case.refuses]


def fire(method: str, network: Network, **options: Any) -> Receipt:
    """Fire a method once as its case says."""
    case = CASES[method]
    return fire_once(method, network, scope_name=case.scope, **dict(case.params), **options)


def hooks(method: str, network: Network, **schedule: str) -> Hooks:
    """Return a run's only hook, a method as its case says, in a run of 100 updates."""
    case = CASES[method]
    config = {"method": method, "scope": case.scope, "params": case.params, **schedule}
    return Hooks([config], network, "100 updates")


def missing_cases() -> list[str]:
    """Return registered interventions without a case, of those that need nothing but weights.

    Methods that read data or bring modules have tests of their own, in tests/methods.
    """
    return sorted(
        {row.name for row in rows("interventions") if of_weights(row.target)} - CASES.keys()
    )


def of_weights(method: Any) -> bool:
    """Whether a method needs nothing but weights."""
    return not method.reads and not has_face(method, "install")


def stale_cases() -> list[str]:
    """Return cases of interventions that are not registered."""
    return sorted(CASES.keys() - {row.name for row in rows("interventions")})
