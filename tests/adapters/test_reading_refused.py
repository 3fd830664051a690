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
from tests.adapters.hosts import QUIET_LIGHTNING, Fit, hook_callback, sb3_model
from tests.adapters.readers import IDLE, NEVER, SMALL, begun, has_hooks, net, sb3
from tests.adapters.toys import row, silence

pytestmark = [*QUIET_LIGHTNING, pytest.mark.usefixtures("toys")]

SLOPE, REPLAYS = ({"method": f"toy_{m}", "at": "5 updates"} for m in ("slope", "replays"))


def learn(name: str, *hooks: Any, **options: Any) -> Any:
    callback = HookCallback(list(hooks), **options)
    sb3(name).learn(32, callback=callback)
    return callback


def test_users_own_probe_and_loss_are_read():
    model = sb3("DQN")
    network = find_networks(model)["q"]
    x = torch.randn(7, 64, generator=torch.Generator().manual_seed(1))
    asked = []

    def probe(size: int, generator: torch.Generator) -> Tensor:
        asked.append(size)
        return x

    def loss(batch: Tensor) -> Tensor:
        assert batch is x
        return model.q_net(batch).square().mean()

    silence(network)
    hooks = [row("redo", every="6 updates"), SLOPE, REPLAYS]
    model.learn(32, callback=(callback := HookCallback(hooks, probe=probe, loss=loss)))
    assert {r.method for r in callback.receipts} == {"redo", "toy_slope", "toy_replays"}
    assert set(asked) == {16, 256, 8} and not has_hooks(model.q_net)


@pytest.mark.parametrize(
    ("name", "hook", "options", "match"),
    [
        ("DQN", SLOPE, {}, r"\(toy_slope\) on network 'q' reads gradients: pass probe=.* loss="),
        ("DQN", SLOPE, {"probe": 1}, r"reads gradients: pass loss=, a function of such a batch"),
        (
            "SAC",
            REPLAYS,
            {},
            r"on networks 'actor', 'critic', .* reads batches: pass probe=.*loss=",
        ),
        ("DQN", REPLAYS, {"probe": 1}, "pass loss=, a function of such a batch"),
        (
            "SAC",
            SLOPE | {"at": None, "every": "1 updates"},
            {},
            "with 3 optimizers the loss of one",
        ),
        ("DQN", row("toy_silent", every="1 env_steps"), {}, "there are no data yet: let it fire"),
        ("PPO", row("toy_silent", every=None, at="0%"), {}, "there are no data yet: let it fire"),
    ],
)
def test_reading_what_is_not_there_is_refused(name: str, hook: Any, options: Any, match: str):
    hook = {k: v for k, v in hook.items() if v is not None}
    with pytest.raises(ConfigError, match=match) as error:
        learn(name, hook, **options)
    assert "\n" not in str(error.value)


def test_gradients_of_an_update_are_read_with_one_optimizer():
    hook = {"method": "toy_slope", "every": "1 updates"}
    callback = learn("DQN", hook)
    assert {r.method for r in callback.receipts} == {"toy_slope"}


def test_network_without_units_is_refused_with_its_reasons():
    callback = HookCallback([row("toy_least")])
    with pytest.raises(NothingToEdit, match="no hidden units in scope"):
        sb3_model("DQN", policy_kwargs={"net_arch": []}).learn(20, callback=callback)


def test_recurrent_policy_asks_for_a_probe():
    layers = SMALL | {"lstm_hidden_size": 8}
    model = sb3("RecurrentPPO", policy="MlpLstmPolicy", policy_kwargs=layers)
    with pytest.raises(ConfigError, match="no batch of this trainer fits: pass probe="):
        model.learn(16, callback=HookCallback([IDLE]))
    model.learn(16, callback=(callback := HookCallback([NEVER])))
    assert callback.driver.clock.updates == 20


def test_rows_of_one_process_decide_nothing_for_all():
    def begin(hook: Any, **options: Any) -> None:
        module = net()
        begun([hook], module, torch.optim.Adam(module.parameters()), shards=2, **options)

    with pytest.raises(ConfigError, match=r"\(toy_least\).*each of 2 processes or devices sees"):
        begin(NEVER)
    with pytest.raises(ConfigError, match=r"\(toy_silent\).*pass probe=.*, equal on all"):
        begin(IDLE)
    begin(IDLE, probe=torch.ones(4, 64))
    begin({"method": "toy_slope", "every": "1 updates"})  # averaged over ranks


def test_module_that_is_not_called_has_no_batch(tmp_path: Path):
    fit = Fit("lightning", tmp_path, net(), hook_callback("lightning", [IDLE]))
    with pytest.raises(
        ConfigError, match=r"'model' has not been called in training yet.*networks="
    ):
        fit.train()
    assert not has_hooks(fit.module)


def test_argument_that_cannot_be_kept_is_refused():
    class Takes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()

        def forward(self, x: Tensor, cache: Any) -> Tensor:
            return self.net(x)

    module = Takes()
    driver = begun([IDLE], module, torch.optim.Adam(module.parameters()))
    with pytest.raises(ConfigError, match=r"is called with a object, .* run again: pass probe="):
        module(torch.ones(2, 64), object())
    driver.detach()


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
        with pytest.raises(DamagedFile, match="its last batch is of another form"):
            source.load_state_dict(damaged)
