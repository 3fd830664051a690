import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlplast import envs
from rlplast.agents.replay import Batch
from rlplast.agents.sac import SAC, SACBatch
from rlplast.core.errors import ConfigError, Diverged
from rlplast.core.rng import numpy_stream
from rlplast.run import api
from tests.agents.toy_control import ACTION_DIM, OBS_DIM, ROUND, recorded, sac, trained, use_slide
from tests.agents.toy_env import same
from tests.naive.sac import SACTwin, transition_twin
from tests.sac_runs import small_sac

pytestmark = pytest.mark.usefixtures("slide")


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
    with pytest.raises(Diverged, match="not finite"):
        agent.step()


def test_probe_batches_and_noise_repeat_by_number_alone():
    agent = trained(3)
    batch = agent._batch(next(agent._drawn(1)))
    addresses = [t.data_ptr() for t in (*batch.transitions, batch.noise)]
    one, two, three = ([*b.transitions, b.noise] for b in (agent.sample(8, n) for n in (4, 4, 5)))
    assert same(one, two) and not same(one[-1], three[-1])
    again = agent._batch(next(agent._drawn(1)))
    assert [t.data_ptr() for t in (*again.transitions, agent.noise)] == addresses
    assert not {t.data_ptr() for t in one} & set(addresses)


def test_readers_of_activations_rest_without_the_actors(tmp_path: Path):
    row = {"method": "snr", "every": "1 updates", "from": "4 updates"}
    agent = {"agent": {"actor_every": 3}, "total": "60 env_steps", "hooks": [row]}
    run = api.train(small_sac(**agent), tmp_path)
    assert any(receipt["network"] == "actor" for receipt in run.lines("receipts"))


# The update.

OF_CRITICS = 6  # of the critics
ROUGH = {"lr": 1e-2, "weight_decay": 0.3, "tau": 0.1}  # so that five updates move a lot
SB3 = {"network": "mlp", "log_std": "clamp", "log_std_min": -20.0, "initial_temperature": 1.0}
SHORT = {"log_std_min": -0.2, "log_std_max": 0.2}  # a part of the batch is cut


def critic_weights(agent: SAC, module: torch.nn.Module) -> list[dict[str, torch.Tensor]]:
    state = module.state_dict()
    members = agent.config.agent.critics
    return [{name: tensor[i] for name, tensor in state.items()} for i in range(members)]


