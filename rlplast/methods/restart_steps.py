"""Restart steps, Adam-Rel: Ellis et al. 2024 (arXiv:2412.17113)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rlplast.core.errors import ConfigError
from rlplast.core.method.method import Assign, Block, Context, Edit, Method, Network, State, method
from rlplast.core.network.optim_state import moments

__all__ = ["RestartSteps"]


@method("restart_steps", source="Ellis et al. 2024, Adam-Rel (arXiv:2412.17113)")
@dataclass(frozen=True)
class RestartSteps(Method):
    """Let Adam count its steps anew, with the moments that it has: Adam-Rel.

    A firing sets the step count of the optimizer to 0 and nothing else: weights, moments and
    target networks stay. So Adam's first update after it divides the means it remembers by
    1 − β, as if they were of one gradient. Optimizers without a step count are left as they are.
    """

    reads = ("moments",)
    policies = ("keep", "leave")

    def check_layers(
        self, network: Network, blocks: Sequence[Block], left: Sequence[Block]
    ) -> None:
        """Refuse layers that leave a part of a tensor, whose parts share a count."""
        counted = {id(block.param): block for block in blocks}
        for block in (b for b in left if id(b.param) in counted):
            raise ConfigError(
                f"restart_steps: layers name {network.qualified(counted[id(block.param)])} and "
                f"leave {network.qualified(block)}, a part of the same tensor, which has one step "
                "count: name both"
            )

    def plan(self, context: Context, state: State) -> list[Edit]:
        """Plan to set the step counts to 0."""
        network = context.network
        steps: dict[int, Tensor] = {}
        for param in {id(block.param): block.param for block in context.blocks}.values():
            step = moments(network, param).get("step")
            if step is not None:
                steps[id(step)] = step
        return [Assign(step, torch.zeros_like(step)) for step in steps.values()]
