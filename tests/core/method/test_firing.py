"""One firing: what is written, what the optimizer forgets, what followers get, what is told."""

import json
import math
from typing import Any

import pytest
import torch
from torch import nn

import rlplast
from rlplast.core.clock import Clock
from rlplast.core.errors import BadWeights, ConfigError
from rlplast.core.method.firing import Planned, carry_out, check_policy
from rlplast.core.network.blocks import Block
from rlplast.core.network.edits import Assign, Edit, Scale
from rlplast.core.network.network import Network
from rlplast.core.network.optim_state import moments
from tests.firing import apply, linear
from tests.models import FAMILIES, FORMS, OPTIMIZERS, Subject, assert_same, subject
from tests.syncs import host_reads


def plan_of(blocks: tuple[Block, ...], share: float = 0.3) -> list[Assign]:
    """Assign 7 to a random part of every Block."""
    generator = torch.Generator().manual_seed(0)
    edits = []
    for block in blocks:
        mask = torch.rand(block.view.shape, generator=generator) < share
        mask.view(-1)[0] = True
        edits.append(Assign(block, torch.full(block.view.shape, 7.0), mask))
    return edits


def check_mask(made: Subject, blocks: tuple[Block, ...]) -> None:
    edits = plan_of(blocks)
    before = made.snapshot()
    state_before = {
        b: {n: m.clone() for n, m in moments(made.network, b.param).items()} for b in blocks
    }
    receipt = apply(made.network, edits, method="toy", optimizer="touched", followers="leave")

    assert receipt.entries_touched == sum(int(e.mask.sum()) for e in edits if e.mask is not None)
    for edit in edits:
        block, mask = edit.target, edit.mask
        assert isinstance(block, Block) and mask is not None
        assert (block.view[mask] == 7).all()
        for name, moment in moments(made.network, block.param).items():
            old = state_before[block][name]
            if name == "step":
                assert torch.equal(moment, old)
            else:
                now, old = block.like(moment), block.like(old)
                assert now[mask].abs().sum() == 0
                assert torch.equal(now[~mask], old[~mask])
                assert old.abs().max() > 0
    # from outside, without Blocks: nothing but the masked entries differs
    after = made.snapshot()
    names = [n for n, _ in made.module.named_parameters()]  # a tied one once
    changed = sum(int((after[n] != before[n]).sum()) for n in names)
    assert changed == receipt.entries_touched
    edited = {name for e in edits for name in _raw_names(made, e)}
    assert_same(*({n: t for n, t in s.items() if n not in edited} for s in (before, after)))


def _raw_names(made: Subject, edit: Edit) -> list[str]:
    assert isinstance(edit.target, Block)
    tensor = ".".join(p for p in (edit.target.path, edit.target.spec.tensor) if p)
    names = [tensor, *edit.target.aliases]
    return names + [n for n in made.state() for t in names if n.startswith(f"{t}:")]


@pytest.mark.parametrize("family", FAMILIES)
def test_masked_edit_changes_exactly_the_mask(family: str) -> None:
    for form in OPTIMIZERS | FORMS if family == "mlp" else OPTIMIZERS:
        made = subject(family, (OPTIMIZERS | FORMS)[form])
        check_mask(made, made.network.trainable())


def test_policies_zero_more_and_more() -> None:
    def zeroed(policy: str) -> dict[str, bool]:
        made = subject("mlp")
        first = made.network.select(lambda b: b.name == "0.weight")
        apply(made.network, plan_of(first), method="toy", optimizer=policy)
        return {n: not t.any() for n, t in made.state().items() if ":" in n}

    assert not any(zeroed("keep").values())
    assert not any(zeroed("touched").values())  # part of one tensor
    parameter = zeroed("parameter")
    assert {n for n, z in parameter.items() if z} == {n for n in parameter if "0.weight:" in n}
    assert all(zeroed("network").values())
    for policy in ("optimizer", "followers"):
        given: dict[str, Any] = {"optimizer": "keep", "followers": "leave"} | {policy: "coppy"}
        with pytest.raises(ConfigError, match=policy):
            check_policy(**given)


def test_network_policy_spares_other_networks_of_the_same_optimizer() -> None:
    actor, critic = nn.Linear(3, 2), nn.Linear(3, 1)
    optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=0.1)
    (actor(torch.ones(3)).sum() + critic(torch.ones(3)).sum()).backward()
    optimizer.step()
    network = Network("actor", actor, optimizer)
    apply(network, [Scale(network.blocks[0], torch.tensor(0.5))], method="toy")
    assert float(optimizer.state[actor.bias]["step"]) == 0
    assert float(optimizer.state[critic.bias]["step"]) == 1
    assert optimizer.state[critic.weight]["exp_avg"].abs().min() > 0


def test_no_network_is_written_if_the_plan_of_one_or_of_a_follower_is_bad() -> None:
    def nan(block: Block) -> Assign:
        return Assign(block, torch.full_like(block.view, float("nan")))

    made = [subject("mlp"), subject("conv")]
    before = [m.snapshot() for m in made]
    good = Planned(made[0].network, plan_of(made[0].network.trainable()))
    bad = Planned(made[1].network, [nan(made[1].network.blocks[0])])
    with pytest.raises(BadWeights, match=r"net\.0\.weight"):
        carry_out([good, bad], method="toy")
    with pytest.raises(ConfigError, match=r"hook\.optimizer"):
        carry_out([good], method="toy", optimizer="kept")
    with pytest.raises(BadWeights, match=r"net\.target\.0\.weight"):
        apply(
            made[0].network,
            plan_of(made[0].network.blocks),
            lambda target: [nan(b) for b in target.blocks],
            method="toy",
            followers="same_edit",
        )
    for m, snapshot in zip(made, before, strict=True):
        assert_same(snapshot, m.snapshot())


