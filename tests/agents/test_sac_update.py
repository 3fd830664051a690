from typing import Any

import numpy as np
import pytest
import torch

from rlplast.agents.replay import Batch
from rlplast.agents.sac import SAC, SACBatch
from tests.agents.toy_control import ACTION_DIM, recorded, sac, trained, use_slide
from tests.agents.toy_env import everything, same
from tests.naive.sac import SACTwin, transition_twin

pytestmark = pytest.mark.usefixtures("slide")
UPDATES = 6  # of the critics
ROUGH = {"lr": 1e-2, "weight_decay": 0.3, "tau": 0.1}  # so that five updates move a lot
SB3 = {"network": "mlp", "log_std": "clamp", "log_std_min": -20.0, "initial_temperature": 1.0}
SHORT = {"log_std_min": -0.2, "log_std_max": 0.2}  # a part of the batch is cut


def copies(batch: SACBatch) -> SACBatch:
    transitions = type(batch.transitions)(*(t.clone() for t in batch.transitions))
    members = None if batch.members is None else batch.members.clone()
    return SACBatch(transitions, batch.noise.clone(), members)


def critic_weights(agent: SAC, module: torch.nn.Module) -> list[dict[str, torch.Tensor]]:
    state = module.state_dict()
    members = agent.config.agent.critics
    return [{name: tensor[i] for name, tensor in state.items()} for i in range(members)]


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


def close(mine: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor], **tolerance: float):
    assert mine.keys() == theirs.keys()
    for name, tensor in mine.items():
        expected = theirs[name].detach().float()
        torch.testing.assert_close(tensor.detach(), expected, **tolerance)


@pytest.mark.parametrize(
    "options",
    [
        {"network": "simba"},
        {"network": "simba", "normalize_obs": False, "n_step": 3, "critic_blocks": 2},
        {"network": "mlp", "n_step": 3, "lr_critic": 3e-2, "lr_temperature": 0.1},
        SB3 | {"normalize_obs": False, "target_entropy_scale": 1.0},
        SB3 | SHORT | {"learn_temperature": False, "critics": 3, "gamma": 0.5},
        {"network": "mlp", "hidden": [12, 7, 5], "activation": "tanh", "init": "orthogonal"},
        SB3 | {"critics": 4, "critic_subset": 2, "actor_every": 4},
        {"network": "simba", "critics": 3, "critic_subset": 1, "activation": "tanh"},
    ],
    ids=lambda options: ",".join(f"{k}={v}" for k, v in options.items())[:60],
)
def test_training_is_a_hand_written_update_on_the_same_batches(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    agent = sac(num_envs=2, **(ROUGH | options))
    twin, batches, losses, subsets = twin_of(agent), [], [], set()
    batch_of = agent._batch

    def noted(drawn: Batch) -> SACBatch:
        batches.append(copies(batch := batch_of(drawn)))
        return batch

    monkeypatch.setattr(agent, "_batch", noted)
    with recorded(agent) as seen:
        while agent.clock.updates < UPDATES:
            agent.step()
            if batches:
                acted_on = np.concatenate([obs for obs, _, _ in seen]).astype(np.float64)
                statistics = (acted_on.mean(0), acted_on.var(0))
                batch = batches.pop()
                raw, every = not agent.config.agent.normalize_obs, agent.config.agent.actor_every
                whole = agent.clock.updates % every == 0
                members = None if batch.members is None else batch.members.tolist()
                subsets.add(tuple(sorted(members or ())))
                seen_by_twin = batch.transitions, batch.noise, None if raw else statistics
                found = twin.update(*seen_by_twin, members, whole)
                of_actor = ("train/loss_actor", "train/entropy")
                losses.append({k: v for k, v in found.items() if whole or k not in of_actor})
    tight = {"atol": 2e-5, "rtol": 2e-5}  # of weights that have moved by up to 0.06
    close(dict(agent.actor.state_dict()), twin.actor, **tight)
    for i, (critic, target) in enumerate(zip(twin.critics, twin.targets, strict=True)):
        close(critic_weights(agent, agent.critic)[i], critic, **tight)
        close(critic_weights(agent, agent.target)[i], target, **tight)
    close(dict(agent.temperature.state_dict()), twin.temperature, atol=1e-6, rtol=1e-5)
    adams = {"actor": [twin.actor_adam], "critic": twin.critic_adams}
    if agent.config.agent.learn_temperature:
        adams["temperature"] = [twin.temperature_adam]
    for network, theirs in adams.items():
        for state, adam in zip(moments(agent, network), theirs, strict=True):
            every = 1 if network == "critic" else agent.config.agent.actor_every
            steps = UPDATES // every
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
    assert len(subsets) > (agent.config.agent.critic_subset is not None)  # they change
    assert metrics["train/temperature"] == pytest.approx(float(twin.alpha()), rel=1e-5)
    moved = everything(agent)["critic"]["head.weight"] - torch.stack(
        [agent.networks["critic"].initial[f"[{i}].head.weight"] for i in range(len(twin.critics))]
    )
    assert moved.abs().max() > 0.01


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("terminates", [True, False])
def test_batches_are_transitions_that_happened_and_only_terminated_cuts_the_bootstrap(
    n_step: int, terminates: bool, monkeypatch: pytest.MonkeyPatch
):
    use_slide(monkeypatch, terminates)
    agent = sac(num_envs=2, n_step=n_step, gamma=0.5, batch_size=128, initial_steps=148)
    with recorded(agent) as seen:
        while agent.clock.env_steps < 154:
            agent.step()
    place = {obs[env].tobytes(): (i, env) for i, (obs, _, _) in enumerate(seen) for env in range(2)}
    batch = agent._batch(agent._drawn(1)[0]).transitions
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
    noises = torch.stack([agent._batch(agent._drawn(1)[0]).noise.clone() for _ in range(200)])
    assert noises.shape == (200, 2, 64, ACTION_DIM)
    assert float(noises.mean()) == pytest.approx(0, abs=0.02)
    assert float(noises.std()) == pytest.approx(1, abs=0.02)
    assert len({noise.numpy().tobytes() for pair in noises for noise in pair}) == 400


@pytest.mark.parametrize("name", ["actor", "critic"])
def test_a_loss_leaves_gradients_on_its_own_network_alone(name: str):
    agent = trained(4)
    batch = agent._batch(agent._drawn(1)[0])
    modules = {n: getattr(agent, n) for n in ("actor", "critic", "target", "temperature")}
    for module in modules.values():
        module.zero_grad(set_to_none=True)
    loss_of = {"actor": agent.actor_loss, "critic": agent.critic_loss}[name]
    loss_of(batch)[0].backward()
    for other, module in modules.items():
        assert {p.grad is None for p in module.parameters()} == {other != name}
    if name == "actor":  # and yet it goes through the critics
        gradients = [p.grad.clone() for p in agent.actor.parameters()]
        with torch.no_grad():
            agent.critic.get_parameter("head.weight").zero_()
        agent.actor.zero_grad(set_to_none=True)
        agent.actor_loss(batch)[0].backward()  # entropy alone
        assert not same(gradients, [p.grad for p in agent.actor.parameters()])
