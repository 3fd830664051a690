import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from rlplast.agents.agent import Agent
from rlplast.agents.running_statistics import RunningStatistics
from tests.agents.toy_control import SPEC, Slide, recorded, sac
from tests.agents.toy_env import look_at, ppo, same, use_toy


def rows(count: int, shape: tuple[int, ...] = (3,), seed: int = 0) -> np.ndarray:
    scale = np.linspace(0.1, 20, int(np.prod(shape))).reshape(shape)
    return 5 * scale + scale * np.random.default_rng(seed).normal(size=(count, *shape))


def split(data: np.ndarray, sizes: list[int]) -> Iterator[np.ndarray]:
    start, turn = 0, 0
    while start < len(data):
        yield data[start : start + sizes[turn % len(sizes)]]
        start, turn = start + sizes[turn % len(sizes)], turn + 1


@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    count=st.integers(1, 60),
    shape=st.sampled_from([(), (3,), (2, 2)]),
    offset=st.sampled_from([0.0, 1e6]),
)
@settings(max_examples=60)
def test_batches_add_up_to_mean_and_variance_of_all_data(
    sizes: list[int], count: int, shape: tuple[int, ...], offset: float
) -> None:
    data = rows(count, shape) + offset
    statistics = RunningStatistics(shape)
    for batch in split(data, sizes):
        statistics.update(batch)
    state = statistics.state_dict()
    assert statistics.count == state["count"] == count
    np.testing.assert_allclose(state["mean"], data.mean(axis=0), rtol=1e-13)
    # Squared distances from 1e6 taken naively would lose all digits.
    np.testing.assert_allclose(state["variance"], data.var(axis=0), rtol=1e-7, atol=1e-9)
    other = RunningStatistics(shape)  # restored, it goes on bit for bit
    other.update(rows(5, shape, seed=3))
    other.load_state_dict(json.loads(json.dumps(state, default=np.ndarray.tolist)))
    for one in (statistics, other):
        one.update(rows(4, shape, seed=4))
    assert torch.equal(other.mean, statistics.mean)
    assert torch.equal(other.inv_std, statistics.inv_std)


def test_normalised_observations_are_those_of_numpy() -> None:
    data, obs = rows(40).astype(np.float32), rows(7, seed=1).astype(np.float32)
    data[:, 1] = obs[:, 1] = 0.1  # which never changes
    obs[:3, 1] += 1e-4
    statistics = RunningStatistics((3,))
    assert torch.equal(statistics.normalise(torch.from_numpy(obs / 90)), torch.from_numpy(obs / 90))
    for batch in split(data, [4]):
        kept = batch.copy()
        statistics.update(batch)
        np.testing.assert_array_equal(batch, kept)
    out = statistics.normalise(torch.from_numpy(obs))
    assert out.dtype == torch.float32
    exact = data.astype(np.float64)
    expected = (obs - exact.mean(axis=0)) / np.sqrt(exact.var(axis=0) + 1e-8)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-3)
    far = torch.tensor([[1e4, -1e30, 1e4]])  # is bounded, and the statistics know all of it
    assert statistics.normalise(far).tolist() == [[10, -10, 10]]
    tensors = statistics.mean, statistics.inv_std
    statistics.update(far[:, :1].numpy().repeat(3, 1))
    statistics.load_state_dict(statistics.state_dict())  # compiled readers see the same tensors
    assert statistics.mean is tensors[0] and statistics.inv_std is tensors[1]
    assert statistics.mean[0] == pytest.approx((exact[:, 0].sum() + 1e4) / 41)


# What networks of agents see.


class Bytes(Slide):
    def obs(self) -> np.ndarray:
        return (20 * self.place + 128).clip(0, 255).astype(np.uint8)


PPO_NETS, SAC_NETS = "tests.agents.own_ppo_nets", "tests.agents.own_sac_nets"
AGENTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "ppo": (ppo, {}),
    "ppo, one own trunk": (
        ppo,
        {"network": f"{PPO_NETS}:one", "hidden": None, "shared_trunk": True},
    ),
    "sac": (sac, {"network": "mlp"}),
    "sac, own trunks": (sac, {"network": f"{SAC_NETS}:mlp"}),
}


@pytest.mark.parametrize("normalised", [True, False])
@pytest.mark.parametrize("agent", AGENTS)
def test_bytes_are_normalised_once(agent: str, normalised: bool, monkeypatch: pytest.MonkeyPatch):
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


@pytest.mark.parametrize("make", [sac, ppo])
def test_statistics_are_those_of_what_networks_are_shown(make: Any, slide: None) -> None:
    agent = make(num_envs=2, normalize_obs=True)
    with recorded(agent) as steps:
        while agent.clock.env_steps < 48:
            agent.step()
            look_at(agent, agent.clock.env_steps)
    acted_on = [obs for obs, _, _ in steps]
    acted_on += [agent.experience.obs()] if make is ppo else []  # which it will act on
    last = [step.obs_final[step.truncated] for _, _, step in steps]
    shown = np.concatenate(acted_on + last).astype(np.float64)
    inv_std = 1 / np.sqrt(shown.var(0) + 1e-8)
    np.testing.assert_allclose(agent.statistics.mean.numpy(), shown.mean(0), rtol=1e-5)
    np.testing.assert_allclose(agent.statistics.inv_std.numpy(), inv_std, rtol=1e-5)
    assert agent.statistics.count == len(shown) > len(np.concatenate(acted_on))


def test_statistics_of_a_sac_know_where_a_resume_cut_episodes(slide: None, tmp_path: Path) -> None:
    agent, other = sac(2), sac(2)
    for _ in range(4):
        agent.step()
    agent.experience.successes = [1.0, 0.0]  # since the last line
    agent.save_files(None)(tmp_path)
    other.load_state_dict(agent.state_dict())
    assert other.experience.successes == agent.experience.successes
    last = other.experience.obs().copy()
    other.experience.env.restarts = True  # as an environment says that cannot be put back
    other.load_files(tmp_path)
    agent.statistics.update(last)
    assert same(agent.statistics.state_dict(), other.statistics.state_dict())
