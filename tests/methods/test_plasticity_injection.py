"""Plasticity injection: no output changes, what trains and what is frozen, refusals."""

import copy
import io
from itertools import cycle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

import rlplast
from rlplast.agents.sac_networks import Actor, TrunkSpec
from rlplast.core.errors import ConfigError, NothingToEdit
from rlplast.methods.plasticity_injection import Injected
from tests.cases import about
from tests.methods.nets import Dueling, snapshot
from tests.methods.unit_nets import NETS, Moments, Net, Trained, normal
from tests.models import OPTIMIZERS, assert_same

# Network → the options, the layers of each head.
CASES: dict[str, tuple[str | Net, dict[str, int], list[list[str]]]] = {
    "mlp": ("mlp", {}, [["4"]]),
    "mlp, all layers": ("mlp", {"layers": 3}, [["0", "2", "4"]]),
    "conv_batchnorm": ("conv_batchnorm", {}, [["8", "10"]]),
    "conv, one layer": ("conv", {"layers": 1}, [["10"]]),
    "residual": ("residual", {}, [["head"]]),
    "stacked": ("stacked", {"layers": 2}, [["fc2", "head"]]),
    "dueling": (Net(Dueling, (5,), lambda module: []), {}, [["value"], ["advantage"]]),
}


class Made(Trained):
    """A network with a target, in which heads can be injected."""

    def __init__(self, case: str, optimizer: str = "adam", install: bool = True) -> None:
        net, options, self.heads = CASES[case]
        self.paths: list[str] = []

        def put_in(module: nn.Module) -> None:
            if install:
                self.paths = rlplast.replace_layers(module, "plasticity_injection", **options)

        super().__init__(net, optimizer, put_in)
        self.target = copy.deepcopy(self.module).requires_grad_(False)
        self.network = rlplast.Network("net", self.module, self.optimizer, self.target)

    def inject(self) -> rlplast.Receipt:
        return rlplast.apply("plasticity_injection", self.network)

    @property
    def injected(self) -> list[Injected]:
        return [m for m in self.module.modules() if isinstance(m, Injected)]

    def plain(self) -> dict[str, Tensor]:
        """All tensors but those that the method has added."""
        own = {n: t for n, t in self.state().items() if ".old." not in n and ".new." not in n}
        return {n: t for n, t in own.items() if not n.endswith("gate")}

    def is_head(self, name: str) -> bool:
        return name.rpartition(".")[0] in [path for head in self.heads for path in head]

    def probe(self, size: int = 8) -> Tensor:
        return normal(size, *self.net.sample, seed=99)


@pytest.mark.parametrize(
    ("case", "optimizer"), [*zip(CASES, cycle(reversed(OPTIMIZERS)), strict=False)]
)
def test_injection(case: str, optimizer: str) -> None:
    plain, made = Made(case, optimizer, install=False), Made(case, optimizer)
    until_it_fires_training_is_that_of_a_network_without_it(made, plain)
    made.module.eval()
    made.target.eval()
    inputs = [made.probe(size) for size in (1, 8, 33)]
    outputs = [made.module(x) for x in inputs]
    before, moments = made.plain(), made.moments()
    receipt = made.inject()
    for x, out in zip(inputs, outputs, strict=True):
        assert torch.equal(made.module(x), out)
        assert torch.equal(made.target(x), out)  # followers copy
    old_head_and_fresh_draw_are_kept_and_the_rest_stays(made, before, moments, receipt)
    it_trains_the_new_head_and_the_encoder_and_nothing_frozen(made)


def until_it_fires_training_is_that_of_a_network_without_it(made: Made, plain: Made) -> None:
    assert made.paths == [p for head in made.heads for p in dict.fromkeys((head[0], head[-1]))]
    assert [m.paths for m in made.injected] == [tuple(head) for head in made.heads]
    assert all(not float(m.gate) for m in made.injected)
    names, theirs = ([n for n, _ in m.module.named_parameters()] for m in (made, plain))
    assert names == theirs
    plain.train(3)
    made.train(3)
    assert_same(plain.plain(), made.plain())
    for name, slots in plain.moments().items():
        assert_same(slots, made.moments()[name])
    assert torch.equal(plain.module(made.probe()), made.module(made.probe()))


def old_head_and_fresh_draw_are_kept_and_the_rest_stays(
    made: Made, before: dict[str, Tensor], moments: Moments, receipt: rlplast.Receipt
) -> None:
    after = made.plain()
    for name, tensor in before.items():
        assert torch.equal(after[name], tensor) is not (made.is_head(name) and bool(tensor.any()))
    assert all(float(module.gate) == 1 for module in made.injected)
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
    made.train(5)
    for name, tensor in made.module.state_dict().items():
        if ".old." in name or ".new." in name or name.endswith("gate"):
            assert torch.equal(tensor, before[name]), name
        elif name in trained:
            assert not torch.equal(tensor, before[name]), name


