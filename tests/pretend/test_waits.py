"""How often the host waits for the device in an update: never, but for exceptions with a reason.

Reads of a number, copies from memory that is not pinned and the like are waits. Whatever waits in
every update keeps a GPU idle while Python goes on, and cannot be part of a CUDA graph.
"""

from collections import Counter
from typing import Any

import pytest

from rlplast.core.registry import rows
from rlplast.run.timing import built
from tests.cases import CASES
from tests.every_kind import KINDS, small_run
from tests.marks import optimizers
from tests.methods import penalty_cases
from tests.pretend.device import counted
from tests.test_every_kind import LAYERS, OWN, QUIET, REFUSED_LAYERS

SKIPPED = 3  # updates, in which state is allocated
COUNTED = 3  # updates

# What waits, and for what.
EXCEPTIONS = {
    "kron": "its package copies numbers of the host",
    # Made to fire now and then, not in every update.
    "fire": "eigenvalues are checked, and a choice is made by them",
    "full_reset": "fresh weights are drawn on the host",
    "head_reset": "fresh weights are drawn on the host",
    "redo": "fresh weights are drawn on the host",
    "regrama": "fresh weights are drawn on the host",
    "shrink_perturb": "fresh weights are drawn on the host",
}


def waits(config: dict[str, Any]) -> Counter[str]:
    """Return what the host waits for in some updates."""
    trainable, _ = built(config)
    found: Counter[str] = Counter()
    updates = 0
    try:
        while updates < SKIPPED + COUNTED:
            with counted() as seen:
                trainable.step()
            if trainable.clock.updates > updates:
                updates = trainable.clock.updates
                found += Counter(seen.waits if updates > SKIPPED else {})
    finally:
        trainable.close()
    return found


def check(kind: str, what: str, corpora: dict[str, str], **changes: Any) -> None:
    plain: dict[str, Any] = {"hooks": [], "penalties": [], "device": "cuda"}
    if kind == "supervised":
        plain["augment"] = []
    found = waits(small_run(kind, corpora, **QUIET, **(plain | changes)))
    if what not in EXCEPTIONS:
        assert not found
    else:
        assert found, f"{what} waits for nothing: take it off the list of exceptions"


@pytest.mark.parametrize("kind", KINDS)
def test_updates_wait_for_nothing(kind: str, corpora: dict[str, str]) -> None:
    check(kind, kind, corpora)


@pytest.mark.parametrize(
    ("kind", "method"),
    [
        (kind, method)
        for kind in KINDS
        for method, case in CASES.items()
        if kind not in case.refuses and (not case.refuses_inside or case.follows)
    ],
)
def test_hooks_inside_wait_for_nothing(kind: str, method: str, corpora: dict[str, str]) -> None:
    case = CASES[method]
    schedule = {"at": "12 updates"} if case.follows else {"every": "1 updates"}
    row = {"method": method, "params": dict(case.params) | OWN.get(method, {}), **schedule}
    check(kind, method, corpora, hooks=[row])


@pytest.mark.parametrize(
    ("kind", "layer"),
    [(k, layer) for k in KINDS for layer in LAYERS if (k, layer) not in REFUSED_LAYERS],
)
def test_layers_wait_for_nothing(kind: str, layer: str, corpora: dict[str, str]) -> None:
    check(kind, layer, corpora, layers=[{"method": layer, "params": LAYERS[layer]}])


@pytest.mark.parametrize("method", [info.name for info in rows("penalties")])
@pytest.mark.parametrize("kind", KINDS)
def test_penalties_wait_for_nothing(kind: str, method: str, corpora: dict[str, str]) -> None:
    check(kind, method, corpora, penalties=[penalty_cases.row(method)])


@pytest.mark.parametrize("name", optimizers())
@pytest.mark.parametrize("kind", KINDS)
def test_optimizers_wait_for_nothing(kind: str, name: str, corpora: dict[str, str]) -> None:
    check(kind, name, corpora, optimizer={"name": name})


def test_augmented_images(corpora: dict[str, str]) -> None:
    check("supervised", "augment", corpora, augment=["crop", "flip"])
