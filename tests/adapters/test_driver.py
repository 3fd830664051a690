"""What the adapters share, in plain torch loops: counting, refusals, receipts, state."""

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from rlplast.adapters.driver import Driver
from rlplast.adapters.trained import find_networks, raw_optimizer, refuse_sharded
from rlplast.core.clock import Clock
from rlplast.core.errors import ConfigError, DamagedFile
from rlplast.core.network.network import Network

RESET = {"method": "full_reset"}


def begun(
    hooks: Any, module: nn.Module, optimizer: torch.optim.Optimizer, **options: Any
) -> Driver:
    driver = Driver(hooks, total="10 updates", **options)
    begin(driver, module, optimizer)
    return driver


def begin(driver: Driver, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    networks = find_networks(module, [optimizer], None)
    fresh = driver.clock == Clock() and driver.loaded is None
    driver.begin(networks, lambda: {optimizer: lambda: True}, Clock(), None, fresh=fresh, units=())


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


@pytest.mark.parametrize("text", ["method: fire", "[fire]", "3", ""])
def test_file_that_holds_no_list_is_refused(text: str, tmp_path: Path):
    path = tmp_path / "hooks.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match="allowed is a list of mappings"):
        Driver(path)


WHEN = {"method": "fire", "when": {"metric": "train/loss", "above": 1}}


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (
            {"hooks": [{"method": "fire", "at": "50%"}, WHEN]},
            r"hooks\[1\] \(fire\)\.when = .* allowed are at, every",
        ),
        ({"hooks": [{"method": "fire", "att": "50%"}]}, r"hooks\[0\] .* did you mean 'at'\?"),
        ({"hooks": [{"method": "fier"}]}, r"hooks\[0\]\.method = 'fier': did you mean 'fire'\?"),
        ({"penalties": [{"methd": "l2"}]}, r"penalties\[0\] .* did you mean 'method'\?"),
        *[({"total": total}, "total = ") for total in ("50%", "0 updates", "many")],
        *[({"seed": seed}, f"seed = {seed!r}: allowed is a whole") for seed in ("a", True, 1.5)],
        ({"loss": lambda batch: batch}, "pass probe= too"),
    ],
)
def test_arguments_that_cannot_work_are_refused(options: dict[str, Any], match: str):
    with pytest.raises(ConfigError, match=match):
        Driver(**({"hooks": []} | options))


