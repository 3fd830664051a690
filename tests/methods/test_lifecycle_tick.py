"""Ticks and hooks on networks whose units sleep: twins, followers, optimizers, checkpoints."""

import copy
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import rlplast
from rlplast.core.errors import ConfigError
from rlplast.core.method.context import Context
from rlplast.core.rng import torch_stream
from rlplast.methods import recycling
from rlplast.metrics import awake_fraction, measure
from rlplast.metrics.probe import measure_run
from tests.cases import ACCEPTED, Tape, about, fire
from tests.core.toy import Toy
from tests.marks import slow
from tests.methods.test_lifecycle import halfway, layers_of, living
from tests.models import FAMILIES, Subject, assert_same, build
from tests.naive.lifecycle import (
    NaiveAdam,
    NaiveLifecycleLinear,
    NaiveLinear,
    NaiveNet,
    duration,
    fresh_row,
)

# Algorithm 1 line by line in NumPy, over whole trainings.

INPUTS = 4
DURATIONS: dict[str, Any] = {"life": [20, 45], "recovery": [15, 40]}


def numpy_of(tensor: Tensor) -> np.ndarray:
    return tensor.detach().numpy().copy()


def network(**params: Any) -> nn.Sequential:
    torch.random.default_generator.manual_seed(0)
    layers = [nn.Linear(INPUTS, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2)]
    net = nn.Sequential(*layers).double()
    rlplast.replace_layers(net, **(DURATIONS | params))
    return net


def twin_of(net: nn.Sequential, warmup: int, memory: str) -> NaiveNet:
    def hidden(layer: Any) -> NaiveLifecycleLinear:
        d_out, d_in = layer.weight.shape
        seed, fans = int(layer.seed), d_in if memory == "he" else d_in + d_out

        def fresh(unit: int, revivals: int) -> tuple[np.ndarray, float]:
            return fresh_row(seed, 0, revivals, unit, d_in, fans), 0.0

        return NaiveLifecycleLinear(
            numpy_of(layer.weight),
            numpy_of(layer.bias),
            numpy_of(layer.life_max),
            numpy_of(layer.recovery_max),
            warmup,
            None if memory == "restore" else fresh,
        )

    head: Any = net[4]
    last = NaiveLinear(numpy_of(head.weight), numpy_of(head.bias))
    return NaiveNet([hidden(net[0]), hidden(net[2])], last, NaiveAdam(1e-3, 0.1))


def assert_agree(layer: Any, twin: NaiveLifecycleLinear) -> None:
    """Counters, masks and scales exactly; awake rows, and what sleeping ones wake up with."""
    for name in ("active", "scale", "life", "recovery", "revivals"):
        assert np.array_equal(getattr(layer, name).numpy(), getattr(twin, name)), name
    awake = twin.active == 1
    row = np.where(awake[:, None], twin.weight, twin.weight_memory)
    np.testing.assert_allclose(numpy_of(layer.weight), row, rtol=0, atol=1e-10)
    bias = np.where(awake, twin.bias, twin.bias_memory)
    np.testing.assert_allclose(numpy_of(layer.bias), bias, rtol=0, atol=1e-10)


def follow(updates: int, warmup: int, memory: str, **params: Any) -> NaiveNet:
    net = network(warmup=warmup, memory=memory, **params)
    trained_by = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0.1, fused=True)
    living = rlplast.Network("net", net, trained_by)
    twin = twin_of(net, warmup, memory)
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(64, INPUTS))
    targets = np.stack([np.sin(inputs[:, 0] * inputs[:, 1]), np.cos(inputs[:, 2])], axis=1)
    for update in range(1, updates + 1):
        chosen = rng.integers(len(inputs), size=8)
        x, y = inputs[chosen], targets[chosen]
        twin.update(x, y)
        trained_by.zero_grad()
        nn.functional.mse_loss(net(torch.from_numpy(x)), torch.from_numpy(y)).backward()
        trained_by.step()
        rlplast.tick(living)
        if update < 100 or update % 20 == 0:
            for layer, slow in zip((net[0], net[2]), twin.hidden, strict=True):
                assert_agree(layer, slow)
    head: Any = net[4]
    np.testing.assert_allclose(numpy_of(head.weight), twin.head.weight, rtol=0, atol=1e-10)
    out = net(torch.from_numpy(inputs))
    np.testing.assert_allclose(numpy_of(out), twin.forward(inputs), rtol=0, atol=1e-9)
    return twin


