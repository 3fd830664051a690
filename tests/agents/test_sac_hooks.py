"""What every hook does to each part of a SAC: one row of a table per shipped config and method."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from rlplast.agents.sac import SAC
from rlplast.core.network.blocks import Block
from rlplast.core.network.network import Network
from rlplast.core.registry import rows
from rlplast.training.config import read_yaml
from tests.agents.toy_control import sac, use_slide
from tests.agents.toy_env import everything, hooked, same
from tests.cases import CASES
from tests.marks import slow
from tests.naive.interventions import SwrLayer, fire_twin, shrink_perturb_twin, swr_twin

CONFIGS = Path(__file__).parents[2] / "configs" / "sac" / "hooks"
TOTAL = 96
TOLERANCE = {"atol": 1e-6, "rtol": 1e-5}
NETWORKS = ("actor", "critic", "temperature")
HEADS = ("mean", "log_std", "head")


@pytest.fixture(autouse=True)
def slide(monkeypatch: pytest.MonkeyPatch):
    use_slide(monkeypatch)


@dataclass(frozen=True)
class Row:
    """What a firing at 50% makes of each part; `RULES` says what the words mean.

    Attributes:
        actor: of the actor's weights.
        critic: of each critic's own weights.
        target: ``critic`` (a copy of the edited critics) or unchanged.
        temperature: of log α.
        renewed: the optimizers whose state is zeroed, step counts included; others are kept.
        forgets: those of which some entries are zeroed, step counts kept.
        restarted: those of which step counts are zeroed and nothing else.
    """

    actor: str
    critic: str
    target: str = "critic"
    temperature: str = "unchanged"
    renewed: tuple[str, ...] = NETWORKS
    forgets: tuple[str, ...] = ()
    restarted: tuple[str, ...] = ()


TWO = ("actor", "critic")
NOTHING = Row("unchanged", "unchanged", "unchanged", renewed=())
UNITS = Row("units", "units", "unchanged", renewed=(), forgets=TWO)

# The configs of an arm: what FIRE's authors did at the midpoint, and what others do there.
ARMS = {
    "none": NOTHING,
    "none_renewed": Row("unchanged", "unchanged", "unchanged"),
    "full_reset": Row("θ0", "θ0", temperature="θ0"),
    "bro_resets": Row("θ0", "θ0", temperature="θ0"),
    "shrink_perturb": Row("0.2θ + 0.8θ0", "0.2θ + 0.8θ0", temperature="θ0"),
    "fire": Row("orthogonal", "orthogonal", temperature="θ0"),
    "swr": Row("swr 1e-4", "swr 1e-4", "unchanged"),
    "dash": Row("shrunk", "shrunk", renewed=TWO),
    "plasticity_injection": Row("injected", "injected", renewed=(), forgets=TWO),
    "redo": UNITS,
    "cbp": NOTHING,  # no unit is mature
    "snr": NOTHING,  # none was silent for long
}

# Every registered method at 50%: its own policies, all networks. PARAMS has what is not default.
OWN = ("cbp", "dash", "redo", "regrama", "renew_weights", "scale_weights", "snr", "weight_clip")
PARAMS = {name: CASES[name].params for name in OWN}
METHODS = {
    "full_reset": Row("fresh", "fresh", temperature="θ0"),  # its law draws nothing
    "shrink_perturb": Row("0.2θ + 0.8θ0", "0.2θ + 0.8θ0", temperature="0.2θ + 0.8θ0"),
    "head_reset": Row("fresh heads", "fresh heads", renewed=TWO),
    "fire": Row("orthogonal", "orthogonal", renewed=TWO),
    "swr": Row("swr 1e-3", "swr 1e-3", "unchanged", renewed=()),
    "dash": Row("shrunk", "shrunk", renewed=TWO),
    "plasticity_injection": Row("injected", "injected", renewed=(), forgets=TWO),
    "persistent": Row("θ0", "θ0", renewed=TWO),
    "drm": Row("towards fresh", "towards fresh", renewed=TWO),
    "distill": Row("fresh", "fresh", renewed=TWO),
    "hypersphere_project": Row("unit rows", "unit rows", "unchanged", renewed=()),
    "weight_clip": Row("within 0.1", "within 0.1", "unchanged", renewed=()),
    "scale_weights": Row("halved", "halved", renewed=TWO),
    "cbp": UNITS,
    "hare_tortoise": NOTHING,  # it has followed no update
    "pfo": NOTHING,  # it remembers
    "redo": UNITS,
    "regrama": UNITS,
    "renew_weights": Row("entries", "entries", "unchanged", renewed=(), forgets=TWO),
    "restart_steps": Row("unchanged", "unchanged", "unchanged", renewed=(), restarted=NETWORKS),
    "snr": UNITS,
}


# The words of the table: each checks one network's Blocks, a stacked critic's member by member.

State = Mapping[str, Tensor]
Rule = Callable[[list[Block], State, State, State], None]


def equal(expected: Callable[[State, State, str], Tensor]) -> Rule:
    def check(blocks: list[Block], before: State, after: State, start: State) -> None:
        for block in blocks:
            assert same(after[block.name], expected(before, start, block.name)), block.name

    return check


def mixed(blocks: list[Block], before: State, after: State, start: State) -> None:
    for name in (block.name for block in blocks):
        twin = shrink_perturb_twin(before[name].numpy(), start[name].numpy(), 0.8)
        np.testing.assert_allclose(after[name].numpy(), twin, **TOLERANCE)


def fresh(blocks: list[Block], before: State, after: State, start: State) -> None:
    for block in blocks:
        name = block.name
        assert not same(after[name], before[name]), name
        drawn = block.kind == "linear" and not (start[name] == 0).all()
        if not drawn:  # SimBa's biases and norms start at 0 and 1
            assert same(after[name], start[name]), name
            continue
        assert (after[name] != start[name]).all(), name
        if after[name].numel() > 8:  # else chance
            assert float(after[name].std()) == pytest.approx(float(start[name].std()), rel=0.8)


def towards_fresh(blocks: list[Block], before: State, after: State, start: State) -> None:
    """Biases, which are drawn as 0, are multiplied by one factor; others move too."""
    zero = [b.name for b in blocks if b.trainable and not start[b.name].any()]
    factors = np.concatenate([(after[n] / before[n]).flatten().numpy() for n in zero])
    np.testing.assert_allclose(factors, factors[0], **TOLERANCE)
    assert 0.2 <= round(float(factors[0]), 6) <= 0.9  # the bounds, in float32
    for name in (b.name for b in blocks if b.trainable and b.name not in zero):
        assert not same(after[name], before[name]), name


def fresh_heads(blocks: list[Block], before: State, after: State, start: State) -> None:
    heads = [b for b in blocks if b.path in HEADS]
    assert heads
    fresh(heads, before, after, start)
    unchanged([b for b in blocks if b not in heads], before, after, start)


def orthogonal(blocks: list[Block], before: State, after: State, start: State) -> None:
    linears = [b for b in blocks if (b.kind, b.role) == ("linear", "weight")]
    assert {"mean", "log_std"} <= {b.path for b in linears} or "head" in {b.path for b in linears}
    for block in linears:
        assert not same(after[block.name], before[block.name])
        twin = fire_twin(before[block.name].numpy(), 10, "cubic")
        np.testing.assert_allclose(after[block.name].numpy(), twin, atol=1e-5, rtol=1e-4)
    unchanged([b for b in blocks if b not in linears], before, after, start)


def rescaled(coef: float) -> Rule:
    def check(blocks: list[Block], before: State, after: State, start: State) -> None:
        layers: dict[str, dict[str, str]] = {}
        for block in blocks:
            layers.setdefault(block.path, {})["b" if block.view.ndim < 2 else "w"] = block.name
            if block.role == "scale":
                layers[block.path] = {"w": block.name}
        norms = {b.path for b in blocks if b.kind == "norm"}
        layers |= {p: layers[p] | {"b": layers[p]["w"][: -len("weight")] + "bias"} for p in norms}
        for last in {"mean", "log_std", "head"} & layers.keys():  # side by side
            chain = [p for p in layers if p == last or p not in ("mean", "log_std")]
            made = [
                SwrLayer(
                    "norm" if path in norms else "head",
                    before[layers[path]["w"]].double().numpy(),
                    before[layers[path]["b"]].double().numpy(),
                )
                for path in chain
            ]
            anchors = [float(start[layers[p]["w"]].double().norm()) for p in chain]
            twins, _ = swr_twin(made, anchors, coef, coef, "exact")
            for path, twin in zip(chain, twins, strict=True):
                for role, value in (("w", twin.weight), ("b", twin.bias)):
                    found = after[layers[path][role]].double().numpy()
                    np.testing.assert_allclose(found, value, rtol=4e-7, atol=0)
            assert not same(after[layers[last]["w"]], before[layers[last]["w"]])

    return check


def shrunk(blocks: list[Block], before: State, after: State, start: State) -> None:
    linears = [b for b in blocks if b.kind == "linear"]
    for name in (b.name for b in linears):
        assert ((after[name].abs() <= before[name].abs()) & (after[name] * before[name] >= 0)).all()
    assert any(not same(after[b.name], before[b.name]) for b in linears)
    unchanged([b for b in blocks if b not in linears], before, after, start)


def injected(blocks: list[Block], before: State, after: State, start: State) -> None:
    heads = {b.path: b for b in blocks if b.path in HEADS and b.role == "weight"}
    live = [b for b in blocks if b.path in heads and b.role in ("weight", "bias")]
    fresh(live, before, after, start)
    copies = [b for b in blocks if b not in live and b.path.partition(".")[0] in heads]
    for block in copies:
        if block.spec.tensor == "gate":
            assert float(after[block.name]) == 1
            continue
        path, kind, _ = block.path.split(".")
        own = next(b.name for b in live if (b.path, b.spec.tensor) == (path, block.spec.tensor))
        assert same(after[block.name], (before if kind == "old" else after)[own]), block.name
    assert len(copies) == 5 * len(heads)
    unchanged([b for b in blocks if b not in live + copies], before, after, start)


def renewed_units(blocks: list[Block], before: State, after: State, start: State) -> None:
    """Whole rows are drawn anew, and whole columns are 0; what a head adds to is left."""
    moved = [b for b in blocks if not same(after[b.name], before[b.name])]
    assert {b.role for b in moved} == {"weight", "bias"}
    assert not [b for b in moved if b.path in HEADS and b.role == "bias"]
    for name in (b.name for b in moved if b.role == "weight"):
        rows = (after[name] != before[name])[:, (after[name] != 0).any(0)]
        assert rows[rows.any(1)].all(), name


def renewed_entries(blocks: list[Block], before: State, after: State, start: State) -> None:
    """Of each tensor of a layer the case's share changes, rounded down or up."""
    for name, size in ((b.name, b.view.numel()) for b in blocks if b.trainable):
        changed = int((after[name] != before[name]).sum())
        assert 0.4 * size - 1 < changed < 0.4 * size + 1, name


