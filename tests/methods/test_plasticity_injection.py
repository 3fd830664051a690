"""Plasticity injection: no output changes, what trains and what is frozen, refusals."""

import copy
import io
from collections.abc import Callable
from itertools import cycle, product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rlplast
from rlplast.agents.networks import Architecture, QNetwork
from rlplast.agents.sac_networks import Actor, Critic, TrunkSpec
from rlplast.core.errors import ConfigError, NothingToEdit
from rlplast.core.rng import preserve_global_rng
from rlplast.methods.plasticity_injection import Injected
from tests.cases import about
from tests.methods.nets import Dueling, snapshot
from tests.methods.unit_nets import NETS, Moments, moments_of, normal
from tests.models import OPTIMIZERS, assert_same
from tests.naive import plasticity_injection as naive


def read(module: nn.Module, *inputs: Tensor) -> Tensor:
    """What the loss of a network reads, of one with several outputs all."""
    out = module(*inputs)
    return out if isinstance(out, Tensor) else torch.cat(out, -1)


def _conv_q() -> nn.Module:
    return QNetwork(Architecture(((4, 3, 1), (3, 2, 1)), (7,)), (2, 6, 6), 3)


# Network → how it is built, shapes of its inputs, the options, the layers of each head.
CASES: dict[str, tuple[Callable[[], nn.Module], list[tuple[int, ...]], dict, list[list[str]]]] = {
    "mlp": (NETS["mlp"].make, [(5,)], {}, [["4"]]),
    "mlp, all layers": (NETS["mlp"].make, [(5,)], {"layers": 3}, [["0", "2", "4"]]),
    "conv_batchnorm": (NETS["conv_batchnorm"].make, [(2, 8, 8)], {}, [["8", "10"]]),
    "conv, one layer": (NETS["conv"].make, [(2, 8, 8)], {"layers": 1}, [["10"]]),
    "residual": (NETS["residual"].make, [(5,)], {}, [["head"]]),
    "stacked": (NETS["stacked"].make, [(5,)], {"layers": 2}, [["fc2", "head"]]),
    "q network": (_conv_q, [(2, 6, 6)], {}, [["fc1", "head"]]),
    "actor": (
        lambda: Actor(5, 2, TrunkSpec("simba", 4, 1)), [(5,)], {}, [["mean"], ["log_std"]],
    ),
    "dueling": (Dueling, [(5,)], {}, [["value"], ["advantage"]]),
    "critics": (
        lambda: Critic(5, 2, TrunkSpec("mlp", 6, 2)), [(5,), (2,)], {"layers": 2},
        [["fc2", "head"]],
    ),
}  # fmt: skip


class Made:
    def __init__(self, case: str, optimizer: str = "adam", install: bool = True) -> None:
        make, self.shapes, options, self.heads = CASES[case]
        with preserve_global_rng():
            torch.manual_seed(0)
            self.module = make()
        if install:
            self.paths = rlplast.replace_layers(self.module, "plasticity_injection", **options)
        target = copy.deepcopy(self.module).requires_grad_(False)
        self.optimizer = OPTIMIZERS[optimizer](self.module.parameters())
        self.network = rlplast.Network("net", self.module, self.optimizer, target)
        self.updates = 0

    @property
    def target(self) -> nn.Module:
        return self.network.followers["target"].module

    def read(self, *inputs: Tensor) -> Tensor:
        return read(self.module, *inputs)

    def inputs(self, seed: int, size: int = 8) -> tuple[Tensor, ...]:
        return tuple(normal(size, *s, seed=10 * seed + i) for i, s in enumerate(self.shapes))

    def update(self, times: int = 1) -> "Made":
        for _ in range(times):
            out = self.read(*self.inputs(self.updates))
            y = normal(*out.shape, seed=self.updates + 7000)
            self.optimizer.zero_grad(set_to_none=True)
            (out - y).square().mean().backward()
            self.optimizer.step()
            self.updates += 1
        return self

    def inject(self, **options: Any) -> rlplast.Receipt:
        return rlplast.apply("plasticity_injection", self.network, **options)

    @property
    def injected(self) -> list[Injected]:
        return [m for m in self.module.modules() if isinstance(m, Injected)]

    def plain(self) -> dict[str, Tensor]:
        own = dict(self.module.named_parameters()) | {
            n: b for n, b in self.module.named_buffers() if ".old." not in n and ".new." not in n
        }
        return {n: t.detach().clone() for n, t in own.items() if not n.endswith("gate")}

    def moments(self) -> Moments:
        return moments_of(self.module, self.optimizer)

    def is_head(self, name: str) -> bool:
        return name.rpartition(".")[0] in [path for head in self.heads for path in head]


