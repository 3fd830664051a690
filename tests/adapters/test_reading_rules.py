"""What reading leaves alone, and which passes and batches are read."""

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
from rlplast.core.errors import ConfigError
from rlplast.core.network.network import Network
from rlplast.core.network.record import Recorder
from tests.adapters import wide_env
from tests.adapters.hosts import (
    QUIET_LIGHTNING,
    Fit,
    WithLoss,
    hf_trainer,
    hook_callback,
    same,
    state,
)
from tests.adapters.readers import IDLE, NEVER, begun, has_hooks, net, sb3, sizes
from tests.adapters.toys import row

pytestmark = [*QUIET_LIGHTNING, pytest.mark.usefixtures("toys")]

READS = [NEVER, IDLE]
both = pytest.mark.parametrize("host", ["hf", "lightning"])
SWR = {"method": "swr", "every": "1 updates"}


# Stable-Baselines3


def after_sb3(name: str, hooks: Any, **options: Any) -> tuple[dict[str, Tensor], Any]:
    model = sb3(name, **options)
    callback = None if hooks is None else HookCallback(hooks)
    model.learn(48, callback=callback)
    networks = find_networks(model)
    assert not has_hooks(*(n.module for n in networks.values()))
    optimizers = [o for n in networks.values() for o in n.optimizers]
    drawn = torch.tensor([np.random.random(), float(torch.rand(()))])
    return state(optimizers, model.policy) | {"draws": drawn}, callback


@pytest.mark.parametrize("name", ["DQN", "SAC", "TD3", "TQC", "PPO"])
def test_reading_changes_no_bit_in_sb3(name: str):
    plain, _ = after_sb3(name, None)
    found, callback = after_sb3(name, READS)
    assert same(plain, found)
    silent = [r for r in callback.receipts if r.method == "toy_silent"]
    assert len(silent) > 3 and all(r.sfe == 0 for r in silent)
    sizes = callback.driver.state_dict()["hooks"]["toy_least every=1 updates"]["states"]
    assert all(float(v.sum()) > 0 for tensors in sizes.values() for v in tensors.values())


class During:
    """Looks at a model's modules in each of its training passes."""

    def __init__(self, module: nn.Module) -> None:
        self.module, self.seen = module, []
        forward = module.forward
        module.forward = lambda *args, **kw: (self.look(), forward(*args, **kw))[1]

    def look(self) -> None:
        if torch.is_grad_enabled():
            self.seen.append(has_hooks(self.module))


@pytest.mark.parametrize("hooks", [READS, [NEVER], [IDLE], [SWR]])
def test_forward_hooks_are_there_only_for_methods_that_read(hooks: Any, tmp_path: Path):
    module, callback = net(), hook_callback("hf", hooks, networks={"model": "net"})
    during = During(module)
    Fit("hf", tmp_path, module, callback, max_steps=5).train()
    assert set(during.seen) == {hooks != [SWR]}
    assert not has_hooks(module)


def test_driver_that_is_gone_leaves_no_forward_hook():
    module = net()
    optimizer = torch.optim.Adam(module.parameters())
    driver = begun(READS, module, optimizer)
    assert has_hooks(module)
    del driver
    assert not has_hooks(module)


def test_passes_of_a_skipped_step_are_dropped():
    found = []
    for factors in ((1.0, 1.0), (1.0, float("inf"), 1.0)):
        module = net()
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        driver = begun([NEVER], module, optimizer)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
        for factor in factors:
            optimizer.zero_grad()
            scale = torch.tensor(factor)
            (scaler.scale(module(torch.ones(4, 64) * scale.clamp(max=2)).sum()) * scale).backward()
            scaler.step(optimizer)
            scaler.update()
            driver.drop_passes()
        found.append(sizes(driver))
    assert same(*found)


def test_minibatch_without_a_step_belongs_to_no_update(monkeypatch: pytest.MonkeyPatch):
    """PPO's ``target_kl`` stops a rollout after a forward pass."""
    seen = rows_of_updates(monkeypatch)
    sb3("PPO", target_kl=1e-9).learn(64, callback=HookCallback([NEVER]))
    assert seen and set(seen) == {8}


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


# The Hugging Face Trainer and Lightning


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
def test_reading_changes_no_bit(host: str, tmp_path: Path):
    def after(*callbacks: Any) -> dict[str, Tensor]:
        fit = Fit(host, tmp_path, noisy(), *callbacks).train()
        assert not has_hooks(fit.module)
        return fit.state() | {"draws": torch.rand(2)}

    assert same(after(), after(hook_callback(host, READS, networks={"model": "net"})))


