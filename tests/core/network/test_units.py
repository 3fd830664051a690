"""Which entries belong to which hidden unit, and why other layers have none."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import prune

import rlplast
from rlplast.agents.networks import ARCHITECTURES, QNetwork
from rlplast.agents.sac_networks import Actor, Critic, Temperature, TrunkSpec
from rlplast.core.errors import ConfigError, NothingToEdit
from rlplast.core.network.network import Network
from rlplast.core.network.stacked import StackedLayerNorm, StackedLinear
from rlplast.core.network.units import Part, UnitGroup, UnitSpec
from rlplast.core.rng import preserve_global_rng
from rlplast.gpt.model import GPT, GPTModelConfig
from rlplast.supervised.models import model_taps
from tests.methods.nets import normal, randomise
from tests.models import FAMILIES, TiedLM, build, data
from tests.supervised.small_models import SMALL, images
from tests.supervised.small_models import build as build_classifier

Row = tuple[str, int, str, list[str]]


def rows_of(module: nn.Module, **options: Any) -> list[Row]:
    """Return name, size, nonlinearity and entries of unit i, group by group."""
    groups = Network("net", module, **options).units().groups
    return [(g.name, g.size, g.nonlinearity, [str(p) for p in g.parts]) for g in groups]


def refused(module: nn.Module, **options: Any) -> dict[str, str]:
    return dict(Network("net", module, **options).units().refused)


# The families, by hand.

BY_HAND: dict[str, list[Row]] = {
    "mlp": [
        ("0", 6, "relu", ["0.weight[i]", "0.bias[i]", "2.weight[:, i]"]),
        ("2", 6, "relu", ["2.weight[i]", "2.bias[i]", "4.weight[:, i]"]),
    ],
    "conv": [
        ("0", 4, "relu", ["0.weight[i]", "0.bias[i]", "2.weight[:, i]"]),
        ("2", 4, "relu", ["2.weight[i]", "2.bias[i]", "5.weight[:, 4i:4i+4]"]),
    ],
    "conv_batchnorm": [
        (
            path,
            4,
            "relu",
            [
                *(f"{path}.{name}[i]" for name in ("weight", "bias")),
                *(f"{norm}.{n}[i]" for n in ("weight", "bias", "running_mean", "running_var")),
                after,
            ],
        )
        for path, norm, after in (("0", "1", "3.weight[:, i]"), ("3", "4", "7.weight[:, 4i:4i+4]"))
    ],
    "residual": [],
    "tied": [],
    "stacked": [
        (
            f"[{slot}].{name}",
            6,
            "relu",
            [
                f"[{slot}].{name}.weight[i]",
                f"[{slot}].{name}.bias[i]",
                f"[{slot}].{after}.weight[:, i]",
            ],
        )
        for name, after in (("fc1", "fc2"), ("fc2", "head"))
        for slot in (0, 1)
    ],
}
REASONS = {
    "mlp": {"4": "its outputs are those of the network"},
    "conv": {"5": "its outputs are those of the network"},
    "conv_batchnorm": {"7": "its outputs are those of the network"},
    "residual": {
        "inp": "add joins inp and relu: a residual stream has no units of its own",
        "fc": "add joins inp and relu: a residual stream has no units of its own",
        "head": "its outputs are those of the network",
    },
    "tied": {
        "fc": "head, which reads it, is tied to embed.weight",
        "head": "its outputs are those of the network",
    },
    "stacked": {"head": "its outputs are those of the network"},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_units_of_each_family_are_those_found_by_hand(family: str) -> None:
    module = build(family)
    assert rows_of(module) == BY_HAND[family]
    assert refused(module) == REASONS[family]


def test_a_network_says_which_groups_are_in_scope_and_why_there_are_none() -> None:
    network = Network("net", build("mlp"))
    blocks = {b.name: b for b in network.blocks}
    assert [g.name for g in network.units_in(network.blocks)] == ["0", "2"]
    assert [g.name for g in network.units_in([blocks["2.weight"]])] == ["2"]
    assert rlplast.units(network) == rlplast.units(network) == network.units().groups
    none = r"network 'net' has no hidden units in scope \(4: its outputs are those of the network\)"
    with pytest.raises(NothingToEdit, match=none):
        network.units_in([blocks["4.weight"]])
    with pytest.raises(NothingToEdit, match="add joins inp and relu"):
        rlplast.units(build("residual"))
    frozen = build("mlp")
    frozen.get_submodule("4").requires_grad_(False)  # its columns cannot be written
    network = Network("net", frozen)
    assert [g.name for g in network.units_in(network.blocks)] == ["0"]
    with pytest.raises(NothingToEdit, match=r"2\.weight is frozen; .*4\.weight is frozen"):
        rlplast.units(frozen.requires_grad_(False))


# Units are private: put in another order, with all that belongs to them, they change nothing.


@torch.no_grad()
def shuffle(network: Network) -> int:
    """Put every group's units into another order; return how many Blocks that touched."""
    generator = torch.Generator().manual_seed(0)
    touched = set()
    for group in network.units().groups:
        order = torch.randperm(group.size, generator=generator)
        for part in group.parts:
            view = part.block.view.transpose(0, part.dim)
            units = view.unflatten(0, (group.size, part.repeat))
            view.copy_(units[order].flatten(0, 1))
            touched.add(part.block.name)
    return len(touched)


