"""What reading leaves alone, which passes and batches are read, and what there is none of."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from rlplast.adapters.driver import Driver
from rlplast.adapters.reading import LastBatch
from rlplast.adapters.sb3 import HookCallback
from rlplast.adapters.sb3_networks import find_networks
from rlplast.adapters.trained import find_networks as find_parts
from rlplast.core.errors import ConfigError, NothingToEdit
from rlplast.core.network.network import Network
from rlplast.core.network.record import Recorder
from tests.adapters.hosts import (
    CBP,
    IDLE,
    NEVER,
    QUIET_LIGHTNING,
    REDO,
    RELU,
    Fit,
    Wide,
    WideControl,
    WithLoss,
    begun,
    has_hooks,
    hf_trainer,
    hook_callback,
    limited,
    net,
    same,
    sb3_model,
    silence,
)

pytestmark = QUIET_LIGHTNING

READS = [NEVER, IDLE]
both = pytest.mark.parametrize("host", ["hf", "lightning"])


def test_forward_hooks_are_there_only_for_methods_that_read_and_a_driver():
    swr = {"method": "swr", "every": "1 updates"}
    for hooks in ([NEVER], [IDLE], [swr]):
        module = net()
        driver = begun(hooks, module, torch.optim.Adam(module.parameters()))
        assert has_hooks(module) is (hooks != [swr])
        del driver
        assert not has_hooks(module)


class Late(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.relu(nn.functional.dropout(x, 0.3, self.training))


def noisy() -> nn.Sequential:
    """Dropout before and after a nonlinearity: whoever runs it again moves torch's generator."""
    torch.manual_seed(4)
    first = [nn.Linear(64, 12), nn.Dropout(0.3), nn.ReLU(), nn.Dropout(0.3)]
    second = [nn.Linear(12, 12), nn.RReLU(), nn.Linear(12, 12), Late()]
    return nn.Sequential(*first, *second, nn.Linear(12, 10))


@both
def test_reading_and_a_hook_that_never_fires_change_no_bit(host: str, tmp_path: Path):
    def after(*callbacks: Any) -> dict[str, Tensor]:
        fit = Fit(host, tmp_path, noisy(), *callbacks).train()
        assert not has_hooks(fit.module)
        return fit.state() | {"draws": torch.rand(2)}

    never = {"method": "full_reset", "at": "3 phase"}
    callback = hook_callback(host, [*READS, never])
    assert same(after(), after(callback))
    assert callback.receipts and callback.driver.clock.updates == 20


# Which passes are an update's


def skipping(module: nn.Module) -> torch.optim.Optimizer:
    optimizer, made = torch.optim.Adam(module.parameters()), [0]
    step = optimizer.step

    def maybe(closure: Any = None) -> Any:
        made[0] += 1
        return step(closure) if made[0] != 2 else closure and closure()

    optimizer.step = maybe  # type: ignore[method-assign]
    return optimizer


