"""Hooks in Stable-Baselines3 and sb3-contrib: when they fire, and what they leave alone."""

import json
from pathlib import Path
from typing import Any

import pytest
import sb3_contrib
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger
from torch import Tensor

from rlplast.adapters.driver import Driver
from rlplast.adapters.sb3 import HookCallback
from rlplast.adapters.sb3_networks import find_networks
from rlplast.core.errors import ConfigError, RlplastError
from tests.adapters.hosts import (
    IDLE,
    NEVER,
    RELU,
    PixelControl,
    books,
    has_hooks,
    same,
    sb3_model,
    state,
)

RESET = {"method": "full_reset"}
SWR = {"method": "swr", "every": "1 updates"}


@pytest.mark.parametrize("name", ["SAC", "TD3", "CrossQ"])
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
    algorithm.learn(20, callback=callback)
    assert callback.driver.clock.updates == steps["critic"] == 10
    delay = getattr(algorithm, "policy_delay", 1)
    assert seen == [
        {key: done if key == "critic" else done // delay for key in steps}
        for done in range(2, 11, 2)
    ]


# What reads is of the network `policy` in PPO, and "parts" of its critic.
IDLE_OPTIONS: dict[str, dict[str, Any]] = {
    "reading": {"hooks": [NEVER, IDLE, RESET | {"at": "1M updates"}]},
    "watching": {"metrics": {"every": "10 env_steps"}},
    "parts": {
        "hooks": [NEVER | {"networks": ["critic"]}],
        "metrics": {"every": "16 env_steps", "names": ["churn"], "networks": ["actor", "critic"]},
    },
}


@pytest.mark.parametrize(
    ("name", "option"),
    [
        *((name, "reading") for name in ("SAC", "TD3", "PPO")),
        *(("DQN", "watching"), ("PPO", "parts")),
    ],
)
@pytest.mark.filterwarnings("ignore:.* was never due")
def test_hooks_that_change_nothing_change_no_bit(name: str, option: str):
    def after(callback: Any) -> dict[str, Tensor]:
        model = sb3_model(name, policy_kwargs=RELU)  # seeds torch and NumPy
        model.learn(48, callback=callback)
        assert not has_hooks(model.policy)
        optimizers = [o for n in find_networks(model).values() for o in n.optimizers]
        return state(optimizers, model.policy) | {"draw": torch.rand(())}

    callback = HookCallback(**({"hooks": []} | IDLE_OPTIONS[option]))
    assert same(after(None), after(callback)) and callback.driver.clock.updates > 0
    if option == "reading":
        assert len(callback.receipts) > 5 and all(r.sfe == 0 for r in callback.receipts)
        assert all(v.any() for k, v in books(callback.driver).items() if "/util/" in k)


def test_hook_that_was_never_due_is_named():
    for hook, steps in ((SWR, "0 updates and 20"), (RESET | {"at": "1M updates"}, "0 updates")):
        with pytest.warns(UserWarning, match=rf"hooks\[0\] .* was never due: .* {steps}"):
            sb3_model("DQN", learning_starts=1000).learn(20, callback=HookCallback([hook]))


def test_receipts_of_a_rollouts_updates_count_its_steps():
    rows = [
        {"method": "head_reset", "every": "5 updates"},
        {"method": "full_reset", "every": "40 env_steps"},
        {"method": "fire", "at": ["0 env_steps", "32 env_steps"]},
        {"method": "shrink_perturb", "every": "5 updates", "from": "50%"},
    ]
    callback = HookCallback(rows)
    sb3_model("PPO", n_steps=32, batch_size=16, n_epochs=5).learn(128, callback=callback)

    def moments(method: str) -> list[tuple[int, int]]:
        found = [r for r in callback.receipts if r.method == method]
        return [(r.clock.updates, r.clock.env_steps) for r in found]

    every = [(5 * (i + 1), 32 * (i // 2 + 1)) for i in range(8)]
    assert moments("head_reset") == every
    assert moments("shrink_perturb") == [m for m in every if m[1] >= 64]
    # Between the last update and the next rollout; in the last rollout at its step.
    assert moments("full_reset") == [(20, 64), (30, 96), (30, 120)]
    assert moments("fire") == [(0, 0), (10, 32)]


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
    with pytest.raises(ConfigError, match="lines of another run"):
        sb3_model("DQN").learn(40, callback=HookCallback([SWR], receipts=path))


def test_phases_are_started_by_hand():
    callback = HookCallback([RESET | {"on": "phase_start"}], total="80 env_steps")
    algorithm = sb3_model("DQN").learn(40, callback=callback)
    assert callback.receipts == []
    callback.start_phase()
    algorithm.learn(40, callback=callback, reset_num_timesteps=False)
    assert [(r.clock.phase, r.clock.env_steps) for r in callback.receipts] == [(1, 40)]


class Interrupt(BaseCallback):
    def _on_step(self) -> bool:
        if self.num_timesteps == 30:
            raise KeyboardInterrupt
        return True


def test_second_learn_goes_on_with_the_same_hooks_also_after_an_interruption():
    for interrupts in ((), (Interrupt(),)):
        callback = HookCallback([RESET | {"every": "20 env_steps"}, RESET | {"at": "50%"}])
        algorithm = sb3_model("DQN")
        try:
            algorithm.learn(60, callback=[callback, *interrupts])
        except KeyboardInterrupt:
            assert interrupts
        theta_0 = {k: v.clone() for k, v in callback.driver.networks["q"].initial.items()}
        algorithm.learn(60, callback=callback, reset_num_timesteps=False)
        due = [20, 30, 40, 60, 80] if interrupts else [20, 30, 40, 80, 100]
        assert [r.clock.env_steps for r in callback.receipts] == due
        assert same(theta_0, callback.driver.networks["q"].initial)
        assert callback.driver.clock.updates == algorithm._n_updates
        with pytest.raises(ConfigError, match="new HookCallback for a new run"):
            algorithm.learn(60, callback=callback)


def test_callback_does_not_go_on_after_a_learn_without_it(tmp_path: Path):
    callback = HookCallback([RESET | {"at": "50%"}], total="90 env_steps")
    algorithm = sb3_model("DQN").learn(30, callback=callback)
    algorithm.learn(30, reset_num_timesteps=False)
    with pytest.raises(ConfigError, match="pass the callback to every"):
        algorithm.learn(30, callback=callback, reset_num_timesteps=False)
    callback.save(tmp_path / "hooks")  # the remedy
    callback.load(tmp_path / "hooks")
    algorithm.learn(10, callback=callback, reset_num_timesteps=False)
    assert [r.method for r in callback.receipts] == ["full_reset"]


def test_algorithms_without_a_known_layout_are_refused_by_name():
    for name in ("ARS", "TRPO"):
        algorithm = getattr(sb3_contrib, name)("MlpPolicy", "CartPole-v1", device="cpu")
        with pytest.raises(ConfigError, match=name):
            algorithm.learn(8, callback=HookCallback([RESET | {"at": "0%"}]))
    with pytest.raises(ConfigError, match="attached to a Linear"):
        HookCallback([]).init_callback(torch.nn.Linear(1, 1))  # type: ignore[arg-type]


def test_shared_features_extractor_is_refused():
    layers = {"net_arch": [4], "share_features_extractor": True}
    algorithm = sb3_model("SAC", PixelControl(), "CnnPolicy", policy_kwargs=layers)
    with pytest.raises(ConfigError, match="features extractor"):
        algorithm.learn(1, callback=HookCallback([RESET | {"at": "0%"}]))


def test_what_cannot_work_is_refused_before_training():
    adagrad = {"policy_kwargs": {"net_arch": [4], "optimizer_class": torch.optim.Adagrad}}
    half = RESET | {"at": "50%"}
    for hooks, options, words in (
        ([half], adagrad, "Adagrad"),
        ([RESET | {"at": "2 epochs"}], {}, "epochs"),
        ([half] * 2, {}, "two HookCallbacks"),
    ):
        callbacks: list[Any] = [HookCallback([hook]) for hook in hooks]
        with pytest.raises(RlplastError, match=words):
            sb3_model("DQN", **options).learn(8, callback=callbacks)
    callback = HookCallback([half | {"optimizer": "keep"}])
    with pytest.warns(UserWarning, match="the state of Adagrad as it is"):
        sb3_model("DQN", **adagrad).learn(20, callback=callback)
    assert len(callback.receipts) == 1


class NewOptimizer(BaseCallback):
    rollouts = 0

    def _on_rollout_end(self) -> None:
        self.rollouts += 1
        if self.rollouts == 2:
            self.change(self.model.policy)

    def change(self, policy: Any) -> None:
        policy.optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)

    def _on_step(self) -> bool:
        return True


@pytest.mark.parametrize(("algorithm", "network"), [("PPO", "actor"), ("DQN", "q")])
def test_hooks_follow_to_an_optimizer_that_a_policy_is_given(algorithm: str, network: str):
    def trained(*others: Any) -> Any:
        rows = [
            {"method": "weight_clip", "every": "1 updates", "networks": [network]},
            {"method": "full_reset", "at": "90%", "networks": [network]},
        ]
        callback = HookCallback(rows)
        sb3_model(algorithm).learn(64, callback=[callback, *others])
        return callback

    expected, found = trained(), trained(NewOptimizer())
    assert found.driver.clock == expected.driver.clock
    assert found.driver.networks[network].optimizers[0] is found.model.policy.optimizer
    counts = [sum(r.firings for r in c.receipts) for c in (expected, found)]
    assert counts[0] == counts[1]


class NewPolicy(NewOptimizer):
    def change(self, policy: Any) -> None:
        self.model._setup_model()


class NewNetwork(NewOptimizer):
    def change(self, policy: Any) -> None:
        policy.q_net = policy.make_q_net()
        super().change(policy)


def test_a_policy_or_network_that_another_one_replaces_is_an_error():
    policies = ((algorithm, NewPolicy()) for algorithm in ("PPO", "DQN", "SAC"))
    for algorithm, change in (*policies, ("DQN", NewNetwork())):
        callback = HookCallback([RESET | {"every": "16 env_steps"}])
        with pytest.raises(ConfigError, match="is another module now"):
            sb3_model(algorithm).learn(64, callback=[callback, change])
