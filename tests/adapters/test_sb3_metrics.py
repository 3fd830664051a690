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
from tests.adapters.hosts import Wide, WideControl, limited, sb3_model

RESET = {"method": "full_reset"}
NORM = {"every": "10 env_steps", "names": ["weight_norm", "dormant_ratio"]}


def monitored(name: str) -> Any:
    env = Wide() if name in ("DQN", "PPO") else WideControl()
    return sb3_model(name, Monitor(limited(env)))


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def measured(name: str, steps: int = 20, **metrics: Any) -> HookCallback:
    callback = HookCallback([], metrics=metrics)
    sb3_model(name).learn(steps, callback=callback)
    return callback


def test_values_are_those_of_the_weights_now(tmp_path: Path):
    model = sb3_model("DQN")
    callback = HookCallback([], metrics=NORM, receipts=tmp_path / "receipts.jsonl")
    model.learn(40, callback=callback)
    assert [line["env_steps"] for line in callback.metrics] == [10, 20, 30, 40]
    norm = torch.cat([p.detach().flatten() for p in model.q_net.parameters()]).norm()
    assert callback.metrics[-1]["metric/weight_norm/q"] == pytest.approx(float(norm))
    rows = lines(tmp_path / "metrics.jsonl")
    assert rows == callback.metrics
    assert list(rows[0])[:3] == ["updates", "env_steps", "phase"]
    assert all(key.startswith("metric/") for key in list(rows[0])[3:])


def test_values_are_in_the_log_of_the_library(tmp_path: Path):
    model = monitored("PPO")
    model.set_logger(configure(str(tmp_path), ["stdout", "csv", "json"]))  # prints tables too
    callback = HookCallback([], metrics={"every": "16 env_steps"})
    model.learn(64, callback=callback, log_interval=1)
    model.logger.close()
    logged, key = lines(tmp_path / "progress.json"), "metric/weight_norm/policy"
    values = [r[key] for r in logged if key in r]
    assert values and set(values) <= {line[key] for line in callback.metrics}
    assert any(k.startswith(f"{key}/") for r in logged for k in r)


def test_metrics_without_names_are_those_that_can_be_read_of_the_networks_chosen():
    def kinds(callback: HookCallback, place: int) -> set[str]:
        return {k.split("/")[place] for k in callback.metrics[-1] if k.startswith("metric/")}

    found = measured("SAC", every="50%")
    of_weights = {"weight_norm", "weight_difference"}
    of_units = {"dormant_ratio", "active_fraction", "srank", "effective_rank", "feature_norm"}
    assert kinds(found, 1) == of_weights | of_units
    assert "metric/weight_norm/temperature" in found.metrics[-1]
    assert kinds(measured("SAC", **NORM, networks=["critic"]), 2) == {"critic"}
    assert kinds(measured("RecurrentPPO", every="50%"), 1) == of_weights


def test_hindsight_replay_has_no_data_before_its_first_episode_has_ended():
    def learn(**options: Any) -> HookCallback:
        env = BitFlippingEnv(n_bits=4, continuous=True, max_steps=8)
        model = sb3_model("SAC", env, "MultiInputPolicy", replay_buffer_class=HerReplayBuffer)
        callback = HookCallback(**options)
        model.learn(20, callback=callback)
        return callback

    found = learn(hooks=[], metrics={"every": "4 env_steps"}).metrics
    read = [line["env_steps"] for line in found if "metric/srank/critic" in line]
    assert [line["env_steps"] for line in found] == [4, 8, 12, 16, 20]
    assert read == [12, 16, 20]  # the episode is stored after the callback's eighth step
    with pytest.raises(ConfigError, match="no data yet"):
        learn(hooks=[{"method": "redo", "at": "5 env_steps"}])


def test_metrics_of_outputs_and_of_gradients():
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
    both = ["actor", "critic"]
    for name in ("SAC", "TD3"):
        found = measured(name, 24, every="8 env_steps", names=["churn_size"], networks=both)
        assert all(found.metrics[-1][f"metric/churn_size/{part}"] > 0 for part in both), name


