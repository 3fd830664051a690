"""What must hold of every registered intervention, on every family of models.

Compiled updates are in test_invariants_compiled.py, bad inputs in
test_invariants_bad_inputs.py, masked edits and the policies of `apply` in core/test_edits.py.
"""

import copy
import random
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rlplast.core.clock import Clock
from rlplast.core.errors import ConfigError
from rlplast.core.method.once import fire_once
from rlplast.core.network.network import Network
from rlplast.core.registry import get
from tests.cases import ACCEPTED, CASES, REFUSED, fire, hooks, missing_cases, stale_cases
from tests.models import OPTIMIZERS, Critic, Subject, assert_same, subject

every_model = pytest.mark.parametrize(("method", "family"), ACCEPTED)
every_optimizer = pytest.mark.parametrize("optimizer", OPTIMIZERS)


def test_every_method_has_a_case() -> None:
    assert not missing_cases(), (
        f"no case in tests/cases.py for {missing_cases()}: add one, the universal tests need it"
    )
    assert not stale_cases(), f"tests/cases.py has cases of unregistered {stale_cases()}"


@pytest.mark.parametrize(("method", "family"), REFUSED)
def test_refusal_names_the_tensor_and_changes_nothing(method: str, family: str) -> None:
    made = subject(family)
    before = made.snapshot()
    with pytest.raises(ConfigError, match=CASES[method].refuses[family]):
        fire(method, made.network)
    assert_same(before, made.snapshot())


# 1. A hook that never fires equals no hook.


@every_optimizer
@every_model
def test_hook_that_never_fires_equals_no_hook(method: str, family: str, optimizer: str) -> None:
    plain, hooked = subject(family, optimizer, 0), subject(family, optimizer, 0)
    never = hooks(method, hooked.network, at="99%")
    never_inside = hooks(method, hooked.network, every="1 updates", **{"from": "99%"})
    stream = torch.get_rng_state()
    for update in range(1, 5):
        plain.update()
        hooked.update()
        assert never.step(updates=update) == []
        assert never_inside.step(updates=update) == []
    assert torch.equal(stream, torch.get_rng_state())
    assert never.flush(Clock()) == never_inside.flush(Clock()) == []
    assert_same(plain.snapshot(), hooked.snapshot())


# 2. Tensors keep identity, address, dtype, device, strides, requires_grad.


def passport(made: Subject) -> dict[str, tuple[Any, ...]]:
    return {
        name: (id(t), t.data_ptr(), t.dtype, t.device, t.stride(), t.requires_grad, t.shape)
        for name, t in made.state().items()
    }


@pytest.mark.parametrize("policy", ["network", "parameter", "touched", "keep"])
@every_optimizer
@every_model
def test_edit_keeps_every_tensor_in_place(
    method: str, family: str, optimizer: str, policy: str
) -> None:
    made = subject(family, optimizer)
    before, weights = passport(made), made.snapshot()
    fire(method, made.network, optimizer_policy=policy)
    assert passport(made) == before
    assert any(not torch.equal(weights[n], t) for n, t in made.module.state_dict().items())


def test_models_cover_channels_last_and_buffers() -> None:
    made = subject("conv_batchnorm")
    weight = made.module.get_parameter("0.weight")
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert not weight.is_contiguous()
    assert len(list(made.module.buffers())) == 6


# 3. Every trainable parameter is in exactly one optimizer, and goes on training.


@every_optimizer
@every_model
def test_trainables_are_exactly_optimizer_params(method: str, family: str, optimizer: str) -> None:
    made = subject(family, optimizer)
    fire(method, made.network, optimizer_policy="network")
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


# 6. Followers obey their policy; a tied tensor is edited once.


@every_model
def test_follower_policy_copy_makes_followers_equal(method: str, family: str) -> None:
    made = subject(family)
    receipt = fire(method, made.network, follower_policy="copy")
    assert receipt.followers == {"target": "copy"}
    assert_same(dict(made.module.state_dict()), dict(made.follower.state_dict()))


