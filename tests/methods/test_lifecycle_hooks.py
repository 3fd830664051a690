"""Hooks, followers, checkpoints and metrics on networks whose units sleep."""

import copy
from itertools import cycle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rlplast
from rlplast.core.clock import Clock
from rlplast.core.errors import ConfigError
from rlplast.core.method.hooks import Hooks
from rlplast.core.network.edits import Assign, write
from rlplast.core.network.network import Network
from rlplast.core.rng import torch_stream
from rlplast.metrics import awake_fraction, measure
from rlplast.metrics.probe import check_names, measure_run
from rlplast.training.checkpoint import load_network_tensors, network_tensors
from tests.cases import ACCEPTED, Tape, fire, hooks
from tests.core.toy import Toy
from tests.firing import apply
from tests.marks import slow
from tests.methods.living import halfway, layers_of, living
from tests.models import FAMILIES, OPTIMIZERS, Subject, assert_same, subject

RETURNS = ("full_reset", "persistent", "distill")  # to θ0, masks and counters included

every_model = pytest.mark.parametrize(
    ("method", "family"),
    [(m, f) if f in ("mlp", "stacked") else slow(m, f) for m, f in ACCEPTED],
)


def without_lifecycle(made: Subject) -> Network:
    """Return plain layers with the weights as they are: what a hook is to see."""
    twin = copy.deepcopy(made.module)
    for path, layer in layers_of(twin).items():
        parent, _, name = path.rpartition(".")
        kind = type(layer).__mro__[2]
        plain = kind.__new__(kind)
        vars(plain).update(vars(layer))
        plain._buffers = {}
        plain.__dict__.pop("memories")
        setattr(twin.get_submodule(parent), name, plain)
    plain_names = {b.name for b in Network("net", twin).blocks}
    initial = {n: t for n, t in made.network.initial.items() if n in plain_names}
    return Network("net", twin, initial=initial)