def unit_rows(blocks: list[Block], before: State, after: State, start: State) -> None:
    linears = [b for b in blocks if (b.kind, b.role) == ("linear", "weight")]
    assert any(b.path in HEADS for b in linears)
    for name in (b.name for b in linears):
        rows = [row / np.linalg.norm(row) for row in before[name].double().numpy()]
        np.testing.assert_allclose(after[name].numpy(), np.stack(rows), **TOLERANCE)
    unchanged([b for b in blocks if b not in linears], before, after, start)


def clipped(blocks: list[Block], before: State, after: State, start: State) -> None:
    linears = [b for b in blocks if b.kind == "linear"]
    fan_in = {b.path: b.view.shape[1] for b in linears if b.role == "weight"}
    for block in linears:
        bound = 0.1 / fan_in[block.path] ** 0.5
        wanted = np.clip(before[block.name].numpy(), np.float32(-bound), np.float32(bound))
        np.testing.assert_array_equal(after[block.name].numpy(), wanted)
    assert any(not same(after[b.name], before[b.name]) for b in linears)
    unchanged([b for b in blocks if b not in linears], before, after, start)


def halved(blocks: list[Block], before: State, after: State, start: State) -> None:
    """Weights by 0.5, biases by 0.5 per layer so far, counted anew from each norm layer on."""
    depth = 0
    for path in dict.fromkeys(b.path for b in blocks):
        own = [b for b in blocks if b.path == path]
        depth = 1 if any(b.kind == "norm" for b in own) else depth + (path != "log_std")
        for block in own:
            power = 1 if block.role in ("weight", "scale") else depth
            assert same(after[block.name], 0.5**power * before[block.name]), block.name