@pytest.mark.parametrize("host", ["hf", "lightning", "sb3"])
def test_passes_without_a_step_belong_to_no_update(
    host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A scaler skips a step; PPO's ``target_kl`` stops a rollout after a forward pass."""
    seen: list[int] = []
    advance = Driver.advance

    def look(driver: Driver, activations: Any = None, **counts: int) -> None:
        seen.extend(len(next(iter(found.values()))) for found in (activations or {}).values())
        advance(driver, activations, **counts)

    monkeypatch.setattr(Driver, "advance", look)
    if host == "sb3":
        sb3_model("PPO", target_kl=1e-9).learn(64, callback=HookCallback([NEVER]))
        assert seen and set(seen) == {8}
        return
    module, callback = net(), hook_callback(host, [NEVER])
    options: dict[str, Any] = {"max_steps": 4, "accumulation": 2}
    Fit(host, tmp_path, module, callback, optimizer=skipping(module), **options).train()
    assert seen == [16, 16, 16]


@pytest.mark.parametrize("reentrant", [True, False])
def test_pass_that_checkpointing_repeats_counts_once(reentrant: bool):
    module = net()
    network = Network("model", module, torch.optim.Adam(module.parameters()))
    recorder = Recorder(network, training_only=True)
    parts = [torch.randn(3, 64, requires_grad=True) for _ in range(2)]
    for x in parts:
        checkpoint(module, x, use_reentrant=reentrant).sum().backward()
    found = recorder.take()
    for x in parts:
        module(x).sum().backward()
    expected = recorder.take()
    assert same(dict(found), dict(expected)) and len(found["0"]) == 6


# The last batch


def test_hf_takes_gradients_of_the_loss_on_the_last_batch(tmp_path: Path):
    module = net()
    before = [p.detach().clone() for p in module.parameters()]
    batches = []

    class Seen(WithLoss):
        def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
            batches.append((x, labels))
            return super().forward(x, labels)

    params = {"share": 0.5, "value": "mean"}  # zeroes what matters least
    hooks = [{"method": "renew_weights", "at": "5 updates", "params": params}]
    callback = hook_callback("hf", hooks, networks=None)
    options: dict[str, Any] = {"max_steps": 6, "learning_rate": 0.0}
    hf_trainer(tmp_path, Seen(module), [callback], **options).train()
    x, labels = batches[4]
    again = net()
    nn.functional.cross_entropy(again(x), labels).backward()
    for now, start, parameter in zip(module.parameters(), before, again.parameters(), strict=True):
        utility, gone = (start * parameter.grad).abs(), now != start
        assert int(gone.sum()) == start.numel() // 2
        assert utility[gone].max() <= utility[~gone].min()
    assert len(callback.receipts) == 1 and callback.receipts[0].sfe > 0


@pytest.mark.parametrize("low", [False, True])
def test_last_batch_is_run_again_in_evaluation_mode_and_under_its_autocast(low: bool):
    module, x = noisy(), torch.randn(5, 64)
    networks = find_parts(module, [torch.optim.Adam(module.parameters())], None)
    source = LastBatch(networks)
    handles = source.start()
    with torch.autocast("cpu", torch.bfloat16, enabled=low):
        module(x).sum().backward()
        with torch.no_grad():
            module(x + 1)  # is no training pass
    found = source.activations("model", source.sample(1, 1))
    assert all(part.training for part in module.modules())
    with torch.autocast("cpu", torch.bfloat16, enabled=low):
        expected = module.eval()[:6](x).detach()
    assert torch.equal(found["4"], expected) and not found["4"].requires_grad
    assert (found["4"].dtype == torch.bfloat16) is low
    again = LastBatch(networks)
    again.load_state_dict(source.state_dict())
    assert same(dict(again.activations("model", again.sample(1, 1))), dict(found))
    for handle in handles:
        handle.remove()


@pytest.mark.parametrize("name", ["SAC", "PPO"])
def test_observations_may_be_mappings_and_normalised(name: str):
    """A custom extractor has no known order; units behind it are traced."""

    class Parts(WideControl if name == "SAC" else Wide):
        observation_space: Any = gymnasium.spaces.Dict(
            {key: gymnasium.spaces.Box(-1, 1, (64,), np.float32) for key in "ab"}
        )

        def _obs(self) -> Any:
            draw = self.np_random.uniform(-1, 1, (2, 64)).astype(np.float32)
            return {"a": draw[0], "b": draw[1]}

    env = VecNormalize(DummyVecEnv([lambda: limited(Parts())] * 2))
    layers = {"net_arch": [4, 4], "activation_fn": nn.ReLU}
    model = sb3_model(name, env=env, policy="MultiInputPolicy", policy_kwargs=layers)
    callback = HookCallback([CBP, REDO | {"every": "9 env_steps"}])
    model.learn(48, callback=callback)
    assert {r.method for r in callback.receipts} == {"cbp", "redo"}


# What there is nothing to read for


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
    module = net()
    optimizer = torch.optim.Adam(module.parameters())
    driver = begun([NEVER], module, optimizer)
    nn.functional.linear(torch.ones(2, 64), module[0].weight).sum().backward()
    with pytest.raises(ConfigError, match="'model' was updated and none of its layers was seen"):
        optimizer.step()
    driver.detach()
