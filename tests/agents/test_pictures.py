"""SAC from pictures, and random shifts of them: against twins by hand, and interrupted."""

import ctypes.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from rlplast import envs
from rlplast.agents.encoders import shift
from rlplast.agents.replay import Replay
from rlplast.core.errors import ConfigError, NothingToEdit
from rlplast.core.network.modes import in_mode
from rlplast.envs.spaces import seen
from rlplast.run import api
from rlplast.run.build import build
from rlplast.run.config_file import read_config
from rlplast.run.read import read_lines
from tests.agents.pictures import SIDE
from tests.runs import check_resumes
from tests.sac_runs import small_sac

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
DMC = {
    "id": "dmc/cartpole-swingup",
    "num_envs": 1,
    "options": {"pixels": 16, "action_repeat": 8, "frame_stack": 2},
}


def config(**keys: Any) -> Any:
    agent = SMALL | keys.pop("agent", {})
    return read_config(SAC | {"agent": agent} | keys)


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
        agent, _ = build(config(agent={"random_shift": most}, hooks=[]))
        while not agent.owes():
            agent.step()
        batches.append([tensor.clone() for tensor in agent._batch(agent._drawn(1)[0]).transitions])
        states.append(agent.streams.numpy("replay").bit_generator.state)
        agent.close()
    (obs, *rest, obs_next), (moved, *same, moved_next) = batches
    assert states[0] == states[1]
    assert all(torch.equal(a, b) for a, b in zip(rest, same, strict=True))
    assert not torch.equal(obs, moved) and not torch.equal(obs_next, moved_next)


def by_hand(agent: Any) -> tuple[nn.Module, nn.Module]:
    """Return the critics' encoder and projection as a chain of torch's own layers."""
    critic = agent.critic
    convs = nn.Sequential(critic.encoder.conv1, nn.ReLU(), critic.encoder.conv2, nn.ReLU())
    return nn.Sequential(convs, nn.Flatten()), critic.projection


def member(critic: Any, x: torch.Tensor, i: int) -> torch.Tensor:
    hidden = F.linear(x, critic.fc1.weight[i], critic.fc1.bias[i]).relu()
    return F.linear(hidden, critic.head.weight[i], critic.head.bias[i]).squeeze(1)


