"""Hooks in Stable-Baselines3 and sb3-contrib: when they fire, and what they leave alone."""

import copy
import json
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger
from torch import Tensor

from rlplast.adapters.driver import Driver
from rlplast.adapters.sb3 import HookCallback
from rlplast.adapters.sb3_networks import find_networks
from rlplast.core.errors import ConfigError
from tests.adapters import wide_env
from tests.adapters.hosts import same, sb3_model, state

RESET = {"method": "full_reset"}
SWR = {"method": "swr", "every": "1 updates"}
CONTROL = ("SAC", "TQC", "TD3", "DDPG", "CrossQ")


def everything(algorithm: Any) -> dict[str, Tensor]:
    networks = find_networks(algorithm).values()
    return state([o for network in networks for o in network.optimizers], algorithm.policy)


def test_updates_are_counted_inside_train():
    algorithm = sb3_model("DQN", gradient_steps=7, train_freq=7)
    callback = HookCallback([RESET | {"every": "3 updates"}])
    algorithm.learn(49, callback=callback)
    assert callback.driver.clock.updates == algorithm._n_updates == 42  # at 14, 21, … 49
    assert [r.clock.updates for r in callback.receipts] == list(range(3, 43, 3))
    assert all(r.crossings == 1 for r in callback.receipts)


def test_updates_of_ppo_are_minibatches():
    algorithm = sb3_model("PPO", n_epochs=3)
    callback = HookCallback([RESET | {"every": "4 updates"}])
    algorithm.learn(32, callback=callback)
    assert [r.clock.updates for r in callback.receipts] == [4, 8, 12]  # 2 rollouts × 3 × 2
    assert algorithm._n_updates == 6  # what Stable-Baselines3 calls an update is an epoch


