"""One tick: rows and masks, targets, what drifts during sleep, what the optimizer forgets."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rlplast
from rlplast.core.errors import ConfigError
from rlplast.core.method.context import Context
from rlplast.core.network.network import Network
from rlplast.core.network.stacked import StackedLinear
from rlplast.core.network.units import UnitSpec
from rlplast.methods import recycling
from tests.methods.living import SHORT, layers_of, living
from tests.models import assert_same, build, data
from tests.naive.lifecycle import NaiveAdam, NaiveSGD

# Rows on a CPU, masks elsewhere.


@pytest.mark.parametrize(
    "params",
    [{}, {"memory": "he"}, {"memory": "xavier", "redraw": True, "clear_moments": True}],
    ids=["restore", "he", "xavier"],
)
@pytest.mark.parametrize("family", ["conv", "stacked"])
def test_masks_write_what_rows_write(
    family: str, params: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    by_rows, by_masks = living(family, **params), living(family, **params)
    for _ in range(20):
        by_rows.update()
        rlplast.tick(by_rows.network)
        by_masks.update()
        with monkeypatch.context() as forced:
            forced.setattr(recycling, "by_rows", lambda mask: False)
            rlplast.tick(by_masks.network)
        assert_same(by_rows.snapshot(), by_masks.snapshot())
    assert all(int(layer.revivals.sum()) > 3 for layer in layers_of(by_rows.module).values())


def test_a_plan_writes_nothing() -> None:
    made = living(memory="he", redraw=True, clear_moments=True, target_mask="online")
    for _ in range(12):
        made.update()
        before = made.snapshot()
        [method] = made.network.installed
        assert method.plan(Context(made.network, made.network.blocks, reads=method.reads), {})
        assert_same(before, made.snapshot())
        rlplast.tick(made.network)


def test_raw_weights_are_the_effective_ones_after_every_tick() -> None:
    made = living(optimizer="adamw_fused")
    frozen: dict[tuple[str, int], Tensor] = {}
    for _ in range(40):
        made.update()
        rlplast.tick(made.network)
        for path, layer in layers_of(made.module).items():
            for unit in range(6):
                row = layer.weight[unit].detach().clone()
                if layer.active[unit] == 1:
                    frozen.pop((path, unit), None)
                else:  # as it was when it fell asleep, although the optimizer moves it
                    assert torch.equal(frozen.setdefault((path, unit), row), row)
                    assert torch.equal(layer.memory_weight[unit], row)


@pytest.mark.parametrize("training", [True, False])
def test_evaluation_never_ticks(training: bool) -> None:
    made = living()
    made.update()
    made.module.train(training)
    before = made.snapshot()
    rlplast.tick(made.network)
    assert torch.equal(before["0.life"], made.state()["0.life"]) is not training


def test_ticking_what_cannot_tick_is_refused_with_the_remedy() -> None:
    module: Any = living().module
    for ticked, message in (
        (Network("net", build("mlp")), r"call rlplast\.replace_layers on it first"),
        (module, r"got a Sequential: make a rlplast\.Network of the mod"),
        (Network("net", living(clear_moments=True).module), r"clear_moments needs the optimizer: "),
    ):
        with pytest.raises(ConfigError, match=message):
            rlplast.tick(ticked)


def test_masters_sleep_and_wake_with_their_copies() -> None:
    module = build("mlp")
    wide = copy.deepcopy(module)
    rlplast.replace_layers(module, **SHORT)
    rlplast.replace_layers(wide, **SHORT)
    module.bfloat16()
    masters: dict[Tensor, Tensor] = {
        p: q.detach().clone().requires_grad_()
        for p, q in zip(module.parameters(), wide.parameters(), strict=True)
    }
    optimizers = [torch.optim.Adam(p, lr=0.1) for p in (masters.values(), wide.parameters())]
    low = Network("net", module, optimizers[0], masters=masters)
    high = Network("net", wide, optimizers[1])
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        for master, parameter in zip(masters.values(), wide.parameters(), strict=True):
            parameter.grad = torch.randn(parameter.shape, generator=generator)
            master.grad = parameter.grad.clone()
        for optimizer, network in zip(optimizers, (low, high), strict=True):
            optimizer.step()
            rlplast.tick(network)
        for p, q in zip(module.parameters(), wide.parameters(), strict=True):
            assert torch.equal(masters[p], q)
        for path, layer in layers_of(module).items():
            asleep = layer.active == 0
            own = wide.get_parameter(f"{path}.weight").detach().bfloat16()
            assert torch.equal(layer.weight[asleep], own[asleep])
    assert int(layers_of(module)["0"].revivals.min()) >= 1


# Followers.


@pytest.mark.parametrize("target_mask", ["none", "online"])
def test_followers_never_tick_and_mask_as_asked(target_mask: str) -> None:
    made = living(target_mask=target_mask)
    start = copy.deepcopy(made.follower.state_dict())
    alone = Network("target", made.follower)
    online = layers_of(made.module)
    slept = 0
    for _ in range(30):
        made.update()
        rlplast.tick(made.network)
        rlplast.tick(alone)  # a follower does not, even when it is told to
        for path, layer in layers_of(made.follower).items():
            for name in ("active", "scale"):
                expected = getattr(online[path], name) if target_mask == "online" else 1
                assert (getattr(layer, name) == expected).all()
            x = torch.ones(2, layer.in_features)
            d = online[path].mask() if target_mask == "online" else 1
            torch.testing.assert_close(layer(x), d * (x @ layer.weight.T + layer.bias))
            slept += int((online[path].active == 0).sum())
    assert slept > 20
    masks = {f"{path}.{n}" for path in online for n in ("active", "scale")}
    changed = {n for n, t in made.follower.state_dict().items() if not torch.equal(t, start[n])}
    assert changed <= (masks if target_mask == "online" else set())


def test_unmasked_follower_stays_so_when_all_buffers_are_copied_to_it() -> None:
    made = living()
    layers_of(made.module)["0"].active[2] = 0
    made.follower.load_state_dict(made.module.state_dict())
    layer = layers_of(made.follower)["0"]
    x = torch.ones(2, 5)
    torch.testing.assert_close(layer(x), x @ layer.weight.T + layer.bias)


# What drifts while a unit sleeps.

DRIFTING: dict[str, tuple[Any, Any]] = {
    "sgd_momentum": (
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        lambda: NaiveSGD(0.1, 0.9),
    ),
    "adam": (lambda p: torch.optim.Adam(p, lr=1e-3), lambda: NaiveAdam(1e-3)),
    "adamw": (lambda p: torch.optim.AdamW(p, lr=1e-3), lambda: NaiveAdam(1e-3, 0.01)),
}
NORMAL, ASLEEP, UNITS = 50, 200, 32


def trained(optimizer: str, ticks: bool, **params: Any) -> tuple[Any, Any, Any, Any]:
    """Train 50 updates, then put every second unit to sleep; return what is needed to go on."""
    torch.random.default_generator.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, UNITS), nn.Tanh(), nn.Linear(UNITS, 4)).double()
    rlplast.replace_layers(net, life=[10**6] * 2, recovery=[10**6] * 2, **params)
    trained_by = DRIFTING[optimizer][0](net.parameters())
    network = Network("net", net, trained_by)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(256, 16, generator=generator, dtype=torch.float64)
    y = torch.stack([x[:, 0] * x[:, 1], x[:, 2].sin(), x[:, 3].abs(), x[:, 4]], dim=1)

    def update() -> None:
        chosen = torch.randint(256, (32,), generator=generator)
        trained_by.zero_grad()
        nn.functional.mse_loss(net(x[chosen]), y[chosen]).backward()
        trained_by.step()
        if ticks:
            rlplast.tick(network)

    layer: Any = net[0]
    for _ in range(NORMAL - 1):
        update()
    layer.life[::2] = 1  # after the next update these fall asleep
    update()
    if not ticks:
        layer.active[::2] = 0
    return net, layer, trained_by, update


def without_gradient(optimizer: str, parameter: Tensor, state: dict[str, Any]) -> Tensor:
    """Return where 200 updates of zero gradient take a parameter, in NumPy."""
    twin = DRIFTING[optimizer][1]()
    value = parameter.detach().numpy().copy()
    if isinstance(twin, NaiveSGD):
        twin.buffers[0] = state["momentum_buffer"].numpy().copy()
    else:
        moments = (state["exp_avg"].numpy().copy(), state["exp_avg_sq"].numpy().copy())
        twin.state[0] = (int(state["step"]), *moments)
    for _ in range(ASLEEP):
        twin.step(0, value, 0 * value)
    return torch.from_numpy(value)


def share(after: Tensor, before: Tensor) -> float:
    return float((after - before).norm() / before.norm())


# Shares of the norm, as docs/methods/lifecycle.md has them: own rows, columns of the next layer.
MEASURED = {"sgd_momentum": (0.109, 0.319), "adam": (0.027, 0.045), "adamw": (0.0275, 0.044)}


@pytest.mark.parametrize("ticks", [True, False])
@pytest.mark.parametrize("optimizer", DRIFTING)
def test_asleep_columns_of_the_next_layer_drift_and_own_rows_would_if_not_written_back(
    optimizer: str, ticks: bool
) -> None:
    net, layer, trained_by, update = trained(optimizer, ticks)
    weights = layer.weight, net[2].weight.T
    before = [w.detach()[::2].clone() for w in weights]
    expected = [
        without_gradient(optimizer, weight, trained_by.state[weight])
        for weight in (layer.weight, net[2].weight)
    ]
    for _ in range(ASLEEP):
        update()
    assert (layer.active[::2] == 0).all()
    rows, columns = (w.detach()[::2] for w in weights)
    if ticks:
        assert torch.equal(rows, before[0])
    else:
        torch.testing.assert_close(rows, expected[0][::2], rtol=0, atol=1e-12)
        assert share(rows, before[0]) == pytest.approx(MEASURED[optimizer][0], abs=5e-4)
    torch.testing.assert_close(columns, expected[1].T[::2], rtol=0, atol=1e-12)
    assert share(columns, before[1]) == pytest.approx(MEASURED[optimizer][1], abs=5e-4)


# What the optimizer forgets.


@pytest.mark.parametrize(
    ("family", "clear", "optimizer"),
    [
        ("mlp", False, "adam"),
        ("mlp", True, "sgd_momentum"),
        ("conv", True, "adam"),
        ("stacked", True, "adam"),
        ("conv_batchnorm", True, "sgd_momentum"),
        ("residual", True, "adam"),
    ],
)
def test_woken_units_lose_their_moments_in_row_and_column(
    family: str, clear: bool, optimizer: str
) -> None:
    made = living(family, optimizer, clear_moments=clear)
    found = layers_of(made.module)
    follows = {"mlp": {"0": "2", "2": "4"}, "conv": {"0": "2", "2": "5"}}
    follows |= {"stacked": {"fc1": "fc2", "fc2": "head"}}
    follows |= {"conv_batchnorm": {"0": "3", "3": "7"}, "residual": {}}  # a stream has no units
    woken = 0
    for _ in range(20):
        made.update()
        before = made.snapshot()
        rlplast.tick(made.network)
        after = made.snapshot()
        cleared: dict[str, Tensor] = {}
        for path, layer in found.items():
            revived = (layer.active == 1) & (before[f"{path}.active"] == 0)
            woken += int(revived.sum())
            for name in ("weight", "bias"):
                mask = revived.view(
                    *revived.shape, *(1,) * (before[f"{path}.{name}"].ndim - revived.ndim)
                )
                own = f"{path}.{name}"
                cleared[own] = mask | cleared.get(own, torch.tensor(False))
            reader = follows.get(family, {}).get(path)
            if reader:
                columns = revived.repeat_interleave(4) if reader in ("5", "7") else revived
                columns = columns.unsqueeze(-2)
                weight = f"{reader}.weight"
                columns = columns[..., None, None] if before[weight].ndim == 4 else columns
                cleared[weight] = columns | cleared.get(weight, torch.tensor(False))
        for name, tensor in before.items():
            parameter, colon, moment = name.partition(":")
            if not colon:
                continue
            expected = tensor
            if clear and moment != "step" and parameter in cleared:
                expected = tensor.where(~cleared[parameter].expand_as(tensor), 0)
            assert torch.equal(after[name], expected), name
    assert woken > 10


def test_columns_of_heads_side_by_side_are_cleared_in_all_of_them() -> None:
    class TwoHeads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.mean, self.log_std = nn.Linear(3, 4), nn.Linear(4, 2), nn.Linear(4, 2)

        def unit_specs(self) -> list[UnitSpec]:
            return [UnitSpec("fc", ("mean", "log_std"))]

    module = TwoHeads()
    optimizer = torch.optim.Adam(module.parameters())
    rlplast.replace_layers(module, clear_moments=True, warmup=0)
    network = Network("actor", module, optimizer)
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    fc: Any = module.fc
    fc.active[2], fc.recovery[2] = 0, 1
    rlplast.tick(network)
    for head in (module.mean, module.log_std):
        moment = optimizer.state[head.weight]["exp_avg"]
        assert (moment == 0).all(0).tolist() == [False, False, True, False]


# On a GPU.


@pytest.mark.gpu
def test_tick_waits_for_nothing_and_can_be_captured() -> None:
    params = {"memory": "he", "redraw": True, "clear_moments": True, "target_mask": "online"}
    made = []
    for _ in range(2):
        subject_ = living(**params)
        for module in (subject_.module, subject_.follower):
            module.cuda()
        network = Network(
            "net",
            subject_.module,
            torch.optim.Adam(subject_.module.parameters(), capturable=True),
            {"target": subject_.follower},
        )
        for parameter in subject_.module.parameters():
            parameter.grad = torch.ones_like(parameter)
        network.optimizers[0].step()
        made.append(network)
    eager, captured = made
    torch.cuda.set_sync_debug_mode("error")
    try:
        rlplast.tick(eager)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        rlplast.tick(captured)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        rlplast.tick(captured)
    for _ in range(20):
        graph.replay()
        rlplast.tick(eager)
    assert_same(dict(eager.module.state_dict()), dict(captured.module.state_dict()))


def test_stacked_reader_of_another_width_is_left_alone() -> None:
    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc1, self.fc2 = StackedLinear(2, 3, 4), StackedLinear(2, 8, 1)

        def forward(self, x: Tensor) -> Tensor:
            h = self.fc1(x).relu()
            return self.fc2(torch.cat([h, -h], dim=-1))

    module = Wide()
    optimizer = torch.optim.Adam(module.parameters())
    rlplast.replace_layers(module, **SHORT, clear_moments=True, layers=["fc1"])
    network = Network("net", module, optimizer)
    module(data("stacked")[0][:, :3]).sum().backward()
    optimizer.step()
    before = optimizer.state[module.fc2.weight]["exp_avg"].clone()
    for _ in range(12):
        rlplast.tick(network)
    assert torch.equal(optimizer.state[module.fc2.weight]["exp_avg"], before)
    assert (optimizer.state[module.fc1.weight]["exp_avg"] == 0).any()