def chain(*layers: nn.Module) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(*layers)


class Idioms(nn.Module):
    """A conv whose channels are laid out for a linear layer, in one of several ways."""

    def __init__(self, way: Callable[[Tensor], Tensor], columns: int) -> None:
        super().__init__()
        self.conv, self.way = nn.Conv2d(2, 3, 3), way
        self.norm, self.fc, self.head = (
            nn.BatchNorm2d(3),
            nn.Linear(columns, 5),
            nn.Linear(5, 2),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.gelu(self.fc(self.way(self.norm(self.conv(x))))))


IMAGE, VECTOR = (3, 2, 6, 6), (4, 5)
LAID_OUT: dict[str, tuple[Callable[[Tensor], Tensor], int, str]] = {
    "view by size": (lambda x: x.relu().view(x.size(0), -1), 48, "relu"),
    "view by shape": (lambda x: F.silu(x).reshape(x.shape[0], -1), 48, "silu"),
    "flatten": (lambda x: F.elu(x).flatten(1), 48, "elu"),
    "flatten by name": (lambda x: torch.flatten(torch.tanh(x), start_dim=1), 48, "tanh"),
    "flat before": (lambda x: F.leaky_relu(x.flatten(1)), 48, "leaky_relu"),
    "max pool": (lambda x: F.max_pool2d(F.relu(x), 2).flatten(1), 12, "relu"),
    "pool before": (lambda x: F.relu(F.avg_pool2d(x, 2)).flatten(1), 12, "relu"),
    "global pool": (lambda x: F.adaptive_avg_pool2d(x.sigmoid(), 1).flatten(1), 3, "sigmoid"),
    "mean": (lambda x: x.relu().mean((2, 3)), 3, "relu"),
    "mean from behind": (lambda x: torch.mean(x.relu(), dim=[-1, -2]), 3, "relu"),
    "mean kept": (lambda x: x.relu().mean((2, 3), keepdim=True).flatten(1), 3, "relu"),
    "no nonlinearity": (lambda x: x.flatten(1), 48, "linear"),
    "dropout": (
        lambda x: F.dropout(F.relu(F.dropout(x, 0.5, False)), 0.1, False).flatten(1),
        48,
        "relu",
    ),
}

