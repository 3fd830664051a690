"""What must hold of every registered intervention, on every family of models.

One test each builds what it needs and checks all invariants in turn. Those of `layers` are in
test_invariants_layers.py, of moved memory in test_invariants_moved.py, of compiled updates in
test_invariants_compiled.py, and of bad inputs in test_invariants_bad_inputs.py.
"""

import copy
import pickle
import random
from collections import Counter
from dataclasses import replace
from itertools import cycle, product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import rlplast
from rlplast.core.clock import Clock, Time
from rlplast.core.errors import ConfigError
from rlplast.core.method import readings
from rlplast.core.method.readings import OwnSource
from rlplast.core.method.receipt import Receipt
from rlplast.core.method.rule import Rule
from rlplast.core.method.schedule import Schedule
from rlplast.core.network.blocks import Block
from rlplast.core.network.network import Network
from rlplast.core.registry import rows
from rlplast.methods import recycling
from tests.cases import (
    ACCEPTED,
    CASES,
    REFUSED,
    Tape,
    about,
    drive,
    fire,
    hooks,
    install,
    loss,
    method_of,
    ready,
    schedule,
)
from tests.models import OPTIMIZERS, Critic, Subject, assert_same, observed, subject


def test_every_method_has_a_case_and_models_cover_channels_last_and_buffers() -> None:
    assert CASES.keys() == {row.name for row in rows("interventions")}  # see tests/cases.py
    made = subject("conv_batchnorm")
    weight = made.module.get_parameter("0.weight")
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert not weight.is_contiguous()
    assert len(list(made.module.buffers())) == 6


def test_refusals_name_the_place_and_change_nothing() -> None:
    for method, family in REFUSED:
        with about(method, family):
            made = subject(family)
            before, modules = made.snapshot(), list(made.module.modules())
            with pytest.raises(ConfigError, match=CASES[method].refuses[family]):
                install(method, made.module)
                fire(method, made.network)
            assert_same(before, made.snapshot())
            assert modules == list(made.module.modules())
    for method in (m for m, case in CASES.items() if case.refuses_inside):
        with about(method), pytest.raises(ConfigError, match=CASES[method].refuses_inside):
            hooks(method, ready(method, "mlp").network, every="1 updates")


# Other families have all that the mlp has, but units of separate linear layers.
TRIED = [(m, f) for m, f in ACCEPTED if f != "mlp" or CASES[m].of_units]


