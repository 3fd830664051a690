"""LayerNorm before the nonlinearities: Ba et al. 2016; Lyle et al. 2023 for plasticity."""

from dataclasses import dataclass

from pydantic import PositiveFloat
from torch import nn

from rlplast.core.errors import NothingToEdit
from rlplast.core.method.method import Method, method
from rlplast.methods.normalised import normalise

__all__ = ["LayerNorm"]


@method("layer_norm", key="layers", source="Ba et al. 2016; Lyle et al. 2023")
@dataclass(frozen=True)
class LayerNorm(Method):
    """Put a LayerNorm before every nonlinearity.

    Layers with hidden units get a LayerNorm at their output, unless a norm layer follows already:
    over the units of a linear layer, of each member of a stacked one; over channels, height and
    width of a conv, with a scale and a shift per channel (ours).

    Attributes:
        affine: whether the norms have a scale and a shift, which are trained.
        eps: added to the variance.
    """

    affine: bool = True
    eps: PositiveFloat = 1e-5

    def install(self, model: nn.Module, seed: int) -> list[str]:
        """Normalise every layer with hidden units in place; return their paths."""
        paths = normalise(model, self.name, affine=self.affine, eps=self.eps, bias=True)
        if not paths:
            raise NothingToEdit(
                f"{self.name}: a norm follows each layer with hidden units already; leave it out"
            )
        return paths
