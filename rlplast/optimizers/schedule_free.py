"""Schedule-free AdamW: no schedule, but an average of the weights, which evaluations use."""

from collections.abc import Callable
from typing import Any

import torch
from pydantic import PositiveFloat
from torch import Tensor, nn
from torch.optim import Optimizer

from rlplast.core.errors import ConfigError
from rlplast.core.network.optim_state import always, share, shared
from rlplast.core.validation import Betas
from rlplast.optimizers.factories import Groups, optimizer

__all__ = ["ScheduleFree"]


class ScheduleFree(Optimizer):
    """AdamW of the package schedulefree, with its average kept as a distance.

    Gradients are taken at y, which the module holds; z makes the steps and x is their average:
    y = (1 − β₁)z + β₁x, β₁ > 0. With c = w/Σw, w the square of the largest learning rate so far,
    and u = g/(√v̂ + ε) + λy: x ← (1 − c)x + cz after z ← z − lr·u; λ is `weight_decay`. Evaluations
    use x, see `rlplast.core.method.hooks.Hooks.evaluating`. State is v, its ``step``, and ``ahead``
    = z − y (ours): an edit of a weight moves x and z too.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 2.5e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        if betas[0] == 0:
            raise ConfigError(
                f"optimizer.betas = {list(betas)}: the first of schedule_free is above 0"
            )
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults)
        names = "lr_max", "weight_sum"
        share(self, **{name: torch.zeros((), dtype=torch.float64) for name in names})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update once; `closure`, if given, computes gradients anew and returns the loss."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        share_of_new = self._weigh()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self._update(p, p.grad, group, share_of_new)
        return loss

    def _weigh(self) -> float:
        """Count an update and return c."""
        largest, total = shared(self)["lr_max"], shared(self)["weight_sum"]
        largest.fill_(max(float(largest), *(float(g["lr"]) for g in self.param_groups)))
        total += largest**2
        return float(largest) ** 2 / float(total) if total > 0 else 0.0

    def _update(self, y: Tensor, grad: Tensor, group: dict[str, Any], c: float) -> None:
        lr, (beta1, beta2) = group["lr"], group["betas"]
        state = self.state[y]
        if not state:
            state["step"] = torch.zeros(())
            state["exp_avg_sq"], state["ahead"] = torch.zeros_like(y), torch.zeros_like(y)
        state["step"] += 1
        v, ahead = state["exp_avg_sq"], state["ahead"]
        v.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        scale = (v / (1 - beta2 ** float(state["step"]))).sqrt_().add_(group["eps"])
        u = (grad / scale).add_(y, alpha=group["weight_decay"])
        y.add_(ahead, alpha=c).add_(u, alpha=lr * (beta1 * (1 - c) - 1))
        ahead.sub_(u, alpha=lr * beta1).mul_(1 - c)

    @torch.no_grad()
    def evaluation_weights(self) -> list[tuple[Tensor, Tensor]]:
        """Return each parameter with its x; those without state are their own."""
        weights = []
        for group in self.param_groups:
            beta1, _ = group["betas"]
            for p in group["params"]:
                ahead = self.state.get(p, {}).get("ahead")
                if ahead is not None:
                    weights.append((p, p - ahead * (1 / beta1 - 1)))
        return weights


@optimizer(
    "schedule_free",
    source="Defazio et al. 2024, The road less scheduled; schedulefree, adamw_schedulefree.py",
    state={ScheduleFree: {"step": always, "exp_avg_sq": always, "ahead": always}},
)
def schedule_free(
    module: nn.Module,
    groups: Groups,
    lr: float,
    *,
    betas: Betas = (0.9, 0.999),
    eps: PositiveFloat = 1e-8,
) -> Optimizer:
    """Schedule-free AdamW; evaluations use the average of the weights."""
    return ScheduleFree(groups, lr, betas, eps)
