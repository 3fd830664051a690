from pathlib import Path
from typing import Any

import pytest
import torch

from rlplast.core.errors import ConfigError
from rlplast.run import api
from rlplast.run.build import build_trainable
from tests.marks import optimizers
from tests.ppo_runs import small_ppo
from tests.runs import TINY, check_resumes
from tests.sac_runs import small_sac

KINDS: dict[str, dict[str, Any]] = {"dqn": TINY, "sac": small_sac(), "ppo": small_ppo()}
every_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.mark.parametrize("name", optimizers(["sgd"]))
def test_resumed_run_equals_an_uninterrupted_one(name: str, tmp_path: Path) -> None:
    kind = "dqn" if name == "muon" else "sac"  # convs, or a temperature
    keys = {"optimizer.name": name, "optimizer.schedule": "cosine", "optimizer.warmup": 0.2}
    check_resumes(KINDS[kind], tmp_path, **keys)


@every_kind
def test_the_learning_rate_falls_over_the_updates_that_were_planned(kind: str) -> None:
    for key, value in (("optimizer.renew", True), ("optimizer.stepped", "epoch")):
        with pytest.raises(ConfigError, match=f"{kind} run has no epochs"):
            api.read_config(KINDS[kind], {key: value})
    keys = {"optimizer.schedule": "linear", "optimizer.lr": 0.01, "total": "40 updates"}
    if kind == "sac":
        keys["agent.lr_critic"] = 0.02
    trainable: Any = build_trainable(api.read_config(KINDS[kind], keys))
    network, largest = {"dqn": ("q", 0.01), "sac": ("critic", 0.02), "ppo": ("actor", 0.01)}[kind]
    found = []
    while trainable.clock.updates < 50:  # ten more than planned, as after `resume --total`
        updates = trainable.clock.updates
        trainable.step()
        if trainable.clock.updates > updates:
            found.append(trainable.networks[network].optimizers[0].param_groups[0]["lr"])
    falling = [largest * (1 - i / 40) for i in range(40)]
    assert found == pytest.approx(falling + [0.0] * 10, abs=1e-12)


def test_weight_decay_spares_the_temperature_and_rates_may_differ() -> None:
    keys = {"agent.lr_critic": 3e-3, "agent.lr_temperature": 5e-3, "optimizer.weight_decay": 0.1}
    trainable = build_trainable(api.read_config(KINDS["sac"], keys | {"optimizer.lr": 1e-3}))
    optimizers = {name: network.optimizers[0] for name, network in trainable.networks.items()}
    groups = {name: made.param_groups[0] for name, made in optimizers.items()}
    found = {name: (group["lr"], group["weight_decay"]) for name, group in groups.items()}
    assert found == {"actor": (1e-3, 0.1), "critic": (3e-3, 0.1), "temperature": (5e-3, 0.0)}
    assert all(isinstance(optimizer, torch.optim.AdamW) for optimizer in optimizers.values())