@every_model
def test_follower_policy_leave_leaves_them(method: str, family: str) -> None:
    made = subject(family)
    before = copy.deepcopy(made.follower.state_dict())
    fire(method, made.network, follower_policy="leave")
    assert_same(dict(before), dict(made.follower.state_dict()))


@every_model
def test_follower_policy_same_edit_edits_their_own_weights(method: str, family: str) -> None:
    made = subject(family)
    with torch.no_grad():  # away from θ0, where some methods would leave it
        for param in made.follower.parameters():
            param.mul_(1.5)
    twin = copy.deepcopy(made.follower).requires_grad_(True)
    alone = Network("net", twin, initial=made.network.initial)
    fire(method, made.network, follower_policy="same_edit")
    case = CASES[method]
    fire_once(method, alone, scope_name=case.scope, **dict(case.params))
    assert_same(dict(twin.state_dict()), dict(made.follower.state_dict()))
    untouched = subject(family).module.state_dict()
    assert any(not torch.equal(untouched[n], t) for n, t in made.module.state_dict().items())


def test_tied_tensor_is_edited_once() -> None:
    made = subject("tied")
    theta, start = made.module.get_parameter("embed.weight").clone(), made.network.initial
    receipt = fire_once("shrink_perturb", made.network, coef=0.25)
    expected = 0.75 * theta + 0.25 * start["embed.weight"]
    torch.testing.assert_close(made.module.get_parameter("embed.weight"), expected)
    assert receipt.entries_touched == sum(p.numel() for p in made.module.parameters())


def test_fire_edits_a_tied_tensor_only_when_asked() -> None:
    made = subject("tied")
    before = made.module.get_parameter("embed.weight").clone()
    fire_once("fire", made.network)
    assert torch.equal(before, made.module.get_parameter("head.weight"))
    receipt = fire_once("fire", made.network, include_tied=True, polynomial="exact")
    head = made.module.get_parameter("head.weight")
    assert receipt.entries_touched == head.numel() + made.module.get_parameter("fc.weight").numel()
    gram = head.T @ head * (head.shape[1] / head.shape[0])  # scale √(d_out/d_in), once
    torch.testing.assert_close(gram, torch.eye(head.shape[1]), atol=1e-5, rtol=0)


# 8. On stacked critics = on two separate critics.


def separate(made: Subject, slot: int, make: str) -> Subject:
    """Return member `slot` of a stacked pair as a network of its own, in the same state."""

    def member(stacked: torch.nn.Module) -> Critic:
        critic = Critic()
        critic.load_state_dict({n: t[slot] for n, t in stacked.state_dict().items()})
        return critic

    own, target = member(made.module), member(made.follower).requires_grad_(False)
    optimizer = OPTIMIZERS[make](own.parameters())
    for name, param in made.module.named_parameters():
        state = made.optimizer.state[param]
        optimizer.state[own.get_parameter(name)] = {
            key: (value if value.ndim == 0 else value[slot]).detach().clone()
            for key, value in state.items()
        }
    prefix = f"[{slot}]."
    initial = {
        n.removeprefix(prefix): t for n, t in made.network.initial.items() if n.startswith(prefix)
    }
    network = Network("net", own, optimizer, {"target": target}, initial=initial)
    return Subject(own, network, optimizer, made.x, made.y[slot])


@every_optimizer
@pytest.mark.parametrize("method", [m for m, f in ACCEPTED if f == "stacked"])
def test_stacked_critics_equal_separate_critics(method: str, optimizer: str) -> None:
    stacked = subject("stacked", optimizer)
    members = [separate(stacked, slot, optimizer) for slot in range(2)]
    case = CASES[method]
    receipts = [
        fire_once(method, made.network, scope_name=case.scope, **case.drawless)
        for made in (stacked, *members)
    ]
    assert receipts[0].sfe == pytest.approx(receipts[1].sfe + receipts[2].sfe, rel=1e-4)
    assert receipts[0].entries_touched == sum(r.entries_touched for r in receipts[1:])
    for made in (stacked, *members):
        made.update(2)
    both = stacked.snapshot()
    for slot, made in enumerate(members):
        for name, tensor in made.snapshot().items():
            of_pair = both[name] if tensor.ndim == 0 else both[name][slot]
            torch.testing.assert_close(of_pair, tensor, rtol=1e-6, atol=1e-6, msg=name)


