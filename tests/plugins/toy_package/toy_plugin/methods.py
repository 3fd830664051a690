"""A method: scale every weight by one factor."""

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field

from rlplast import Method, Scale, method


@method("toy_scale", source="an example")
@dataclass(frozen=True)
class ToyScale(Method):
    """Multiply weight matrices by a factor."""

    factor: Annotated[float, Field(gt=0, le=1)] = 0.9

    def plan(self, context, state):
        factor = torch.tensor(self.factor)
        return [Scale(block, factor) for block in context.blocks if block.role == "weight"]
