"""Which entries belong to which hidden unit, and why other layers have none."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import prune

import rlplast
from rlplast.agents.sac_networks import Temperature
from rlplast.core.errors import ConfigError, NothingToEdit
from rlplast.core.network.network import Network
from rlplast.core.network.stacked import StackedLayerNorm, StackedLinear
from rlplast.core.network.units import UnitGroup, UnitSpec
from rlplast.core.rng import preserve_global_rng
from tests.core.network.own import OWN, Q_SHAPES, drawn, own
from tests.methods.nets import changed, randomise, snapshot
from tests.models import FAMILIES, build, data
from tests.supervised.small_models import build as build_classifier
from tests.supervised.small_models import images

Row = tuple[str, int, str, list[str]]


def rows_of(module: nn.Module, **options: Any) -> list[Row]:
    """Return name, size, nonlinearity and entries of unit i, group by group."""
    groups = Network("net", module, **options).units().groups
    return [(g.name, g.size, g.nonlinearity, [str(p) for p in g.parts]) for g in groups]


def refused(module: nn.Module, **options: Any) -> dict[str, str]:
    return dict(Network("net", module, **options).units().refused)


def norm_rows(norm: str) -> list[str]:
    return [f"{norm}.{n}[i]" for n in ("weight", "bias", "running_mean", "running_var")]


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
        (path, 4, "relu", [f"{path}.weight[i]", f"{path}.bias[i]", *norm_rows(norm), after])
        for path, norm, after in (("0", "1", "3.weight[:, i]"), ("3", "4", "7.weight[:, 4i:4i+4]"))
    ],
    "residual": [],
    "tied": [],
    "stacked": [
        (f"{member}.{name}", 6, "relu", [f"{member}.{part}" for part in parts])
        for name, parts in (
            ("fc1", ("fc1.weight[i]", "fc1.bias[i]", "fc2.weight[:, i]")),
            ("fc2", ("fc2.weight[i]", "fc2.bias[i]", "head.weight[:, i]")),
        )
        for member in ("[0]", "[1]")
    ],
}


LAST = "its outputs are those of the network"


STREAM = "add joins inp and relu, which is not known to act on each unit alone"


REASONS = {
    "mlp": {"4": LAST},
    "conv": {"5": LAST},
    "conv_batchnorm": {"7": LAST},
    "residual": {"inp": STREAM, "fc": STREAM, "head": LAST},
    "tied": {"fc": "head.weight is tied to embed.weight", "head": LAST},
    "stacked": {"head": LAST},
}


def test_units_of_each_family_are_those_found_by_hand() -> None:
    for family in FAMILIES:
        module = build(family)
        assert rows_of(module) == BY_HAND[family], family
        assert refused(module) == REASONS[family], family


def test_a_network_says_which_groups_are_in_scope_and_why_there_are_none() -> None:
    network = Network("net", build("mlp"))
    blocks = {b.name: b for b in network.blocks}
    assert [g.name for g in network.units_in(network.blocks)] == ["0", "2"]
    assert [g.name for g in network.units_in([blocks["2.weight"]])] == ["2"]
    assert rlplast.units(network) == rlplast.units(network) == network.units().groups
    with pytest.raises(NothingToEdit, match="'net'"):
        network.units_in([blocks["4.weight"]])
    stream = Network("net", build("residual"))
    with pytest.raises(NothingToEdit, match="add joins"):
        stream.units_in(stream.blocks)
    frozen = build("mlp")
    frozen.get_submodule("4").requires_grad_(False)  # its columns cannot be written
    network = Network("net", frozen)
    assert [g.name for g in network.units_in(network.blocks)] == ["0"]
    network = Network("net", frozen.requires_grad_(False))
    with pytest.raises(NothingToEdit, match=r"2\.weight.*4\.weight"):
        network.units_in(network.blocks)


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inp = nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.inp(x) if x.sum() > 0 else x


def test_models_without_units_have_an_empty_tuple_and_unknown_ones_are_refused() -> None:
    for module in (build("residual"), nn.Linear(3, 2), build("mlp").requires_grad_(False)):
        assert rlplast.units(module) == rlplast.units(Network("net", module)) == ()
    for module, named in ((Branching(), "inp"), (nn.Sequential(Branching()), r"0\.inp")):
        with pytest.raises(NothingToEdit, match=named):
            rlplast.units(module)
    assert rlplast.units(Branching(), units=[]) == ()  # the user's word counts


@torch.no_grad()
def shuffle(network: Network) -> None:
    """Put every group's units into another order."""
    generator = torch.Generator().manual_seed(0)
    for group in network.units().groups:
        order = torch.randperm(group.size, generator=generator)
        for part in group.parts:
            view = part.block.view.transpose(0, part.dim)
            units = view.unflatten(0, (group.size, part.repeat))
            view.copy_(units[order].flatten(0, 1))