@pytest.mark.parametrize(
    ("case", "optimizer"), [*zip(CASES, cycle(reversed(OPTIMIZERS)), strict=False)]
)
def test_injection(case: str, optimizer: str) -> None:
    plain, made = Made(case, optimizer, install=False), Made(case, optimizer)
    until_it_fires_training_is_that_of_a_network_without_it(made, plain)
    made.module.eval()
    made.target.eval()
    inputs = [made.inputs(99, size) for size in (1, 8, 33)]
    outputs = [made.read(*x) for x in inputs]
    before, moments = made.plain(), made.moments()
    receipt = made.inject()
    for x, out in zip(inputs, outputs, strict=True):
        assert torch.equal(made.read(*x), out)
        assert torch.equal(read(made.target, *x), out)  # followers copy
    old_head_and_fresh_draw_are_kept_and_the_rest_stays(made, before, moments, receipt)
    it_trains_the_new_head_and_the_encoder_and_nothing_frozen(made)


def until_it_fires_training_is_that_of_a_network_without_it(made: Made, plain: Made) -> None:
    assert made.paths == [p for head in made.heads for p in dict.fromkeys((head[0], head[-1]))]
    assert [m.paths for m in made.injected] == [tuple(head) for head in made.heads]
    assert all(not float(m.gate) for m in made.injected)
    names, theirs = ([n for n, _ in m.module.named_parameters()] for m in (made, plain))
    assert names == theirs
    plain.update(3)
    made.update(3)
    assert_same(plain.plain(), made.plain())
    for name, slots in plain.moments().items():
        assert_same(slots, made.moments()[name])
    x = made.inputs(99)
    assert torch.equal(plain.read(*x), made.read(*x))


def old_head_and_fresh_draw_are_kept_and_the_rest_stays(
    made: Made, before: dict[str, Tensor], moments: Moments, receipt: rlplast.Receipt
) -> None:
    after = made.plain()
    for name, tensor in before.items():
        assert torch.equal(after[name], tensor) is not (made.is_head(name) and bool(tensor.any()))
    for head, module in zip(made.heads, made.injected, strict=True):
        assert float(module.gate) == 1
        for i, path in enumerate(head):
            for kind, live in (("old", before), ("new", after)):
                for name, frozen in getattr(module, kind)[i].named_buffers():
                    assert torch.equal(frozen, live[f"{path}.{name}"]), (kind, path, name)
    for name, slots in made.moments().items():
        for slot, value in slots.items():
            cleared = made.is_head(name) and slot != "step"
            was = moments[name][slot]
            assert torch.equal(value, torch.zeros_like(was) if cleared else was), (name, slot)
    live = sum(t.numel() for n, t in before.items() if made.is_head(n))
    assert receipt.entries_touched == 3 * live + len(made.heads)
    assert (receipt.optimizer_policy, receipt.followers) == ("touched", {"target": "copy"})
    assert receipt.units is None


def it_trains_the_new_head_and_the_encoder_and_nothing_frozen(made: Made) -> None:
    made.module.train()
    before, trained = snapshot(made.module), dict(made.module.named_parameters())
    held = {id(p) for g in made.optimizer.param_groups for p in g["params"]}
    assert held == {id(p) for p in trained.values() if p.requires_grad}
    made.update(5)
    for name, tensor in made.module.state_dict().items():
        if ".old." in name or ".new." in name or name.endswith("gate"):
            assert torch.equal(tensor, before[name]), name
        elif name in trained:
            assert not torch.equal(tensor, before[name]), name


def test_the_fresh_head_follows_the_networks_own_law() -> None:
    made = Made("q network").update(2)
    made.inject(seed=1)
    weight = made.module.get_parameter("fc1.weight").detach()
    bound = (6 / sum(weight.shape)) ** 0.5  # Xavier's
    assert 0.9 * bound < weight.abs().max() <= bound
    assert not made.module.get_parameter("fc1.bias").any()
    other = Made("q network").update(2)
    other.inject(seed=2)
    assert not torch.equal(other.module.get_parameter("fc1.weight"), weight)


def heads_of(module: nn.Module, paths: list[str], member: int | None) -> naive.Head:
    layers = [module.get_submodule(path) for path in paths]
    pairs = [(layer.weight.detach(), layer.bias.detach()) for layer in layers]
    return [(w, b) if member is None else (w[member], b[member]) for w, b in pairs]