@pytest.mark.parametrize(
    ("method", "family", "optimizer"),
    [(*case, optimizer) for case, optimizer in zip(TRIED, cycle(OPTIMIZERS), strict=False)],
)
def test_method(method: str, family: str, optimizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    of = (method, family, optimizer)
    a_hook_that_never_fires_equals_no_hook(*of)
    a_firing_is_in_place_and_its_receipt_tells_what_happened(*of)
    training_goes_on_with_exactly_the_trainable_parameters(*of)
    followers_get_the_same_edit_from_the_firings_own_stream(*of, monkeypatch)
    restored_hooks_continue_identically(*of)
    if not CASES[method].refuses_inside:
        inside_an_update_it_does_what_a_scheduled_firing_does(*of, monkeypatch)
    if family == "stacked":
        stacked_critics_equal_separate_critics(method, optimizer, monkeypatch)


def a_hook_that_never_fires_equals_no_hook(method: str, family: str, optimizer: str) -> None:
    plain, hooked = subject(family, optimizer, 0), ready(method, family, optimizer, 0)
    never = [hooks(method, hooked.network, at="99%")]
    if not CASES[method].refuses_inside:
        never += [hooks(method, hooked.network, every="1 updates", **{"from": "99%"})]
    stream = torch.get_rng_state()
    for update in range(1, 4):
        plain.update()
        hooked.update()
        assert [driven.step(updates=update) for driven in never] == [[]] * len(never)
    assert torch.equal(stream, torch.get_rng_state())
    assert [driven.flush(Clock()) for driven in never] == [[]] * len(never)
    after = hooked.snapshot()  # which has the buffers of installed modules too
    assert_same(plain.snapshot(), {name: after[name] for name in plain.state()})


def passport(made: Subject) -> dict[str, tuple[Any, ...]]:
    return {
        name: (id(t), t.data_ptr(), t.dtype, t.device, t.stride(), t.requires_grad, t.shape)
        for name, t in made.state().items()
    }


def streams() -> bytes:
    """What the global generators would draw next."""
    states = torch.get_rng_state().numpy(), random.getstate(), np.random.get_state()
    return pickle.dumps(states)


def a_firing_is_in_place_and_its_receipt_tells_what_happened(
    method: str, family: str, optimizer: str
) -> None:
    made = ready(method, family, optimizer)
    passports, before, drawn = passport(made), made.snapshot(), streams()
    receipt = fire(method, made.network, optimizer_policy="touched", follower_policy="leave")
    assert passport(made) == passports
    assert streams() == drawn
    after = made.snapshot()
    followers = [{n: t for n, t in s.items() if "target." in n} for s in (before, after)]
    assert_same(*followers)
    assert receipt.followers == {"target": "leave"}
    assert (receipt.method, receipt.network) == (method, "net")
    assert receipt.optimizer_policy == "touched"
    assert receipt.row()["time/seconds"] >= 0
    check_numbers(receipt, made, before, after, family)


def check_numbers(
    receipt: Receipt,
    made: Subject,
    before: dict[str, Tensor],
    after: dict[str, Tensor],
    family: str,
) -> None:
    names = {n for n, _ in (*made.module.named_parameters(), *made.module.named_buffers())}
    changed = {n: int((after[n] != before[n]).sum()) for n in names}
    assert any(changed.values()) is not CASES[receipt.method].follows
    distances = [(after[n].double() - before[n].double()).square().sum() for n in names]
    assert receipt.sfe == pytest.approx(float(sum(distances)), rel=1e-6)
    whole = sum(after[n].numel() for n, count in changed.items() if count)
    # buffers and masks aside, tensors are written whole; a value may stay by chance
    assert sum(changed.values()) <= receipt.entries_touched
    if family != "stacked" and CASES[receipt.method].whole:
        assert receipt.entries_touched >= whole
    assert receipt.entries_touched <= sum(after[n].numel() for n in names)
    weights = [n for n, _ in made.module.named_parameters()]
    for norm, tensors in ((receipt.norm_before, before), (receipt.norm_after, after)):
        flat = torch.cat([tensors[n].double().flatten() for n in weights])
        assert norm == pytest.approx(float(flat.norm()))


def training_goes_on_with_exactly_the_trainable_parameters(
    method: str, family: str, optimizer: str
) -> None:
    made = ready(method, family, optimizer)
    passports = passport(made)
    fire(method, made.network, optimizer_policy="network", follower_policy="copy")
    assert passport(made) == passports
    assert_same(dict(made.module.state_dict()), dict(made.follower.state_dict()))
    held = Counter(id(p) for g in made.optimizer.param_groups for p in g["params"])
    trainable = [id(p) for p in made.module.parameters() if p.requires_grad]
    assert held == Counter(trainable)
    assert {id(p) for p in made.optimizer.state} <= set(trainable)
    weights = {n: p.detach().clone() for n, p in made.module.named_parameters()}
    made.update()
    for name, param in made.module.named_parameters():
        assert param.grad is not None
        # the first update after a reset of all state: where there is a gradient, it moves
        moved = (param != weights[name])[param.grad.abs() > 1e-4]
        assert moved.all(), name


def followers_get_the_same_edit_from_the_firings_own_stream(
    method: str, family: str, optimizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, again, other = (ready(method, family, optimizer) for _ in range(3))
    policies = {"optimizer_policy": "parameter", "follower_policy": "same_edit"}
    with torch.no_grad():  # away from θ0, where some methods would leave it
        for param in (*made.follower.parameters(), *again.follower.parameters()):
            param.mul_(1.5)
    twin = copy.deepcopy(made.follower).requires_grad_(True)
    alone = Network("net", twin, initial=made.network.initial)
    passports = passport(made)
    with monkeypatch.context() as patched:
        tape = Tape(patched)
        fire(method, made.network, seed=7, **policies)
        tape.rewind()  # what it reads of data is the network's
        fire(method, alone, seed=7)
    assert passport(made) == passports
    assert_same(dict(twin.state_dict()), dict(made.follower.state_dict()))

    torch.rand(3)  # the global stream is elsewhere
    fire(method, again.network, seed=7, **policies)
    assert_same(made.snapshot(), again.snapshot())
    passports = passport(other)
    receipt = fire(method, other.network, seed=8, optimizer_policy="keep")
    assert passport(other) == passports
    assert receipt.followers == {"target": method_of(method).policies[1]}
    mine, others = (m.module.state_dict() for m in (made, other))
    assert all(torch.equal(t, others[n]) for n, t in mine.items()) is not CASES[method].draws


def restored_hooks_continue_identically(method: str, family: str, optimizer: str) -> None:
    whole, first = (ready(method, family, optimizer, updates=0) for _ in range(2))
    whole_hooks, first_hooks = (
        hooks(method, m.network, **schedule(method)) for m in (whole, first)
    )
    receipts: list[Any] = []
    for update in range(1, 7):
        if update == 4:  # a new process: new networks, saved tensors
            saved = copy.deepcopy(first_hooks.state_dict())
            second = ready(method, family, optimizer, updates=1)
            with torch.no_grad():
                for name, tensor in second.state().items():
                    tensor.copy_(first.state()[name])
            first, first_hooks = second, hooks(method, second.network, **schedule(method))
            read = [t.data_ptr() for t in first_hooks.hooks[0].states["net"].values()]
            first_hooks.load_state_dict(saved)  # into tensors that captured code may read
            assert read == [t.data_ptr() for t in first_hooks.hooks[0].states["net"].values()]
        for made, driven in ((whole, whole_hooks), (first, first_hooks)):
            fired = drive(made, driven, update)
            receipts.append([(r.sfe, r.clock, r.crossings, r.norm_after, r.units) for r in fired])
    assert receipts[0::2] == receipts[1::2]
    left, right = (
        [(r.sfe, r.firings, r.log_factor, r.units) for r in h.flush(Clock(updates=6))]
        for h in (whole_hooks, first_hooks)
    )
    assert left == right
    assert any(receipts) or left
    assert_same(whole.snapshot(), first.snapshot())
    assert_same(*(h.hooks[0].states["net"] for h in (whole_hooks, first_hooks)))


def inside_an_update_it_does_what_a_scheduled_firing_does(
    method: str, family: str, optimizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner, outer = (ready(method, family, optimizer) for _ in range(2))
    inside = hooks(method, inner.network, every="1 updates").hooks[0]
    moments = tuple(Time(update, "updates") for update in range(1, 5))
    source = OwnSource({"net": outer.network}, outer.x, loss(outer.network))
    row = replace(inside.row, schedule=Schedule(at=moments))
    outside = Rule(row, (outer.network,), source, inside.key)
    receipts, summaries = [], []
    for update in range(1, 5):
        clock = Clock(updates=update)
        found = {}
        if "activations" in method_of(method).reads:
            found["net"] = observed(inner.network, inner.x)
        with monkeypatch.context() as patched:
            # There a gradient is that of the update, here that of a probe: both read the update's.
            gradients = readings.Inside(inner.network, None, "")
            patched.setattr(readings, "_gradients", lambda *_, read=gradients: read.gradients)
            inside.tick(clock, 0, found)
            receipts += outside.fire(clock, 1, 0)
        assert_same(inner.snapshot(), outer.snapshot())
        assert_same(uncounted(inside.states["net"]), uncounted(outside.states["net"]))
        inner.update()
        outer.update()
        if update % 2 == 0:
            summaries += inside.flush(clock)
    sfe, told = (sum(r.sfe for r in rows) for rows in (receipts, summaries))
    assert told == pytest.approx(sfe, rel=1e-5)
    assert (told > 0) is CASES[method].edits_weights
    assert counted(summaries) == counted(receipts)


def counted(receipts: list[Receipt]) -> Counter[str]:
    """How many units of each group were reset."""
    return sum((Counter(r.units or {}) for r in receipts), Counter())


def uncounted(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """A method's state without what its next receipt tells and clears."""
    return {name: t for name, t in state.items() if not name.startswith("count/")}


def law(block: Block, generator: torch.Generator) -> Tensor:
    """An initialisation that draws nothing: streams of separate networks differ."""
    return torch.linspace(-0.3, 0.4, block.view.numel()).view(block.view.shape)


def hash_law(
    dtype: torch.dtype, seed: Tensor, tag: int, units: Tensor, number: Tensor, entries: Tensor
) -> Tensor:
    """The same for rows that are drawn from a hash: tags number the layers of all members."""
    return (units - entries + number).to(dtype) / 9


def separate(method: str, made: Subject, index: int, make: str) -> Subject:
    """Return member `member` of a stacked pair as a network of its own, in the same state."""

    def member(stacked: torch.nn.Module) -> Critic:
        critic = Critic()
        install(method, critic)
        tensors = stacked.state_dict().items()
        critic.load_state_dict({n: t[index] if t.ndim else t for n, t in tensors})
        return critic

    own, target = member(made.module), member(made.follower).requires_grad_(False)
    optimizer = OPTIMIZERS[make](own.parameters())
    for name, param in made.module.named_parameters():
        state = made.optimizer.state[param]
        optimizer.state[own.get_parameter(name)] = {
            key: (value if value.ndim == 0 else value[index]).detach().clone()
            for key, value in state.items()
        }
    prefix = f"[{index}]."
    initial = {
        n.removeprefix(prefix): t for n, t in made.network.initial.items() if n.startswith(prefix)
    }
    initial |= {n: t for n, t in made.network.initial.items() if not n.startswith("[")}
    network = Network("net", own, optimizer, {"target": target}, init=law, initial=initial)
    return Subject(own, network, optimizer, made.x, made.y[index])


def stacked_critics_equal_separate_critics(
    method: str, optimizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stacked = ready(method, "stacked", optimizer)
    stacked.network.init = law
    members = [separate(method, stacked, index, optimizer) for index in range(2)]
    with monkeypatch.context() as patched:
        patched.setattr(recycling, "symmetric", hash_law)
        receipts = [fire(method, made.network) for made in (stacked, *members)]
    shared = CASES[method].shared  # counted once, or once in each
    sfe = receipts[1].sfe + receipts[2].sfe - shared
    assert receipts[0].sfe == pytest.approx(sfe, rel=1e-4)
    assert receipts[0].entries_touched == sum(r.entries_touched for r in receipts[1:]) - shared
    for made in (stacked, *members):
        made.update(2)
    both = stacked.snapshot()
    for index, made in enumerate(members):
        for name, tensor in made.snapshot().items():
            of_pair = both[name] if tensor.ndim == 0 else both[name][index]
            torch.testing.assert_close(of_pair, tensor, rtol=1e-6, atol=1e-6, msg=name)


# Frozen layers and layers out of scope are left alone; a tied tensor is edited once.


def edited(method: str, made: Subject, **options: Any) -> set[str]:
    """Fire; return the tensors of which a bit has changed, none of them if it is refused."""
    before = made.snapshot()
    try:
        fire(method, made.network, **options)
    except ConfigError:
        assert_same(before, made.snapshot())
    return {name for name, tensor in made.state().items() if not torch.equal(tensor, before[name])}


@pytest.mark.parametrize("method", CASES)
def test_what_is_frozen_or_out_of_scope_keeps_every_bit(method: str) -> None:
    case = CASES[method]
    edits_at_once = case.edits_weights and not case.follows
    served = 0
    for layer, (role, policy) in product("017", (("weight", "same_edit"), ("bias", "copy"))):
        frozen = f"{layer}.{role}"

        def freeze(module: torch.nn.Module, frozen: str = frozen) -> None:
            parameter = module.get_parameter(frozen).requires_grad_(False)
            parameter.mul_(0.9).sub_(0.1)  # where no method would put it
            install(method, module)

        made = subject("conv_batchnorm", install=freeze)
        changed = edited(method, made, follower_policy=policy)
        assert frozen not in changed
        served += not changed.isdisjoint(made.module.state_dict())
    assert served >= 3 * edits_at_once  # the others were refused

    made = ready(method, "conv_batchnorm")
    changed = edited(method, made, scope="sac", optimizer_policy="touched")
    assert all(name.startswith(("7.", "target.")) for name in changed)  # the linear layer
    served = not changed.isdisjoint(made.module.state_dict())
    assert served is (edits_at_once and not case.of_units)  # a head has none


def test_fire_edits_a_tied_tensor_only_when_asked() -> None:
    made = subject("tied")
    before = made.module.get_parameter("embed.weight").clone()
    rlplast.apply("fire", made.network)
    assert torch.equal(before, made.module.get_parameter("head.weight"))
    receipt = rlplast.apply("fire", made.network, include_tied=True, polynomial="exact")
    head = made.module.get_parameter("head.weight")
    assert receipt.entries_touched == head.numel() + made.module.get_parameter("fc.weight").numel()
    gram = head.T @ head * (head.shape[1] / head.shape[0])  # scale √(d_out/d_in), once
    torch.testing.assert_close(gram, torch.eye(head.shape[1]), atol=1e-5, rtol=0)