def updates_of(agent: SAC, count: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Train; yield of each update its batch, the steps, and statistics of what was acted on."""
    batches, batch_of = [], agent._batch

    def noted(drawn: Batch) -> SACBatch:
        batches.append(copy.deepcopy(batch := batch_of(drawn)))
        return batch

    monkeypatch.setattr(agent, "_batch", noted)
    with recorded(agent) as seen:
        while agent.clock.updates < count:
            agent.step()
            if batches:
                acted_on = np.concatenate([obs for obs, _, _ in seen]).astype(np.float64)
                yield batches.pop(), seen, (acted_on.mean(0), acted_on.var(0))


def check_weights(agent: SAC, twin: Any, tolerance: float) -> None:
    pairs = [(agent.actor.state_dict(), twin.actor)]
    pairs += zip(critic_weights(agent, agent.critic), twin.critics, strict=True)
    pairs += zip(critic_weights(agent, agent.target), twin.targets, strict=True)
    for mine, theirs in [*pairs, (agent.temperature.state_dict(), twin.temperature)]:
        expected = {name: tensor.detach().float() for name, tensor in theirs.items()}
        torch.testing.assert_close(dict(mine), expected, atol=tolerance, rtol=tolerance)


def twin_of(agent: SAC) -> SACTwin:
    config, optimizer = agent.config.agent, agent.config.optimizer
    settings = {
        "lr": optimizer.lr,
        "lr_critic": config.lr_critic or optimizer.lr,
        "lr_temperature": config.lr_temperature or optimizer.lr,
        "weight_decay": optimizer.weight_decay,
        "tau": config.tau,
        "initial_temperature": config.initial_temperature,
        "learn_temperature": config.learn_temperature,
        "target_entropy": -config.target_entropy_scale * ACTION_DIM,
        "log_std": config.log_std,
        "bounds": (config.log_std_min, config.log_std_max),
        "activation": {"relu": torch.relu, "tanh": torch.tanh}[config.activation],
    }
    return SACTwin(agent.actor.state_dict(), critic_weights(agent, agent.critic), settings)


def moments(agent: SAC, network: str) -> list[dict[str, dict[str, torch.Tensor]]]:
    """Optimizer state by parameter name; of the critic one dictionary per member."""
    handle = agent.networks[network]
    (optimizer,) = handle.optimizers
    state = {name: optimizer.state[p] for name, p in handle.module.named_parameters()}
    if network != "critic":
        return [state]
    return [
        {n: {k: v if v.ndim == 0 else v[i] for k, v in s.items()} for n, s in state.items()}
        for i in range(agent.config.agent.critics)
    ]


@pytest.mark.parametrize(
    "options",
    [
        {"network": "simba", "n_step": 3, "critic_blocks": 2},
        {"network": "mlp", "lr_critic": 3e-2, "lr_temperature": 0.1, "target_entropy_scale": 1.0},
        SB3 | SHORT | {"learn_temperature": False, "critics": 3, "gamma": 0.5},
        {"network": "mlp", "hidden": [12, 7, 5], "activation": "tanh", "init": "orthogonal"},
        SB3 | {"critics": 4, "critic_subset": 2, "actor_every": 4, "normalize_obs": False},
    ],
    ids=lambda options: ",".join(f"{k}={v}" for k, v in options.items())[:60],
)
def test_updates_are_hand_written_ones(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    agent = sac(num_envs=2, **(ROUGH | options))
    twin, losses, subsets = twin_of(agent), [], set()
    raw, every = not agent.config.agent.normalize_obs, agent.config.agent.actor_every
    for batch, _, statistics in updates_of(agent, OF_CRITICS, monkeypatch):
        whole = agent.clock.updates % every == 0
        members = None if batch.members is None else batch.members.tolist()
        subsets.add(tuple(sorted(members or ())))
        seen_by_twin = batch.transitions, batch.noise, None if raw else statistics
        found = twin.update(*seen_by_twin, members, whole)
        of_actor = ("train/loss_actor", "train/entropy")
        losses.append({k: v for k, v in found.items() if whole or k not in of_actor})
    check_weights(agent, twin, 2e-5)  # that have moved by up to 0.06
    adams = {"actor": [twin.actor_adam], "critic": twin.critic_adams}
    if agent.config.agent.learn_temperature:
        adams["temperature"] = [twin.temperature_adam]
    for network, theirs in adams.items():
        for state, adam in zip(moments(agent, network), theirs, strict=True):
            steps = OF_CRITICS // (1 if network == "critic" else every)
            assert {float(own["step"]) for own in state.values()} == {steps} == {adam.step}
            for name, own in state.items():
                for key, expected in (("exp_avg", adam.m[name]), ("exp_avg_sq", adam.v[name])):
                    scale = float(expected.abs().max())
                    torch.testing.assert_close(
                        own[key], expected.float(), atol=1e-4 * scale, rtol=1e-3
                    )
    metrics = agent.metrics()
    for name in ("train/loss", "train/q", "train/loss_actor", "train/entropy"):
        expected = np.mean([loss[name] for loss in losses if name in loss])
        assert metrics[name] == pytest.approx(expected, rel=1e-3)
    assert not agent.metrics().keys() & {"train/loss", "train/q"}  # they are since the last call
    assert len(subsets) > (agent.config.agent.critic_subset is not None)  # they change
    assert metrics["train/temperature"] == pytest.approx(float(twin.alpha()), rel=1e-5)
    start = agent.networks["critic"].initial["[0].head.weight"]
    moved = critic_weights(agent, agent.critic)[0]["head.weight"] - start
    assert moved.abs().max() > 0.01


@pytest.mark.parametrize(("n_step", "terminates"), [(1, False), (3, True)])
def test_batches_are_transitions_that_happened(
    n_step: int, terminates: bool, monkeypatch: pytest.MonkeyPatch
):
    use_slide(monkeypatch, terminates)
    agent = sac(num_envs=2, n_step=n_step, gamma=0.5, batch_size=128, initial_steps=148)
    with recorded(agent) as seen:
        while agent.clock.env_steps < 154:
            agent.step()
    place = {obs[env].tobytes(): (i, env) for i, (obs, _, _) in enumerate(seen) for env in range(2)}
    batch = agent._batch(next(agent._drawn(1))).transitions
    cut = 0
    for obs, action, reward, discount, obs_next in zip(*(t.numpy() for t in batch), strict=True):
        start, env = place[obs.tobytes()]  # raw observations, or they would not be found
        expected = transition_twin(seen, env, start, n_step, 0.5)
        assert action.tobytes() == expected[0].tobytes()
        assert reward == pytest.approx(expected[1], rel=1e-5)
        assert discount == expected[2]
        assert expected[3] is None or obs_next.tobytes() == expected[3].tobytes()
        cut += discount == 0
    assert bool(cut) is terminates
    assert any(step.truncated.any() for _, _, step in seen)


def test_noise_of_updates_is_standard_normal_and_never_the_same():
    agent = sac(batch_size=64)
    while agent.clock.env_steps < 20:
        agent.step()
    noises = torch.stack([agent._batch(next(agent._drawn(1))).noise.clone() for _ in range(200)])
    assert noises.shape == (200, 2, 64, ACTION_DIM)
    assert float(noises.mean()) == pytest.approx(0, abs=0.02)
    assert float(noises.std()) == pytest.approx(1, abs=0.02)
    assert len({noise.numpy().tobytes() for pair in noises for noise in pair}) == 400


def test_a_loss_leaves_gradients_on_its_own_network_alone():
    agent = trained(4)
    batch = agent._batch(next(agent._drawn(1)))
    modules = {n: getattr(agent, n) for n in ("actor", "critic", "target", "temperature")}
    for name, loss_of in (("actor", agent.actor_loss), ("critic", agent.critic_loss)):
        for module in modules.values():
            module.zero_grad(set_to_none=True)
        loss_of(batch)[0].backward()
        for other, module in modules.items():
            assert {p.grad is None for p in module.parameters()} == {other != name}