class Idioms(nn.Module):
    """A conv whose channels are laid out for a linear layer, in one of several ways."""

    def __init__(self, way: Callable[[Tensor], Tensor], columns: int) -> None:
        super().__init__()
        self.conv, self.way, self.norm = nn.Conv2d(2, 3, 3), way, nn.BatchNorm2d(3)
        self.fc, self.head = nn.Linear(columns, 5), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.gelu(self.fc(self.way(self.norm(self.conv(x))))))


LAID_OUT: dict[str, tuple[Callable[[Tensor], Tensor], int, str]] = {
    "view by size": (lambda x: x.relu().view(x.size(0), -1), 48, "relu"),
    "view by shape": (lambda x: F.silu(x).reshape(x.shape[0], -1), 48, "silu"),
    "flatten": (lambda x: F.elu(x).flatten(1), 48, "elu"),
    "flatten by name": (lambda x: torch.flatten(torch.tanh(x), start_dim=1), 48, "tanh"),
    "flat before": (lambda x: F.leaky_relu(x.flatten(1)), 48, "leaky_relu"),
    "in place": (lambda x: torch.sin_(x).flatten(1), 48, "sin"),
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


Made = tuple[nn.Module, tuple[Tensor, ...]]  # a network and its inputs


def chain(shape: tuple[int, ...], *layers: nn.Module) -> Callable[[], Made]:
    return lambda: (nn.Sequential(*layers), (drawn(*shape),))


IMAGE, VECTOR = (3, 2, 6, 6), (4, 5)


PRIVATE: dict[str, Callable[[], Made]] = {
    **{
        family: lambda family=family: (build(family), (data(family)[0],))
        for family in ("mlp", "conv", "conv_batchnorm", "stacked")
    },
    **{way: lambda way=way: (Idioms(*LAID_OUT[way][:2]), (drawn(*IMAGE),)) for way in LAID_OUT},
    "layer norm": chain(VECTOR, nn.Linear(5, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 3)),
    "norms before and after": chain(
        VECTOR, nn.Linear(5, 8), nn.RMSNorm(8), nn.ReLU(), nn.LayerNorm(8), nn.Linear(8, 3)
    ),
    "norm of the flat": chain(
        IMAGE, nn.Conv2d(2, 3, 3), nn.Flatten(), nn.LayerNorm(48), nn.ReLU(), nn.Linear(48, 2)
    ),
    "attention": lambda: (
        nn.TransformerEncoderLayer(12, 3, 16, dropout=0.0, batch_first=True),
        (drawn(2, 4, 12),),
    ),
    "stacked norm": chain(
        VECTOR, StackedLinear(2, 5, 8), StackedLayerNorm(2, 8), nn.ReLU(), StackedLinear(2, 8, 1)
    ),
    "members read one body": chain(
        VECTOR,
        *(nn.Linear(5, 8), nn.ReLU(), StackedLinear(2, 8, 4), nn.ReLU(), StackedLinear(2, 4, 1)),
    ),
    **{which: lambda which=which: own(which) for which in OWN},
    **{
        name: lambda name=name: (build_classifier(name), (images(name),))
        for name in ("cnn_bn", "resnet18", "vit_tiny", "vit_tiny_fire")
    },
}


@torch.no_grad()
def test_units_in_another_order_compute_the_same() -> None:
    for which, make in PRIVATE.items():
        with preserve_global_rng():
            torch.manual_seed(0)
            module, x = make()
        randomise(module, 0, std=0.4).eval()
        before, weights = module(*x), snapshot(module)
        shuffle(Network("net", module))
        assert len(changed(weights, module)) >= 2, which
        torch.testing.assert_close(
            module(*x), before, rtol=1e-4, atol=1e-5, msg=lambda text, which=which: which + text
        )


def test_channels_are_followed_into_the_columns_of_a_linear_layer() -> None:
    for way, (function, columns, nonlinearity) in LAID_OUT.items():
        repeat = columns // 3
        read = "fc.weight[:, i]" if repeat == 1 else f"fc.weight[:, {repeat}i:{repeat}i+{repeat}]"
        conv = ["conv.weight[i]", "conv.bias[i]", *norm_rows("norm"), read]
        assert rows_of(Idioms(function, columns)) == [
            ("conv", 3, nonlinearity, conv),
            ("fc", 5, "gelu", ["fc.weight[i]", "fc.bias[i]", "head.weight[:, i]"]),
        ], way


class CReLU(nn.Module):
    """Two outputs per unit, whatever its name says."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x.relu(), (-x).relu()], 1)


class Coded(nn.Module):
    """Layers of every kind, and a forward pass of a test."""

    def __init__(self, code: Callable[["Coded", Tensor], Any]) -> None:
        super().__init__()
        self.code = code
        self.a, self.b, self.c = nn.Linear(5, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.wide, self.side = nn.Linear(8, 2), nn.Linear(16, 2)
        self.conv, self.grouped = nn.Conv2d(2, 4, 3), nn.Conv2d(4, 4, 3, groups=2)
        self.line, self.twice, self.mix = nn.Conv1d(2, 4, 3), CReLU(), nn.MultiheadAttention(4, 2)
        self.norm, self.pixels = nn.LayerNorm(4), nn.LayerNorm([4, 4])
        self.groups, self.batch = nn.GroupNorm(2, 4), nn.BatchNorm1d(8)

    def forward(self, x: Tensor) -> Any:
        return self.code(self, x)


Code = Callable[[Coded, Tensor], Any]


# Layer, what its reason begins with, and a pass for which that is said of the layer.
REFUSED: list[tuple[str, str, Code]] = [
    ("b", "it is used more than once", lambda m, x: m.c(m.b(m.b(m.a(x)).relu()))),
    ("a", "b, which reads it, reads something", lambda m, x: (m.b(m.a(x)), m.b(m.c(x).relu()))),
    ("a", "b, which reads it, reads something", lambda m, x: m.b(m.a(x).relu()) @ m.b.weight),
    (
        "a",
        "norm, which reads it, reads something",
        lambda m, x: (m.b(m.norm(m.a(x))), m.wide(m.norm(m.c(x)))),
    ),
    ("a", "mix, which reads it, reads something", lambda m, x: m.mix(m.a(x), x, x)[0]),
    ("a", "its weight", lambda m, x: m.b(F.linear(m.a(x).relu() @ m.a.weight, m.a.weight))),
    ("b", "add_ joins b and a", lambda m, x: m.c(m.b(x).add_(m.a(x)))),
    ("a", "cat joins relu and relu_1", lambda m, x: m.wide(m.twice(m.a(x)))),
    ("b", "mul joins a and sigmoid", lambda m, x: m.c(m.a(x) * m.b(x).sigmoid())),
    ("c", "its outputs are those of", lambda m, x: (m.b(m.a(x)), m.a.bias, m.c(x))),
    ("a", "its outputs are those of", lambda m, x: (h := m.a(x), m.b(h))),
    ("b", "its outputs are the network's", lambda m, x: m.a(x)),  # unused
    ("a", "tanh is a second", lambda m, x: (m.b((h := m.a(x)).relu()), m.c(h.tanh()))),
    ("a", "c reads it before", lambda m, x: m.b((h := m.a(x)).relu()) + m.c(h)),
    ("a", "softmax reads it", lambda m, x: m.c(m.a(x).softmax(-1))),
    ("a", "getattr_1 reads it", lambda m, x: m.b((h := m.a(x)).relu()) + h.data),
    ("line", "mean reads it", lambda m, x: m.b(F.relu(m.line(x)).mean(-2))),
    ("conv", "mean_1 reads it", lambda m, x: m.b(m.conv(x).relu().mean(-1).mean(-2))),
    ("a", "view reads it", lambda m, x: m.b(m.a(x).relu().view(x.shape[0] * 2, -1))),
    (
        "conv",
        "view reads it",  # by the size of the batch before the steps of a sequence joined it
        lambda m, x: m.side(m.conv(x.flatten(0, 1)).relu().view(x.shape[0], -1)),
    ),
    (
        "conv",
        "max_pool1d reads it",
        lambda m, x: m.side(F.max_pool1d(m.conv(x).relu().flatten(1), 4)),
    ),
    (
        "line",
        "max_pool2d reads it",
        lambda m, x: m.b(F.max_pool2d(m.line(x).relu(), 2).flatten(1)),
    ),
    ("conv", "grouped, which reads it", lambda m, x: m.grouped(m.conv(x).relu())),
    ("conv", "c, which reads it, reads its pixels", lambda m, x: m.c(m.conv(x).relu().mean(-1))),
    ("conv", "line, which reads it", lambda m, x: m.line(m.conv(x).relu().flatten(1))),
    ("a", "wide has 8 columns", lambda m, x: m.wide(m.a(x).relu().flatten(1))),
    ("conv", "pixels does not", lambda m, x: m.wide(m.pixels(m.conv(x)).mean((2, 3)))),
    ("conv", "groups does not", lambda m, x: m.wide(m.groups(m.conv(x)).mean((2, 3)))),
    ("a", "batch does not", lambda m, x: m.b(m.batch(m.a(x)))),
    ("a", "Coded could not be traced", lambda m, x: m.b(m.a(x)) if x.sum() > 0 else x),
]


def test_layers_without_units_of_their_own_are_refused_with_the_reason() -> None:
    for layer, reason, code in REFUSED:
        found = refused(Coded(code))
        assert found[layer].startswith(reason), found


def test_a_norm_of_pictures_is_no_norm_of_a_linear_layers_units() -> None:
    for norm in (nn.BatchNorm2d(5), nn.BatchNorm3d(5), nn.InstanceNorm1d(5)):
        assert "0" in refused(nn.Sequential(nn.Linear(6, 5), norm, nn.ReLU(), nn.Linear(5, 2)))


def test_what_only_asks_for_shapes_and_types_is_no_reader() -> None:
    def code(m: Coded, x: Tensor) -> Tensor:
        hidden = m.a(x.to(m.a.weight.dtype)).relu()
        return m.b(hidden.reshape(hidden.shape[0], -1)) * (hidden.size(0) * 1)

    module = Coded(code)
    for name in ("c", "grouped", "mix"):  # of as many columns, and not called
        delattr(module, name)
    assert [row[0] for row in rows_of(module)] == ["a"]


def test_tensors_of_several_layers_or_members_are_refused_by_name_on_both_sides() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    module[2].weight = module[0].weight
    found = refused(module)
    assert found["0"] == "0.weight is tied to 2.weight"
    assert found["2"] == "2.weight is tied to 0.weight"
    members = nn.Sequential(StackedLinear(2, 5, 4), nn.ReLU(), nn.Linear(4, 3))
    assert refused(members)["0"] == "2, which reads it, is shared by its members"
    for name, owner, other in (("bias", "0", "3"), ("weight", "1", "4")):
        layers = [new for _ in range(2) for new in (nn.Linear(4, 4), nn.LayerNorm(4), nn.ReLU())]
        module = nn.Sequential(*layers, nn.Linear(4, 2))
        setattr(module.get_submodule(other), name, getattr(module.get_submodule(owner), name))
        ours, theirs = f"{owner}.{name}", f"{other}.{name}"
        found = refused(module)
        assert found["0"] == f"{ours} is tied to {theirs}"
        assert found["3"] == f"{theirs} is tied to {ours}"


def test_parts_of_what_cannot_be_traced_are_traced_alone() -> None:
    class Loops(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.gate = build("mlp"), nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            y = self.body(x)
            return self.gate(y) if y.sum() > 0 else y

    assert [row[0] for row in rows_of(Loops())] == ["body.0", "body.2"]
    found = refused(Loops())
    assert found["body.4"] == "its outputs are those of body"
    assert found["gate"].startswith("Loops could not be traced (")
    chained = rows_of(nn.Sequential(Loops(), build("mlp")))  # which calls its parts as a whole
    assert [row[0] for row in chained] == ["0.body.0", "0.body.2", "1.0", "1.2"]


def _strided(module: nn.Module) -> None:
    weight = torch.arange(18.0).as_strided((6, 6), (1, 2))
    module.weight = nn.Parameter(weight)  # type: ignore[assignment]


def test_tensors_that_cannot_be_edited_entry_by_entry_are_refused() -> None:
    for how in (
        nn.utils.spectral_norm,
        lambda m: prune.random_unstructured(m, "bias", 0.5),
        _strided,
    ):
        module = build("mlp")
        how(module.get_submodule("2"))
        with pytest.raises(ConfigError, match=r"net\.2"):
            Network("net", module)
    module = nn.ModuleDict({"cell": nn.LSTM(3, 4)})
    with warnings.catch_warnings(action="ignore"):
        nn.utils.weight_norm(module.get_submodule("cell"), "weight_hh_l0")
    with pytest.raises(ConfigError, match=r"net\.cell"):
        Network("net", module)
    gaps = build("mlp")
    gaps.get_submodule("2").weight = nn.Parameter(torch.zeros(12, 12)[::2, ::2].T)
    assert len(rows_of(gaps)) == 2


def test_heads_are_units_without_an_activation() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.self_attn = nn.MultiheadAttention(12, 3, batch_first=True)
            self.norm = nn.LayerNorm(12)
            self.linear1, self.linear2 = nn.Linear(12, 16), nn.Linear(16, 12)

        def forward(self, x: Tensor) -> Tensor:
            x = x + self.self_attn(x, x, x, need_weights=False)[0]
            return x + self.linear2(F.gelu(self.linear1(self.norm(x))))

    heads, hidden = sorted(Network("net", Block()).units().groups, key=lambda g: g.size)
    assert (heads.name, heads.size, heads.nonlinearity) == ("self_attn", 3, "heads")
    assert heads.activation is None and heads.point is None
    assert [str(p) for p in heads.parts] == [
        *(f"self_attn.{part}.weight[4i:4i+4]" for part in "qkv"),
        *(f"self_attn.{part}.bias[4i:4i+4]" for part in "qkv"),
        "self_attn.out_proj.weight[:, 4i:4i+4]",
    ]
    assert (hidden.name, hidden.size, hidden.nonlinearity) == ("linear1", 16, "gelu")
    network = Network("net", Block())
    assert [g.name for g in network.units_in(network.blocks)] == ["linear1"]  # with activations


def test_our_own_networks_have_units_in_all_hidden_layers() -> None:
    inside = [f"layer{i}.{j}.conv1" for i in (1, 2, 3, 4) for j in (0, 1)]
    pair = ["blocks.0.mlp.fc1", "blocks.1.mlp.fc1"]
    for make, names in (
        *((f"actor {k}", ls) for k, ls in SAC_LAYERS.items()),
        *(
            (f"critic {k}", [f"[{i}].{la}" for la in ls for i in (0, 1)])
            for k, ls in SAC_LAYERS.items()
        ),
        ("gpt", ["h.0.mlp.c_fc", "h.1.mlp.c_fc"]),
        ("resnet18", [*inside, "fc1"]),
        *(("vit_tiny", pair), ("vit_tiny_fire", pair)),
    ):
        module = own(make)[0] if make in OWN else build_classifier(make)
        groups = Network("net", module).units().groups
        assert [g.activation for g in groups if g.activation] == names, make
    for name in Q_SHAPES:
        module, _ = own(f"q {name}")
        names = [g.name for g in Network("q", module).units().groups]
        assert names == module.forward_order()[:-1]
    after = [str(p) for p in Network("actor", own("actor mlp")[0]).units().groups[-1].outgoing]
    assert after == ["mean.weight[:, i]", "log_std.weight[:, i]"]
    simba = refused(own("actor simba")[0])
    assert simba.keys() == {"input", "mean", "log_std", "blocks.0.fc2", "blocks.1.fc2"}
    assert Network("temperature", Temperature(0.5)).units().groups == ()


SAC_LAYERS = {"mlp": ["fc1", "fc2"], "simba": ["blocks.0.fc1", "blocks.1.fc1"]}


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


def test_declared_units_that_do_not_fit_are_refused_with_the_reason() -> None:
    module = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(7, 3))
    for specs, why in (
        ([UnitSpec("5", ("4",))], "'5'"),
        ([UnitSpec("0", ("2", "hed"))], "'hed'"),
        ([UnitSpec("0", ("2",), ("norm",))], "'norm'"),
        ([UnitSpec("0", ("4",))], "of 0: 4 has 7 columns"),
        ([UnitSpec("1", ("2",))], "of 1: it has no weight"),
        ([UnitSpec("0", ("2",))] * 2, "of 0 are declared twice"),
    ):
        with pytest.raises(ConfigError, match=why):
            Network("net", module, units=specs).units()


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
