"""The section `optimizer:` of agents: every registered one, schedules, and the keys of before."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from rlplast.core.errors import ConfigError
from rlplast.run import api
from rlplast.run.build import build_trainable
from rlplast.run.config_file import read_config
from tests.cli.runs import SMALL
from tests.marks import optimizers, slow_but
from tests.runs import MANY, TINY, final, forget
from tests.sac_runs import small_sac

KINDS: dict[str, dict[str, Any]] = {"dqn": TINY, "sac": small_sac()}
OLD = {
    "dqn": {"agent.lr": 3e-3, "agent.adam_eps": 1e-5, "agent.max_grad_norm": 0.5},
    "sac": {"agent.lr": 3e-3, "agent.weight_decay": 0.25},
}
NEW = {
    "dqn": {"optimizer.lr": 3e-3, "optimizer.eps": 1e-5, "optimizer.clip_norm": 0.5},
    "sac": {"optimizer.lr": 3e-3, "optimizer.weight_decay": 0.25},
}
every_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.mark.parametrize("name", optimizers(["sgd"]))
@pytest.mark.parametrize("kind", slow_but(["sac"], KINDS))
def test_resumed_run_equals_an_uninterrupted_one(kind: str, name: str, tmp_path: Path) -> None:
    keys = {"optimizer.name": name, "optimizer.schedule": "cosine", "optimizer.warmup": 0.2}
    config = api.read_config(KINDS[kind] | MANY, keys)
    through, run = tmp_path / "through", tmp_path / "run"
    api.train(config, through)
    shutil.copytree(through, run)
    forget(run, after=60)
    api.resume(run)
    assert final(run) == final(through)


@every_kind
def test_old_keys_say_what_the_new_ones_say(kind: str) -> None:
    config = {key: value for key, value in KINDS[kind].items() if key != "optimizer"}
    assert api.read_config(config, OLD[kind]) == api.read_config(config, NEW[kind])
    written = {key.removeprefix("agent."): value for key, value in OLD[kind].items()}
    old = config | {"agent": config["agent"] | written}
    assert api.read_config(old) == api.read_config(config, NEW[kind])


def test_a_key_under_both_names_is_refused() -> None:
    config = SMALL | {"optimizer": {"lr": 1e-3}, "agent": {"lr": 1e-3}}
    both = r"agent\.lr is the old name of optimizer\.lr, and both"
    with pytest.raises(ConfigError, match=both):
        api.read_config(config)


@pytest.mark.parametrize(
    "overrides",
    [
        {"agent.lr": 0.1, "optimizer.lr": 0.2},
        {"optimizer.lr": 0.2, "agent.lr": 0.1},
        {"agent": SMALL["agent"] | {"lr": 0.1}, "optimizer.lr": 0.2},
        {"optimizer": {"lr": 0.2}, "agent": SMALL["agent"] | {"lr": 0.1}},
    ],
)
def test_overrides_under_both_names_are_refused_unless_they_are_in_layers(
    overrides: dict[str, Any],
) -> None:
    with pytest.raises(ConfigError, match=r"agent\.lr"):
        api.read_config(SMALL, overrides)
    last = list(overrides.values())[-1]
    config = read_config(SMALL, *({key: value} for key, value in overrides.items()))
    assert config.optimizer.lr == (last["lr"] if isinstance(last, dict) else last)


def test_old_keys_in_an_override_of_a_whole_section_are_renamed() -> None:
    config = api.read_config(SMALL, {"agent": SMALL["agent"] | {"lr": 0.1}})
    assert config == api.read_config(SMALL, {"optimizer.lr": 0.1})


def test_an_optimizer_that_is_text_is_blamed_and_not_the_old_key_beside_it() -> None:
    config = SMALL | {"optimizer": "adam", "agent": SMALL["agent"] | {"lr": 1e-3}}
    with pytest.raises(ConfigError, match=r"config\.optimizer = 'adam': allowed is a mapping"):
        api.read_config(config)


@every_kind
def test_phases_and_epochs_are_refused(kind: str) -> None:
    for key, value in (("optimizer.renew", True), ("optimizer.stepped", "epoch")):
        with pytest.raises(ConfigError, match=f"a {kind} run has no epochs, and env.switch"):
            api.read_config(KINDS[kind], {key: value})


@every_kind
def test_the_learning_rate_falls_over_the_updates_that_were_planned(kind: str) -> None:
    keys = {"optimizer.schedule": "linear", "optimizer.lr": 0.01, "total": "40 updates"}
    if kind == "sac":
        keys["agent.lr_critic"] = 0.02
    trainable: Any = build_trainable(api.read_config(KINDS[kind], keys))
    network, largest = ("q", 0.01) if kind == "dqn" else ("critic", 0.02)
    found = []
    while trainable.clock.updates < 50:  # ten more than planned, as after `resume --total`
        updates = trainable.clock.updates
        trainable.step()
        if trainable.clock.updates > updates:
            found.append(trainable.networks[network].optimizers[0].param_groups[0]["lr"])
    trainable.close()
    falling = [largest * (1 - i / 40) for i in range(40)]
    assert found == pytest.approx(falling + [0.0] * 10, abs=1e-12)


def test_weight_decay_spares_the_temperature_and_rates_may_differ() -> None:
    keys = {"agent.lr_critic": 3e-3, "agent.lr_temperature": 5e-3, "optimizer.weight_decay": 0.1}
    trainable = build_trainable(api.read_config(KINDS["sac"], keys | {"optimizer.lr": 1e-3}))
    groups = {
        name: network.optimizers[0].param_groups[0] for name, network in trainable.networks.items()
    }
    trainable.close()
    assert {name: group["lr"] for name, group in groups.items()} == {
        "actor": 1e-3,
        "critic": 3e-3,
        "temperature": 5e-3,
    }
    decays = [groups[name]["weight_decay"] for name in ("actor", "critic", "temperature")]
    assert decays == [0.1, 0.1, 0.0]
    assert all(isinstance(n.optimizers[0], torch.optim.AdamW) for n in trainable.networks.values())