unchanged = equal(lambda before, start, name: before[name])
RULES: dict[str, Rule] = {
    "unchanged": unchanged,
    "θ0": equal(lambda before, start, name: start[name]),
    "0.2θ + 0.8θ0": mixed,
    "fresh": fresh,
    "fresh heads": fresh_heads,
    "towards fresh": towards_fresh,
    "orthogonal": orthogonal,
    "swr 1e-4": rescaled(1e-4),
    "swr 1e-3": rescaled(1e-3),
    "shrunk": shrunk,
    "unit rows": unit_rows,
    "within 0.1": clipped,
    "halved": halved,
    "injected": injected,
    "units": renewed_units,
    "entries": renewed_entries,
}


def at_half(**options: Any) -> SAC:
    agent = sac(2, total=f"{TOTAL} env_steps", **({"lr": 1e-2, "tau": 0.05} | options))
    while agent.clock.env_steps < TOTAL // 2 or agent.owes():
        agent.step()
    for network in agent.networks.values():  # nothing is where it began, or rows mean nothing
        for block in network.trainable():
            assert not same(block.view, network.initial[block.name]), block.name
    assert not same(agent.critic.state_dict(), agent.target.state_dict())
    return agent


def weights(network: Network) -> State:
    return {block.name: block.view.clone() for block in network.blocks}