def test_skipped_step_of_a_scaler_is_no_update():
    module, optimizer = line()
    driver = begun([], module, optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    for factor in (1.0, float("inf"), 1.0):
        optimizer.zero_grad()
        scaler.scale(module(torch.ones(2, 3)).sum() * factor).backward()
        scaler.step(optimizer)
        scaler.update()
    assert driver.clock.updates == 2


def test_every_update_hooks_run_before_scheduled_ones_of_the_same_update():
    module, optimizer = line()
    hooks = [RESET | {"at": "3 updates", "params": {"init": "stored"}}]
    hooks.append({"method": "shrink_perturb", "every": "1 updates", "params": {"coef": 0.5}})
    driver = begun(hooks, module, optimizer)
    train(module, optimizer, 3)
    initial = driver.networks["model"].initial
    assert torch.equal(module.weight, initial["weight"])
    driver.end()
    assert [r.firings for r in driver.receipts] == [1, 3]


def test_optimizer_is_free_when_training_ends_or_the_driver_is_gone():
    module, optimizer = line()
    driver = begun([RESET | {"every": "2 updates"}], module, optimizer)
    train(module, optimizer, 2)
    driver.end()
    train(module, optimizer, 2)
    assert len(driver.receipts) == 1
    receipts = (other := begun([RESET | {"every": "2 updates"}], module, optimizer)).receipts
    train(module, optimizer, 2)
    assert len(receipts) == 1
    del other
    gc.collect()
    train(module, optimizer, 4)
    assert len(receipts) == 1


def test_state_goes_on_with_theta_0_counters_and_open_sums():
    hooks = [
        {"method": "shrink_perturb", "every": "1 updates", "params": {"coef": 0.1}},
        RESET | {"at": "6 updates", "params": {"init": "stored"}},
    ]
    torch.manual_seed(0)
    module, optimizer = line()
    start = module.weight.detach().clone()
    driver = begun(hooks, module, optimizer)
    train(module, optimizer, 4)
    state = driver.state_dict()
    driver.detach()
    again = Driver(hooks, total="10 updates")
    again.load_state_dict(state)
    begin(again, module, optimizer)
    train(module, optimizer, 2)
    again.end()
    assert torch.equal(module.weight, start)
    assert [(r.method, r.firings, r.clock.updates) for r in again.receipts] == [
        ("full_reset", 1, 6),
        ("shrink_perturb", 6, 6),
    ]


def stopped(hooks: Any, **options: Any) -> tuple[nn.Module, Any, dict[str, Any]]:
    """A module of 4 updates, its optimizer and the hooks' state."""
    module, optimizer = line()
    driver = begun(hooks, module, optimizer, **options)
    train(module, optimizer, 4)
    return module, optimizer, driver.state_dict()


def test_state_of_other_weights_hooks_or_seed_is_refused():
    hooks = [RESET | {"at": "6 updates", "params": {"init": "stored"}}]
    module, optimizer, state = stopped(hooks, seed=3)

    def go_on(configs: Any = hooks, seed: int = 3) -> None:
        driver = Driver(configs, "10 updates", seed)
        driver.load_state_dict(state)
        begin(driver, module, optimizer)

    go_on()
    with pytest.raises(ConfigError, match=r"hook list .*6 updates.*, this one is .*7 updates"):
        go_on([RESET | {"at": "7 updates"}])
    with pytest.raises(ConfigError, match=r"seed = 3, this is 4: pass seed=3"):
        go_on(seed=4)
    with torch.no_grad():
        module.bias.view(torch.int32)[1] += 1  # one bit
    with pytest.raises(ConfigError, match=r"model\.bias: 1 of 2 weights differ .*load the hooks'"):
        go_on()


PARTS = ("hooks", "initial", "weights", "configs", "seed", "total", "length")


@pytest.mark.parametrize("wrong", [None, 1.5], ids=["absent", "wrong"])
@pytest.mark.parametrize("part", PARTS)
def test_state_without_a_part_is_refused(part: str, wrong: Any):
    state = stopped([RESET | {"every": "3 updates"}])[2]
    state.pop(part)
    if wrong is not None:
        state[part] = wrong
    with pytest.raises(DamagedFile, match=f"'{part}' is "):
        Driver([]).load_state_dict(state)


@pytest.mark.parametrize("part", ["clock", "shrink_perturb"])
def test_state_of_hooks_with_a_wrong_inside_is_refused(part: str):
    hooks = [{"method": "shrink_perturb", "every": "1 updates", "params": {"coef": 0.1}}]
    module, optimizer, state = stopped(hooks)
    (key,) = [k for k in state["hooks"] if k.startswith(part)]
    state["hooks"][key] = {"updates": "four"}
    driver = Driver(hooks, "10 updates")
    with pytest.raises(DamagedFile, match="the hooks' state is damaged"):
        driver.load_state_dict(state)
        begin(driver, module, optimizer)


def test_driver_of_an_interrupted_training_lets_go_when_the_next_one_begins():
    module, optimizer = line()
    hooks = [
        RESET | {"every": "2 updates"},
        {"method": "shrink_perturb", "every": "1 updates", "params": {"coef": 0.1}},
    ]
    first = begun(hooks, module, optimizer)
    train(module, optimizer, 3)  # then interrupted: nobody ends it
    second = begun(hooks, module, optimizer)
    train(module, optimizer, 4)
    first.flush()  # a log point of the trainer
    assert (first.clock.updates, len(first.receipts)) == (3, 1)
    assert (second.clock.updates, len(second.receipts)) == (4, 2)


def test_layers_that_live_tick_at_each_update():
    import rlplast

    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 3))
    rlplast.replace_layers(module, "lifecycle", layers=["0"], warmup=0, seed=1)
    driver = begun([], module, optimizer := torch.optim.Adam(module.parameters()))
    before = {k: v.clone() for k, v in module.named_buffers()}
    train(module, optimizer, 5)
    assert driver.clock.updates == 5
    assert any(not torch.equal(v, before[k]) for k, v in module.named_buffers())