PRIVATE: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Tensor, ...]], int]] = {
    **{f: (lambda f=f: build(f), lambda f=f: (data(f)[0],), 3) for f in ("mlp", "conv", "stacked")},
    "conv_batchnorm": (
        lambda: build("conv_batchnorm"),
        lambda: (data("conv_batchnorm")[0],),
        3,
    ),
    **{
        way: (
            lambda way=way: Idioms(*LAID_OUT[way][:2]),
            lambda: (normal(*IMAGE, dtype=torch.float32),),
            3,
        )
        for way in LAID_OUT
    },
    "layer norm": (
        chain(nn.Linear(5, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 3)),
        lambda: (normal(*VECTOR, dtype=torch.float32),),
        2,
    ),
    "norms before and after": (
        chain(nn.Linear(5, 8), nn.RMSNorm(8), nn.ReLU(), nn.LayerNorm(8), nn.Linear(8, 3)),
        lambda: (normal(*VECTOR, dtype=torch.float32),),
        2,
    ),
    "norm of the flat": (
        chain(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.LayerNorm(48), nn.ReLU(), nn.Linear(48, 2)),
        lambda: (normal(*IMAGE, dtype=torch.float32),),
        2,
    ),
    "attention": (
        lambda: nn.TransformerEncoderLayer(12, 3, 16, dropout=0.0, batch_first=True),
        lambda: (normal(2, 4, 12, dtype=torch.float32),),
        2,
    ),
    "stacked norm": (
        chain(
            StackedLinear(2, 5, 8),
            StackedLayerNorm(2, 8),
            nn.ReLU(),
            StackedLinear(2, 8, 1),
        ),
        lambda: (normal(*VECTOR, dtype=torch.float32),),
        2,
    ),
    "members read one body": (
        chain(
            nn.Linear(5, 8), nn.ReLU(), StackedLinear(2, 8, 4), nn.ReLU(), StackedLinear(2, 4, 1)
        ),
        lambda: (normal(*VECTOR, dtype=torch.float32),),
        3,
    ),
    **{
        f"q {name}": (
            lambda name=name: QNetwork(ARCHITECTURES[name], shape_of(name), 4),
            lambda name=name: (normal(2, *shape_of(name), dtype=torch.float32),),
            2,
        )
        for name in ("minatar", "mlp")
    },
    **{
        f"{who} {kind}": (
            lambda who=who, kind=kind: sac_network(who, kind),
            lambda who=who: tuple(
                normal(4, n, dtype=torch.float32) for n in ((5,) if who == "actor" else (5, 3))
            ),
            2,
        )
        for who in ("actor", "critic")
        for kind in ("mlp", "simba")
    },
    "gpt": (
        lambda: GPT(GPTModelConfig(2, 3, 12, 8, 16, bias=True)),
        lambda: (torch.arange(10).view(2, 5),),
        2,
    ),
    **{
        name: (
            lambda name=name: build_classifier(name),
            lambda name=name: (images(name),),
            2,
        )
        for name in ("cnn_bn", "resnet18", "vit_tiny")
    },
}


def shape_of(architecture: str) -> tuple[int, ...]:
    return {"minatar": (4, 10, 10), "mlp": (6,)}[architecture]


def sac_network(who: str, kind: str) -> nn.Module:
    trunk = TrunkSpec(kind, 8, 2)
    return Actor(5, 3, trunk) if who == "actor" else Critic(5, 3, trunk)


