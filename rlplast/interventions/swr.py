"""Soft Weight Rescaling: pull each layer's norm back without changing what the net computes.

Source: SWR paper, Algorithm 1 and Theorems 1-3.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from rlplast.core.edits import Assign, Edit, Receipt, Scale
from rlplast.core.errors import ConfigError
from rlplast.core.hook import Context, Intervention, fire_once, intervention
from rlplast.core.network import NORMS, Block, Network
from rlplast.core.order import forward_order
from rlplast.core.registry import param

__all__ = ["Swr", "swr"]


@dataclass(frozen=True)
class _Chain:
    """One path through the network: its layers in forward order.

    Attributes:
        weights: W of each layer (a norm layer's scale).
        biases: b of each layer, where it has one, with the layer's index.
        starts: index of the first layer of each segment; a norm layer starts one.
        classifier: per layer, whether it belongs to the fully-connected classifier.
    """

    weights: list[Block]
    biases: list[tuple[int, Block]]
    starts: list[int]
    classifier: list[bool]


_CHAINS: WeakKeyDictionary[Network, dict[tuple[Block, ...], list[_Chain]]] = WeakKeyDictionary()


@intervention("swr", source="SWR Algorithm 1, Theorem 1; Appendix E (re-anchoring)")
@dataclass(frozen=True)
class Swr(Intervention):
    """Scale each layer so that its norm drifts back to its initial one.

    c_l = (λ n_l + (1 − λ)‖W_l‖)/‖W_l‖, W_l ← c_l W_l, b_l ← C b_l, in forward order, where C
    is the product of the factors so far. Made to run after every update. Weights, biases,
    norm layers' scale and shift are edited, heads too; layers of zero norm are left alone.
    A tied tensor is refused: it has two places in the order. Embeddings are untouched.
    Optimizer state is kept and followers are left unless the hook says otherwise.

    Attributes:
        coef: λ of convs and norm layers.
        coef_head: λ of the fully-connected classifier; None for `coef`.
        rule: ``exact`` restarts C at every norm layer; ``printed`` is the paper's Algorithm 1,
            which lets the layer before the last norm layer leak into that norm's shift.
        reanchor_on_lr_decay: n_l ← ‖W_l‖ when the learning rate drops (Appendix E).
    """

    policies: ClassVar[tuple[str, str]] = ("keep", "leave")

    coef: float = param(1e-3, "[0, 1]")
    coef_head: float | None = param(None, "[0, 1]")
    rule: str = param("exact", "exact | printed")
    reanchor_on_lr_decay: bool = param(False, "")

    @property
    def uses_initial(self) -> bool:
        """Whether plans read θ0."""
        return True

    def setup(self, network: Network, blocks: Sequence[Block]) -> dict[str, Tensor]:
        """Return the anchors n_l = ‖W_l at init‖ of every layer, and the learning rate."""
        anchors = [
            torch.linalg.vector_norm(network.initial[w.name].detach())
            for chain in _chains(network, blocks)
            for w in chain.weights
        ]
        device = blocks[0].view.device
        lr = torch.zeros((), dtype=torch.float64, device=device)
        return {"anchor": torch.stack(anchors).to(device), "lr": lr}

    def plan(self, context: Context, state: dict[str, Tensor]) -> list[Edit]:
        """Plan one factor per tensor; branch-free, without host synchronisation."""
        chains = _chains(context.network, context.blocks)
        weights = [w for chain in chains for w in chain.weights]
        norms = torch.stack(torch._foreach_norm([w.view for w in weights])).to(state["anchor"])
        coef = [self._coef(c) for chain in chains for c in chain.classifier]
        lam = torch.tensor(coef, dtype=norms.dtype, device=norms.device)
        edits, anchor = self._reanchored(context, state, norms)
        factors = torch.where(norms > 0, lam * anchor / norms + (1 - lam), torch.ones_like(norms))
        start = 0
        for chain in chains:
            stop = start + len(chain.weights)
            own = factors[start:stop]
            cumulative = self._cumulative(own, chain)
            edits += [
                Scale(w, f, n)
                for w, f, n in zip(
                    chain.weights, own.unbind(), norms[start:stop].unbind(), strict=True
                )
            ]
            edits += [Scale(b, cumulative[i]) for i, b in chain.biases]
            start = stop
        return edits

    def _coef(self, classifier: bool) -> float:
        head = self.coef if self.coef_head is None else self.coef_head
        return head if classifier else self.coef

    def _cumulative(self, factors: Tensor, chain: _Chain) -> Tensor:
        """Return C of each layer."""
        bounds = [*chain.starts, len(factors)]
        if self.rule == "exact":
            parts = [
                factors[a:b].cumprod(0) for a, b in zip(bounds, bounds[1:], strict=False) if b > a
            ]
            return torch.cat(parts)
        last = chain.starts[-1]  # the last norm layer, whose C still takes c of the layer before
        first = max(last - 1, 0)
        tail = factors[first:].cumprod(0)
        return torch.cat([factors[:first], tail])

    def _reanchored(
        self, context: Context, state: dict[str, Tensor], norms: Tensor
    ) -> tuple[list[Edit], Tensor]:
        if not self.reanchor_on_lr_decay:
            return [], state["anchor"]
        groups = [g for o in context.network.optimizers for g in o.param_groups]
        lr = torch.as_tensor(groups[0]["lr"] if groups else 0.0).to(state["lr"])
        anchor = torch.where(lr < state["lr"], norms, state["anchor"])
        return [Assign(state["anchor"], anchor), Assign(state["lr"], lr)], anchor


def _chains(network: Network, blocks: Sequence[Block]) -> list[_Chain]:
    """Return one chain per slot of the network; found once, since this runs every update."""
    known = _CHAINS.setdefault(network, {})
    key = tuple(blocks)
    if key not in known:
        known[key] = _find_chains(network, blocks)
    return known[key]


def _find_chains(network: Network, blocks: Sequence[Block]) -> list[_Chain]:
    modules = dict(network.module.named_modules())
    slots: dict[int | None, dict[str, list[Block]]] = {}
    for block in blocks:
        if block.aliases:
            raise ConfigError(
                f"swr: {network.qualified(block)} is tied to {', '.join(block.aliases)}: it has "
                "two places in the forward order; leave the tied layer out of the network"
            )
        if block.spec.part:
            raise ConfigError(
                f"swr: {network.qualified(block)} is one part of a packed layer: attention "
                "branches, and has no forward order"
            )
        if block.kind in ("linear", "conv", "norm") and block.role != "buffer":
            slots.setdefault(block.spec.slot, {}).setdefault(block.path, []).append(block)
    order = forward_order(network)
    return [_chain(by_path, order, modules) for by_path in slots.values()]


def _chain(
    by_path: dict[str, list[Block]], order: list[str], modules: dict[str, torch.nn.Module]
) -> _Chain:
    weights: list[Block] = []
    biases: list[tuple[int, Block]] = []
    starts = [0]
    for path in order:
        is_norm = isinstance(modules[path], NORMS)
        if is_norm:
            starts.append(len(weights))
        for block in by_path.get(path, []):
            if block.role in ("weight", "scale"):
                weights.append(block)
        for block in by_path.get(path, []):
            if block.role in ("bias", "shift"):
                biases.append((len(weights) - 1, block))
    classifier = [b.kind == "linear" for b in weights]
    return _Chain(weights, biases, starts, classifier)


def swr(model: Any, optimizer: Any = None, *, scope: str = "all", **options: Any) -> Receipt:
    """Rescale a model in place, once; call it after every update.

    A `rlplast.Network` made once before training and passed as `model` keeps the initial
    norms; with a bare module pass ``initial=``, a state dict saved before training.

    Args:
        model: a module or a `rlplast.Network`.
        optimizer: the optimizer (or several) that trains it.
        scope: which layers, see `rlplast.core.scope.SCOPES`.
        **options: the parameters of `Swr`, and the keyword arguments of
            `rlplast.core.hook.fire_once`.
    """
    return fire_once("swr", model, optimizer, scope_name=scope, **options)