@pytest.mark.parametrize("case", CASES)
def test_outputs_and_gradients_are_those_of_three_plain_networks(case: str) -> None:
    """f_old(x) + (f(x) − f_new0(x)) with the layers below as they are now."""
    made, plain = Made(case).train(2), Made(case, install=False).module.double().eval()
    old = {n: t.double() for n, t in made.plain().items() if made.is_head(n)}
    made.inject()
    drawn = {n: t.double() for n, t in made.plain().items() if made.is_head(n)}
    made.train(3).module.double().eval()
    live = {n: p.detach().clone().requires_grad_() for n, p in made.module.named_parameters()}
    x = made.probe().double()

    def output(head: dict[str, Tensor]) -> Tensor:
        return functional_call(plain, made.plain() | live | head, (x,))

    expected, found = output(old) + output({}) - output(drawn), made.module(x)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    weights = normal(*found.shape).double()
    ours = torch.autograd.grad((found * weights).sum(), list(made.module.parameters()))
    theirs = torch.autograd.grad((expected * weights).sum(), list(live.values()))
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


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
    made = Made("conv, one layer").train(2)
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
    again, outer = NETS["mlp"].module(), [nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3)]
    rlplast.replace_layers(again, "plasticity_injection")
    normed = nn.Sequential(outer[0], nn.LayerNorm(6), *outer[1:])
    dropped = nn.Sequential(*outer[:2], nn.Dropout(0.5), outer[2])
    rows: list[tuple[nn.Module, int, str]] = [
        (NETS["mlp"].module(), 4, r"layers = 4.*3"),
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
    made = Made(case).train(2)
    made.inject()
    made.train(2).module.eval()
    x = made.probe()
    before, network = made.module(x), made.network
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
    torch.testing.assert_close(made.module(x), before, rtol=1e-4, atol=1e-5)


def test_a_unit_that_starts_anew_leaves_the_frozen_copies_too() -> None:
    """Afterwards outputs are those without the unit, or with `cbp` those of its mean."""
    mean = {"replacement_rate": 0.5, "maturity": 0, "decay": 0.0, "bias_transfer": True}
    rows: tuple[dict[str, Any], ...] = (
        {"method": "redo", "at": "1 updates", "params": {"threshold": 0.9}},
        {"method": "cbp", "every": "1 updates", "params": mean},
    )
    for row in rows:
        torch.manual_seed(0)
        module: Any = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
        x = normal(16, 5)
        rlplast.replace_layers(module, "plasticity_injection")
        network = rlplast.Network("net", module, torch.optim.Adam(module.parameters()))
        rlplast.apply("plasticity_injection", network)
        nn.init.normal_(module[2].weight)  # as after training: no longer its frozen draw
        before, hidden = copy.deepcopy(module), torch.relu(module[0](x))
        hooks = rlplast.Hooks([row], network, "4 updates", probe=x)
        hooks.step(updates=1, activations={"0": hidden})
        anew = (module[0].weight != before[0].weight).any(1)
        assert 0 < int(anew.sum()) < 8
        constant = hidden.mean(0) if row["method"] == "cbp" else torch.zeros(8)
        expected = before[2](torch.where(anew, constant, hidden))
        with about(row["method"]):
            torch.testing.assert_close(module(x), expected, rtol=1e-5, atol=1e-5)


def test_a_network_can_be_copied_and_pickled_after_a_forward_pass() -> None:
    made = Made("stacked").train(2)
    made.inject()
    x = made.probe()
    out = made.module(x)  # with gradients
    twin = copy.deepcopy(made.module)
    file = io.BytesIO()
    torch.save(made.module, file)
    file.seek(0)
    for copied in (twin, torch.load(file, weights_only=False)):
        assert torch.equal(copied(x), out)
    twin(x + 1)  # a copy has features of its own
    assert torch.equal(made.module(x), out)


@pytest.mark.slow
def test_compiled_passes_agree_before_and_after_without_recompiling() -> None:
    torch._dynamo.reset()
    made = Made("stacked").train(2)
    compiled = torch.compile(made.module, backend="aot_eager", fullgraph=True)
    x = made.probe()
    before = compiled(x)
    torch.testing.assert_close(before, made.module(x), rtol=1e-5, atol=1e-6)
    with torch._dynamo.config.patch(error_on_recompile=True):
        made.inject()
        assert torch.equal(compiled(x), before)
    torch._dynamo.reset()