@pytest.mark.parametrize("name", CONTROL)
def test_firing_comes_after_every_optimizer_step_of_its_update(
    name: str, monkeypatch: pytest.MonkeyPatch
):
    algorithm = sb3_model(name, gradient_steps=5, train_freq=5)
    networks = find_networks(algorithm)
    steps, seen = dict.fromkeys(networks, 0), []

    def count(key: str) -> Any:
        def stepped(*_: Any) -> None:
            steps[key] += 1

        return stepped

    for key, network in networks.items():
        network.optimizers[0].register_step_post_hook(count(key))
    keep = Driver._keep

    def look(driver: Driver, fired: list[Any]) -> None:
        seen.extend([dict(steps)] if fired else [])
        keep(driver, fired)

    monkeypatch.setattr(Driver, "_keep", look)
    callback = HookCallback([RESET | {"every": "2 updates", "params": {"init": "stored"}}])
    algorithm.learn(30, callback=callback)
    assert callback.driver.clock.updates == steps["critic"] == 20
    delay = getattr(algorithm, "policy_delay", 1)
    expected = [
        {key: done if key == "critic" else done // delay for key in steps}
        for done in range(2, 21, 2)
    ]
    assert seen == expected


@pytest.mark.parametrize("name", ["DQN", "PPO", *CONTROL])
def test_hook_that_never_fires_changes_no_bit(name: str):
    callback = HookCallback([RESET | {"at": "1M updates"}])
    plain = sb3_model(name).learn(40)  # each seeds torch and NumPy when it is built
    with pytest.warns(UserWarning, match=r"hooks\[0\] \(full_reset\) was never due: the run had"):
        hooked = sb3_model(name).learn(40, callback=callback)
    assert callback.receipts == [] and callback.driver.clock.updates > 0
    assert same(everything(plain), everything(hooked))


def test_hook_of_every_update_was_never_due_in_a_run_without_updates():
    with pytest.warns(UserWarning, match=r"hooks\[0\] \(swr\) was never due: .* 0 updates and 20"):
        sb3_model("DQN", learning_starts=1000).learn(20, callback=HookCallback([SWR]))


class Looking(HookCallback):
    """Copies the networks right after the first firing."""

    seen: Any = None

    def _on_step(self) -> bool:
        super()._on_step()
        if self.receipts and self.seen is None:
            self.seen = copy.deepcopy(self.driver.networks)
        return True


@pytest.mark.parametrize("name", ["DQN", "SAC", "TD3"])
def test_followers_equal_their_network_after_a_firing(name: str):
    callback = Looking([RESET | {"at": "50%"}])
    sb3_model(name).learn(40, callback=callback)
    assert {r.clock.env_steps for r in callback.receipts} == {20}  # total_timesteps is the total
    pairs = [pair for network in callback.seen.values() for pair in network.followed()]
    assert pairs and all(torch.equal(mine.view, theirs.view) for mine, theirs in pairs)


@pytest.mark.parametrize(
    ("due", "env_steps", "updates"),
    [(0, 0, 0), (1, 16, 4), (16, 16, 4), (17, 32, 8), (33, 33, 8)],
    ids=["start", "in rollout 1", "end of rollout 1", "in rollout 2", "in the last rollout"],
)
def test_ppo_hooks_fire_between_update_and_rollout(due: int, env_steps: int, updates: int):
    callback = HookCallback([RESET | {"at": f"{due} env_steps"}])
    sb3_model("PPO").learn(48, callback=callback)
    (receipt,) = callback.receipts
    assert (receipt.clock.env_steps, receipt.clock.updates) == (env_steps, updates)


def test_summaries_come_at_log_points_and_at_the_end(monkeypatch: pytest.MonkeyPatch):
    dumped, dump = [], Logger.dump
    monkeypatch.setattr(
        Logger, "dump", lambda self, step=0: (dumped.append(step), dump(self, step))
    )
    algorithm, callback = sb3_model("DQN"), HookCallback([SWR])
    algorithm.learn(44, callback=callback, log_interval=2)
    assert dumped == [16, 32]  # two episodes of 8 steps each
    assert [r.clock.env_steps for r in callback.receipts] == [16, 32, 44]
    assert [r.firings for r in callback.receipts] == [2, 8, 8]
    assert sum(r.firings for r in callback.receipts) == algorithm._n_updates
    assert algorithm.logger.output_formats == []


def test_receipts_are_appended_as_a_run_writes_them(tmp_path: Path):
    path = tmp_path / "receipts.jsonl"
    callback = HookCallback([RESET | {"at": ["25%", "50%"]}, SWR], receipts=path)
    sb3_model("DQN").learn(40, callback=callback)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(rows) == len(callback.receipts) == 4  # 8-step episodes: one line
    for row, receipt in zip(rows, callback.receipts, strict=True):
        clock = receipt.clock
        counters = {"updates": clock.updates, "env_steps": clock.env_steps, "phase": 0}
        assert row == receipt.row() | {"clock": counters}
    with pytest.raises(ConfigError, match="has lines of another run"):
        sb3_model("DQN").learn(40, callback=HookCallback([SWR], receipts=path))


def test_phases_are_started_by_hand():
    callback = HookCallback([RESET | {"on": "phase_start"}], total="80 env_steps")
    algorithm = sb3_model("DQN").learn(40, callback=callback)
    assert callback.receipts == []
    callback.start_phase()
    algorithm.learn(40, callback=callback, reset_num_timesteps=False)
    assert [(r.clock.phase, r.clock.env_steps) for r in callback.receipts] == [(1, 40)]


def test_second_learn_goes_on_with_the_same_hooks():
    callback = HookCallback([RESET | {"every": "25 env_steps"}, RESET | {"at": "50%"}])
    algorithm = sb3_model("DQN").learn(60, callback=callback)
    theta_0 = {k: v.clone() for k, v in callback.driver.networks["q"].initial.items()}
    algorithm.learn(60, callback=callback, reset_num_timesteps=False)
    assert [r.clock.env_steps for r in callback.receipts] == [25, 30, 50, 75, 100]
    assert same(theta_0, callback.driver.networks["q"].initial)
    assert callback.driver.clock.updates == algorithm._n_updates
    with pytest.raises(ConfigError, match="make a new HookCallback for a new run"):
        algorithm.learn(60, callback=callback)


def test_callback_does_not_go_on_after_a_learn_without_it(tmp_path: Path):
    callback = HookCallback([RESET | {"at": "50%"}], total="90 env_steps")
    algorithm = sb3_model("DQN").learn(30, callback=callback)
    algorithm.learn(30, reset_num_timesteps=False)
    with pytest.raises(ConfigError, match=r"differ .* last training: .*pass the callback to every"):
        algorithm.learn(30, callback=callback, reset_num_timesteps=False)
    callback.save(tmp_path / "hooks")  # the remedy
    callback.load(tmp_path / "hooks")
    algorithm.learn(10, callback=callback, reset_num_timesteps=False)
    assert [r.method for r in callback.receipts] == ["full_reset"]


@pytest.mark.parametrize("name", ["ARS", "TRPO"])
def test_algorithm_without_a_known_layout_is_refused_by_name(name: str):
    import sb3_contrib

    algorithm = getattr(sb3_contrib, name)("MlpPolicy", "CartPole-v1", device="cpu")
    with pytest.raises(ConfigError, match=f"{name} is not supported: .*allowed are DQN, QRDQN"):
        algorithm.learn(8, callback=HookCallback([RESET | {"at": "0%"}]))


def test_algorithm_in_jax_is_refused_by_name():
    """SBX: its classes derive from those of Stable-Baselines3, their weights are JAX's."""
    base = type("OnPolicyAlgorithmJax", (PPO,), {"__module__": "sbx.common.on_policy_algorithm"})
    jax = type("PPO", (base,), {"__module__": "sbx.ppo.ppo"})
    algorithm = jax("MlpPolicy", "CartPole-v1", n_steps=8, batch_size=8, device="cpu")
    for options in ({}, {"layers": [{"method": "dropout"}]}):
        with pytest.raises(ConfigError, match=r"PPO is of SBX, .* in JAX: .*stable_baselines3"):
            algorithm.learn(8, callback=HookCallback([RESET | {"at": "0%"}], **options))


def test_something_else_than_an_algorithm_is_refused():
    with pytest.raises(ConfigError, match="attached to a Linear: allowed is a Stable-Baselines3"):
        HookCallback([]).init_callback(torch.nn.Linear(1, 1))  # type: ignore[arg-type]


def test_shared_features_extractor_is_refused():
    pixels = gymnasium.spaces.Box(0, 255, (36, 36, 1), "uint8")

    class Pictures(wide_env.WideControl):
        observation_space = pixels

        def _obs(self) -> Any:
            return pixels.sample()

    layers = {"net_arch": [4], "share_features_extractor": True}
    algorithm = sb3_model("SAC", Pictures(), "CnnPolicy", policy_kwargs=layers)
    with pytest.raises(ConfigError, match="this SAC share their features extractor"):
        algorithm.learn(1, callback=HookCallback([RESET | {"at": "0%"}]))


ADAGRAD = {"net_arch": [4], "optimizer_class": torch.optim.Adagrad}


@pytest.mark.parametrize(
    ("hooks", "options", "match"),
    [
        (
            [{"at": "50%"}],
            {"policy_kwargs": ADAGRAD},
            r"state of a Adagrad.*no rule: .*keeps no weights there",
        ),
        ([{"at": "2 epochs"}], {}, r"counts epochs: this run counts .*env_steps"),
        ([{"at": "50%"}] * 2, {}, "two HookCallbacks on one trainer"),
    ],
)
def test_what_cannot_work_is_refused_before_training(hooks: Any, options: Any, match: str):
    callbacks: list[Any] = [HookCallback([RESET | hook]) for hook in hooks]
    with pytest.raises(ConfigError, match=match):
        sb3_model("DQN", **options).learn(8, callback=callbacks)


def test_state_without_a_rule_is_kept_if_asked_to():
    callback = HookCallback([RESET | {"at": "50%", "optimizer": "keep"}])
    sb3_model("DQN", policy_kwargs=ADAGRAD).learn(20, callback=callback)
    assert len(callback.receipts) == 1


class Interrupt(BaseCallback):
    def _on_step(self) -> bool:
        if self.num_timesteps == 30:
            raise KeyboardInterrupt
        return True


def test_interrupted_learn_goes_on_with_its_callback():
    algorithm, callback = sb3_model("DQN"), HookCallback([RESET | {"every": "20 env_steps"}])
    with pytest.raises(KeyboardInterrupt):
        algorithm.learn(60, callback=[callback, Interrupt()])
    algorithm.learn(30, callback=callback, reset_num_timesteps=False)
    assert [r.clock.env_steps for r in callback.receipts] == [20, 40]
