"""One plan on one network, as a firing would write it."""

from collections.abc import Callable, Sequence
from typing import Any

from rlplast.core.method import apply as firing
from rlplast.core.method.receipt import Receipt
from rlplast.core.network.edits import Edit
from rlplast.core.network.network import Network


def apply(
    network: Network,
    edits: Sequence[Edit],
    replan: Callable[[Network], Sequence[Edit]] | None = None,
    **options: Any,
) -> Receipt:
    followers = network.followers.values() if replan is not None else ()
    plans = [(f, replan(f)) for f in followers if replan is not None]
    [receipt] = firing.apply([firing.Planned(network, edits, plans)], **options)
    return receipt