def test_whole_trainings_agree_with_the_twin() -> None:
    twin = follow(180, warmup=20, memory="restore")
    assert min(int(layer.revivals.min()) for layer in twin.hidden) >= 2
    # The twin's own rows do drift asleep; only revival brings them back.
    assert max(layer.largest_drift for layer in twin.hidden) > 0.02


@pytest.mark.parametrize(("memory", "warmup"), [("restore", 12), ("he", 20), ("xavier", 0)])
def test_each_ablation_arm_agrees_with_the_twin(memory: str, warmup: int) -> None:
    twin = follow(60, warmup, memory, life=[5, 20], recovery=[2, 9])
    assert min(int(layer.revivals.min()) for layer in twin.hidden) >= 1
    # Some fall asleep before they are warm.
    assert warmup == 0 or any((layer.life_max < warmup).any() for layer in twin.hidden)


def test_redraw_gives_each_life_its_own_durations() -> None:
    net = network(life=[5, 9], recovery=[2, 4], warmup=0, redraw=True)
    layer: Any = net[0]
    living = rlplast.Network("net", net)
    lives: list[list[int]] = [[] for _ in range(8)]
    sleeps: list[list[int]] = [[] for _ in range(8)]
    previous, since = layer.active.clone(), [0] * 8
    for step in range(1, 120):
        rlplast.tick(living)
        for unit in (layer.active != previous).nonzero().flatten().tolist():
            spans = lives if previous[unit] else sleeps
            spans[unit].append(step - since[unit])
            since[unit] = step
        previous = layer.active.clone()
    seed = int(layer.seed)
    for found, what, low, high in ((lives, 0, 5, 9), (sleeps, 1, 2, 4)):
        for unit, spans in enumerate(found):
            assert spans == [duration(seed, low, high, what, n, unit) for n in range(len(spans))]
        assert {span for spans in found for span in spans} == set(range(low, high + 1))


# One tick.


@pytest.mark.parametrize(
    ("family", "params"),
    [
        ("conv", {"memory": "xavier", "redraw": True, "clear_moments": True}),
        ("stacked", {"memory": "he"}),
    ],
)
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


def test_raw_weights_are_the_effective_ones_after_every_tick_and_a_plan_writes_nothing() -> None:
    made = living(optimizer="adamw_fused", redraw=True, clear_moments=True, target_mask="online")
    [method] = made.network.installed
    frozen: dict[tuple[str, int], Tensor] = {}
    for _ in range(40):
        made.update()
        before = made.snapshot()
        assert method.plan(Context(made.network, made.network.blocks, reads=method.reads), {})
        assert_same(before, made.snapshot())
        rlplast.tick(made.network)
        for path, layer in layers_of(made.module).items():
            for unit in range(6):
                row = layer.weight[unit].detach().clone()
                if layer.active[unit] == 1:
                    frozen.pop((path, unit), None)
                else:  # as it was when it fell asleep, although the optimizer moves it
                    assert torch.equal(frozen.setdefault((path, unit), row), row)
                    assert torch.equal(layer.memory_weight[unit], row)
    made.module.eval()
    before = made.snapshot()
    rlplast.tick(made.network)
    assert_same(before, made.snapshot())
    for ticked, message in (
        (rlplast.Network("net", build("mlp")), "replace_layers"),
        (made.module, r"rlplast\.Network"),
        (rlplast.Network("net", living(clear_moments=True).module), "clear_moments"),
    ):
        with pytest.raises(ConfigError, match=message):
            rlplast.tick(ticked)


