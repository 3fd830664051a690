"""What networks see of observations that running statistics normalise."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from rlplast.agents.agent import Agent
from rlplast.run.build import build_trainable
from rlplast.run.config_file import read_config
from tests.agents.toy_control import SPEC, Slide, recorded, sac, use_slide
from tests.agents.toy_env import ppo, same, use_toy
from tests.sequences import EACH, sac_tasks


class Bytes(Slide):
    def obs(self) -> np.ndarray:
        return (20 * self.place + 128).clip(0, 255).astype(np.uint8)


PPO_NETS, SAC_NETS = "tests.agents.own_ppo_nets", "tests.agents.own_sac_nets"
AGENTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "ppo": (ppo, {}),
    "ppo, one trunk": (ppo, {"shared_trunk": True}),
    "ppo, own trunks": (ppo, {"network": f"{PPO_NETS}:mlp", "hidden": None}),
    "ppo, one own trunk": (
        ppo,
        {"network": f"{PPO_NETS}:one", "hidden": None, "shared_trunk": True},
    ),
    "sac": (sac, {"network": "mlp"}),
    "sac, own trunks": (sac, {"network": f"{SAC_NETS}:mlp"}),
}


@pytest.mark.parametrize("normalised", [True, False])
@pytest.mark.parametrize("agent", AGENTS)
def test_bytes_are_normalised_once(
    agent: str, normalised: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_toy(monkeypatch, dataclasses.replace(SPEC, obs_dtype="uint8", obs_scale=1 / 255), Bytes)
    make, options = AGENTS[agent]
    made: Agent = make(normalize_obs=normalised, num_envs=2, **options)
    seen: dict[str, list[torch.Tensor]] = {}
    for name, network in made.networks.items():
        first = next((m for m in network.module.modules() if hasattr(m, "weight")), None)
        if isinstance(first, nn.Module):
            inputs = seen.setdefault(name, [])
            first.register_forward_pre_hook(
                lambda _, given, inputs=inputs: inputs.append(given[0].detach())
            )
    while made.clock.updates < 20:
        made.step()
    for name, inputs in seen.items():
        obs = torch.cat([x.reshape(-1, x.shape[-1])[:, :3] for x in inputs[len(inputs) // 2 :]])
        deviation = obs.std(0)
        if normalised:
            assert (deviation > 0.5).all() and (deviation < 2).all(), name
        else:
            assert obs.min() >= 0 and obs.max() <= 1, name


def test_statistics_of_a_ppo_are_those_of_what_its_networks_are_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use_slide(monkeypatch)
    agent = ppo(normalize_obs=True)
    with recorded(agent) as steps:
        while agent.clock.env_steps < 40:
            agent.step()
    acted_on = np.concatenate([*(obs for obs, _, _ in steps), agent.experience.obs()])
    last = np.concatenate([step.obs_final[step.truncated] for _, _, step in steps])
    shown = np.concatenate([acted_on, last]).astype(np.float64)
    np.testing.assert_allclose(agent.statistics.mean.numpy(), shown.mean(0), rtol=1e-5)
    assert agent.statistics.count == len(shown) > len(acted_on)


def test_statistics_of_a_sac_know_where_a_resume_cut_episodes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use_slide(monkeypatch)
    agent, other = sac(2), sac(2)
    for _ in range(4):
        agent.step()
    agent.save_files(None)(tmp_path)
    other.load_state_dict(agent.state_dict())
    last = other.experience.obs().copy()
    other.experience.env.restarts = True  # as an environment says that cannot be put back
    other.load_files(tmp_path)
    agent.statistics.update(last)
    assert same(agent.statistics.state_dict(), other.statistics.state_dict())


@pytest.mark.parametrize("replay", ["clear", "keep"])
def test_statistics_of_a_sac_know_where_a_switch_cut_episodes_that_are_kept(replay: str) -> None:
    config = sac_tasks(env={"switch": {"replay": replay}})  # episodes of 25 steps
    agent: Any = build_trainable(read_config(config))
    while agent.clock.env_steps <= EACH:
        agent.step()
    assert agent.statistics.count == EACH + 1 + 1 + (replay == "keep")
