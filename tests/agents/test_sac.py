from typing import Any

import numpy as np
import pytest
import torch

from rlplast import envs
from rlplast.agents.sac import SAC
from rlplast.core.errors import ConfigError, RlplastError
from rlplast.core.rng import numpy_stream
from rlplast.metrics.probe import measure_run
from tests.agents.toy_control import (
    ACTION_DIM,
    OBS_DIM,
    ROUND,
    recorded,
    sac,
    trained,
)
from tests.agents.toy_env import everything, same

pytestmark = pytest.mark.usefixtures("slide")
METRICS = ["weight_norm", "weight_difference", "dormant_ratio", "srank", "gradient_norm"]


# Acting.


@pytest.mark.parametrize("num_envs", [1, 3])
def test_actions_are_uniform_for_the_initial_steps_and_the_policys_after_them(num_envs: int):
    agent = sac(num_envs, replay_ratio=0.01, initial_steps=300)
    twin = numpy_stream(agent.config.seed, "exploration")
    with recorded(agent) as seen, torch.no_grad():
        while agent.clock.env_steps < 300:
            agent.step()
            expected = twin.uniform(-1, 1, (num_envs, ACTION_DIM)).astype(np.float32)
            assert same(seen[-1][1], expected)
        for _ in range(10):
            agent.step()
            obs, actions, step = seen[-1]
            noise = torch.from_numpy(twin.standard_normal(actions.shape, np.float32))
            mean, log_std = agent.actor(agent.statistics.normalise(torch.from_numpy(obs)))
            expected = (mean + log_std.exp() * noise).tanh()
            if not step.truncated.any():  # then the statistics are still those of acting
                torch.testing.assert_close(torch.from_numpy(actions), expected)
    uniform = np.concatenate([actions for _, actions, _ in seen[: 300 // num_envs]])
    assert np.histogram(uniform, 4, (-1, 1))[0].min() > 0.2 * uniform.size
    assert abs(np.corrcoef(uniform.T)[0, 1]) < 0.15


def test_actions_and_noise_come_from_streams_that_do_not_depend_on_the_weights():
    one, other = (trained(30, lr=lr) for lr in (1e-3, 3e-2))
    assert same(one.streams.state_dict(), other.streams.state_dict())


@pytest.mark.parametrize("normalised", [True, False])
def test_evaluation_and_act_take_the_mean_action(normalised: bool, monkeypatch: pytest.MonkeyPatch):
    agent = trained(20, num_envs=2, normalize_obs=normalised)
    step, seen = envs.VectorEnv.step, []

    def watched(self: Any, actions: np.ndarray) -> Any:
        seen.append((self.obs.copy(), actions))
        return step(self, actions)

    monkeypatch.setattr(envs.VectorEnv, "step", watched)
    assert len(agent.play(0, 3).returns) == 3
    mean, std = agent.statistics.mean, agent.statistics.inv_std
    assert normalised or agent.statistics.count == 0
    for obs, actions in seen:
        x = torch.from_numpy(obs)
        with torch.no_grad():
            expected = agent.actor((x - mean) * std if normalised else x)[0].tanh().numpy()
        np.testing.assert_allclose(actions, expected, rtol=1e-6, atol=1e-7)
        assert same(agent.act(obs), actions)
    assert len(seen) > ROUND
    assert agent.actor.training


def test_actions_that_are_not_finite_or_of_another_shape_are_refused():
    agent = trained(1)
    for shape in ((OBS_DIM,), (2, OBS_DIM + 1), (1, 2, OBS_DIM)):
        with pytest.raises(ConfigError, match=rf"allowed is \(batch, {OBS_DIM}\)"):
            agent.act(np.zeros(shape))
    with torch.no_grad():
        agent.networks["actor"].blocks[0].view.fill_(np.nan)
    agent.experience.credit = 0.0
    with pytest.raises(RlplastError, match="not finite"):
        agent.step()


# Observation statistics.


def test_statistics_are_those_of_what_networks_are_shown_and_the_replay_stays_raw():
    agent = sac(num_envs=2)
    with recorded(agent) as seen:
        while agent.clock.updates < 20:
            agent.step()
            look_at(agent)
    acted_on = np.concatenate([obs for obs, _, _ in seen])
    last = np.concatenate([step.obs_final[step.truncated] for _, _, step in seen])
    shown = np.concatenate([acted_on, last]).astype(np.float64)
    inv_std = 1 / np.sqrt(shown.var(0) + 1e-8)
    np.testing.assert_allclose(agent.statistics.mean.numpy(), shown.mean(0), rtol=1e-5)
    np.testing.assert_allclose(agent.statistics.inv_std.numpy(), inv_std, rtol=1e-5)
    assert agent.statistics.count == len(shown) > len(acted_on)
    batch = agent.experience.replay.sample_from(64, np.random.default_rng(0))
    assert {row.tobytes() for row in batch.obs.numpy()} <= {row.tobytes() for row in acted_on}


# What changes nothing.


def look_at(agent: SAC):
    number = agent.clock.updates + agent.clock.env_steps
    with torch.random.fork_rng():
        if number % 5 == 0:
            agent.evaluate(number, 2)
            measure_run(agent, METRICS, 16, number)
    batch = agent.sample(16, number)
    if batch is not None:
        agent.activations("critic", batch)
        agent.loss("actor", batch)
    agent.act(agent.experience.obs())


@pytest.mark.parametrize("options", [{}, {"network": "mlp", "learn_temperature": False}])
def test_evaluation_metrics_probes_and_acting_leave_training_bit_identical(
    options: dict[str, Any],
):
    plain, watched = sac(2, **options), sac(2, **options)
    for _ in range(60):
        plain.step()
        watched.step()
        look_at(watched)
    assert plain.clock.updates > 20
    assert same(everything(plain), everything(watched))


def test_probe_batches_repeat_by_number_and_leave_the_update_its_tensors():
    agent = trained(3)
    batch = agent._batch(agent._drawn(1)[0])
    addresses = [t.data_ptr() for t in (*batch.transitions, batch.noise)]
    one, two, three = ([*b.transitions, b.noise] for b in (agent.sample(8, n) for n in (4, 4, 5)))
    assert same(one, two) and not same(one[-1], three[-1])
    again = agent._batch(agent._drawn(1)[0])
    assert [t.data_ptr() for t in (*again.transitions, agent.noise)] == addresses
    assert not {t.data_ptr() for t in one} & set(addresses)


# Networks.


def test_frozen_temperature_stays_and_is_measured_without_an_error():
    agent = trained(20, learn_temperature=False, initial_temperature=0.3)
    assert agent.metrics()["train/temperature"] == pytest.approx(0.3)
    assert not agent.temperature.log_alpha.requires_grad
    assert agent.networks["temperature"].optimizers == ()
    found = measure_run(agent, METRICS, 16, 0)
    assert all(np.isfinite(value) for value in found.values())
    assert "metric/gradient_norm/actor" in found


def test_metrics_are_means_since_the_last_call():
    agent = trained(10)
    first = agent.metrics()
    assert {"train/loss", "train/loss_actor", "train/q", "train/entropy"} <= first.keys()
    assert first["train/episodes"] > 0
    assert "train/loss" not in agent.metrics()