@pytest.mark.parametrize("target_mask", ["none", "online"])
def test_followers_never_tick_and_mask_as_asked(target_mask: str) -> None:
    made = living(target_mask=target_mask)
    start = copy.deepcopy(made.follower.state_dict())
    alone = rlplast.Network("target", made.follower)
    online, masked = layers_of(made.module), target_mask == "online"
    slept = 0
    for _ in range(30):
        made.update()
        rlplast.tick(made.network)
        rlplast.tick(alone)  # a follower does not, even when it is told to
        for path, layer in layers_of(made.follower).items():
            for name in ("active", "scale"):
                assert (
                    getattr(layer, name) == (getattr(online[path], name) if masked else 1)
                ).all()
            x = torch.ones(2, layer.in_features)
            d = online[path].mask() if masked else 1
            torch.testing.assert_close(layer(x), d * (x @ layer.weight.T + layer.bias))
            slept += int((online[path].active == 0).sum())
    assert slept > 20
    masks = {f"{path}.{n}" for path in online for n in ("active", "scale")}
    changed = {n for n, t in made.follower.state_dict().items() if not torch.equal(t, start[n])}
    assert changed <= (masks if masked else set())
    if not masked:  # and it stays so when all buffers are copied to it
        online["0"].active[2] = 0
        made.follower.load_state_dict(made.module.state_dict())
        layer, x = layers_of(made.follower)["0"], torch.ones(2, 5)
        torch.testing.assert_close(layer(x), x @ layer.weight.T + layer.bias)


@pytest.mark.slow
def test_asleep_columns_of_the_next_layer_drift_and_own_rows_would_if_not_written_back() -> None:
    cases: list[tuple[Any, float, float]] = [  # shares of the norm in docs/methods/lifecycle.md
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), 0.109, 0.319),
        (lambda p: torch.optim.Adam(p, lr=1e-3), 0.027, 0.045),
        (lambda p: torch.optim.AdamW(p, lr=1e-3), 0.0275, 0.044),
    ]
    for (make, own_rows, columns), ticks in product(cases, (True, False)):
        torch.random.default_generator.manual_seed(0)
        net = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4)).double()
        rlplast.replace_layers(net, life=[10**6] * 2, recovery=[10**6] * 2)
        trained_by, layer = make(net.parameters()), layers_of(net)["0"]
        network = rlplast.Network("net", net, trained_by)
        generator = torch.Generator().manual_seed(1)
        x = torch.randn(256, 16, generator=generator, dtype=torch.float64)
        y = torch.stack([x[:, 0] * x[:, 1], x[:, 2].sin(), x[:, 3].abs(), x[:, 4]], dim=1)
        weights = layer.weight, net.get_parameter("2.weight").T
        for update in range(250):
            if update == 49:
                layer.life[::2] = 1  # after this update these fall asleep
            chosen = torch.randint(256, (32,), generator=generator)
            trained_by.zero_grad()
            nn.functional.mse_loss(net(x[chosen]), y[chosen]).backward()
            trained_by.step()
            if ticks:
                rlplast.tick(network)
            if update == 49:
                layer.active[::2] = 0
                before = [w.detach()[::2].clone() for w in weights]
        pairs = zip(weights, before, strict=True)
        drifts = [float((w.detach()[::2] - start).norm() / start.norm()) for w, start in pairs]
        assert drifts == pytest.approx([0 if ticks else own_rows, columns], abs=5e-4)


# Of each family: a layer → the layer that reads its units, and the columns that read one unit.
READERS: dict[str, dict[str, tuple[str, int]]] = {
    "mlp": {"0": ("2", 1), "2": ("4", 1)},
    "stacked": {"fc1": ("fc2", 1), "fc2": ("head", 1)},
    "conv_batchnorm": {"0": ("3", 1), "3": ("7", 4)},
    "residual": {},  # a stream has no units
}


