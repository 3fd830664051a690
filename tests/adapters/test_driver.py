"""What the adapters share, in plain torch loops: counting, refusals, receipts, state."""

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import rlplast
from rlplast.adapters.driver import Driver
from rlplast.adapters.trained import find_networks, raw_optimizer, refuse_sharded
from rlplast.core.clock import Clock
from rlplast.core.errors import ConfigError, DamagedFile
from tests.adapters.hosts import begin, begun

RESET = {"method": "full_reset"}
SHRINK = {"method": "shrink_perturb", "every": "1 updates", "params": {"coef": 0.1}}


def line() -> tuple[nn.Linear, torch.optim.Optimizer]:
    module = nn.Linear(3, 3)
    return module, torch.optim.Adam(module.parameters(), lr=0.1)


def train(module: nn.Module, optimizer: torch.optim.Optimizer, updates: int) -> None:
    for _ in range(updates):
        optimizer.zero_grad()
        module(torch.ones(2, 3)).square().sum().backward()
        optimizer.step()


def test_hooks_come_from_a_list_or_a_file(tmp_path: Path):
    path = tmp_path / "hooks.yaml"
    path.write_text("- {method: shrink_perturb, at: 50%, params: {coef: 1e-3}}\n")
    for given in (path, str(path), [{"method": "shrink_perturb", "at": "50%"}]):
        module, optimizer = line()
        driver = begun(given, module, optimizer)
        train(module, optimizer, 9)
        assert [r.clock.updates for r in driver.receipts] == [5]
    path.write_text("[fire]")
    with pytest.raises(ConfigError, match="hooks"):
        Driver(path)


def test_arguments_that_cannot_work_are_refused():
    fire = {"method": "fire", "at": "50%"}
    when = {"method": "fire", "when": {"metric": "train/loss", "above": 1}}
    options: dict[str, Any]
    for options, words in (
        ({"hooks": [fire, when]}, r"hooks\[1\] \(fire\)\.when"),
        ({"hooks": [{"method": "fire", "att": "50%"}]}, r"hooks\[0\] .*'at'"),
        ({"hooks": [{"method": "fier"}]}, r"hooks\[0\]\.method = 'fier'"),
        ({"penalties": [{"methd": "l2"}]}, r"penalties\[0\] .*'method'"),
        ({"total": "50%"}, "total"),
        ({"total": "0 updates"}, "total"),
        ({"seed": True}, "seed = True"),
        ({"loss": lambda batch: batch}, "probe="),
    ):
        with pytest.raises(ConfigError, match=words):
            Driver(**({"hooks": []} | options))


@pytest.mark.parametrize("fused", [False, True])  # a fused optimizer is called to skip a step
def test_skipped_step_of_a_scaler_is_no_update(fused: bool):
    module, _ = line()
    optimizer = torch.optim.Adam(module.parameters(), fused=fused)
    driver = begun([], module, optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    for factor in (1.0, float("inf"), 1.0):
        optimizer.zero_grad()
        scaler.scale(module(torch.ones(2, 3)).sum() * factor).backward()
        scaler.step(optimizer)
        scaler.update()
    assert driver.clock.updates == 2


def test_optimizer_is_free_when_training_ends_or_the_driver_is_gone():
    module, optimizer = line()
    hooks = [RESET | {"every": "2 updates"}]
    driver = begun(hooks, module, optimizer)
    train(module, optimizer, 2)
    driver.end()
    train(module, optimizer, 2)
    assert len(driver.receipts) == 1
    receipts = (other := begun(hooks, module, optimizer)).receipts
    train(module, optimizer, 2)
    assert len(receipts) == 1
    del other
    gc.collect()
    train(module, optimizer, 4)
    assert len(receipts) == 1


def test_driver_of_an_interrupted_training_lets_go_when_the_next_one_begins():
    module, optimizer = line()
    hooks = [RESET | {"every": "2 updates"}, SHRINK]
    first = begun(hooks, module, optimizer)
    train(module, optimizer, 3)  # then interrupted: nobody ends it
    second = begun(hooks, module, optimizer)
    train(module, optimizer, 4)
    first.flush()  # a log point of the trainer
    assert (first.clock.updates, len(first.receipts)) == (3, 1)
    assert (second.clock.updates, len(second.receipts)) == (4, 2)


def stopped(hooks: Any) -> tuple[nn.Linear, Any, dict[str, Any]]:
    module, optimizer = line()
    driver = begun(hooks, module, optimizer)
    train(module, optimizer, 4)
    state = driver.state_dict()
    driver.detach()
    return module, optimizer, state


def test_state_goes_on_with_theta_0_counters_and_open_sums():
    hooks = [SHRINK, RESET | {"at": "6 updates", "params": {"init": "stored"}}]
    module, optimizer, state = stopped(hooks)
    again = Driver(hooks, total="10 updates")
    again.load_state_dict(state)
    begin(again, module, optimizer)
    train(module, optimizer, 2)
    again.end()
    assert torch.equal(module.weight, state["hooks"]["initial"]["model"]["weight"])
    assert [(r.method, r.firings, r.clock.updates) for r in again.receipts] == [
        ("full_reset", 1, 6),
        ("shrink_perturb", 6, 6),
    ]


def test_state_of_other_weights_hooks_or_seed_is_refused(tmp_path: Path):
    hooks, path = [RESET | {"at": "6 updates"}], tmp_path / "receipts.jsonl"
    module, optimizer, state = stopped(hooks)
    path.write_text("of another run\n")

    def go_on(configs: Any = hooks, seed: int = 0, path: Path | None = path) -> None:
        driver = Driver(configs, "10 updates", seed, receipts=path)
        driver.load_state_dict(state | {"length": 3})
        begin(driver, module, optimizer)

    go_on(path=None)
    with pytest.raises(ConfigError, match=r"hook list .*6 updates.*, this one is .*7 updates"):
        go_on([RESET | {"at": "7 updates"}])
    with pytest.raises(ConfigError, match="seed = 0, this is 4"):
        go_on(seed=4)
    with torch.no_grad():
        module.bias.view(torch.int32)[1] += 1  # one bit
    with pytest.raises(ConfigError, match=r"model\.bias: 1 of 2 weights differ"):
        go_on()
    assert path.read_text() == "of another run\n"


def test_a_state_that_is_of_no_callback_is_refused():
    state = stopped([SHRINK])[2]
    for part in ("hooks", "weights", "configs", "seed", "total", "probe", "length"):
        with pytest.raises(DamagedFile, match=f"has no '{part}'"):
            Driver([]).load_state_dict({k: v for k, v in state.items() if k != part})


def test_layers_that_live_tick_at_each_update():
    module = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 3))
    rlplast.replace_layers(module, "lifecycle", layers=["0"], warmup=0, seed=1)
    driver = begun([], module, optimizer := torch.optim.Adam(module.parameters()))
    before = {k: v.clone() for k, v in module.named_buffers()}
    train(module, optimizer, 5)
    assert driver.clock.updates == 5
    assert any(not torch.equal(v, before[k]) for k, v in module.named_buffers())