# Streams, receipts, resumption.


@every_model
def test_hook_leaves_every_stream_unchanged(method: str, family: str) -> None:
    made = subject(family)
    random.seed(1)
    np.random.seed(1)
    before = (torch.get_rng_state(), random.getstate(), np.random.get_state())
    fire(method, made.network, follower_policy="same_edit")
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == random.getstate()
    after = np.random.get_state()
    assert all(np.array_equal(a, b) for a, b in zip(before[2], after, strict=True))


@every_model
def test_draws_come_from_the_firings_own_stream(method: str, family: str) -> None:
    results = []
    for global_seed, seed in ((0, 7), (1, 7), (0, 8)):
        made = subject(family)
        torch.random.default_generator.manual_seed(global_seed)
        fire(method, made.network, seed=seed)
        results.append(made.snapshot())
    assert_same(results[0], results[1])
    draws = CASES[method].without_draws is not None
    same = all(torch.equal(t, results[2][n]) for n, t in results[0].items())
    assert same is not draws


@every_model
def test_receipt_tells_what_happened(method: str, family: str) -> None:
    made = subject(family)

    def weights() -> dict[str, Tensor]:
        tensors = {**dict(made.module.named_parameters()), **dict(made.module.named_buffers())}
        return {n: t.detach().double().clone() for n, t in tensors.items()}

    def norm(of: dict[str, Tensor]) -> float:
        names = [n for n, _ in made.module.named_parameters()]
        return float(torch.cat([of[n].flatten() for n in names]).norm())

    before = weights()
    receipt = fire(method, made.network, optimizer_policy="touched")
    after = weights()
    changed = {n: int((after[n] != before[n]).sum()) for n in after}
    assert receipt.sfe == pytest.approx(
        sum(float((after[n] - before[n]).square().sum()) for n in after), rel=1e-6
    )
    whole = sum(after[n].numel() for n, count in changed.items() if count)
    # buffers and masks aside, tensors are written whole; a value may stay by chance
    assert sum(changed.values()) <= receipt.entries_touched
    assert receipt.entries_touched >= whole or family == "stacked"
    assert receipt.entries_touched <= sum(t.numel() for t in after.values())
    assert receipt.norm_before == pytest.approx(norm(before))
    assert receipt.norm_after == pytest.approx(norm(after))
    assert (receipt.method, receipt.network) == (method, "net")
    assert receipt.optimizer_policy == "touched"
    assert receipt.followers == {"target": get("interventions", method).target.policies[1]}
    assert receipt.row()["time/seconds"] >= 0


@every_model
def test_saved_and_restored_hooks_continue_identically(method: str, family: str) -> None:
    schedule = {"every": "1 updates" if CASES[method].made_for_every_update else "2 updates"}
    whole, first = subject(family, updates=0), subject(family, updates=0)
    whole_hooks = hooks(method, whole.network, **schedule)
    first_hooks = hooks(method, first.network, **schedule)
    receipts: list[Any] = []
    for update in range(1, 9):
        for made, driven in ((whole, whole_hooks), (first, first_hooks)):
            if made is first and update == 4:  # a new process: new networks, saved tensors
                saved = copy.deepcopy(first_hooks.state_dict())
                second = subject(family, updates=1)
                with torch.no_grad():
                    for name, tensor in second.state().items():
                        tensor.copy_(first.state()[name])
                first, first_hooks = second, hooks(method, second.network, **schedule)
                first_hooks.load_state_dict(saved)
                made, driven = first, first_hooks
            made.update()
            fired = driven.step(updates=update)
            receipts.append([(r.sfe, r.clock, r.crossings, r.norm_after) for r in fired])
    assert receipts[0::2] == receipts[1::2]
    left, right = (
        [(r.sfe, r.firings, r.log_factor) for r in h.flush(Clock(updates=8))]
        for h in (whole_hooks, first_hooks)
    )
    assert left == right
    assert_same(whole.snapshot(), first.snapshot())
