"""Terms by hand and in small runs: of penalties, and of hooks that add one."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from rlplast.core.method.hooks import Hooks
from rlplast.core.method.penalties import Penalties
from rlplast.core.method.receipt import Receipt
from rlplast.core.network.network import Network
from rlplast.run.build import build_trainable
from rlplast.run.config_file import read_config
from tests.every_kind import small_run
from tests.models import build, data

Row = dict[str, Any]


class Driven:
    """A network in a hand-written loop, with one penalty or one hook.

    Attributes:
        x: what terms read, one batch or a function that draws one.
        start: a copy of the module at θ0.
    """

    def __init__(
        self,
        of: str | nn.Module | Network,
        x: Any = None,
        *,
        penalty: Row | None = None,
        hook: Row | None = None,
        seed: int = 0,
    ) -> None:
        self.x = data(of)[0] if isinstance(of, str) else x
        module = build(of) if isinstance(of, str) else of
        if isinstance(module, nn.Module):
            module = Network("net", module, torch.optim.SGD(module.parameters(), lr=0.1))
        self.network, self.module, self.updates = module, module.module, 0
        self.start = copy.deepcopy(self.module)
        options: Row = {"probe": self.x, "seed": seed}
        self.penalties = Penalties([penalty] if penalty else [], self.network, **options)
        options |= {"penalties": self.penalties, "total": "10000 updates"}
        self.hooks = Hooks([hook] if hook else [], self.network, **options)

    def term(self) -> Any:
        return self.penalties.of("net")

    def step(self, times: int = 1) -> list[Receipt]:
        receipts = []
        for _ in range(times):
            self.updates += 1
            receipts += self.hooks.step(updates=self.updates)
        return receipts

    @torch.no_grad()
    def move(self, seed: int = 0, size: float = 0.3, statistics: bool = True) -> "Driven":
        """Move every weight, and the statistics of BatchNorm, somewhere, as an update does."""
        generator = torch.Generator().manual_seed(seed)
        for tensor in (*self.module.parameters(), *(self.module.buffers() if statistics else ())):
            if tensor.is_floating_point():
                drawn = torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)
                tensor.add_(drawn if tensor.requires_grad else drawn.abs(), alpha=size)
        return self

    def gradients(self) -> dict[str, Tensor | None]:
        return gradients(self.module, self.term())


def gradients(module: nn.Module, term: Tensor) -> dict[str, Tensor | None]:
    module.zero_grad()
    term.backward()
    grads = {name: p.grad for name, p in module.named_parameters()}
    return {name: None if g is None else g.clone() for name, g in grads.items()}


def assert_close(
    found: dict[str, Tensor | None], expected: dict[str, Tensor | None], **options: float
) -> None:
    """Compare gradients, of which some are None."""
    options = {"rtol": 1e-4, "atol": 1e-6} | options
    assert found.keys() == expected.keys()
    for name, wanted in expected.items():
        assert (found[name] is None) == (wanted is None), name
        if wanted is not None:
            own = found[name]
            torch.testing.assert_close(own, wanted.to(own), msg=name, **options)


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
    made.batches = lambda *args: seen.append(args) or sample(*args)
    while made.clock.updates < 4:
        made.step()
    tensors = [b.view.clone() for n in made.networks.values() for b in n.blocks]
    return tensors, seen, len({n.name for term in made.penalties.terms for n in term.networks})
