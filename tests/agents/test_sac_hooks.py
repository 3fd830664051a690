"""What shipped hooks do to each part of a SAC: one row of a table per config.

Formulas of methods, on stacked critics too, are in tests/methods and tests/test_invariants.py.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from rlplast.agents.sac import SAC
from rlplast.core.network.blocks import Block
from rlplast.core.network.network import Network
from rlplast.training.config import read_yaml
from tests.agents.toy_control import sac
from tests.agents.toy_env import everything, hooked, same

CONFIGS = Path(__file__).parents[2] / "configs" / "sac" / "hooks"
TOTAL = 64
NETWORKS = ("actor", "critic", "temperature")
HEADS = ("mean", "log_std", "head")
pytestmark = pytest.mark.usefixtures("slide")


@dataclass(frozen=True)
class Row:
    """What a firing at 50% makes of each part.

    `networks`, of the weights of the actor and of each critic: "θ0", "0.2θ + 0.8θ0", or which of
    them change: all weights (w) and biases (b) of linear layers, norms (n), weights (W) and biases
    (B) of heads, and copies of heads (c); with a question mark some of them, with a star maybe
    none. `target` is a copy of the edited ``critic`` or unchanged. State of optimizers is
    `renewed`: zeroed, step counts included; or it `forgets` some entries; others are kept.
    """

    networks: str
    target: str = "critic"
    temperature: str = ""
    renewed: tuple[str, ...] = NETWORKS
    forgets: tuple[str, ...] = ()


TWO = ("actor", "critic")
NOTHING = Row("", "unchanged", renewed=())
UNITS = Row("w? b? W*", "unchanged", renewed=(), forgets=TWO)

# The configs of an arm: what FIRE's authors did at the midpoint, and what others do there.
ARMS = {
    "none": NOTHING,
    "none_renewed": Row("", "unchanged"),
    "full_reset": Row("θ0", temperature="θ0"),
    "bro_resets": Row("θ0", temperature="θ0"),
    "shrink_perturb": Row("0.2θ + 0.8θ0", temperature="θ0"),
    "fire": Row("w W", temperature="θ0"),
    "swr": Row("w b n W B", "unchanged"),
    "dash": Row("w b W B*", renewed=TWO),
    "plasticity_injection": Row("W B c?", renewed=(), forgets=TWO),
    "redo": UNITS,
    "cbp": NOTHING,  # no unit is mature
    "snr": NOTHING,  # none was silent for long
}

State = dict[str, torch.Tensor]


def letter(block: Block) -> str:
    path, _, copy = block.path.partition(".")
    if path in HEADS:
        return "c" if copy or block.role not in ("weight", "bias") else block.role[0].upper()
    return "n" if block.kind == "norm" else block.role[0]


def check(word: str, blocks: list[Block], before: State, after: State, start: State) -> None:
    names = [block.name for block in blocks]
    if word == "θ0":
        assert all(same(after[name], start[name]) for name in names)
        return
    if word == "0.2θ + 0.8θ0":
        for name in names:
            torch.testing.assert_close(after[name], 0.2 * before[name] + 0.8 * start[name])
        return
    asked = {part[0]: part[1:] for part in word.split()}
    for kind in dict.fromkeys(map(letter, blocks)):
        own = [b.name for b in blocks if letter(b) == kind]
        changed = sum(not same(after[name], before[name]) for name in own)
        allowed = {"": {len(own)}, "?": range(1, len(own) + 1), "*": range(len(own) + 1)}
        assert changed in (allowed[asked[kind]] if kind in asked else {0}), own


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
    return [[b for b in network.blocks if b.spec.member == m] + shared for m in members] or [shared]


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
        word = row.temperature if name == "temperature" else row.networks
        for blocks in members:
            check(word, blocks, seen[name], weights(network), network.initial)
        assert same(before[f"{name} initial"], after[f"{name} initial"])
        old, new = (state[f"{name} optimizer"] for state in (before, after))
        assert all(was["step"] > 0 for was in old)
        if name in row.renewed:
            assert new and not any(t.any() for own in new for t in own.values()), name
        elif name in row.forgets:
            kept = [
                {k: t.where(own[k] != 0, 0) for k, t in was.items()}
                for was, own in zip(old, new, strict=True)
            ]
            assert same(kept, new) and not same(kept, old), name
            assert all(own["step"] > 0 for own in new)
        else:
            assert same(old, new), name
    assert same(after["target"], after["critic"] if row.target == "critic" else before["target"])
    # Replay, observation statistics, environments, every stream, the clock.
    assert same(before["rest"], after["rest"])
    assert all(r.followers in ({}, {"target": r.followers.get("target")}) for r in receipts)


def test_every_shipped_config_has_a_row():
    of_sequences = {"oracle"}  # tests/agents/test_switch.py
    assert {path.stem for path in CONFIGS.glob("*.yaml")} == ARMS.keys() | of_sequences


@pytest.mark.parametrize("arm", ARMS)
def test_shipped_hooks_do_what_the_table_says(arm: str):
    configs = read_yaml(CONFIGS / f"{arm}.yaml")
    if arm in ("redo", "bro_resets"):  # at moments which this run does not have
        configs = [
            {k: v for k, v in row.items() if k != "every"} | {"at": "50%"} for row in configs
        ]
    check_row(ARMS[arm], configs, network="mlp")