def test_values_gradients_and_sgd_steps_are_the_twins() -> None:
    for depth, member in product((1, 2), (None, 0, 1)):
        with about(depth, "layers, member", member):
            compare_with_the_twin(depth, member)


def compare_with_the_twin(depth: int, member: int | None) -> None:
    net = "mlp" if member is None else "stacked"
    with preserve_global_rng():
        torch.manual_seed(0)
        module = NETS[net].make().double()
    layers = ["2", "4"] if member is None else ["fc2", "head"]
    encoder = ["0", "2"] if member is None else ["fc1", "fc2"]
    paths, encoder = layers[-depth:], encoder[: 3 - depth]
    rlplast.replace_layers(module, "plasticity_injection", layers=depth)
    network = rlplast.Network("net", module, torch.optim.SGD(module.parameters(), lr=0.1))
    old = naive.copied(heads_of(module, paths, member))
    rlplast.apply("plasticity_injection", network)
    twin = naive.inject(old, heads_of(module, paths, member))
    for step in range(4):
        raw = normal(6, 5, seed=step).double()
        out = module(raw)
        x = raw if member is None else raw.expand(2, -1, -1)
        for path in encoder:
            x = torch.relu(module.get_submodule(path)(x))
        x = x.detach().requires_grad_()
        below = x if member is None else x[member]
        values = naive.forward(twin, below.detach())
        ours = out if member is None else out[member]
        torch.testing.assert_close(ours.detach(), values, rtol=1e-12, atol=1e-14)
        upstream = normal(*values.shape, seed=50 + step).double()
        y, steps = x, [module.get_submodule(path) for path in paths]
        for i, layer in enumerate(steps):
            y = layer(torch.relu(y) if i else y)
        whole = y if member is None else y[member]
        parameters = [p for layer in steps for p in (layer.weight, layer.bias)]
        *grads, to_encoder = torch.autograd.grad((whole * upstream).sum(), [*parameters, x])
        theirs, from_head = naive.backward(twin, below.detach(), upstream)
        flat = [t for layer in theirs for t in layer]
        for mine, wanted in zip(grads, flat, strict=True):
            mine = mine if member is None else mine[member]
            torch.testing.assert_close(mine, wanted, rtol=1e-10, atol=1e-13)
        mine = to_encoder if member is None else to_encoder[member]
        torch.testing.assert_close(mine, from_head, rtol=1e-10, atol=1e-13)
        twin = naive.sgd_step(twin, below.detach(), upstream, lr=0.05)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, grads, strict=True):
                parameter.sub_(0.05 * gradient)


def test_it_fires_once_where_it_is_installed() -> None:
    for schedule in (
        {"at": ["20%", "50%"]},
        {"every": "3 updates"},
        {"on": "phase_start"},
        {"when": {"metric": "train/loss", "above": 1.0}},
    ):
        with about(schedule), pytest.raises(ConfigError, match="once"):
            config = {"method": "plasticity_injection", **schedule}
            rlplast.Hooks([config], Made("mlp").network, "10 updates")
    made = Made("conv, one layer").update(2)
    made.inject()
    before = snapshot(made.module)
    with pytest.raises(ConfigError, match=r"net\.10 .*second"):
        made.inject()
    assert_same(before, dict(made.module.state_dict()))
    with pytest.raises(NothingToEdit, match="replace_layers"):
        Made("mlp", install=False).inject()


def test_what_cannot_be_injected_is_named() -> None:
    tied = nn.Sequential(nn.Embedding(7, 5), nn.Linear(5, 7, bias=False))
    tied[1].weight = tied[0].weight
    again, outer = NETS["mlp"].make(), [nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3)]
    rlplast.replace_layers(again, "plasticity_injection")
    normed = nn.Sequential(outer[0], nn.LayerNorm(6), *outer[1:])
    dropped = nn.Sequential(*outer[:2], nn.Dropout(0.5), outer[2])
    rows: list[tuple[nn.Module, int, str]] = [
        (NETS["mlp"].make(), 4, r"layers = 4.*3"),
        (tied, 1, r"0\.weight .*1\.weight"),
        (Actor(5, 2, TrunkSpec("mlp", 4, 2)), 2, r"\(mean, log_std\)"),
        (again, 1, "InjectedLinear"),
        (normed, 2, r"0 .*layers: 1"),
        (dropped, 2, r"0 .*layers: 1"),
        (nn.Sequential(nn.Conv2d(1, 2, 3)), 1, "no linear layer"),
    ]
    for module, layers, name in rows:
        with about(name), pytest.raises(ConfigError, match=name):
            rlplast.replace_layers(module, "plasticity_injection", layers=layers)
    for module in (normed, dropped):
        rlplast.replace_layers(module, "plasticity_injection", layers=1)


