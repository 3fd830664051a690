"""The optimizers a config can name, and how to add one."""

import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import Field, PositiveFloat
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Muon, Optimizer, RMSprop

from rlplast.core.errors import ConfigError
from rlplast.core.network.network import Network
from rlplast.core.network.optim_state import RULES, StateRule
from rlplast.core.network.order import last_layers
from rlplast.core.registry import register
from rlplast.core.validation import Betas, Fraction

__all__ = ["Momentum", "NewtonSteps", "optimizer", "split"]

Groups = list[dict[str, Any]]
Momentum = Fraction
NewtonSteps = Annotated[int, Field(ge=1, le=99)]


def optimizer(
    name: str, *, source: str, state: Mapping[type[Optimizer], StateRule] | None = None
) -> Callable[[Any], Any]:
    """Register the decorated factory under a name for ``optimizer: {name: …}`` of a config.

    The factory gets a module, its parameter groups (each with its weight decay) and a learning
    rate. Its keyword-only arguments are the optimizer's parameters; their types have their ranges.
    It returns a torch optimizer, or a list of optimizers that share the parameters.

    Args:
        name: the name that configs use.
        source: the paper or the code it comes from.
        state: torch class → `StateRule`, for classes that are not in `RULES`.

    Raises:
        ConfigError: if the name is taken, or the factory takes a weight decay of its own.
    """

    def add(factory: Any) -> Any:
        if "weight_decay" in inspect.signature(factory).parameters:
            raise ConfigError(
                f"optimizer {name!r} takes weight_decay: each of its groups has one, from "
                "optimizer.weight_decay of the config; leave the argument out"
            )
        RULES.update(state or {})
        return register("optimizers", name, source=source)(factory)

    return add


def _on_gpu(groups: Groups) -> bool:
    return any(p.is_cuda for group in groups for p in group["params"])


@optimizer("adam", source="torch.optim.Adam")
def adam(
    module: nn.Module,
    groups: Groups,
    lr: float,
    *,
    betas: Betas = (0.9, 0.999),
    eps: PositiveFloat = 1e-8,
) -> Optimizer:
    """Adam; weight decay is added to the gradient."""
    return Adam(groups, lr, betas, eps, fused=True, capturable=_on_gpu(groups))


@optimizer("adamw", source="torch.optim.AdamW")
def adamw(
    module: nn.Module,
    groups: Groups,
    lr: float,
    *,
    betas: Betas = (0.9, 0.999),
    eps: PositiveFloat = 1e-8,
) -> Optimizer:
    """Adam with decoupled weight decay."""
    return AdamW(groups, lr, betas, eps, fused=True, capturable=_on_gpu(groups))


@optimizer("sgd", source="torch.optim.SGD")
def sgd(
    module: nn.Module,
    groups: Groups,
    lr: float,
    *,
    momentum: Momentum = 0.0,
    nesterov: bool = False,
) -> Optimizer:
    """Stochastic gradient descent."""
    return SGD(groups, lr=lr, momentum=momentum, nesterov=nesterov, fused=True)


@optimizer("rmsprop", source="torch.optim.RMSprop")
def rmsprop(
    module: nn.Module,
    groups: Groups,
    lr: float,
    *,
    momentum: Momentum = 0.0,
    alpha: Momentum = 0.99,
    eps: PositiveFloat = 1e-8,
    centered: bool = False,
) -> Optimizer:
    """RMSprop; `centered` divides by an estimate of the standard deviation."""
    options: dict[str, Any] = {"momentum": momentum, "centered": centered}
    return RMSprop(groups, lr, alpha, eps, capturable=_on_gpu(groups), **options)


@optimizer(
    "muon",
    source="torch.optim.Muon; the same lr for both: Liu et al. 2025, Muon is scalable, eq. 4",
)
def muon(
    module: nn.Module,
    groups: Groups,
    lr: float,
    *,
    momentum: Momentum = 0.95,
    ns_steps: NewtonSteps = 5,
    betas: Betas = (0.9, 0.999),
    eps: PositiveFloat = 1e-8,
) -> list[Optimizer]:
    """Muon on the matrices of hidden linear layers, AdamW on the rest, with one learning rate."""
    hidden = _hidden_matrices(module)
    matrices = split(groups, lambda p: p in hidden)
    rest = split(groups, lambda p: p not in hidden)
    made: list[Optimizer] = []
    options: dict[str, Any] = {"momentum": momentum, "ns_steps": ns_steps}
    if matrices:
        # In bfloat16, slow on a CPU without it: 17 ms for 100 × 64 and 100 × 100 (AMD EPYC Zen 3).
        made.append(Muon(matrices, lr=lr, adjust_lr_fn="match_rms_adamw", **options))
    if rest:
        made.append(AdamW(rest, lr=lr, betas=betas, eps=eps, fused=True))
    return made


def _hidden_matrices(module: nn.Module) -> set[Tensor]:
    network = Network("model", module)
    last = last_layers(network)
    weights = network.select(lambda b: b.kind == "linear" and b.role == "weight" and not b.aliases)
    return {b.param for b in weights if b.param.ndim == 2 and b.path not in last}


def split(groups: Groups, belongs: Callable[[Any], bool]) -> Groups:
    """Return the groups with those of their parameters that belong, without empty ones."""
    parts = [group | {"params": [p for p in group["params"] if belongs(p)]} for group in groups]
    return [part for part in parts if part["params"]]
