"""A method: scale every weight by one factor."""

from dataclasses import dataclass

import torch

from rlplast import Method, Scale, method, param


@method("toy_scale", source="an example")
@dataclass(frozen=True)
class ToyScale(Method):
    """Multiply weight matrices by a factor."""

    factor: float = param(0.9, "(0, 1]")

    def plan(self, context, state):
        factor = torch.tensor(self.factor)
        return [Scale(block, factor) for block in context.blocks if block.role == "weight"]