@pytest.mark.parametrize(
    ("family", "clear", "optimizer"),
    [
        ("mlp", False, "adam"),
        ("stacked", True, "adam"),
        ("conv_batchnorm", True, "sgd_momentum"),
        ("residual", True, "adam"),
    ],
)
def test_woken_units_lose_their_moments_in_row_and_column(
    family: str, clear: bool, optimizer: str
) -> None:
    made = living(family, optimizer, clear_moments=clear)
    woken = 0
    for _ in range(20):
        made.update()
        before = made.snapshot()
        rlplast.tick(made.network)
        after = made.snapshot()
        cleared = {n: torch.zeros_like(t, dtype=torch.bool) for n, t in before.items()}
        for path, layer in layers_of(made.module).items() if clear else ():
            revived = (layer.active == 1) & (before[f"{path}.active"] == 0)
            woken += int(revived.sum())
            for name in (f"{path}.weight", f"{path}.bias"):
                mask = cleared[name]
                mask |= revived.view(*revived.shape, *(1,) * (mask.ndim - revived.ndim))
            if path in READERS[family]:
                reader, repeats = READERS[family][path]
                mask = cleared[f"{reader}.weight"]
                columns = revived.repeat_interleave(repeats, -1).unsqueeze(-2)
                mask |= columns[..., None, None] if mask.ndim == 4 else columns
        for name, tensor in before.items():
            parameter, colon, moment = name.partition(":")
            if colon:
                expected = tensor if moment == "step" else tensor.where(~cleared[parameter], 0)
                assert torch.equal(after[name], expected), name
    assert (woken > 10) is clear


