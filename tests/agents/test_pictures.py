import ctypes.util
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplast import envs
from rlplast.agents.encoders import shift
from rlplast.core.errors import ConfigError, NothingToEdit
from rlplast.core.network.modes import in_mode
from rlplast.envs.spaces import seen
from rlplast.run import api
from rlplast.run.build import build
from rlplast.run.config_file import read_config
from tests.agents.toy_env import advanced
from tests.naive.sac import log_prob_twin
from tests.runs import check_resumes
from tests.sac_runs import small_sac

SIDE = 14


class Spot(gymnasium.Env):
    """A bright spot goes where the action says; the reward is larger in the middle."""

    metadata: ClassVar = {"render_modes": []}
    observation_space = spaces.Box(0, 255, (SIDE, SIDE, 3), np.uint8)
    action_space = spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self) -> None:
        self.place = np.zeros(2)

    def _picture(self) -> np.ndarray:
        found = np.zeros((SIDE, SIDE, 3), np.uint8)
        row, column = np.clip((self.place * SIDE).astype(int), 0, SIDE - 1)
        found[row, column] = 255, 128, 64
        return found

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.place = self.np_random.random(2)
        return self._picture(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.place = np.clip(self.place + 0.1 * action, 0, 1)
        return self._picture(), -float(np.abs(self.place - 0.5).sum()), False, False, {}


class Bytes(Spot):
    """The same in six bytes."""

    observation_space = spaces.Box(0, 255, (6,), np.uint8)

    def _picture(self) -> np.ndarray:
        return np.resize((self.place * 255).astype(np.uint8), 6)


for kind in (Spot, Bytes):
    gymnasium.register(f"tests/{kind.__name__}-v0", kind, max_episode_steps=25)

SPOT = {"id": "gym/tests/Spot-v0", "num_envs": 2}
STACKED = SPOT | {"options": {"frame_stack": 3}}
SMALL: dict[str, Any] = {
    "network": "drq",
    "convs": [[4, 3, 2], [8, 3, 1]],
    "features": 6,
    "hidden": [16],
    "random_shift": 2,
    "batch_size": 8,
    "buffer_size": 200,
    "initial_steps": 20,
}
SAC: dict[str, Any] = small_sac() | {
    "env": SPOT,
    "optimizer": {"name": "adam", "lr": 1e-3, "weight_decay": 0.0},
    "agent": SMALL,
    "hooks": [
        {"method": "redo", "every": "10 updates", "params": {"threshold": 0.5}},
        {"method": "full_reset", "at": "50%", "networks": ["critic"], "layers": ["encoder.*"]},
    ],
    "evaluate": {"every": "50%", "episodes": 1},
    "metrics": {"every": "25%", "names": ["dormant_ratio", "weight_norm"], "batch_size": 8},
}
needs_gl = pytest.mark.skipif(ctypes.util.find_library("EGL") is None, reason="needs libEGL")


def config(**keys: Any) -> Any:
    agent = SMALL | keys.pop("agent", {})
    return read_config(SAC | {"agent": agent} | keys)


def built(updates: int = 0, **keys: Any) -> Any:
    agent, _ = build(config(**{"hooks": []} | keys))
    return advanced(agent, updates)


@given(st.integers(0, 4), st.integers(1, 3), st.data())
@settings(max_examples=30, deadline=None)
def test_a_shift_pads_with_the_edge_and_cuts_out(most: int, channels: int, data: Any) -> None:
    offset = st.integers(0, 2 * most)
    offsets = torch.tensor([[data.draw(offset), data.draw(offset)] for _ in range(3)])
    pictures = torch.randint(256, (3, channels, 7, 5), dtype=torch.uint8)
    padded = F.pad(pictures.float(), (most,) * 4, mode="replicate").to(torch.uint8)
    pairs = zip(padded, offsets.tolist(), strict=True)
    expected = torch.stack([p[:, down : down + 7, right : right + 5] for p, (down, right) in pairs])
    shift(pictures, offsets, most)
    assert torch.equal(pictures, expected)


def test_shifts_change_the_batch_that_networks_see_and_draw_from_a_stream_of_their_own() -> None:
    batches, states = [], []
    for most in (0, 2):
        agent = built(agent={"random_shift": most})
        while not agent.owes():
            agent.step()
        batches.append(
            [tensor.clone() for tensor in agent._batch(next(agent._drawn(1))).transitions]
        )
        states.append(agent.streams.numpy("replay").bit_generator.state)
    (obs, *rest, obs_next), (moved, *same, moved_next) = batches
    assert states[0] == states[1]
    assert all(torch.equal(a, b) for a, b in zip(rest, same, strict=True))
    assert not torch.equal(obs, moved) and not torch.equal(obs_next, moved_next)


def member(critic: Any, x: torch.Tensor, i: int) -> torch.Tensor:
    hidden = F.linear(x, critic.fc1.weight[i], critic.fc1.bias[i]).relu()
    return F.linear(hidden, critic.head.weight[i], critic.head.bias[i]).squeeze(1)


def test_losses_are_those_of_drq_written_by_hand() -> None:
    agent = built(3)
    batch = agent._batch(next(agent._drawn(1)))
    data = batch.transitions

    def encoded(network: Any, x: torch.Tensor) -> torch.Tensor:
        x = network.encoder.conv1(x / 255 - 0.5).relu()
        return network.encoder.conv2(x).relu().flatten(1)

    def squeezed(p: Any, x: torch.Tensor) -> torch.Tensor:
        normed = F.layer_norm(F.linear(x, p.linear.weight, p.linear.bias), (6,))
        return torch.tanh(normed * p.norm.weight + p.norm.bias)

    def policy(obs: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        actor = agent.actor
        seen = encoded(agent.critic, obs).detach()
        hidden = actor.fc1(squeezed(actor.projection, seen)).relu()
        log_std = -10 + 6 * (torch.tanh(actor.log_std(hidden)) + 1)
        return log_prob_twin(actor.mean(hidden), log_std, noise)

    alpha = agent.temperature.log_alpha.exp().detach()
    action, log_prob = policy(data.obs, batch.noise[0])
    features = squeezed(agent.critic.projection, encoded(agent.critic, data.obs))
    x = torch.cat([features.detach(), action], 1)
    least = torch.minimum(*(member(agent.critic, x, i) for i in range(2)))
    torch.testing.assert_close(agent.actor_loss(batch)[0], (alpha * log_prob - least).mean())

    with torch.no_grad():
        target = agent.target
        action_next, log_prob = policy(data.obs_next, batch.noise[1])
        x = squeezed(target.projection, encoded(target, data.obs_next))
        x = torch.cat([x, action_next], 1)
        value = torch.minimum(*(member(target, x, i) for i in range(2))) - alpha * log_prob
        goal = data.reward + data.discount * value
    x = torch.cat([features, data.action], 1)
    errors = [(member(agent.critic, x, i) - goal).square().mean() for i in range(2)]
    torch.testing.assert_close(agent.critic_loss(batch)[0], sum(errors))


def test_the_critics_loss_alone_trains_the_encoder_whose_layers_know_evaluation() -> None:
    life = {"life": [5, 9], "recovery": [20, 30], "warmup": 0, "eval_mask": False}
    rows = [{"method": "lifecycle", "networks": ["critic"], "params": life}]
    agent = built(20, layers=rows)
    obs = agent.experience.obs()
    with in_mode(agent.actor, agent.encoder, train=False):
        found = agent._act_greedily(obs)
    agent.critic.eval(), agent.actor.eval()
    assert (found == agent._act_greedily(obs)).all()
    for name, trains in (("actor", False), ("critic", True)):
        agent.critic.zero_grad()
        agent.loss(name, agent.sample(8, 0)).backward()
        gradient = agent.critic.get_parameter("encoder.conv1.weight").grad
        assert (gradient is not None and bool(gradient.any())) == trains


def test_killed_and_resumed_equals(tmp_path: Path) -> None:
    check_resumes(SAC | {"env": STACKED}, tmp_path)


def test_units_of_the_encoder_are_edited_and_measured_in_bf16_too(tmp_path: Path) -> None:
    names = ["dormant_ratio", "churn", "gradient_norm", "srank"]
    keys = SAC | {"metrics": SAC["metrics"] | {"names": names}}
    keys["agent"] = SMALL | {"precision": "bf16"}
    keys["evaluate"] = SAC["evaluate"] | {"overestimation": True}
    run = api.train(keys, tmp_path / "run")
    found = {key for line in run.lines() for key in line}
    assert {"metric/srank/actor", "metric/churn/critic", "metric/gradient_norm/critic"} <= found
    assert "eval/overestimation" in found
    receipts = run.lines("receipts")
    redo = [r for r in receipts if r["method"] == "redo" and r["network"] == "critic"]
    assert set(redo[0]["units"]) >= {"encoder.conv1", "encoder.conv2", "[0].fc1", "[1].fc1"}
    (reset,) = (r for r in receipts if r["method"] == "full_reset")
    convs = sum(p.numel() for p in run.agent().critic.encoder.parameters())
    assert (reset["network"], reset["entries_touched"]) == ("critic", convs)


def test_what_does_not_fit_is_refused() -> None:
    own = {"network": "mlp", "convs": None, "features": 50}
    for keys, message in (
        ({"env": {"id": "gym/Pendulum-v1"}, "agent": {"random_shift": 0}}, "agent.network"),
        ({"agent": {"network": "mlp"}}, "agent.convs"),
        ({"agent": own}, "agent.network"),
        ({"env": {"id": "gym/Pendulum-v1"}, "agent": own}, "agent.random_shift"),
        ({"agent": {"convs": [[4, 3]]}}, r"agent.convs\[0\]"),
        ({"agent": {"convs": [[4, 20, 1]]}}, "do not fit"),
        ({"hooks": [{"method": "swr", "every": "1 updates"}]}, "encoder"),
    ):
        with pytest.raises((ConfigError, NothingToEdit), match=message):
            build(config(**{"hooks": []} | keys))


def test_a_dqn_shifts_pictures_and_takes_convolutions_as_data(tmp_path: Path) -> None:
    agent = {"convs": [[4, 3, 1], [6, 3, 2]], "hidden": [16], "random_shift": 1}
    agent |= {key: SMALL[key] for key in ("batch_size", "buffer_size", "initial_steps")}
    env = {"id": "minatar/breakout", "num_envs": 2}
    keys = SAC | {"kind": "dqn", "env": env, "agent": agent, "hooks": SAC["hooks"][:1]}
    run = api.train(keys, tmp_path / "run")
    assert set(run.lines("receipts")[0]["units"]) >= {"conv1", "conv2", "fc1"}
    assert list(run.agent().online.conv2.weight.shape) == [6, 4, 3, 3]


@needs_gl
def test_pictures_of_the_suite_are_its_own_and_stacks_begin_with_the_first() -> None:
    from dm_control import suite

    options = {"pixels": 20, "action_repeat": 2}
    env = envs.make_vector("dmc/cheetah-run", [np.random.default_rng(5)], 0, **options)
    assert env.spec.stacked_shape == (9, 20, 20) and env.spec.obs_dtype == "uint8"
    stack = envs.FrameStack(1, env.spec)
    stack.push(env.reset(), True)
    first = stack.obs()[0].reshape(3, 3, 20, 20)
    assert (first == first[0]).all()
    random = np.random.RandomState(np.random.default_rng(5).bit_generator)
    twin = suite.load("cheetah", "run", task_kwargs={"random": random})
    twin.reset()
    for number in range(3):
        action = np.full(6, 0.5 * number - 0.5, np.float32)
        found = env.step(action[None]).obs[0]
        for _ in range(2):
            twin.step(action)
        picture = twin.physics.render(height=20, width=20, camera_id=0)
        np.testing.assert_array_equal(found.transpose(1, 2, 0), picture)
    env.close()


def test_pictures_of_any_environment_are_stacked_and_bytes_in_a_row_scaled() -> None:
    spec = built(env=STACKED).spec
    assert spec.stacked_shape == (9, SIDE, SIDE) and spec.repeat_first
    for env_id, options in (
        ("gym/FrozenLake-v1", {"frame_stack": 2}),
        ("dmc/cheetah-run", {"frame_stack": 2}),
        ("dmc/cheetah-run", {"pixels": 1000}),
    ):
        with pytest.raises(ValueError, match=next(iter(options))):
            envs.spec(env_id, **options)
    for most in (1, 255):
        space = spaces.Box(0, most, (SIDE, SIDE, 3), np.uint8)
        assert seen("id", space, None).scale == 1 / most
    own = {"network": "mlp", "hidden": [8], "normalize_obs": False, "batch_size": 4}
    own |= {"initial_steps": 20}
    env = {"id": "gym/tests/Bytes-v0"}
    agent, _ = build(read_config(SAC | {"hooks": [], "env": env, "agent": own}))
    raw = torch.full((2, 6), 51.0)
    torch.testing.assert_close(agent._for_critic(raw), torch.full((2, 6), 0.2))
    agent = built()
    with pytest.raises(ConfigError, match="float32"):
        agent.act(np.zeros((2, 3, SIDE, SIDE), np.float32))
    assert agent.act(np.zeros((2, 3, SIDE, SIDE), np.uint8)).shape == (2, 2)