def test_a_firing_waits_for_the_device_twice_however_much_it_does() -> None:
    counters = {"a": torch.ones((), dtype=torch.int64)}
    made = [subject(family).network for family in ("mlp", "conv_batchnorm", "stacked")]
    planned = [Planned(n, plan_of(n.trainable()), counters=dict(counters)) for n in made]
    for given in (planned[:1], planned):
        for optimizer in ("keep", "touched", "parameter", "network"):
            with host_reads() as found:
                carry_out(given, method="toy", optimizer=optimizer)
            assert found == ["tolist", "tolist"]  # the check, and the numbers of all receipts


def test_a_plan_without_edits_is_told_as_such() -> None:
    made = subject("mlp")
    before = made.snapshot()
    planned, at = [Planned(made.network, [], seconds=2.0)], Clock(updates=3)
    [receipt] = carry_out(
        planned, method="toy", optimizer="keep", followers="leave", clock=at, due_count=2
    )
    assert_same(before, made.snapshot())
    assert (receipt.entries_touched, receipt.sfe, receipt.crossings) == (0, 0.0, 2)
    assert receipt.clock == Clock(updates=3)
    assert receipt.norm_before == receipt.norm_after != 0
    assert receipt.seconds >= 2
    row = receipt.row()
    assert "seconds" not in row and row["time/seconds"] >= 2
    with torch.no_grad():
        made.network.blocks[0].view.fill_(float("nan"))
    [receipt] = carry_out(planned, method="toy")
    assert json.loads(json.dumps(receipt.row(), allow_nan=False))["norm_before"] is None


def test_receipts_sum_dfi_of_the_tensors_that_have_one() -> None:
    _, network, block = linear()
    bias = network.blocks[1]
    before = float(block.view.square().sum() + bias.view.square().sum())
    plan = [
        Assign(b, torch.full_like(b.view, size), dfi=lambda w: w.square().sum())
        for b, size in ((block, 2.0), (bias, 3.0))
    ]
    receipt = apply(network, plan, method="toy")
    assert receipt.dfi_before == pytest.approx(before)
    assert receipt.dfi_after == 24.0 + 18.0
    assert apply(network, [Scale(bias, torch.tensor(0.0))], method="toy").dfi_before is None


@torch.no_grad()
def test_the_normalised_sfe_is_the_share_of_the_squared_norm_that_moved() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    network = Network("net", module)
    trainable = network.trainable()
    squares = sum(float(b.view.double().square().sum()) for b in trainable)
    weight = network.blocks[0]
    third = [Scale(weight, torch.tensor(2 / 3))]  # (1/3)² of this tensor's part
    part = float(weight.view.double().square().sum()) / squares
    assert apply(network, third, method="toy").sfe_normalized == pytest.approx(part / 9)
    for factor, share in ((0.25, 0.75**2), (3.0, 4.0), (1.0, 0.0), (0.0, 1.0)):
        statistics = [b for b in network.blocks if b.spec.tensor == "running_var"]
        plan: list[Edit] = [Scale(b, torch.tensor(factor)) for b in trainable]
        # A buffer's move is in the sum, but is no share of the weights.
        plan += [Scale(b, torch.tensor(5.0)) for b in statistics]
        receipt = apply(network, plan, method="toy")
        assert receipt.sfe_normalized == pytest.approx(share, rel=1e-6)
        assert receipt.norm_before is not None
        assert receipt.sfe > share * receipt.norm_before**2 + 1
    for size in (1e-30, 1e30):  # neither lost nor infinite
        single = nn.Linear(1, 1, bias=False)
        single.weight.fill_(size)
        doubled = Network("net", single)
        receipt = apply(doubled, [Scale(doubled.blocks[0], torch.tensor(2.0))], method="toy")
        assert receipt.norm_before == pytest.approx(size, rel=1e-6)
        assert receipt.sfe == pytest.approx(size**2, rel=1e-6)
    nothing = apply(network, [Scale(weight, torch.tensor(2.0))], method="toy")
    assert (nothing.norm_before, nothing.sfe_normalized) == (0.0, 0.0)
    from_zero = apply(network, [Assign(weight, torch.ones(4, 3))], method="toy")
    assert from_zero.sfe_normalized == math.inf and from_zero.row()["sfe_normalized"] is None


def test_a_layer_that_network_and_followers_share_is_edited_once() -> None:
    encoder, frozen = nn.Linear(5, 4), nn.Linear(5, 4).requires_grad_(False)
    net, *targets = (nn.Sequential(encoder, nn.Linear(4, 2)) for _ in range(2))
    others = [nn.Sequential(frozen, nn.Linear(4, 2)) for _ in range(2)]
    followers = {str(i): module for i, module in enumerate([*targets, *others])}
    before = {id(p): p.detach().clone() for m in (net, *followers.values()) for p in m.parameters()}
    network = Network("net", net, torch.optim.SGD(net.parameters()), followers)
    params = {"factor": 0.5, "proportional": False}
    rlplast.apply("scale_weights", network, follower_policy="same_edit", **params)
    for module in (net, *followers.values()):
        for weight in (p for p in module.parameters() if p.ndim > 1):
            assert torch.equal(weight, 0.5 * before[id(weight)])