class Skips(torch.optim.Adam):
    """Makes no second step, as a scaler that meets an overflow."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        made, step = [0], self.step

        def maybe(closure: Any = None) -> Any:
            made[0] += 1
            return step(closure) if made[0] != 2 else closure and closure()

        self.step = maybe  # type: ignore[method-assign]


def rows_of_updates(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Samples of the activations of each update, as a driver gets them."""
    seen: list[int] = []
    advance = Driver.advance

    def look(driver: Driver, activations: Any = None, **counts: int) -> None:
        for found in (activations or {}).values():
            seen.append(len(next(iter(found.values()))))
        advance(driver, activations, **counts)

    monkeypatch.setattr(Driver, "advance", look)
    return seen


@both
def test_pass_of_a_skipped_step_is_dropped(
    host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    seen = rows_of_updates(monkeypatch)
    module, callback = net(), hook_callback(host, [NEVER], networks={"model": "net"})
    options: dict[str, Any] = {"max_steps": 4, "accumulation": 2}
    Fit(host, tmp_path, module, callback, optimizer=Skips(module.parameters()), **options).train()
    assert seen == [16, 16, 16]


def test_hf_takes_gradients_of_the_loss_on_the_last_batch(tmp_path: Path):
    module = net()
    before = [p.detach().clone() for p in module.parameters()]
    batches = []

    class Seen(WithLoss):
        def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
            batches.append((x, labels))
            return super().forward(x, labels)

    callback = hook_callback("hf", [{"method": "toy_slope", "at": "5 updates"}])
    options: dict[str, Any] = {"max_steps": 6, "learning_rate": 0.0}
    hf_trainer(tmp_path, Seen(module), [callback], **options).train()
    x, labels = batches[4]
    again = net()
    nn.functional.cross_entropy(again(x), labels).backward()
    for now, start, parameter in zip(module.parameters(), before, again.parameters(), strict=True):
        assert torch.equal(now, start - parameter.grad)
    assert len(callback.receipts) == 1 and callback.receipts[0].sfe > 0


def test_model_without_labels_has_no_gradients(tmp_path: Path):
    class Silent(WithLoss):
        def forward(self, x: Tensor, labels: Tensor) -> Any:
            return {"loss": super().forward(x, labels)["loss"]} if self.training else {"x": x}

    callback = hook_callback("hf", [{"method": "toy_slope", "at": "5 updates"}])
    with pytest.raises(ConfigError, match=r"returns no loss on its last batch.*labels, or pass"):
        hf_trainer(tmp_path, Silent(net()), [callback]).train()


# Batches of other kinds


def test_last_batch_is_run_again_in_evaluation_mode():
    module = noisy()
    source = LastBatch(find_parts(module, [torch.optim.Adam(module.parameters())], None))
    handles = source.start()
    x = torch.randn(5, 64)
    module(x)
    with torch.no_grad():
        module(x + 1)  # is no training pass
    found = source.activations("model", source.sample(1, 1))
    assert all(part.training for part in module.modules())
    hidden = module.eval()[:6](x).detach()
    assert torch.equal(found["4"], hidden) and not found["4"].requires_grad
    for handle in handles:
        handle.remove()


def test_last_batch_is_run_again_under_its_autocast():
    module = net()
    optimizer = torch.optim.Adam(module.parameters())
    networks = find_parts(module, [optimizer], None)
    source = LastBatch(networks)
    handles = source.start()
    x = torch.randn(5, 64)
    with torch.autocast("cpu", torch.bfloat16):
        module(x).sum().backward()
        expected = module[:2](x).detach()
    found = source.activations("model", source.sample(1, 1))
    assert found["0"].dtype == torch.bfloat16 and torch.equal(found["0"], expected)
    again = LastBatch(networks)
    again.load_state_dict(source.state_dict())
    assert same(dict(again.activations("model", again.sample(1, 1))), dict(found))
    for handle in handles:
        handle.remove()
    assert not has_hooks(module)


@pytest.mark.parametrize("name", ["DQN", "SAC", "PPO"])
def test_observations_may_be_mappings_and_normalised(name: str):
    """A custom extractor has no known order; units behind it are traced."""

    class Parts(wide_env.WideControl if name == "SAC" else wide_env.Wide):
        observation_space: Any = gymnasium.spaces.Dict(
            {key: gymnasium.spaces.Box(-1, 1, (64,), np.float32) for key in "ab"}
        )

        def _obs(self) -> Any:
            draw = self.np_random.uniform(-1, 1, (2, 64)).astype(np.float32)
            return {"a": draw[0], "b": draw[1]}

        def step(self, action: Any) -> Any:
            return self._obs(), 1.0, False, False, {}

    env = VecNormalize(DummyVecEnv([lambda: wide_env.limited(Parts())] * 2))
    layers = {"net_arch": [4, 4], "activation_fn": nn.ReLU}
    model = sb3(name, env=env, policy="MultiInputPolicy", policy_kwargs=layers)
    callback = HookCallback([row("toy_least"), row("toy_silent", every="9 env_steps")])
    model.learn(48, callback=callback)
    methods = {r.method for r in callback.receipts}
    assert methods == {"toy_least", "toy_silent"}