@pytest.mark.gpu
def test_tick_waits_for_nothing_and_can_be_captured() -> None:
    params = {"memory": "he", "redraw": True, "clear_moments": True, "target_mask": "online"}
    made = []
    for _ in range(2):
        subject_ = living(**params)
        for module in (subject_.module, subject_.follower):
            module.cuda()
        network = rlplast.Network(
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


# Hooks.

RETURNS = ("full_reset", "persistent", "distill")  # to θ0, masks and counters included
EDITS = (*RETURNS, "fire", "swr", "redo", "renew_weights")  # whole, by a factor, rows, entries


def without_lifecycle(made: Subject) -> rlplast.Network:
    twin = copy.deepcopy(made.module)
    for path, layer in layers_of(twin).items():
        parent, _, name = path.rpartition(".")
        kind = type(layer).__mro__[2]
        plain = kind.__new__(kind)
        vars(plain).update(vars(layer))
        plain._buffers = {}
        plain.__dict__.pop("memories")
        setattr(twin.get_submodule(parent), name, plain)
    plain_names = {b.name for b in rlplast.Network("net", twin).blocks}
    initial = {n: t for n, t in made.network.initial.items() if n in plain_names}
    return rlplast.Network("net", twin, initial=initial)


@pytest.mark.parametrize("family", ["mlp", "stacked", slow("conv_batchnorm")])
def test_hooks_edit_effective_weight_and_memory_alike_and_leave_masks(family: str) -> None:
    for method in [m for m, f in ACCEPTED if f == family and m in EDITS]:
        with about(method):
            compare_with_plain_layers(family, method)


def compare_with_plain_layers(family: str, method: str) -> None:
    made, resets = halfway(family, method=method), method in RETURNS
    plain = without_lifecycle(made)
    lifecycle = [b for b in made.network.blocks if b.kind == "lifecycle"]
    counters = [(b, b.view.clone()) for b in lifecycle if not b.spec.tensor.startswith("memory")]
    with pytest.MonkeyPatch.context() as patch:
        tape = Tape(patch)
        fire(method, made.network)
        tape.rewind()  # asleep units are silent, and those of plain layers are not
        fire(method, plain)
    for block, before in counters:
        if method in ("full_reset", "distill") and block.spec.tensor == "seed":
            assert (block.view != before).all()  # draws after it are other ones
        else:
            wanted = made.network.initial[block.name] if resets else before
            assert torch.equal(block.view, wanted), block.name
    layers = layers_of(made.module)
    asleep = {path: layer.active == 0 for path, layer in layers.items()}
    for path, layer in layers.items():
        assert bool(asleep[path].any()) is not resets
        assert torch.equal(layer.life, layer.life_max) or not resets
        for name, memory in layer.memories.items():
            edited = plain.module.get_parameter(f"{path}.{name}")
            assert torch.equal(getattr(layer, name), edited), (path, name)
            assert torch.equal(getattr(layer, memory)[asleep[path]], edited[asleep[path]])
    made.update(4)  # they wake up with the edited row, whatever the optimizer did to it
    for layer in layers.values():
        layer.recovery.fill_(1)
    rlplast.tick(made.network)
    for path, layer in layers.items():
        assert (layer.active[asleep[path]] == 1).all()
        for name in layer.memories:
            edited = plain.module.get_parameter(f"{path}.{name}")[asleep[path]]
            assert torch.equal(getattr(layer, name)[asleep[path]], edited), path


def test_followers_copy_weights_and_only_shared_masks() -> None:
    own_masks = [("fire", "stacked", "none"), ("full_reset", "conv_batchnorm", "none")]
    shared = [(m, "mlp", "online") for m in ("swr", "full_reset")]
    for method, family, target_mask in own_masks + shared:
        made = halfway(family, method=method, target_mask=target_mask)
        masks = {n: t.clone() for n, t in made.follower.named_buffers() if "running" not in n}
        fire(method, made.network, follower_policy="copy")
        assert_same(dict(made.module.named_parameters()), dict(made.follower.named_parameters()))
        own = dict(made.module.named_buffers())
        for name, tensor in made.follower.named_buffers():
            tail = name.rpartition(".")[2]
            if tail in ("active", "scale") and target_mask == "online":
                assert torch.equal(tensor, own[name]), (method, name)
            elif tail in ("active", "scale", "life", "recovery", "revivals"):
                assert torch.equal(tensor, masks[name]), (method, name)


def test_initialise_draws_what_it_draws_without_lifecycle() -> None:
    for family in FAMILIES:
        made = living(family)
        plain = without_lifecycle(made)
        made.network.initialise(torch_stream(3, "init"))
        plain.initialise(torch_stream(3, "init"))
        assert_same(dict(plain.module.named_parameters()), dict(made.module.named_parameters()))
        assert_same(dict(made.follower.named_parameters()), dict(made.module.named_parameters()))


def test_metrics_count_the_awake_by_units_and_ignore_memories() -> None:
    active = {"a": torch.tensor([1, 0, 0]), "b": torch.ones(2, 4), "c": torch.zeros(1)}
    assert float(awake_fraction(active)) == 9 / 12
    toy: Any = Toy()
    for module in (toy.module, toy.target):
        rlplast.replace_layers(module)
    toy.networks = {"net": rlplast.Network("net", toy.module, toy.optimizer)}
    toy.module[0].active[1] = 0
    values = measure_run(toy, ["awake_fraction", "weight_norm", "dfi"], 4, 0)
    awake = {"": 7 / 8, "/0": 3 / 4, "/3": 1}
    assert {n: values[f"metric/awake_fraction/net{n}"] for n in awake} == awake
    assert not any("memory" in name for name in values)
    norm = torch.cat([p.flatten() for p in toy.module.parameters()]).detach().norm()
    assert values["metric/weight_norm/net"] == pytest.approx(float(norm))
    made = halfway("mlp")
    plain = without_lifecycle(made).module.state_dict()
    assert measure(made.module.state_dict()) == measure(plain)
