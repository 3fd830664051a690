"""Our optimizers in Stable-Baselines3."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from pydantic import NonNegativeFloat
from torch import Tensor, nn
from torch.optim import Optimizer

from rlplast.core.errors import ConfigError
from rlplast.core.registry import checked, get
from rlplast.core.rng import check_seed, derive_seed
from rlplast.core.validation import check_value

__all__ = ["optimizer_class"]


def optimizer_class(
    name: str, *, weight_decay: float = 0.0, seed: int = 0, **params: Any
) -> Callable[..., Optimizer]:
    """Return an optimizer of ours, for ``policy_kwargs={"optimizer_class": …}``.

    The learning rate is that of the algorithm.

    Args:
        name: adam, adamw, sgd, rmsprop, upgd, schedule_free, trac, kron or another of ``rlplast
            list optimizers`` that is one optimizer.
        weight_decay: as in the section ``optimizer`` of a run's config, at least 0.
        seed: of the noise of optimizers that draw some.
        **params: of the optimizer.

    Raises:
        ConfigError: for an unknown optimizer or parameter, a value out of range, or a seed that is
            no whole number; when the policy is made, for an optimizer that is several.
    """
    check_value("weight_decay", weight_decay, NonNegativeFloat, 0.0)
    checked("optimizers", name, params)
    return partial(_made, name, params, weight_decay, check_seed(seed))


def _made(
    name: str,
    own: dict[str, Any],
    weight_decay: float,
    seed: int,
    /,  # so that an option of one of these names is among those given, too
    params: Iterable[Tensor],
    lr: float,
    **given: Any,
) -> Optimizer:
    groups = [{"params": list(params), "weight_decay": weight_decay}]
    options = checked("optimizers", name, own | given)
    optimizer: Any = get("optimizers", name).target(nn.Module(), groups, lr, **options)
    if not isinstance(optimizer, Optimizer):
        raise ConfigError(
            f"optimizer_class({name!r}) makes a {type(optimizer).__name__}, and Stable-Baselines3 "
            "takes one optimizer: allowed are upgd, schedule_free, trac and others"
        )
    if hasattr(optimizer, "seed"):
        vars(optimizer)["seed"] = derive_seed(seed, "optimizer", 0)
    return optimizer
