"""What methods in a callback cannot read, and what they are told to do."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rlplast.adapters.reading import LastBatch
from rlplast.adapters.sb3 import HookCallback
from rlplast.adapters.sb3_networks import find_networks
from rlplast.adapters.trained import find_networks as find_parts
from rlplast.core.errors import ConfigError, DamagedFile, NothingToEdit
from rlplast.core.network.units import UnitSpec
from tests.adapters.hosts import (
    IDLE,
    NEVER,
    QUIET_LIGHTNING,
    REDO,
    RELU,
    Fit,
    WithLoss,
    begun,
    has_hooks,
    hf_trainer,
    hook_callback,
    net,
    sb3_model,
    silence,
)

pytestmark = QUIET_LIGHTNING

SLOPE = {"method": "renew_weights", "at": "5 updates"}
INSIDE = {"method": "renew_weights", "every": "1 updates"}
REPLAYS = {"method": "dash", "at": "5 updates", "params": {"batches": 2, "batch": 8}}


def learn(name: str, hook: Any, policy_kwargs: Any = RELU, **options: Any) -> Any:
    callback = HookCallback([hook], **options)
    sb3_model(name, policy_kwargs=policy_kwargs).learn(32, callback=callback)
    return callback


def test_users_own_probe_and_loss_are_read():
    model = sb3_model("DQN", policy_kwargs=RELU)
    x = torch.randn(7, 64, generator=torch.Generator().manual_seed(1))
    asked = []

    def probe(size: int, generator: torch.Generator) -> Tensor:
        asked.append(size)
        return x

    def loss(batch: Tensor) -> Tensor:
        assert batch is x
        return model.q_net(batch).square().mean()

    silence(find_networks(model)["q"])
    hooks = [REDO | {"every": "6 updates"}, SLOPE, REPLAYS]
    model.learn(32, callback=(callback := HookCallback(hooks, probe=probe, loss=loss)))
    assert {r.method for r in callback.receipts} == {"redo", "renew_weights", "dash"}
    assert set(asked) == {16, 256, 8} and not has_hooks(model.q_net)


def test_reading_what_is_not_there_is_refused():
    once = {"method": "redo", "at": "0%"}
    options: dict[str, Any]
    for name, hook, options, words in (
        (
            "DQN",
            SLOPE,
            {},
            r"\(renew_weights\) on network 'q' reads gradients: pass probe=.* loss=",
        ),
        ("DQN", SLOPE, {"probe": 1}, r"reads gradients: pass loss="),
        ("SAC", REPLAYS, {}, r"networks 'actor', 'critic' reads batches: pass probe=.*loss="),
        ("DQN", REPLAYS, {"probe": 1}, "pass loss="),
        ("SAC", INSIDE, {}, "with 3 optimizers"),
        ("DQN", REDO | {"every": "1 env_steps"}, {}, "no data yet"),
        ("PPO", once, {}, "no data yet"),
        ("RecurrentPPO", IDLE, {}, "pass probe="),
    ):
        with pytest.raises(ConfigError, match=words) as error:
            learn(name, hook, **options)
        assert "\n" not in str(error.value)
    with pytest.raises(NothingToEdit, match="no hidden units"):
        learn("DQN", NEVER, {"net_arch": []})
    assert learn("DQN", INSIDE).receipts  # of one optimizer
    assert learn("RecurrentPPO", NEVER).driver.clock.updates > 0


def test_rows_of_one_process_decide_nothing_for_all():
    def begin(hook: Any, **options: Any) -> None:
        module = net()
        begun([hook], module, torch.optim.Adam(module.parameters()), shards=2, **options)

    with pytest.raises(ConfigError, match=r"\(cbp\) .*every update: each of 2"):
        begin(NEVER)
    with pytest.raises(ConfigError, match=r"\(cbp\).*pass probe=.*, equal on all"):
        begin(IDLE)
    begin(IDLE, probe=torch.ones(4, 64))
    begin(INSIDE)  # averaged over ranks


def test_batch_that_was_not_seen_or_cannot_be_kept_is_refused(tmp_path: Path):
    callback = hook_callback("lightning", [IDLE], networks=None)  # not called as a whole
    fit = Fit("lightning", tmp_path, net(), callback)
    with pytest.raises(ConfigError, match=r"'model' has not been called.*networks="):
        fit.train()
    assert not has_hooks(fit.module)

    class Takes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()

        def forward(self, x: Tensor, cache: Any) -> Tensor:
            return self.net(x)

    module = Takes()
    driver = begun([IDLE], module, torch.optim.Adam(module.parameters()))
    with pytest.raises(ConfigError, match=r"with a object, .*pass probe="):
        module(torch.ones(2, 64), object())
    driver.detach()

    class Silent(WithLoss):  # a model without labels
        def forward(self, x: Tensor, labels: Tensor) -> Any:
            return {"loss": super().forward(x, labels)["loss"]} if self.training else {"x": x}

    callback = hook_callback("hf", [SLOPE], networks=None)
    with pytest.raises(ConfigError, match="returns no loss on its last batch"):
        hf_trainer(tmp_path, Silent(net()), [callback]).train()


def test_layers_that_are_not_called_as_modules_are_named():
    class Direct(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()

        def unit_specs(self) -> list[UnitSpec]:
            return [UnitSpec("net.0", ("net.2",))]

        def forward(self, x: Tensor) -> Tensor:
            first, second, last = self.net[0], self.net[2], self.net[4]
            hidden = nn.functional.linear(x, first.weight, first.bias).relu()
            return last(second(hidden).relu())

    module = Direct()
    optimizer = torch.optim.Adam(module.parameters())
    driver = begun([NEVER], module, optimizer)
    module(torch.ones(2, 64)).sum().backward()
    with pytest.raises(ConfigError, match="'model' was updated and none of its layers was seen"):
        optimizer.step()
    driver.detach()


def test_damaged_last_batch_is_refused():
    module = net()
    source = LastBatch(find_parts(module, [torch.optim.Adam(module.parameters())], None))
    for damaged in ({"last_batch": 3}, {"last_batch": {"model": {"args": []}}}):
        with pytest.raises(DamagedFile, match="last batch"):
            source.load_state_dict(damaged)
