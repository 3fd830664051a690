"""Metrics in Stable-Baselines3: where their values go, and the hooks that wait for them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from stable_baselines3 import HerReplayBuffer
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.logger import configure
from stable_baselines3.common.monitor import Monitor

from rlplast.adapters.sb3 import HookCallback
from rlplast.core.errors import ConfigError
from tests.adapters import wide_env
from tests.adapters.hosts import sb3_model

RESET = {"method": "full_reset"}
NORM = {"every": "10 env_steps", "names": ["weight_norm", "dormant_ratio"]}


def monitored(name: str) -> Any:
    env = wide_env.Wide() if name in ("DQN", "PPO") else wide_env.WideControl()
    return sb3_model(name, Monitor(wide_env.limited(env)))


def test_values_are_those_of_the_weights_now(tmp_path: Path):
    model = sb3_model("DQN")
    callback = HookCallback([], metrics=NORM, receipts=tmp_path / "receipts.jsonl")
    model.learn(40, callback=callback)
    assert [line["env_steps"] for line in callback.metrics] == [10, 20, 30, 40]
    norm = torch.cat([p.detach().flatten() for p in model.q_net.parameters()]).norm()
    assert callback.metrics[-1]["metric/weight_norm/q"] == pytest.approx(float(norm))
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert rows == callback.metrics
    assert list(rows[0])[:3] == ["updates", "env_steps", "phase"]
    assert all(key.startswith("metric/") for key in list(rows[0])[3:])


@pytest.mark.parametrize("name", ["PPO", "SAC"])
def test_values_are_in_the_log_of_the_library(name: str, tmp_path: Path):
    model = monitored(name)
    model.set_logger(configure(str(tmp_path), ["stdout", "csv", "json"]))  # prints tables too
    callback = HookCallback([], metrics={"every": "16 env_steps"})
    model.learn(64, callback=callback, log_interval=1)
    model.logger.close()
    logged = [json.loads(x) for x in (tmp_path / "progress.json").read_text().splitlines()]
    network = "policy" if name == "PPO" else "critic"
    values = [
        r[f"metric/weight_norm/{network}"] for r in logged if f"metric/weight_norm/{network}" in r
    ]
    ours = [line[f"metric/weight_norm/{network}"] for line in callback.metrics]
    assert values and set(values) <= set(ours)
    assert any(k.startswith(f"metric/weight_norm/{network}/") for r in logged for k in r)


def test_default_metrics_are_those_that_can_be_read():
    callback = HookCallback([], metrics={"every": "50%"})
    sb3_model("SAC").learn(20, callback=callback)
    names = {k.split("/")[1] for k in callback.metrics[-1] if k.startswith("metric/")}
    assert names == {
        *("weight_norm", "weight_difference", "dormant_ratio", "active_fraction"),
        *("srank", "effective_rank", "feature_norm"),
    }
    assert "metric/weight_norm/temperature" in callback.metrics[-1]


def test_hindsight_replay_has_no_data_before_its_first_episode_has_ended():
    def learn(**options: Any) -> HookCallback:
        env = BitFlippingEnv(n_bits=4, continuous=True, max_steps=8)
        model = sb3_model("SAC", env, "MultiInputPolicy", replay_buffer_class=HerReplayBuffer)
        callback = HookCallback(**options)
        model.learn(20, callback=callback)
        return callback

    lines = learn(hooks=[], metrics={"every": "4 env_steps"}).metrics
    read = [line["env_steps"] for line in lines if "metric/srank/critic" in line]
    assert [line["env_steps"] for line in lines] == [4, 8, 12, 16, 20]
    assert read == [12, 16, 20]  # the episode is stored after the callback's eighth step
    with pytest.raises(ConfigError, match="there are no data yet: let it fire later"):
        learn(hooks=[{"method": "redo", "at": "5 env_steps"}])


def test_metrics_of_chosen_networks():
    callback = HookCallback([], metrics=NORM | {"networks": ["critic"]})
    sb3_model("SAC").learn(20, callback=callback)
    keys = {k for line in callback.metrics for k in line if k.startswith("metric/")}
    assert {k.split("/")[2] for k in keys} == {"critic"}


def test_metrics_of_outputs_and_of_gradients():
    """Churn of the action values; gradients where the user says what the loss is."""
    model = sb3_model("DQN")
    names = ["churn", "ntk_srank", "gradient_norm"]
    x = torch.randn(40, 64, generator=torch.Generator().manual_seed(0))
    callback = HookCallback(
        [],
        metrics={"every": "10 env_steps", "names": names},
        probe=lambda size, generator: x[torch.randint(40, (size,), generator=generator)],
        loss=lambda batch: model.q_net(batch).square().mean(),
    )
    model.learn(40, callback=callback)
    assert callback.metrics[-1]["metric/gradient_norm/q"] > 0
    assert callback.metrics[-1]["metric/churn/q"] > 0
    for name in ("SAC", "TD3", "TQC"):
        callback = HookCallback(
            [],
            metrics={
                "every": "10 env_steps",
                "names": ["churn_size"],
                "networks": ["actor", "critic"],
            },
        )
        sb3_model(name).learn(40, callback=callback)
        assert callback.metrics[-1]["metric/churn_size/actor"] > 0
        assert callback.metrics[-1]["metric/churn_size/critic"] > 0


def test_hook_waits_for_a_metric():
    when = {"metric": "weight_norm", "above": 0.0, "cooldown": "20 env_steps"}
    hook = RESET | {"when": when, "networks": ["critic"]}
    callback = HookCallback([hook], metrics=NORM)
    sb3_model("SAC").learn(61, callback=callback)
    assert [(r.network, r.clock.env_steps) for r in callback.receipts] == [
        ("critic", 10),
        ("critic", 30),
        ("critic", 50),
    ]


@pytest.mark.parametrize("name", ["PPO", "DQN"])
def test_hook_waits_for_what_the_library_logs(name: str):
    """PPO logs after a rollout and learns from it: the hook fires before the next one."""
    hook = RESET | {
        "when": {"metric": "rollout/ep_len_mean", "above": 7.0},
        "until": "36 env_steps",
    }
    callback = HookCallback([hook])
    monitored(name).learn(64, callback=callback, log_interval=1)
    steps = [r.clock.env_steps for r in callback.receipts]
    assert steps == ([16, 32] if name == "PPO" else [9, 17, 25, 33])
    if name == "PPO":
        assert [r.clock.updates for r in callback.receipts] == [4, 8]


def test_key_that_is_never_logged_is_named():
    callback = HookCallback([RESET | {"when": {"metric": "train/losses", "above": 0.0}}])
    with pytest.warns(UserWarning, match="waits for 'train/losses', which was not logged: did you"):
        monitored("DQN").learn(64, callback=callback, log_interval=1)
    assert callback.receipts == []


def test_key_is_named_where_nothing_is_logged():
    callback = HookCallback([RESET | {"when": {"metric": "train/loss", "above": 0.0}}])
    with pytest.warns(UserWarning, match="waits for 'train/loss', .* nothing was; give learn"):
        monitored("PPO").learn(32, callback=callback, log_interval=None)
    assert callback.receipts == []


def test_condition_and_metrics_go_on_after_a_stop(tmp_path: Path):
    """Weights of the last time and firings are saved; lines after the save are cut."""
    when = {"metric": "weight_norm", "above": 0.0, "cooldown": "50 env_steps"}
    row = {"every": "10 env_steps", "names": ["weight_norm", "churn_size"]}

    def made() -> HookCallback:
        return HookCallback(
            [RESET | {"when": when}],
            total="80 env_steps",
            metrics=row,
            receipts=tmp_path / "receipts.jsonl",
        )

    first, model = made(), sb3_model("DQN")
    model.learn(40, callback=first)
    first.save(tmp_path / "hooks")
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"lost": 1}\n')
    again = made()
    again.load(tmp_path / "hooks")
    model.learn(40, callback=again, reset_num_timesteps=False)
    assert [r.clock.env_steps for r in first.receipts + again.receipts] == [10, 60]
    rows = [json.loads(x) for x in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["env_steps"] for row in rows] == [10, 20, 30, 40, 50, 60, 70, 80]
    assert "metric/churn_size/q" in rows[4] and "metric/churn_size/q" not in rows[0]
    with pytest.raises(ConfigError, match=r"metrics.jsonl' has lines of another run"):
        (tmp_path / "receipts.jsonl").unlink()
        sb3_model("DQN").learn(40, callback=made())


WHEN = {"metric": "dormant_ratio", "above": 0.1}


@pytest.mark.parametrize(
    ("metrics", "hooks", "match"),
    [
        ({"names": ["srank"]}, [], "metrics has no 'every'"),
        ({"every": "5%", "name": ["srank"]}, [], "unknown key 'name': did you mean 'names'"),
        ({"every": "5%", "names": ["sranks"]}, [], "did you mean 'srank'"),
        (["srank"], [], r"allowed is a mapping, such as \{'every'"),
    ],
)
def test_row_that_cannot_be_read_is_refused_at_once(metrics: Any, hooks: Any, match: str):
    with pytest.raises(ConfigError, match=match):
        HookCallback(hooks, metrics=metrics)


@pytest.mark.parametrize(
    ("name", "metrics", "hooks", "match"),
    [
        ("SAC", {"every": "5%", "networks": ["critics"]}, [], "did you mean 'critic'"),
        ("DQN", {"every": "5 epochs"}, [], "counts epochs"),
        ("DQN", {"every": "5%", "names": ["gradient_norm"]}, [], "pass probe= and loss="),
        ("PPO", {"every": "5%", "names": ["churn"]}, [], "network 'policy' has none"),
        ("DQN", None, [RESET | {"when": WHEN}], "dormant_ratio' is never measured"),
        ("DQN", {"every": "5%", "names": ["srank"]}, [RESET | {"when": WHEN}], "metrics.names"),
    ],
)
def test_what_cannot_be_measured_is_refused_by_name(
    name: str, metrics: Any, hooks: Any, match: str
):
    with pytest.raises(ConfigError, match=match):
        sb3_model(name).learn(20, callback=HookCallback(hooks, metrics=metrics))


def test_recurrent_policy_has_metrics_of_weights():
    layers = {"net_arch": [4], "lstm_hidden_size": 8}
    model = sb3_model("RecurrentPPO", policy="MlpLstmPolicy", policy_kwargs=layers, n_epochs=1)
    callback = HookCallback([], metrics={"every": "50%"})
    model.learn(16, callback=callback)
    names = {k.split("/")[1] for k in callback.metrics[-1] if k.startswith("metric/")}
    assert names == {"weight_norm", "weight_difference"}
    with pytest.raises(ConfigError, match="'srank' reads a batch"):
        callback = HookCallback([], metrics={"every": "50%", "names": ["srank"]})
        sb3_model("RecurrentPPO", policy="MlpLstmPolicy", policy_kwargs=layers, n_epochs=1).learn(
            16, callback=callback
        )