@torch.no_grad()
@pytest.mark.parametrize("which", PRIVATE)
def test_units_in_another_order_compute_the_same(which: str) -> None:
    make, inputs, least = PRIVATE[which]
    with preserve_global_rng():
        torch.manual_seed(0)
        module = randomise(make(), 0, std=0.4)
    for name, buffer in module.named_buffers():  # variances are drawn above 0
        assert "running_var" not in name or (buffer > 0).all()
    module.eval()
    network = Network("net", module)
    x = inputs()
    before = module(*x)
    weights = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    assert shuffle(network) >= least
    changed = [n for n, t in module.state_dict().items() if not torch.equal(t, weights[n])]
    assert len(changed) >= 2
    torch.testing.assert_close(module(*x), before, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("way", LAID_OUT)
def test_channels_are_followed_into_the_columns_of_a_linear_layer(way: str) -> None:
    function, columns, nonlinearity = LAID_OUT[way]
    norms = [f"norm.{n}[i]" for n in ("weight", "bias", "running_mean", "running_var")]
    repeat = columns // 3
    own = "fc.weight[:, i]" if repeat == 1 else f"fc.weight[:, {repeat}i:{repeat}i+{repeat}]"
    assert rows_of(Idioms(function, columns)) == [
        ("conv", 3, nonlinearity, ["conv.weight[i]", "conv.bias[i]", *norms, own]),
        ("fc", 5, "gelu", ["fc.weight[i]", "fc.bias[i]", "head.weight[:, i]"]),
    ]


# What has no units, and why.


class CReLU(nn.Module):
    """Two outputs per unit, whatever its name says."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x.relu(), (-x).relu()], 1)


class Coded(nn.Module):
    """Layers a, b, c (and a norm, a conv pair, an embedding) and a forward pass of a test."""

    def __init__(self, code: Callable[["Coded", Tensor], Any]) -> None:
        super().__init__()
        self.code = code
        self.a, self.b, self.c = nn.Linear(5, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.norm, self.wide = nn.LayerNorm(4), nn.Linear(8, 2)
        self.conv, self.grouped = nn.Conv2d(2, 4, 3), nn.Conv2d(4, 4, 3, groups=2)
        self.mix = nn.MultiheadAttention(4, 2)
        self.side = nn.Linear(16, 2)
        self.line, self.twice = nn.Conv1d(2, 4, 3), CReLU()
        self.pixels, self.groups, self.batch = (
            nn.LayerNorm([4, 4]),
            nn.GroupNorm(2, 4),
            nn.BatchNorm1d(8),
        )

    def forward(self, x: Tensor) -> Any:
        return self.code(self, x)


REFUSED: dict[str, tuple[Callable[[Coded, Tensor], Any], str, str]] = {
    "reuse": (
        lambda m, x: m.c(m.b(m.b(m.a(x)).relu())),
        "b",
        "it is used more than once in a forward pass",
    ),
    "reused reader": (
        lambda m, x: (m.b(m.a(x).relu()), m.b(m.c(x).relu())),
        "a",
        "b, which reads it, reads something else too",
    ),
    "reused norm": (
        lambda m, x: (m.b(m.norm(m.a(x))), m.wide(m.norm(m.c(x)))),
        "a",
        "norm, which reads it, reads something else too",
    ),
    "weight in the code": (
        lambda m, x: m.b(F.linear(m.a(x).relu() @ m.a.weight, m.a.weight)),
        "a",
        "its weight is used outside of it too",
    ),
    "reader's weight in the code": (
        lambda m, x: m.b(m.a(x).relu()) @ m.b.weight,
        "a",
        "b, which reads it, reads something else too",
    ),
    "add": (
        lambda m, x: m.c(m.a(x) + m.b(x)),
        "a",
        "add joins a and b: a residual stream has no units of its own",
    ),
    "add in place": (
        lambda m, x: m.c(m.b(x).add_(m.a(x))),
        "b",
        "add_ joins b and a: a residual stream has no units of its own",
    ),
    "cat": (
        lambda m, x: m.wide(torch.cat([m.a(x), m.b(x)], 1)),
        "a",
        "cat joins a and b, which is not known to act on each unit alone",
    ),
    "gate": (
        lambda m, x: m.c(m.a(x) * m.b(x).sigmoid()),
        "b",
        "mul joins a and sigmoid, which is not known to act on each unit alone",
    ),
    "softmax": (
        lambda m, x: m.c(m.a(x).softmax(-1)),
        "a",
        "softmax reads it, which is not known to act on each unit alone",
    ),
    "among the outputs": (
        lambda m, x: (m.b(m.a(x)), m.a.bias, m.c(x)),
        "c",
        "its outputs are those of the network",
    ),
    "output and more": (
        lambda m, x: (hidden := m.a(x), m.b(hidden)),
        "a",
        "its outputs are those of the network",
    ),
    "two nonlinearities": (
        lambda m, x: _two(m, x),
        "a",
        "tanh is a second nonlinearity beside the first",
    ),
    "mean over units": (
        lambda m, x: m.c(m.a(x).relu().mean(-1)),
        "a",
        "mean reads it, which is not known to act on each unit alone",
    ),
    "grouped": (
        lambda m, x: m.grouped(m.conv(x).relu()),
        "conv",
        "grouped, which reads it, is a grouped conv",
    ),
    "pixels": (
        lambda m, x: m.c(m.conv(x).relu()),
        "conv",
        "c, which reads it, reads its pixels, not its channels",
    ),
    "half averaged": (
        lambda m, x: m.c(m.conv(x).relu().mean(-1)),
        "conv",
        "c, which reads it, reads its pixels, not its channels",
    ),
    "other columns": (
        lambda m, x: m.wide(m.a(x).relu().flatten(1)),
        "a",
        "wide has 8 columns, which do not belong to its 4 outputs one by one",
    ),
    "query alone": (
        lambda m, x: m.mix(m.a(x), x, x)[0],
        "a",
        "mix, which reads it, reads something else too",
    ),
    "two outputs per unit": (
        lambda m, x: m.wide(m.twice(m.a(x))),
        "a",
        "cat joins relu and relu_1, which is not known",
    ),
    "data past autograd": (
        lambda m, x: _data(m, x),
        "a",
        "getattr_1 reads it, which is not known",
    ),
    "transposed weight in the code": (
        lambda m, x: m.b(m.a(x).relu()) @ m.a.weight.T.T,
        "a",
        "its weight is used outside of it too",
    ),
    "norm of pixels": (
        lambda m, x: m.wide(m.pixels(m.conv(x)).mean((2, 3))),
        "conv",
        "pixels does not normalise its outputs unit by unit",
    ),
    "norm of groups": (
        lambda m, x: m.wide(m.groups(m.conv(x)).mean((2, 3))),
        "conv",
        "groups does not normalise its outputs unit by unit",
    ),
    "norm of another dimension": (
        lambda m, x: m.b(m.batch(m.a(x))),
        "a",
        "batch does not normalise its outputs unit by unit",
    ),
    "mean over channels": (
        lambda m, x: m.b(F.relu(m.line(x)).mean(-2)),
        "line",
        "mean reads it, which is not known",
    ),
    "mean over channels in two steps": (
        lambda m, x: m.b(m.conv(x).relu().mean(-1).mean(-1).mean(-1)),
        "conv",
        "mean_2 reads it, which is not known",
    ),
    "mean from behind after a mean": (
        lambda m, x: m.b(m.conv(x).relu().mean(-1).mean(-2)),
        "conv",
        "mean_1 reads it, which is not known",
    ),
    "view by twice the batch": (
        lambda m, x: m.b(m.a(x).relu().view(x.shape[0] * 2, -1)),
        "a",
        "view reads it, which is not known",
    ),
    "view by the size of something else": (
        lambda m, x: m.b(m.a(x).relu().view(m.c(x.flatten(0, 1)).shape[0], -1)),
        "a",
        "view reads it, which is not known",
    ),
    "pooling of the flat": (
        lambda m, x: m.side(F.max_pool1d(m.conv(x).relu().flatten(1), 4)),
        "conv",
        "max_pool1d reads it, which is not known",
    ),
    "pooling of more dimensions": (
        lambda m, x: m.b(F.max_pool2d(m.line(x).relu(), 2).flatten(1)),
        "line",
        "max_pool2d reads it, which is not known",
    ),
    "conv of the flat": (
        lambda m, x: m.line(m.conv(x).relu().flatten(1)),
        "conv",
        "line, which reads it, reads its pixels, not its channels",
    ),
    "before and after": (
        lambda m, x: _beside(m, x),
        "a",
        "c reads it before its nonlinearity, another layer after",
    ),
    "unused": (lambda m, x: m.a(x), "b", "its outputs are the network's, or go into a residual st"),
    "untraceable": (
        lambda m, x: m.b(m.a(x)) if x.sum() > 0 else x,
        "a",
        "Coded could not be traced (symbolically traced variables cannot be used as inputs to "
        "control flow): declare it in unit_specs() of the module, or pass units=[rlplast.UnitSpec",
    ),
}


def _two(m: Coded, x: Tensor) -> tuple[Tensor, Tensor]:
    hidden = m.a(x)
    return m.b(hidden.relu()), m.c(hidden.tanh())


def _data(m: Coded, x: Tensor) -> Tensor:
    hidden = m.a(x)
    return m.b(hidden.relu()) + hidden.data


def _beside(m: Coded, x: Tensor) -> Tensor:
    hidden = m.a(x)
    return m.b(hidden.relu()) + m.c(hidden)


@pytest.mark.parametrize("which", REFUSED)
def test_layers_without_units_of_their_own_are_refused_with_the_reason(which: str) -> None:
    code, name, reason = REFUSED[which]
    assert refused(Coded(code))[name].startswith(reason)


def test_what_only_asks_for_shapes_and_types_is_no_reader() -> None:
    def code(m: Coded, x: Tensor) -> Tensor:
        hidden = m.a(x.to(m.a.weight.dtype)).relu()
        return m.b(hidden.reshape(hidden.shape[0], -1)) * (hidden.size(0) * 1)

    assert [row[0] for row in rows_of(Coded(code))] == ["a"]


def test_tied_layers_are_refused_by_name_on_both_sides() -> None:
    assert refused(TiedLM())["fc"] == "head, which reads it, is tied to embed.weight"
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    module[2].weight = module[0].weight
    found = refused(module)
    assert found["0"] == "2, which reads it, is tied to 0.weight"
    assert found["2"] == "it has no weight with a row per unit"


def test_members_that_one_layer_reads_are_refused() -> None:
    module = nn.Sequential(StackedLinear(2, 5, 4), nn.ReLU(), nn.Linear(4, 3))
    assert refused(module)["0"] == "2, which reads it, is shared by its members"


def test_parts_of_what_cannot_be_traced_are_traced_alone() -> None:
    class Body(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = build("mlp")

        def forward(self, x: Tensor) -> Tensor:
            return self.layers(x)

    class Loops(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.gate = Body(), nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            y = self.body(x)
            return self.gate(y) if y.sum() > 0 else y

    assert [row[0] for row in rows_of(Loops())] == ["body.layers.0", "body.layers.2"]
    found = refused(Loops())
    assert found["body.layers.4"] == "its outputs are those of body"
    assert found["gate"].startswith("Loops could not be traced (")
    assert [row[0] for row in rows_of(nn.Sequential(Loops(), nn.Sequential(*Body().layers)))] == [
        *("0.body.layers.0", "0.body.layers.2"),
        *("1.0", "1.2"),  # a Sequential calls its parts as a whole
    ]


def _tie(name: str, owner: str, other: str) -> nn.Module:
    layers = [layer for _ in range(2) for layer in (nn.Linear(4, 4), nn.LayerNorm(4), nn.ReLU())]
    module = nn.Sequential(*layers, nn.Linear(4, 2))
    setattr(module.get_submodule(other), name, getattr(module.get_submodule(owner), name))
    return module


@pytest.mark.parametrize(
    ("name", "owner", "other", "reasons"),
    [
        ("bias", "0", "3", ("0.bias is tied to 3.bias", "3.bias is tied to 0.bias")),
        ("weight", "1", "4", ("1.weight is tied to 4.weight", "4.weight is tied to 1.weight")),
    ],
)
def test_layers_that_share_a_bias_or_an_entry_of_a_norm_are_refused(
    name: str, owner: str, other: str, reasons: tuple[str, str]
) -> None:
    found = refused(_tie(name, owner, other))
    assert (found["0"], found["3"]) == reasons


def _computed(how: Callable[[nn.Module], Any]) -> nn.Module:
    module = build("mlp")
    how(module.get_submodule("2"))
    return module


def _strided(module: nn.Module) -> None:
    weight = torch.arange(18.0).as_strided((6, 6), (1, 2))
    module.weight = nn.Parameter(weight)  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (nn.utils.spectral_norm, "net.2 is parametrised"),
        (lambda m: prune.l1_unstructured(m, "weight", 0.5), "net.2 is parametrised"),
        (lambda m: prune.random_unstructured(m, "bias", 0.5), "net.2 is parametrised"),
        (_strided, "net.2.weight overlaps itself: several entries are one number"),
    ],
    ids=["spectral norm", "pruned weight", "pruned bias", "strided"],
)
def test_tensors_that_cannot_be_edited_entry_by_entry_are_refused(
    how: Callable[[nn.Module], Any], message: str
) -> None:
    module = _computed(how)
    with pytest.raises(ConfigError, match=message):
        Network("net", module)


def test_tensors_with_gaps_or_in_another_order_are_accepted() -> None:
    module = build("mlp")
    module.get_submodule("2").weight = nn.Parameter(torch.zeros(12, 12)[::2, ::2].T)
    assert len(rows_of(module)) == 2


# Heads of attention.


def test_heads_are_units_without_an_activation() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.self_attn = nn.MultiheadAttention(12, 3, batch_first=True)
            self.norm, self.linear1, self.linear2 = (
                nn.LayerNorm(12),
                nn.Linear(12, 16),
                nn.Linear(16, 12),
            )

        def forward(self, x: Tensor) -> Tensor:
            x = x + self.self_attn(x, x, x, need_weights=False)[0]
            return x + self.linear2(F.gelu(self.linear1(self.norm(x))))

    heads, hidden = sorted(Network("net", Block()).units().groups, key=lambda g: g.size)
    assert (heads.name, heads.size, heads.nonlinearity) == ("self_attn", 3, "heads")
    assert heads.activation is None and heads.tap is None
    assert [str(p) for p in heads.parts] == [
        *(f"self_attn.{part}.weight[4i:4i+4]" for part in "qkv"),
        *(f"self_attn.{part}.bias[4i:4i+4]" for part in "qkv"),
        "self_attn.out_proj.weight[:, 4i:4i+4]",
    ]
    assert (hidden.name, hidden.size, hidden.nonlinearity) == ("linear1", 16, "gelu")
    network = Network("net", Block())
    assert [g.name for g in network.units_in(network.blocks)] == ["linear1"]  # with activations
    encoder = nn.TransformerEncoderLayer(12, 3, 16, batch_first=True)  # its code is not traced
    assert [row[0] for row in rows_of(encoder)] == ["self_attn"]
    assert "could not be traced" in refused(encoder)["linear1"]


# What our own networks declare.


def names(module: nn.Module) -> list[str]:
    return [g.activation for g in Network("net", module).units().groups if g.activation]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_q_networks_declare_what_their_taps_hold(name: str) -> None:
    shape = {"nature": (4, 84, 84), "minatar": (4, 10, 10), "mlp": (6,)}[name]
    module = QNetwork(ARCHITECTURES[name], shape, 4)
    assert names(module) == list(module.forward_taps(torch.zeros(2, *shape))[1])
    order = module.forward_order()
    groups = Network("q", module).units().groups
    for group, layer, after in zip(groups, order[:-1], order[1:], strict=True):
        assert group.weight.block.name == f"{layer}.weight"
        [column] = group.outgoing
        weight = module.get_parameter(f"{after}.weight")
        assert (column.block.name, column.dim) == (f"{after}.weight", 1)
        assert column.repeat == weight.shape[1] // group.size


@pytest.mark.parametrize("kind", ["mlp", "simba"])
def test_sac_networks_declare_what_their_taps_hold(kind: str) -> None:
    layers = ["fc1", "fc2"] if kind == "mlp" else ["blocks.0.fc1", "blocks.1.fc1"]
    actor, critic = sac_network("actor", kind), sac_network("critic", kind)
    obs, action = torch.zeros(4, 5), torch.zeros(4, 3)
    assert names(actor) == list(actor.forward_taps(obs)[1]) == layers  # type: ignore[operator]
    taps = critic.forward_taps(obs, action)[1]  # type: ignore[operator]
    assert names(critic) == [f"[{slot}].{layer}" for layer in layers for slot in (0, 1)]
    assert sorted(names(critic)) == sorted(taps)
    after = [str(p) for p in Network("actor", actor).units().groups[-1].outgoing]
    heads = ["mean.weight[:, i]", "log_std.weight[:, i]"]
    assert after == (heads if kind == "mlp" else ["blocks.1.fc2.weight[:, i]"])
    if kind == "simba":
        assert refused(actor).keys() == {"input", "mean", "log_std", "blocks.0.fc2", "blocks.1.fc2"}
    assert Network("temperature", Temperature(0.5)).units().groups == ()


def test_a_gpt_declares_its_heads_and_hidden_units() -> None:
    module = GPT(GPTModelConfig(2, 3, 12, 8, 16, bias=True))
    groups = Network("gpt", module).units().groups
    assert [g.name for g in groups] == [
        "h.0.attn.c_attn",
        "h.0.mlp.c_fc",
        "h.1.attn.c_attn",
        "h.1.mlp.c_fc",
    ]
    assert [(g.size, g.nonlinearity) for g in groups] == [(3, "heads"), (48, "gelu")] * 2
    assert names(module) == list(module.forward_taps(torch.zeros(2, 5, dtype=torch.int64))[1])
    assert [str(p) for p in groups[0].parts] == [
        *(f"h.0.attn.c_attn.{part}.weight[4i:4i+4]" for part in "qkv"),
        *(f"h.0.attn.c_attn.{part}.bias[4i:4i+4]" for part in "qkv"),
        "h.0.attn.c_proj.weight[:, 4i:4i+4]",
    ]


@pytest.mark.parametrize("name", [n for n in SMALL if n != "efficientnetv2_s"])
def test_classifiers_have_units_that_their_taps_hold(name: str) -> None:
    module = build_classifier(name)
    if not hasattr(module, "forward_taps"):
        pytest.skip("a model of another library")
    _, taps = model_taps(module, images(name))
    found = names(module)
    assert found and set(found) <= set(taps)
    for group in Network("model", module).units().groups:
        if group.activation is not None:
            assert taps[group.activation].shape[1] == group.size
    if name == "resnet18":
        inside = [f"layer{i}.{j}.conv1" for i in (1, 2, 3, 4) for j in (0, 1)]
        assert found == [*inside, "fc1"]
    if name == "vit_tiny":
        assert found == ["blocks.0.mlp.fc1", "blocks.1.mlp.fc1"]


# Declared by the user.


def test_units_may_be_declared_by_the_module_or_by_the_user() -> None:
    class Untraceable(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.norm, self.head = nn.Linear(5, 4), nn.LayerNorm(4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(F.silu(self.norm(self.fc(x)))) if x.sum() > 0 else self.head(x)

    spec = UnitSpec("fc", ("head",), ("norm",), F.silu)
    expected: Row = (
        "fc",
        4,
        "silu",
        ["fc.weight[i]", "fc.bias[i]", "norm.weight[i]", "norm.bias[i]", "head.weight[:, i]"],
    )
    assert rows_of(Untraceable()) == []
    assert rows_of(Untraceable(), units=[spec]) == [expected]
    assert rlplast.units(Untraceable(), units=[spec])[0].name == "fc"

    class Declared(Untraceable):
        def unit_specs(self) -> list[UnitSpec]:
            return [spec]

    assert rows_of(Declared()) == [expected]
    assert rows_of(Declared(), units=[]) == []  # the user's word counts
    inside = nn.ModuleDict({"part": Declared()})
    name, *_, parts = rows_of(inside)[0]
    assert (name, parts[-1]) == ("part.fc", "part.head.weight[:, i]")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (UnitSpec("5", ("4",)), "declared units name no module '5': "),
        (UnitSpec("0", ("2", "hed")), "declared units name no module 'hed'"),
        (UnitSpec("0", ("2",), ("norm",)), "declared units name no module 'norm'"),
    ],
)
def test_declared_units_of_layers_that_do_not_exist_are_refused(
    spec: UnitSpec, message: str
) -> None:
    network = Network("net", build("mlp"), units=[spec])
    with pytest.raises(ConfigError, match=message):
        network.units()


def test_declared_units_that_do_not_fit_are_refused_with_the_reason() -> None:
    module = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(7, 3))
    for specs, why in (
        ([UnitSpec("0", ("4",))], "of 0: 4 has 7 columns, which do not belong to its 6 outputs"),
        ([UnitSpec("1", ("2",))], "of 1: it has no weight with a row per unit"),
        ([UnitSpec("0", ("2",))] * 2, "of 0 are declared twice: allowed is once"),
    ):
        with pytest.raises(ConfigError, match=f"units {why}"):
            Network("net", module, units=specs).units()


# Parts and groups.


def test_masks_of_parts_reach_exactly_their_entries() -> None:
    groups: dict[str, UnitGroup] = {g.name: g for g in Network("net", build("conv")).units().groups}
    mask = torch.tensor([False, True, False, True])
    rows, bias, columns = groups["2"].parts
    assert rows.mask(mask).shape == (4, 4, 3, 3)
    assert rows.mask(mask).flatten(1).all(1).tolist() == mask.tolist()
    assert rows.mask(mask).flatten(1).any(1).tolist() == mask.tolist()
    assert torch.equal(bias.mask(mask), mask)
    expected = torch.arange(16) // 4 % 2 == 1  # the pixels of channels 1 and 3
    assert torch.equal(columns.mask(mask), expected.expand(3, 16))
    assert torch.equal(columns.spread(torch.arange(4.0)), (torch.arange(16) // 4).float()[None])
    [channels] = groups["0"].outgoing
    assert torch.equal(channels.mask(mask)[:, :, 0, 0], mask.expand(4, 4))


def test_a_group_of_a_network_is_found_in_its_follower() -> None:
    network = Network("net", build("mlp"), followers=build("mlp", seed=1))
    follower = network.followers["target"]
    names_ = {b.name: b for b in follower.blocks}
    group = network.units().groups[0]
    own = group.of(names_)
    assert [p.block for p in own.parts] == [names_[p.block.name] for p in group.parts]
    assert (own.name, own.size, own.tap) == (group.name, group.size, group.tap)
    assert isinstance(own.weight, Part) and own.weight.block.view is names_["0.weight"].view
