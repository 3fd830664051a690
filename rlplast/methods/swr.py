"""Soft Weight Rescaling: SWR paper, Algorithm 1 and Theorems 1-3."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from rlplast.core.errors import ConfigError, NothingToEdit
from rlplast.core.method.method import Assign, Block, Context, Edit, Method, Network, method
from rlplast.core.method.once import plain
from rlplast.core.network.order import declared_order
from rlplast.core.network.segments import segments
from rlplast.core.validation import Share
from rlplast.methods.rescaling import (
    Layer,
    Order,
    blocks_by_member,
    chain_of,
    chains_of,
    check_followed,
    norms_of,
    order_of,
    place_of,
    rescaled,
    weight_of,
)

__all__ = ["Swr", "swr"]


_MOST = 85.0  # log of what still fits into float32, almost


@method("swr", source="SWR Algorithm 1, Theorem 1; Appendix E (re-anchoring)")
@dataclass(frozen=True)
class Swr(Method):
    """Scale each layer so that its norm drifts back towards its initial value.

    c_l = (λ n_l + (1 − λ)‖W_l‖)/‖W_l‖, W_l ← c_l W_l, b_l ← C b_l, in forward order, where C
    is the product of the factors so far. Made to run after every update. Norm layers and heads are
    scaled too; layers of zero norm are left alone; a tied tensor, with two places in the order, is
    refused.

    A network that branches has no such order. There (ours) layers whose scale a norm takes out,
    or that lead to the outputs, are chains of their own; of query and key, and of value and
    output projection, the product stays and the ratio drifts: with c and c' of the two,
    W ← √(c/c')·W and W' ← √(c'/c)·W'. Every other layer in scope is refused by name, or, if
    `approximate`, scaled by c with its bias.

    Attributes:
        coef: λ of convs and norm layers.
        coef_head: λ of the fully-connected classifier; None for `coef`.
        rule: ``exact`` restarts C at every norm layer; ``printed`` is the paper's Algorithm 1,
            which lets the layer before the last norm layer leak into that norm's shift, and
            gives layers before it their own factor only.
        reanchor_on_lr_decay: n_l ← ‖W_l‖ when the layer's learning rate drops (Appendix E).
        rescale_running_stats: whether a BatchNorm's running mean and variance follow the
            scale of its input, C and C²; else they lag behind in evaluation. ``exact`` only.
        approximate: whether layers are rescaled too that change what the network computes.
            Receipts then say in `deviation` how much, on a probe.
    """

    policies = ("keep", "leave")

    coef: Share = 1e-3
    coef_head: Share | None = None
    rule: Literal["exact", "printed"] = "exact"
    reanchor_on_lr_decay: bool = False
    rescale_running_stats: bool = False
    approximate: bool = False

    def __post_init__(self) -> None:
        for key in ("rescale_running_stats", "approximate"):
            if getattr(self, key) and self.rule != "exact":
                raise ConfigError(
                    f"swr.{key} with rule = {self.rule!r}, which knows chains only and whose C is "
                    "not the scale of a norm layer's input; use rule = 'exact'"
                )

    @property
    def uses_initial(self) -> bool:
        """Whether plans read θ0."""
        return True

    @property
    def measures_deviation(self) -> bool:
        """Whether receipts say how far outputs move from a multiple of themselves."""
        return self.approximate

    def check_layers(
        self, network: Network, blocks: Sequence[Block], left: Sequence[Block]
    ) -> None:
        """Refuse to leave out a bias, or statistics, that have to follow the layers scaled."""
        check_followed(network, blocks, left, self.name)
        for block in left if self.rescale_running_stats else ():
            if block.kind == "norm" and block.role == "buffer":
                raise ConfigError(
                    f"swr: {network.qualified(block)} is left out by the hook's layers, and "
                    "rescale_running_stats moves such statistics: leave out one of the two keys"
                )

    def setup(self, network: Network, blocks: Sequence[Block]) -> dict[str, Tensor]:
        """Return the anchors n_l = ‖W_l at init‖ of every layer, and their learning rates."""
        order = self._order(network, blocks)
        anchor = norms_of([network.initial[w.name] for w in order.weights]).to(order.classifier)
        return {"anchor": anchor, "lr": torch.zeros_like(anchor, dtype=torch.float64)}

    def plan(self, context: Context, state: dict[str, Tensor]) -> list[Edit]:
        """Plan one factor per tensor; branch-free, without host synchronisation."""
        order = self._order(context.network, context.blocks)
        norms = norms_of([w.view for w in order.weights]).to(state["anchor"])
        edits, anchor = self._reanchored(context, order.weights, state, norms)
        head = self.coef if self.coef_head is None else self.coef_head
        lam = order.classifier * (head - self.coef) + self.coef
        factors = torch.where(norms == 0, 1.0, (lam * anchor + (1 - lam) * norms) / norms)
        if context.inside:
            # A norm out of range gives no finite factor. A single firing is refused by its check;
            # an update cannot wait for one: nothing is scaled, and `Hook.flush` stops the run.
            fits = factors.clamp(min=1).log().sum() < _MOST  # so are their products, C
            factors = torch.where(fits, factors, 1.0)
            norms = torch.where(fits, norms, torch.nan)  # counted, not written
        if order.pairs is not None:
            first, second = factors[order.pairs].unbind(1)
            root = (first / second).sqrt()
            balanced = torch.stack([root, 1 / root], 1).flatten()
            factors = factors.index_copy(0, order.pairs.flatten(), balanced)
        rows = zip(factors.unbind(), norms.unbind(), strict=True)
        one, leaks = torch.ones_like(norms[0]), self.rule == "printed"
        statistics = self.rescale_running_stats
        for layers in order.chains:
            edits += rescaled(layers, rows, one, leaks=leaks, statistics=statistics)
        return edits

    def _order(self, network: Network, blocks: Sequence[Block]) -> Order:
        """Return the network's order; found once, since this runs every update."""
        key = ("swr", tuple(blocks), self.rule, self.approximate)
        if key not in network.cache:
            network.cache[key] = self._find_order(network, blocks)
        return network.cache[key]

    def _find_order(self, network: Network, blocks: Sequence[Block]) -> Order:
        try:
            exact = None if self.approximate else "set approximate: true"
            return chains_of(network, blocks, "swr", exact)
        except NothingToEdit:
            raise
        except ConfigError as error:
            if declared_order(network) is not None or self.rule != "exact":
                raise
            return _branches(network, blocks, error, self.approximate)

    def _reanchored(
        self, context: Context, weights: Sequence[Block], state: dict[str, Tensor], norms: Tensor
    ) -> tuple[list[Edit], Tensor]:
        if not self.reanchor_on_lr_decay:
            return [], state["anchor"]
        groups = [g for o in context.network.optimizers for g in o.param_groups]
        rates = {id(param): group["lr"] for group in groups for param in group["params"]}
        # A float is filled in, not copied: a copy from the host would wait for the device.
        zero = torch.zeros_like(state["lr"][0])
        lr = torch.stack([zero + rates.get(id(w.param), 0.0) for w in weights])
        anchor = torch.where(lr < state["lr"], norms, state["anchor"])
        return [Assign(state["anchor"], anchor), Assign(state["lr"], lr)], anchor


def _branches(
    network: Network, blocks: Sequence[Block], error: ConfigError, approximate: bool
) -> Order:
    """Return the pieces of a network that branches, each of which can be scaled by itself."""
    chosen = set(blocks)
    statistics = [b for b in network.blocks if b.kind == "norm" and b.role == "buffer"]
    wanted = [*blocks, *(b for b in statistics if b not in chosen)]
    by_member = blocks_by_member(network, wanted, "swr")
    if set(by_member) != {None}:
        raise error
    layers = by_member[None]
    for block in network.blocks:
        if block.role in ("bias", "shift") and block not in chosen:
            if weight_of(layers.get(place_of(block), {})) is not None:
                raise ConfigError(
                    f"swr: {network.qualified(block)} is frozen or out of scope: it cannot follow "
                    "its weight, and the network would compute something else"
                )
    chains: list[list[Layer]] = []
    for run, norm in segments(network.module, lambda path: "weight" in layers.get(path, {})):
        chain = chain_of(layers, run, network)
        after = [] if norm is None else chain_of(layers, [norm], network)
        chains.append(chain + [replace(layer, weight=None, bias=None) for layer in after])
    pairs: list[tuple[Block, Block]] = []
    for query, key, value, output in _attentions(network):
        for pair in ((query, key), (value, output)):
            if chosen.issuperset(pair):
                pairs.append(pair)
                for block in pair:
                    layer = _alone(layers[place_of(block)])
                    # The bias of the output projection is added to what the pair computes.
                    chains.append([replace(layer, bias=None) if block is output else layer])
    done = {layer.weight for chain in chains for layer in chain}
    left = [r for r in layers.values() if weight_of(r) is not None and weight_of(r) not in done]
    if left and not approximate:
        names = ", ".join(network.qualified(w) for w in map(weight_of, left) if w is not None)
        raise ConfigError(
            f"{error}; rescaling {names} would change what the network computes: leave them out by "
            "a scope, such as resnet (no norms) or vit (queries and keys), or set approximate: true"
        )
    order = order_of([*chains, *([_alone(roles)] for roles in left)])
    if not pairs:
        return order
    index = {block: i for i, block in enumerate(order.weights)}
    rows = torch.tensor([[index[a], index[b]] for a, b in pairs])
    return replace(order, pairs=rows.to(order.classifier.device))


def _attentions(network: Network) -> Iterator[tuple[Block, ...]]:
    """Yield weights of query, key, value and output of the attentions that declare their heads."""
    for group in (g for g in network.units().groups if g.point is None):
        weights = [part.block for part in group.incoming if part.block.role == "weight"]
        # A key and a value of their own for all samples have no weight that could be scaled.
        shared_key = getattr(weights[0].module, "bias_k", None)
        if len(weights) == 3 and shared_key is None:
            yield (*weights, group.outgoing[0].block)


def _alone(roles: Mapping[str, Block]) -> Layer:
    bias = roles.get("bias", roles.get("shift"))
    return Layer(weight_of(roles), bias, (), is_norm=False, precedes_norm=False, beside=False)


swr = plain(Swr)
"""Rescale the weights of a model once, in place; call it after every update."""
