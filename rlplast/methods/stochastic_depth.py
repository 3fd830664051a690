"""Stochastic depth: Huang et al. 2016."""

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from torch import Tensor, nn

from rlplast.core.errors import NothingToEdit
from rlplast.core.method.method import method
from rlplast.core.validation import Fraction
from rlplast.methods.dropping import Dropping, stays

__all__ = ["StochasticDepth"]

_DROP_PATHS = ("drop_path", "drop_path1", "drop_path2")  # timm's places for it


def _drop_branch(
    method: Dropping, p: float, seed: int, layer: nn.Module, args: Any, added: Tensor
) -> Tensor:
    """Return m·f of what a branch adds where it drops now, else (1 − p)·f."""
    updates = method.seen(layer)
    if updates is None:
        return added * (1 - p)
    samples = 2 if hasattr(layer, "members") else 1  # members of an ensemble come first
    shape = [n if i < samples else 1 for i, n in enumerate(added.shape)]
    return added * stays(shape, p, updates, seed)


@method("stochastic_depth", key="layers", source="Huang et al. 2016")
@dataclass(frozen=True)
class StochasticDepth(Dropping):
    """Leave out residual blocks at random in training: stochastic depth.

    Block l of L, counted from 1, adds nothing for a share p_l of the samples, and its whole branch
    for the others; where `dropout` would drop nothing it adds (1 − p_l) times its branch, which is
    the mean. The two branches of a transformer's block draw apart, and so do members of an
    ensemble. Blocks are those a network names in ``residual_branches()`` (SimBa, ResNet-18, ViT,
    GPT), or timm's ``drop_path``; a network without any is refused.

    Attributes:
        p: the share of the last block.
        mode: ``linear``: p_l = p·l/L; ``uniform``: p_l = p.
    """

    p: Fraction = 0.2
    mode: Literal["linear", "uniform"] = "linear"

    def places(self, model: nn.Module) -> dict[str, str]:
        """Return the layers whose outputs blocks add to their stream."""
        paths = {path: path for block in _branches(model) for path in block}
        if not paths:
            raise NothingToEdit(
                f"stochastic_depth finds no residual blocks in a {type(model).__name__}: a model "
                "names the layers whose outputs its blocks add in residual_branches(), a list of "
                "lists of paths"
            )
        return paths

    def drop_in(self, model: nn.Module, path: str, seed: int) -> nn.Module:
        """Let a layer drop what it adds."""
        blocks = _branches(model)
        number = next(i for i, block in enumerate(blocks, 1) if path in block)
        p = self.p if self.mode == "uniform" else self.p * number / len(blocks)
        layer = model.get_submodule(path)
        layer.register_forward_hook(partial(_drop_branch, self, p, seed))
        return layer


def _branches(model: nn.Module) -> list[list[str]]:
    """Return the layers that each residual block adds the outputs of, by path."""
    declared: Any = getattr(model, "residual_branches", None)
    if declared is not None:
        return declared()
    blocks: dict[str, list[str]] = {}
    for path, _ in model.named_modules():
        block, _, name = path.rpartition(".")
        if name in _DROP_PATHS:
            blocks.setdefault(block, []).append(path)
    return list(blocks.values())