def test_tensor_of_two_networks_is_refused():
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    optimizer = torch.optim.SGD(module.parameters())
    networks = find_networks(module, [optimizer], {"all": "", "head": "1"})
    with pytest.raises(ConfigError, match=r"head\.weight and all\.1\.weight are one tensor"):
        Driver([], "9 updates").begin(networks, dict, Clock(), None, fresh=True, units=())


def test_part_that_no_optimizer_trains_is_refused():
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    optimizer = torch.optim.SGD(module[0].parameters())
    with pytest.raises(ConfigError, match=r"head\.weight is trainable and in no optimizer"):
        find_networks(module, [optimizer], {"head": "1"})


class Wrapped(torch.optim.Optimizer):
    """Stands for the wrapper of the name that a test gives it."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer


def test_wrapped_optimizer_is_unwrapped():
    _, optimizer = line()
    for name in ("AcceleratedOptimizer", "LightningOptimizer"):
        assert raw_optimizer(type(name, (Wrapped,), {})(optimizer)) is optimizer
    with pytest.raises(ConfigError, match=r"optimizer is a str: allowed is a torch\.optim"):
        raw_optimizer(type("AcceleratedOptimizer", (Wrapped,), {})("adam"))


@pytest.fixture
def group() -> Iterator[None]:
    """A process group of one."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore:.torch.jit")  # what it imports
@pytest.mark.usefixtures("group")
def test_zero_redundancy_optimizer_is_refused():
    from torch.distributed.optim import ZeroRedundancyOptimizer

    sharded = ZeroRedundancyOptimizer(nn.Linear(2, 2).parameters(), torch.optim.Adam)
    with pytest.raises(ConfigError, match=r"ZeroRedundancyOptimizer .*is sharded"):
        raw_optimizer(sharded)


@pytest.mark.usefixtures("group")
def test_sharded_module_is_refused():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    module = nn.Sequential(nn.Linear(2, 2))
    fully_shard(module, mesh=init_device_mesh("cpu", (1,)))
    for part in (module, module[0].weight):
        with pytest.raises(ConfigError, match="is sharded: each process holds"):
            refuse_sharded([part])


@pytest.mark.parametrize("place", ["deepspeed.runtime.engine", "accelerate.utils.deepspeed"])
def test_deepspeed_is_refused_by_the_module_of_its_class(place: str):
    engine = type("DeepSpeedEngine", (nn.Module,), {"__module__": place})()
    with pytest.raises(ConfigError, match=f"DeepSpeedEngine .{place}. is sharded"):
        find_networks(nn.Sequential(engine), [], None)
    with pytest.raises(ConfigError, match="is sharded"):
        raw_optimizer(type("DeepSpeedOptimizerWrapper", (Wrapped,), {"__module__": place})(None))


@pytest.mark.usefixtures("group")
def test_wrapper_that_holds_the_whole_module_is_taken_off():
    module = nn.Linear(3, 3)
    wrapped = nn.parallel.DistributedDataParallel(module)
    optimizer = torch.optim.Adam(wrapped.parameters())
    networks = find_networks(wrapped, [optimizer], None)
    assert [b.name for b in networks["model"].blocks] == ["weight", "bias"]
    driver = begun([RESET | {"at": "2 updates"}], wrapped, optimizer)
    train(wrapped, optimizer, 2)
    assert len(driver.receipts) == 1


def test_network_of_frozen_layers_needs_no_optimizer():
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).requires_grad_(False))
    networks = find_networks(module, [torch.optim.SGD(module[0].parameters())], {"frozen": "1"})
    assert isinstance(networks["frozen"], Network)
