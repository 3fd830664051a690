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
    "l2_er": "singular values are checked",
    # Made to fire now and then, not in every update.
    "drm": "fresh weights are drawn on the host",
    "fire": "eigenvalues are checked, and a choice is made by them",
    "full_reset": "fresh weights are drawn on the host",
    "head_reset": "fresh weights are drawn on the host",
    "redo": "fresh weights are drawn on the host",
    "regrama": "fresh weights are drawn on the host",
    "renew_weights": "fresh weights are drawn on the host",
    "shrink_perturb": "fresh weights are drawn on the host",
}


def waits(config: dict[str, Any]) -> Counter[str]:
    """Return what the host waits for in some updates, firings between them not counted."""
    trainable, hooks = built(config)
    found: Counter[str] = Counter()
    updates = 0
    try:
        while updates < SKIPPED + COUNTED:
            previous = trainable.clock
            with counted() as seen:
                trainable.step()
            hooks.fire(previous, trainable.clock)
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


BINS = {"bins": 7, "low": -5.0, "high": 5.0}
AGENTS = {
    **{
        f"dqn {k}": ("dqn", {"values": {"kind": k, **BINS}}) for k in ("hl_gauss", "two_hot", "c51")
    },
    "sac c51": ("sac", {"values": {"kind": "c51", **BINS}, "critics": 3, "critic_subset": 2}),
    "simba_v2": ("sac", {"network": "simba_v2", "scale_rewards": 5, "values": {"kind": "c51"}}),
    "bro": ("sac", {"network": "bro"}),
    "shared trunk": ("ppo", {"shared_trunk": True}),
}


@pytest.mark.parametrize("name", AGENTS)
def test_networks_and_values_of_agents_wait_for_nothing(name: str, corpora: dict[str, str]) -> None:
    kind, changes = AGENTS[name]
    agent = small_run(kind, corpora)["agent"] | changes
    check(kind, name, corpora, agent=agent)


def accepted(inside: bool) -> list[tuple[str, str]]:
    """Return kinds of runs with the methods that they accept, inside updates or between them."""
    return [
        (kind, method)
        for kind in KINDS
        for method, case in CASES.items()
        if kind not in case.refuses and inside != bool(case.refuses_inside)
    ]


def row(method: str, **schedule: str) -> dict[str, Any]:
    params = dict(CASES[method].params) | OWN.get(method, {})
    return {"method": method, "params": params, **schedule}


@pytest.mark.parametrize(("kind", "method"), accepted(inside=True))
def test_hooks_inside_wait_for_nothing(kind: str, method: str, corpora: dict[str, str]) -> None:
    check(kind, method, corpora, hooks=[row(method, every="1 updates")])


@pytest.mark.parametrize(("kind", "method"), accepted(inside=False))
def test_updates_after_a_firing_wait_for_nothing(
    kind: str, method: str, corpora: dict[str, str]
) -> None:
    check(kind, method, corpora, hooks=[row(method, at="2 updates")])


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