def by_member(network: Network) -> list[list[Block]]:
    """The Blocks of each member; what members share is in each."""
    members = sorted({b.spec.member for b in network.blocks if b.spec.member is not None})
    shared = [b for b in network.blocks if b.spec.member is None]
    members = [[b for b in network.blocks if b.spec.member == member] for member in members]
    return [own + shared for own in members or [[]]]


def check_row(row: Row, configs: list[dict[str, Any]], **options: Any) -> None:
    agent = at_half(hooks=configs, **options)
    hooks = hooked(agent, *configs)
    before, seen = everything(agent), {n: weights(x) for n, x in agent.networks.items()}
    batch = agent.sample(8, 0)
    hooks.after_update(agent.clock, {n: agent.activations(n, batch) for n in hooks.recorded()})
    receipts = hooks.fire(None, agent.clock)
    after = everything(agent)
    for name, network in agent.networks.items():
        members = by_member(network)
        assert len(members) == (2 if name == "critic" else 1)
        for blocks in members:
            RULES[getattr(row, name)](blocks, seen[name], weights(network), network.initial)
        assert same(before[f"{name} initial"], after[f"{name} initial"])
        state = [t for own in after[f"{name} optimizer"] for t in own.values()]
        if name in row.renewed:
            assert state and not any(t.any() for t in state), name
        elif name in row.forgets:
            old = before[f"{name} optimizer"]
            kept = [
                {k: t.where(own[k] != 0, 0) for k, t in was.items()}
                for was, own in zip(old, after[f"{name} optimizer"], strict=True)
            ]
            assert same(kept, after[f"{name} optimizer"]) and not same(kept, old), name
            assert all(own["step"] > 0 for own in after[f"{name} optimizer"])
        elif name in row.restarted:
            old = [was | {"step": was["step"] * 0} for was in before[f"{name} optimizer"]]
            assert all(was["step"] > 0 for was in before[f"{name} optimizer"]), name
            assert same(old, after[f"{name} optimizer"]), name
        else:
            assert same(before[f"{name} optimizer"], after[f"{name} optimizer"]), name
    assert same(after["target"], after["critic"] if row.target == "critic" else before["target"])
    # Replay, observation statistics, environments, every stream, the clock.
    assert same(before["rest"], after["rest"])
    assert all(r.followers in ({}, {"target": r.followers.get("target")}) for r in receipts)


def test_every_shipped_config_and_every_method_has_a_row():
    of_sequences = {"oracle"}  # tests/agents/test_switch.py
    assert {path.stem for path in CONFIGS.glob("*.yaml")} == ARMS.keys() | of_sequences
    assert {row.name for row in rows("interventions")} == METHODS.keys()


@pytest.mark.parametrize("network", [slow("simba"), "mlp"])
@pytest.mark.parametrize("arm", ARMS)
def test_shipped_hooks_do_what_the_table_says(arm: str, network: str):
    configs = read_yaml(CONFIGS / f"{arm}.yaml")
    if arm in ("redo", "bro_resets"):  # at moments which this run does not have
        configs = [
            {k: v for k, v in row.items() if k != "every"} | {"at": "50%"} for row in configs
        ]
    check_row(ARMS[arm], configs, network=network)


@pytest.mark.parametrize("method", METHODS)
def test_methods_with_their_own_policies_do_what_the_table_says(method: str):
    row = {"method": method, "at": "50%", "params": dict(PARAMS.get(method, {}))}
    check_row(METHODS[method], [row])
