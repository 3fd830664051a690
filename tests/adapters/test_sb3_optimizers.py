"""Our optimizers in Stable-Baselines3: against loops by hand on the same minibatches."""

import copy
from pathlib import Path
from typing import Any

import pytest
from stable_baselines3 import PPO

from rlplast.adapters.sb3 import HookCallback, optimizer_class
from rlplast.core.errors import ConfigError
from rlplast.core.rng import derive_seed
from rlplast.optimizers.schedule_free import ScheduleFree
from rlplast.optimizers.upgd import UPGD
from tests.adapters.hosts import same, sb3_model, state
from tests.adapters.ppo_by_hand import Watched, close, learn_by_hand

LR = 3e-3
MADE: dict[str, Any] = {
    "upgd": lambda p: UPGD(p, LR, seed=derive_seed(4, "optimizer", 0)),
    "schedule_free": lambda p: ScheduleFree(p, LR),
}


def layers(name: str, **options: Any) -> dict[str, Any]:
    own = {"upgd": {"seed": 4}}.get(name, {}) | options
    return {"net_arch": [8], "optimizer_class": optimizer_class(name, **own)}


@pytest.mark.parametrize("name", MADE)
def test_ppo_with_it_equals_a_loop_by_hand(name: str):
    model = sb3_model("PPO", policy_kwargs=layers(name), learning_rate=LR)
    policy, watched = copy.deepcopy(model.policy), Watched(model)
    callback = HookCallback([])
    with pytest.raises(ConfigError, match="training has not begun"):
        callback.evaluating()
    model.learn(64, callback=callback)
    optimizer: Any = MADE[name](list(policy.parameters()))
    assert type(model.policy.optimizer) is type(optimizer)
    learn_by_hand(watched, policy, optimizer)
    assert close(model.policy, policy)
    trained = state([], model.policy)
    with callback.evaluating():
        averaged = state([], model.policy)
    assert same(trained, averaged) is (name != "schedule_free")
    assert same(trained, state([], model.policy))


def test_hooks_reset_its_state_unless_all_parameters_share_it():
    """The tuners of TRAC are of actor and critic alike."""
    model = sb3_model("SAC", policy_kwargs=layers("upgd"))
    callback = HookCallback([{"method": "full_reset", "at": "50%"}])
    model.learn(40, callback=callback)
    assert {r.optimizer_policy for r in callback.receipts} == {"network"}
    hook = {"method": "full_reset", "at": "50%", "networks": ["critic"]}
    with pytest.raises(ConfigError, match="of the Trac that trains 'critic' and 'actor'"):
        sb3_model("PPO", policy_kwargs=layers("trac")).learn(32, callback=HookCallback([hook]))
    callback = HookCallback([hook | {"optimizer": "parameter"}])
    sb3_model("PPO", policy_kwargs=layers("trac")).learn(32, callback=callback)
    assert len(callback.receipts) == 1


def test_model_with_it_is_saved_and_loaded(tmp_path: Path):
    model = sb3_model("PPO", policy_kwargs=layers("upgd"))
    model.learn(16)
    model.save(tmp_path / "model")
    loaded = PPO.load(tmp_path / "model", env=model.get_env(), device="cpu")
    assert type(loaded.policy.optimizer) is type(model.policy.optimizer)
    assert same(state([], loaded.policy), state([], model.policy))
    loaded.learn(16)


def test_what_is_no_optimizer_of_one_part_is_refused():
    beside = layers("adam") | {"optimizer_kwargs": {"eps": 0.1}}
    model = sb3_model("PPO", policy_kwargs=beside)
    assert model.policy.optimizer.defaults["eps"] == 0.1
    with pytest.raises(ConfigError, match=r"'muon'.* takes one optimizer"):
        sb3_model("PPO", policy_kwargs=layers("muon"))
    for name, options, words in (
        ("upg", {}, "'upgd'"),
        ("upgd", {"sigmas": 1}, "'sigma'"),
        ("sgd", {"weight_decay": -1.0}, "weight_decay"),
        ("upgd", {"seed": "a"}, "seed"),
    ):
        with pytest.raises(ConfigError, match=words):
            optimizer_class(name, **options)
