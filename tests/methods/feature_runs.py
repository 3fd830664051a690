"""Terms that read batches of their own: by hand, and in small runs."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from rlplast.core.method.hooks import Hooks
from rlplast.core.method.penalties import Penalties
from rlplast.core.network.network import Network
from rlplast.core.rng import derive_seed, preserve_global_rng
from rlplast.run.build import build_trainable
from rlplast.run.config_file import read_config
from tests.every_kind import small_run
from tests.models import FAMILIES, data


class Termed:
    """A network away from θ0 with one term, on one fixed batch.

    Attributes:
        start: a copy of the module at θ0.
        seed: that the term draws from.
    """

    def __init__(self, family: str | nn.Module, x: Tensor | None = None, **row: Any) -> None:
        with preserve_global_rng():
            torch.default_generator.manual_seed(0)
            self.module = FAMILIES[family]() if isinstance(family, str) else family
            self.start = copy.deepcopy(self.module)
            self.network = Network("net", self.module)
            with torch.no_grad():
                for parameter in self.module.parameters():
                    parameter.add_(torch.randn_like(parameter), alpha=0.3)
                for name, buffer in self.module.named_buffers():  # statistics of some data
                    if name.endswith("running_mean"):
                        buffer.add_(0.4)
        self.x = data(str(family))[0] if x is None else x
        self.penalties = Penalties([row], {"net": self.network}, probe=self.x)
        self.seed = derive_seed(0, "penalty", row["method"], "net")

    def term(self) -> Tensor:
        found = self.penalties.of("net")
        assert found is not None
        return found

    def gradients(self) -> dict[str, Tensor | None]:
        self.module.zero_grad()
        self.term().backward()
        return {name: p.grad for name, p in self.module.named_parameters()}


def run_of(kind: str, corpora: dict[str, str], method: str, **params: Any) -> dict[str, Any]:
    """Return the config of a small run with one penalty; without parameters none."""
    rows = [{"method": method, "params": params}] if params else []
    return small_run(kind, corpora, penalties=rows)


def trained(config: dict[str, Any]) -> tuple[list[Tensor], list[Any], int]:
    """Return all tensors after four updates, what was read of `batches`, and how many networks."""
    made: Any = build_trainable(read_config(config))
    hooks = Hooks([], made.networks, "100 updates", penalties=made.penalties)
    made.after_update = hooks.after_update
    sample, seen = made.batches, []

    def noted(*args: Any) -> Any:
        seen.append(args)
        return sample(*args)

    made.batches = noted
    while made.clock.updates < 4:
        made.step()
    tensors = [b.view.clone() for n in made.networks.values() for b in n.blocks]
    return tensors, seen, len({term.network.name for term in made.penalties.terms})