@pytest.mark.parametrize("case", ["mlp", "conv_batchnorm", "stacked"])
def test_the_columns_of_the_frozen_copies_belong_to_the_units_below(case: str) -> None:
    made = Made(case).update(2)
    made.inject()
    made.update(2)
    x = made.inputs(5)
    before, network = made.read(*x), made.network
    frozen = 0
    for group in network.units().groups:
        frozen += len(outgoing := [p for p in group.outgoing if p.block.role == "buffer"])
        assert len({p.block.name for p in outgoing}) == len(outgoing)
        order = torch.arange(group.size).flip(0)
        for part in group.parts:
            units = part.block.view.transpose(0, part.dim).unflatten(0, (group.size, part.repeat))
            with torch.no_grad():
                part.block.view.copy_(units[order].flatten(0, 1).transpose(0, part.dim).clone())
    assert frozen >= 2
    torch.testing.assert_close(made.read(*x), before, rtol=1e-4, atol=1e-5)


BELOW = {
    "linear": lambda: [nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3)],
    "conv": lambda: [nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(72, 3)],
}


@pytest.mark.parametrize("method", ["redo", "cbp"])
@pytest.mark.parametrize("kind", BELOW)
def test_a_unit_that_starts_anew_leaves_the_frozen_copies_too(kind: str, method: str) -> None:
    """Afterwards outputs are those without the unit, or with `cbp` those of its mean."""
    torch.manual_seed(0)
    module = nn.Sequential(*BELOW[kind]())
    rlplast.replace_layers(module, "plasticity_injection")
    network = rlplast.Network("net", module, torch.optim.Adam(module.parameters()))
    inputs = torch.randn(16, 5) if kind == "linear" else torch.randn(16, 1, 5, 5)
    rlplast.apply("plasticity_injection", network)
    with torch.no_grad():  # as after training: the head is no longer its frozen draw
        module[-1].weight.add_(0.1)
    row: dict[str, Any] = {"method": method, "at": "1 updates", "params": {"threshold": 0.9}}
    if method == "cbp":
        params = {"replacement_rate": 0.5, "maturity": 0, "decay": 0.0, "bias_transfer": True}
        row = {"method": method, "every": "1 updates", "params": params}
    hooks = rlplast.Hooks([row], network, "4 updates", probe=inputs)
    before = copy.deepcopy(module)
    with rlplast.record(network) as found:
        module(inputs)
    hooks.step(updates=1, activations=found)

    anew = (module[0].weight != before[0].weight).flatten(1).any(1)
    assert 0 < int(anew.sum()) < 8
    hidden = next(iter(found.values())).clone()
    means = hidden.transpose(0, 1).flatten(1).mean(1)
    for unit in anew.nonzero().flatten().tolist():
        hidden[:, unit] = means[unit] if method == "cbp" else 0
    torch.testing.assert_close(module(inputs), before[2:](hidden), rtol=1e-5, atol=1e-5)


def test_a_network_can_be_copied_and_pickled_after_a_forward_pass() -> None:
    made = Made("stacked").update(2)
    made.inject()
    x = made.inputs(5)
    out = made.read(*x)  # with gradients
    twin = copy.deepcopy(made.module)
    file = io.BytesIO()
    torch.save(made.module, file)
    file.seek(0)
    for copied in (twin, torch.load(file, weights_only=False)):
        assert torch.equal(read(copied, *x), out)
    read(twin, *made.inputs(6))  # a copy has features of its own
    assert torch.equal(made.read(*x), out)


@pytest.mark.slow
def test_compiled_passes_agree_before_and_after_without_recompiling() -> None:
    torch._dynamo.reset()
    made = Made("stacked").update(2)
    compiled = torch.compile(made.read, backend="aot_eager", fullgraph=True)
    x = made.inputs(5)
    before = compiled(*x)
    torch.testing.assert_close(before, made.read(*x), rtol=1e-5, atol=1e-6)
    with torch._dynamo.config.patch(error_on_recompile=True):
        made.inject()
        assert torch.equal(compiled(*x), before)
    torch._dynamo.reset()