@every_model
def test_hook_edits_the_effective_weight_and_its_memory_alike(
    method: str, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, tape = halfway(family, method=method), Tape(monkeypatch)
    plain = without_lifecycle(made)
    fire(method, made.network)
    tape.rewind()  # asleep units are silent, and those of plain layers are not
    fire(method, plain)
    resets = method in RETURNS
    for path, layer in layers_of(made.module).items():
        asleep = layer.active == 0
        assert bool(asleep.any()) is not resets
        for name, memory in layer.memories.items():
            edited = plain.module.get_parameter(f"{path}.{name}")
            assert torch.equal(getattr(layer, name), edited)
            assert torch.equal(getattr(layer, memory)[asleep], edited[asleep])
    asleep = {path: layer.active == 0 for path, layer in layers_of(made.module).items()}
    made.update(4)  # they wake up with the edited row, whatever the optimizer did to it
    for layer in layers_of(made.module).values():
        layer.recovery.fill_(1)
    rlplast.tick(made.network)
    for path, layer in layers_of(made.module).items():
        assert (layer.active[asleep[path]] == 1).all()
        for name in layer.memories:
            edited = plain.module.get_parameter(f"{path}.{name}")
            assert torch.equal(getattr(layer, name)[asleep[path]], edited[asleep[path]])


@every_model
def test_only_a_return_to_the_start_changes_masks_and_counters(method: str, family: str) -> None:
    made, resets = halfway(family, method=method), method in RETURNS
    lifecycle = [b for b in made.network.blocks if b.kind == "lifecycle"]
    counters = [(b, b.view.clone()) for b in lifecycle if not b.spec.tensor.startswith("memory")]
    fire(method, made.network)
    for block, before in counters:
        if method in ("full_reset", "distill") and block.spec.tensor == "seed":
            assert (block.view != before).all()  # draws after it are other ones
        else:
            assert torch.equal(block.view, made.network.initial[block.name] if resets else before)
    if resets:
        for layer in layers_of(made.module).values():
            assert torch.equal(layer.life, layer.life_max) and (layer.active == 1).all()


@pytest.mark.parametrize(
    ("method", "family", "target_mask"),
    [(m, "mlp", "online") for m, f in ACCEPTED if f == "mlp"]
    + [("fire", "stacked", "none"), ("full_reset", "conv_batchnorm", "none")],
)
def test_followers_copy_weights_and_only_shared_masks(
    method: str, family: str, target_mask: str
) -> None:
    made = halfway(family, method=method, target_mask=target_mask)
    masks = {n: t.clone() for n, t in made.follower.named_buffers() if "running" not in n}
    fire(method, made.network, follower_policy="copy")
    assert_same(dict(made.module.named_parameters()), dict(made.follower.named_parameters()))
    own = dict(made.module.named_buffers())
    for name, tensor in made.follower.named_buffers():
        tail = name.rpartition(".")[2]
        if tail in ("active", "scale") and target_mask == "online":
            assert torch.equal(tensor, own[name])
        elif tail in ("active", "scale", "life", "recovery", "revivals"):
            assert torch.equal(tensor, masks[name])


@pytest.mark.parametrize("family", ["mlp", "conv", "stacked"])
def test_swr_every_update_keeps_what_sleepers_wake_up_with_in_proportion(family: str) -> None:
    made = living(family, "sgd_momentum")
    config = {"method": "swr", "every": "1 updates", "params": {"coef": 0.05}}
    driven = Hooks([config], made.network, "100 updates")
    for update in range(1, 41):
        made.update()
        driven.step(updates=update)
        for layer in layers_of(made.module).values():
            asleep = layer.active == 0
            for name, memory in layer.memories.items():
                assert torch.equal(getattr(layer, name)[asleep], getattr(layer, memory)[asleep])
    [receipt] = driven.flush(Clock(updates=40))
    assert receipt.firings == 40
    assert receipt.entries_touched == sum(p.numel() for p in made.module.parameters())


def test_initialise_draws_what_it_draws_without_lifecycle() -> None:
    for family in FAMILIES:
        made = living(family)
        plain = without_lifecycle(made)
        made.network.initialise(torch_stream(3, "init"))
        plain.initialise(torch_stream(3, "init"))
        assert_same(dict(plain.module.named_parameters()), dict(made.module.named_parameters()))
        assert_same(dict(made.follower.named_parameters()), dict(made.module.named_parameters()))


def test_initial_weights_may_be_of_before_the_layers_were_replaced() -> None:
    made = living()
    before = {n: p.detach().clone() for n, p in made.module.named_parameters()}
    made.update(3)
    rlplast.shrink_perturb(made.module, initial=before, coef=1.0)
    assert_same(before, dict(made.module.named_parameters()))


# The order of an update.


def test_hooks_tick_before_every_update_hooks_and_leave_no_receipt() -> None:
    made, twin = living("mlp"), living("mlp")
    config = {"method": "swr", "every": "1 updates", "params": {"coef": 0.3}}
    driven = Hooks([config], made.network, "100 updates")
    ticking, inside = Hooks([config], twin.network, "100 updates").hooks
    assert ticking.key == "layers/0 lifecycle"
    for update in range(1, 13):
        made.update()
        assert driven.step(updates=update) == []
        twin.update()
        rlplast.tick(twin.network)
        inside.after_update(Clock(updates=update), 0)
        assert_same(made.snapshot(), twin.snapshot())
    assert [r.method for r in driven.flush()] == ["swr"]


def test_hooks_without_a_hook_tick_once_per_update() -> None:
    made, twin = living("mlp"), living("mlp")
    driven = Hooks([], made.network, "100 updates")
    for update in (1, 2, 5):  # five updates in three calls
        driven.step(updates=update)
    for _ in range(5):
        rlplast.tick(twin.network)
    assert_same(made.snapshot(), twin.snapshot())
    with pytest.raises(ConfigError, match=r"step\(env_steps\) lacks updates, which .* tick reads"):
        Hooks([], made.network, "100 env_steps").step(env_steps=3)


# Checkpoints.


@pytest.mark.parametrize("family", ["conv_batchnorm", "stacked"])
def test_restored_in_mid_life_equals_uninterrupted(family: str) -> None:
    params = {"memory": "xavier", "redraw": True, "target_mask": "online", "clear_moments": True}
    whole = halfway(family, **params)
    saved = {n: t.detach().clone() for n, t in network_tensors(whole.network).items()}
    again = living(family, "adamw_fused", **params)
    load_network_tensors(again.network, saved)
    assert_same(whole.snapshot(), again.snapshot())
    for made in (whole, again):
        for _ in range(20):
            made.update()
            rlplast.tick(made.network)
    assert_same(whole.snapshot(), again.snapshot())
    assert_same(network_tensors(whole.network), network_tensors(again.network))


# Metrics.


def test_awake_fraction_weighs_layers_by_their_units() -> None:
    active = {"a": torch.tensor([1, 0, 0]), "b": torch.ones(2, 4), "c": torch.zeros(1)}
    assert float(awake_fraction(active)) == 9 / 12
    with pytest.raises(ConfigError, match="no lifecycle layers"):
        awake_fraction({})


class LivingToy(Toy):
    """The toy run with lifecycle layers, and a second network without."""

    def __init__(self, **params: Any) -> None:
        super().__init__()
        for module in (self.module, self.target):
            rlplast.replace_layers(module, **params)
        other = nn.Linear(2, 2)
        net = Network("net", self.module, self.optimizer)
        self.networks = {"net": net, "plain": Network("plain", other)}

    def activations(self, network: str, batch: Tensor) -> dict[str, Tensor]:
        return super().activations(network, batch) if network == "net" else {}


def test_measuring_a_run_counts_the_awake_and_ignores_memories() -> None:
    toy = LivingToy()
    toy.module[0].active[1] = 0  # type: ignore[union-attr, index, operator]
    names = ["awake_fraction", "weight_norm", "dfi"]
    check_names(names)
    values = measure_run(toy, names, 4, 0)
    assert values["metric/awake_fraction/net"] == 7 / 8
    assert values["metric/awake_fraction/net/0"] == 3 / 4
    assert values["metric/awake_fraction/net/3"] == 1
    assert not any("awake_fraction/plain" in name for name in values)
    assert not any("memory" in name for name in values)
    norm = torch.cat([p.flatten() for p in toy.module.parameters()]).detach().norm()
    assert values["metric/weight_norm/net"] == pytest.approx(float(norm))


def test_measuring_a_state_dict_ignores_memories() -> None:
    made = halfway("mlp")
    plain = without_lifecycle(made).module.state_dict()
    assert measure(made.module.state_dict()) == measure(plain)


# Edits of rows.


def test_rows_are_written_counted_and_forgotten_alone() -> None:
    made = halfway("conv")
    block = next(b for b in made.network.blocks if b.name == "5.weight")  # no lifecycle
    rows, value = torch.tensor([2, 0]), torch.full((2, 16), 7.0)
    before = made.snapshot()
    edit = Assign(block, value, rows=rows)
    receipt = apply(made.network, [edit], method="toy", optimizer="touched", followers="leave")
    after = made.snapshot()
    expected = before["5.weight"].clone()
    expected[[0, 2]] = 7
    assert torch.equal(after["5.weight"], expected)
    assert receipt.entries_touched == 32
    assert receipt.sfe == pytest.approx(float((expected - before["5.weight"]).square().sum()))
    for name in ("exp_avg", "exp_avg_sq"):
        moment = before[f"5.weight:{name}"]
        moment[[0, 2]] = 0
        assert torch.equal(after[f"5.weight:{name}"], moment)
    changed = {n for n, t in before.items() if not torch.equal(t, after[n])}
    assert changed == {"5.weight"}


def test_rows_of_a_sleeping_layer_reach_the_memory() -> None:
    made = halfway("mlp")
    block = made.network.blocks[0]
    write([Assign(block, torch.full((1, 5), 3.0), rows=torch.tensor([4]))])
    layer = layers_of(made.module)["0"]
    assert (layer.weight[4] == 3).all() and (layer.memory_weight[4] == 3).all()
    assert not (layer.memory_weight[:4] == 3).any()


def test_summary_receipts_understand_rows() -> None:
    made = living()
    driven = hooks("swr", made.network, every="1 updates").hooks[0]
    block = made.network.blocks[0]
    edits = [Assign(block, torch.zeros(2, 5), rows=torch.tensor([1, 3]))]
    rlplast.core.method.hook._accumulate(driven.sums["net"], edits)
    sfe = float(block.view[[1, 3]].double().square().sum())
    assert driven.sums["net"].tolist() == pytest.approx([sfe, 0, 10, 1])


@pytest.mark.parametrize(("family", "optimizer"), [*zip(FAMILIES, cycle(OPTIMIZERS), strict=False)])
def test_until_a_unit_falls_asleep_training_is_that_of_plain_layers(
    family: str, optimizer: str
) -> None:
    plain, made = subject(family, optimizer, 0), living(family, optimizer, life=[50, 60])
    for _ in range(6):
        plain.update()
        made.update()
        rlplast.tick(made.network)
    after = made.snapshot()
    assert_same(plain.snapshot(), {name: after[name] for name in plain.state()})
