"""Persistent Neurons: Min 2020 (arXiv:2007.01419), equations 2, 4 and 5."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field, NonNegativeFloat
from torch import Tensor

from rlplast.core.errors import BadWeights, NothingToEdit
from rlplast.core.method.method import Assign, Block, Context, Edit, Method, Network, State, method
from rlplast.metrics.ranks import at_least_float32

__all__ = ["Persistent"]

_PAST = "past/"  # what the names of the solutions, by layer, begin with


@method("persistent", source="Min 2020, Persistent Neurons, equations 4 and 5", key="hooks")
@dataclass(frozen=True)
class Persistent(Method):
    """Restart from θ0, and push every layer away from the solutions found before.

    A firing ends one iteration and begins the next. From the first firing on the loss has the term
    coef · Σ_k Σ_l |⟨Θ_k^l, θ^l⟩|/‖Θ_k^l‖ over the remembered solutions Θ_k. A layer is the weight
    and the bias of a linear or conv layer, one after the other; all else returns to θ0 and is not
    penalised (ours). A member of a stacked critic is compared with the same member. A layer that
    is 0 in Θ_k adds nothing.

    Attributes:
        coef: strength λ.
        layers: ``all``, equation 4; ``one``, equation 5: a layer that each firing draws anew (ours:
            the paper does not say when it draws).
        norm_power: the power of ‖Θ_k^l‖ that it is divided by; the paper's print can be read as 2.
        solutions: how many are remembered, a copy of the layers each; of more, the newest.
    """

    coef: NonNegativeFloat = 0.01
    layers: Literal["all", "one"] = "all"
    norm_power: Annotated[int, Field(ge=1, le=2)] = 1
    solutions: Annotated[int, Field(ge=1, le=10_000)] = 20

    @property
    def uses_initial(self) -> bool:
        """Plans return to θ0."""
        return True

    def covers(self, block: Block) -> bool:
        """Return whether a Block is the weight or bias of a linear or conv layer."""
        return block.role in ("weight", "bias") and block.kind in ("linear", "conv")

    def setup(self, network: Network, blocks: Sequence[Block]) -> State:
        """Return room for Θ/‖Θ‖^norm_power of every layer, (solutions, its entries), zeros."""
        layers = self._layers(blocks)
        if blocks and not layers:
            raise NothingToEdit(
                f"persistent finds no linear or conv layer in network {network.name!r}"
            )
        state = {}
        for name, layer in layers.items():
            entries = sum(block.view.numel() for block in layer)
            state[_PAST + name] = at_least_float32(layer[0].view).new_zeros(self.solutions, entries)
        device = blocks[0].view.device if blocks else None
        state["found"] = torch.zeros((), dtype=torch.int64, device=device)
        state["layer"] = torch.zeros(1, dtype=torch.int64, device=device)
        return state

    def plan(self, context: Context, state: State) -> list[Edit]:
        """Plan to remember the layers as they are, and to put all in scope back to θ0."""
        fired = state["found"]
        place = (fired % self.solutions)[None]
        layers = self._layers(context.blocks)
        edits: list[Edit] = []
        for name, layer in layers.items():
            flat = torch.cat([block.view.double().flatten() for block in layer])
            size = torch.linalg.vector_norm(flat) ** self.norm_power
            direction = flat / size.clamp(min=1e-300)  # 0 stays 0
            if not direction.isfinite().all():
                names = ", ".join(context.network.qualified(block) for block in layer)
                raise BadWeights(f"persistent: {names}: not finite, hence no solution to remember")
            edits.append(Assign(state[_PAST + name], direction[None], rows=place))
        drawn = torch.randint(max(1, len(layers)), (1,), generator=context.stream())
        edits += [Assign(fired, fired + 1), Assign(state["layer"], drawn.to(fired.device))]
        initial = context.network.initial
        return edits + [Assign(block, initial[block.name]) for block in context.blocks]

    def term(self, context: Context, state: State) -> Tensor:
        """Return coef times the sum over remembered solutions and layers."""
        products = []
        for name, layer in self._layers(context.blocks).items():
            flat = torch.cat([at_least_float32(block.live()).flatten() for block in layer])
            products.append((state[_PAST + name] @ flat).abs().sum())
        by_layer = torch.stack(products)
        chosen = by_layer if self.layers == "all" else by_layer.index_select(0, state["layer"])
        return self.coef * chosen.sum()

    def _layers(self, blocks: Sequence[Block]) -> dict[str, list[Block]]:
        """Return the penalised Blocks of each layer, in registration order."""
        layers: dict[str, list[Block]] = {}
        for block in blocks:
            if block.trainable and self.covers(block):
                layers.setdefault(block.layer, []).append(block)
        return layers