def test_networks_that_share_tensors_or_lack_an_optimizer_are_refused():
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    optimizer = torch.optim.SGD(module.parameters())
    networks = find_networks(module, [optimizer], {"all": "", "head": "1"})
    with pytest.raises(ConfigError, match=r"'all' and 'head' share all\.1\.weight"):
        Driver([], "9 updates").begin(networks, dict, Clock(), None, fresh=True, units=())
    optimizer = torch.optim.SGD(module[0].parameters())
    with pytest.raises(ConfigError, match=r"head\.weight is trainable and in no optimizer"):
        find_networks(module, [optimizer], {"head": "1"})
    module[1].requires_grad_(False)
    assert find_networks(module, [optimizer], {"frozen": "1"}).keys() == {"frozen"}


class Wrapped(torch.optim.Optimizer):
    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer


def test_wrapped_optimizer_is_unwrapped():
    _, optimizer = line()
    for name in ("AcceleratedOptimizer", "LightningOptimizer"):
        assert raw_optimizer(type(name, (Wrapped,), {})(optimizer)) is optimizer
    with pytest.raises(ConfigError, match="optimizer is a str"):
        raw_optimizer(type("AcceleratedOptimizer", (Wrapped,), {})("adam"))


@pytest.fixture
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore:.torch.jit")  # what ZeroRedundancyOptimizer imports
@pytest.mark.usefixtures("group")
def test_what_is_sharded_is_refused_and_a_wrapper_that_holds_all_taken_off():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.optim import ZeroRedundancyOptimizer

    sharded = ZeroRedundancyOptimizer(nn.Linear(2, 2).parameters(), torch.optim.Adam)
    with pytest.raises(ConfigError, match=r"ZeroRedundancyOptimizer .*is sharded"):
        raw_optimizer(sharded)
    module = nn.Sequential(nn.Linear(2, 2))
    fully_shard(module, mesh=init_device_mesh("cpu", (1,)))
    for part in (module, module[0].weight):
        with pytest.raises(ConfigError, match="is sharded"):
            refuse_sharded([part])
    for place in ("deepspeed.runtime.engine", "accelerate.utils.deepspeed"):
        engine = type("DeepSpeedEngine", (nn.Module,), {"__module__": place})()
        with pytest.raises(ConfigError, match=f"DeepSpeedEngine .{place}. is sharded"):
            find_networks(nn.Sequential(engine), [], None)
        wrapper = type("DeepSpeedOptimizerWrapper", (Wrapped,), {"__module__": place})
        with pytest.raises(ConfigError, match="is sharded"):
            raw_optimizer(wrapper(None))

    wrapped = nn.parallel.DistributedDataParallel(nn.Linear(3, 3))
    optimizer = torch.optim.Adam(wrapped.parameters())
    driver = begun([RESET | {"at": "2 updates"}], wrapped, optimizer)
    assert [b.name for b in driver.networks["model"].blocks] == ["weight", "bias"]
    train(wrapped, optimizer, 2)
    assert len(driver.receipts) == 1