def test_losses_are_those_of_drq_written_by_hand() -> None:
    agent, _ = build(config(hooks=[]))
    while agent.clock.updates < 3:
        agent.step()
    batch = agent._batch(agent._drawn(1)[0])
    data = batch.transitions
    encoder, projection = by_hand(agent)

    def squeezed(p: Any, x: torch.Tensor) -> torch.Tensor:
        normed = F.layer_norm(F.linear(x, p.linear.weight, p.linear.bias), (6,))
        return torch.tanh(normed * p.norm.weight + p.norm.bias)

    def policy(obs: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        actor = agent.actor
        hidden = actor.fc1(squeezed(actor.projection, encoder(obs / 255 - 0.5).detach())).relu()
        std = (-10 + 6 * (torch.tanh(actor.log_std(hidden)) + 1)).exp()
        normal = torch.distributions.Normal(actor.mean(hidden), std)
        raw = actor.mean(hidden) + std * noise
        correction = torch.log1p(-(torch.tanh(raw).double() ** 2)).sum(1)
        return torch.tanh(raw), normal.log_prob(raw).sum(1) - correction.float()

    alpha = agent.temperature.log_alpha.exp().detach()
    action, log_prob = policy(data.obs, batch.noise[0])
    features = squeezed(projection, encoder(data.obs / 255 - 0.5)).detach()
    x = torch.cat([features, action], 1)
    least = torch.minimum(*(member(agent.critic, x, i) for i in range(2)))
    torch.testing.assert_close(agent.actor_loss(batch)[0], (alpha * log_prob - least).mean())

    with torch.no_grad():
        target = agent.target
        action_next, log_prob = policy(data.obs_next, batch.noise[1])
        seen = nn.Sequential(target.encoder.conv1, nn.ReLU(), target.encoder.conv2, nn.ReLU())
        x = squeezed(target.projection, seen(data.obs_next / 255 - 0.5).flatten(1))
        x = torch.cat([x, action_next], 1)
        value = torch.minimum(*(member(target, x, i) for i in range(2))) - alpha * log_prob
        goal = data.reward + data.discount * value
    x = torch.cat([squeezed(projection, encoder(data.obs / 255 - 0.5)), data.action], 1)
    errors = [(member(agent.critic, x, i) - goal).square().mean() for i in range(2)]
    torch.testing.assert_close(agent.critic_loss(batch)[0], sum(errors))
    agent.close()


def test_layers_in_the_encoder_act_in_evaluation_mode() -> None:
    life = {"life": [5, 9], "recovery": [20, 30], "warmup": 0, "eval_mask": False}
    rows = [{"method": "lifecycle", "networks": ["critic"], "params": life}]
    agent, _ = build(config(hooks=[], layers=rows))
    while agent.clock.updates < 20:
        agent.step()
    obs = agent.experience.obs()
    with in_mode(*agent._acting(), train=False):
        found = agent._act_greedily(obs)
    agent.critic.eval()
    agent.actor.eval()
    assert (found == agent._act_greedily(obs)).all()
    agent.close()


def test_the_critics_loss_trains_the_encoder_and_the_actors_does_not() -> None:
    agent, _ = build(config(hooks=[]))
    while agent.clock.updates < 1:
        agent.step()
    for name, trains in (("actor", False), ("critic", True)):
        agent.critic.zero_grad()
        agent.loss(name, agent.sample(8, 0)).backward()
        given = [p.grad is not None and bool(p.grad.any()) for p in agent.critic.parameters()]
        found = dict(zip(dict(agent.critic.named_parameters()), given, strict=True))
        assert found["encoder.conv1.weight"] == trains
        agent.actor.zero_grad()
    agent.close()


@pytest.mark.parametrize(
    "env", [STACKED, pytest.param(DMC, marks=[needs_gl, pytest.mark.slow])], ids=["stacked", "dmc"]
)
def test_killed_and_resumed_equals(env: Any, tmp_path: Path) -> None:
    keys = SAC | {"env": env}
    if env is DMC:  # whose episodes are long
        keys |= {"evaluate": {"every": None}}
    check_resumes(keys, tmp_path)


def test_all_metrics_are_measured_in_bf16(tmp_path: Path) -> None:
    names = ["dormant_ratio", "churn", "gradient_norm", "srank"]
    keys = SAC | {"metrics": SAC["metrics"] | {"names": names}}
    keys["agent"] = SMALL | {"precision": "bf16"}
    keys["evaluate"] = SAC["evaluate"] | {"overestimation": True}
    run = api.train(keys, tmp_path / "run")
    found = {key for line in run.lines() for key in line}
    assert {"metric/srank/actor", "metric/churn/critic", "metric/gradient_norm/critic"} <= found
    assert "eval/overestimation" in found


def test_units_of_the_encoder_are_edited_and_those_of_other_layers_too(tmp_path: Path) -> None:
    run = api.train(SAC, tmp_path / "run")
    rows = [
        row
        for row in read_lines(tmp_path / "run" / "receipts.jsonl")
        if row["method"] == "redo" and row["network"] == "critic"
    ]
    assert set(rows[0]["units"]) >= {"encoder.conv1", "encoder.conv2", "[0].fc1", "[1].fc1"}
    reset = [
        row
        for row in read_lines(tmp_path / "run" / "receipts.jsonl")
        if row["method"] == "full_reset"
    ]
    assert [row["network"] for row in reset] == ["critic"]
    critic = run.agent().critic
    convs = sum(p.numel() for p in critic.encoder.parameters())
    assert reset[0]["entries_touched"] == convs


def test_swr_refuses_critics_that_share_an_encoder() -> None:
    with pytest.raises((ConfigError, NothingToEdit), match="encoder"):
        agent, _ = build(config(hooks=[{"method": "swr", "every": "1 updates"}]))
        agent.close()


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"env": {"id": "gym/Pendulum-v1"}, "agent": {"random_shift": 0}},
            "agent.network = 'drq' needs pictures .*, .* shape .3,.",
        ),
        ({"agent": {"network": "mlp"}}, "agent.convs = .* it is of agent.network = 'drq'"),
        (
            {"agent": {"network": "mlp", "convs": None, "features": 50}},
            "agent.network = 'mlp' needs vectors, .* shape .3, 14, 14.*: use another .* drq",
        ),
        (
            {"agent": {"convs": [[4, 3]]}},
            r"agent.convs\[0\] = \[4, 3\]: allowed is .channels, kern",
        ),
        ({"agent": {"convs": [[4, 20, 1]]}}, "do not fit pictures of shape .3, 14, 14."),
    ],
)
def test_what_does_not_fit_is_refused(keys: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(config(hooks=[], **keys))


def test_shifts_of_what_is_no_picture_are_refused() -> None:
    agent = {"network": "mlp", "convs": None, "features": 50}
    with pytest.raises(ConfigError, match=r"agent.random_shift = 2: env .* gives no"):
        build(config(hooks=[], env={"id": "gym/Pendulum-v1"}, agent=agent))


def test_a_dqn_shifts_pictures_and_takes_convolutions_as_data(tmp_path: Path) -> None:
    keys = SAC | {
        "kind": "dqn",
        "env": {"id": "minatar/breakout", "num_envs": 2},
        "agent": {"convs": [[4, 3, 1], [6, 3, 2]], "hidden": [16], "random_shift": 1}
        | {key: SMALL[key] for key in ("batch_size", "buffer_size", "initial_steps")},
        "hooks": [{"method": "redo", "every": "10 updates", "params": {"threshold": 0.5}}],
    }
    run = api.train(keys, tmp_path / "run")
    rows = [
        row for row in read_lines(tmp_path / "run" / "receipts.jsonl") if row["method"] == "redo"
    ]
    assert set(rows[0]["units"]) >= {"conv1", "conv2", "fc1"}
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


def test_a_replay_keeps_each_picture_once() -> None:
    rng = np.random.default_rng(0)
    replay = Replay(100_000, 1, (3, 84, 84), "uint8", 3, 3, 0.99, 128, rng, action_dim=6)
    per_row = replay.nbytes / 100_000
    assert 3 * 84 * 84 < per_row < 3 * 84 * 84 + 64


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"frame_stack": 2}, "'frame_stack' of env 'dmc/cheetah-run' is 2: it stacks pictures"),
        ({"pixels": 1000}, "'pixels' of env 'dmc/cheetah-run' is 1000: allowed is .1, 480."),
        ({"pixels": 0}, "'pixels' of env 'dmc/cheetah-run' is 0: allowed is integer >= 1"),
    ],
)
def test_options_of_pictures_are_checked(options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        envs.spec("dmc/cheetah-run", **options)


def test_pictures_of_any_environment_are_stacked_and_nothing_else_is() -> None:
    agent, _ = build(config(hooks=[], env=STACKED))
    assert agent.spec.stacked_shape == (9, SIDE, SIDE)
    agent.close()
    with pytest.raises(ValueError, match="'frame_stack' of env 'gym/FrozenLake-v1' is 2: it"):
        envs.spec("gym/FrozenLake-v1", frame_stack=2)


@pytest.mark.parametrize("most", [1, 255])
def test_pictures_come_into_the_unit_interval(most: int) -> None:
    space = spaces.Box(0, most, (SIDE, SIDE, 3), np.uint8)
    assert seen("id", space, None).scale == 1 / most


def test_bytes_in_a_row_are_scaled_where_they_are_not_normalised() -> None:
    own = {"network": "mlp", "hidden": [8], "normalize_obs": False, "batch_size": 4}
    own |= {"initial_steps": 20}
    env = {"id": "gym/tests/Bytes-v0"}
    agent, _ = build(read_config(SAC | {"hooks": [], "env": env, "agent": own}))
    raw = torch.full((2, 6), 51.0)
    torch.testing.assert_close(agent._for_critic(raw), torch.full((2, 6), 0.2))
    agent.close()


def test_pictures_that_are_no_bytes_are_refused() -> None:
    agent, _ = build(config(hooks=[]))
    with pytest.raises(ConfigError, match="observations are float32: allowed are pictures in by"):
        agent.act(np.zeros((2, 3, SIDE, SIDE), np.float32))
    assert agent.act(np.zeros((2, 3, SIDE, SIDE), np.uint8)).shape == (2, 2)
    agent.close()