@pytest.mark.parametrize(
    ("name", "when", "until", "due"),
    [
        (
            "SAC",
            {"metric": "weight_norm", "above": 0.0, "cooldown": "20 env_steps"},
            "60",
            (10, 30, 50),
        ),
        ("PPO", {"metric": "rollout/ep_len_mean", "above": 7.0}, "36", (16, 32)),
    ],
)
def test_hook_waits_for_a_metric_or_what_the_library_logs(
    name: str, when: Any, until: str, due: tuple[int, ...]
):
    """PPO logs after a rollout and learns from it: the hook fires before the next one."""
    hook = RESET | {"when": when, "until": f"{until} env_steps"}
    hook |= {"networks": ["critic"]} if name == "SAC" else {}
    callback = HookCallback([hook], metrics=NORM)
    monitored(name).learn(64, callback=callback, log_interval=1)
    assert [r.clock.env_steps for r in callback.receipts] == list(due)
    if name == "PPO":
        assert [r.clock.updates for r in callback.receipts] == [4, 8]


def test_key_that_is_never_logged_is_named():
    callback = HookCallback([RESET | {"when": {"metric": "train/losses", "above": 0.0}}])
    with pytest.warns(UserWarning, match="'train/losses', .*did you"):
        monitored("DQN").learn(40, callback=callback, log_interval=1)
    assert callback.receipts == []


def test_condition_and_metrics_go_on_after_a_stop(tmp_path: Path):
    """Weights of the last time and firings are saved; lines after the save are cut."""
    when = {"metric": "weight_norm", "above": 0.0, "cooldown": "50 env_steps"}
    row = {"every": "10 env_steps", "names": ["weight_norm", "churn_size"]}
    receipts = tmp_path / "receipts.jsonl"

    def made() -> HookCallback:
        options = {"total": "80 env_steps", "metrics": row, "receipts": receipts}
        return HookCallback([RESET | {"when": when}], **options)

    first, model = made(), sb3_model("DQN")
    model.learn(40, callback=first)
    first.save(tmp_path / "hooks")
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"lost": 1}\n')
    again = made()
    again.load(tmp_path / "hooks")
    model.learn(40, callback=again, reset_num_timesteps=False)
    assert [r.clock.env_steps for r in first.receipts + again.receipts] == [10, 60]
    rows = lines(tmp_path / "metrics.jsonl")
    assert [row["env_steps"] for row in rows] == [10, 20, 30, 40, 50, 60, 70, 80]
    assert "metric/churn_size/q" in rows[4] and "metric/churn_size/q" not in rows[0]
    receipts.unlink()
    with pytest.raises(ConfigError, match="lines of another run"):
        sb3_model("DQN").learn(40, callback=made())


def test_what_cannot_be_measured_is_refused_by_name():
    waits = [RESET | {"when": {"metric": "dormant_ratio", "above": 0.1}}]
    for metrics, words in (
        ({"names": ["srank"]}, "has no every"),
        ({"every": "5%", "name": ["srank"]}, "'names'"),
        ({"every": "5%", "names": ["sranks"]}, "'srank'"),
        (["srank"], "a mapping"),
    ):
        with pytest.raises(ConfigError, match=words):
            HookCallback([], metrics=metrics)
    for name, metrics, hooks, words in (
        ("SAC", {"every": "5%", "networks": ["critics"]}, [], "'critic'"),
        ("DQN", {"every": "5 epochs"}, [], "epochs"),
        ("DQN", {"every": "5%", "names": ["gradient_norm"]}, [], "probe= and loss="),
        ("PPO", {"every": "5%", "names": ["churn"]}, [], "network 'policy' has none"),
        ("RecurrentPPO", {"every": "5%", "names": ["srank"]}, [], "'srank' reads a batch"),
        ("DQN", None, waits, "'dormant_ratio' is never measured"),
        ("DQN", {"every": "5%", "names": ["srank"]}, waits, "metrics.names"),
    ):
        with pytest.raises(ConfigError, match=words):
            sb3_model(name).learn(20, callback=HookCallback(hooks, metrics=metrics))
