"""Measure runs on a GPU: updates per second, launches, waits, equal bits, several processes.

    python -m benchmarks.gpu                                  # tables, and gpu.json; some minutes
    python -m benchmarks.gpu --pretend --updates 2 --equal 8  # on the pretended device, to try it

Environments are made up and cost nothing, so that updates are measured: pictures of 84 × 84 for a
DQN with Nature's network, h1's sizes (51 observations, 19 actions) for SAC. Classifiers learn
random images, GPTs the source of Python's standard library. On the pretended device, which takes 6
to 15 minutes and g++, only counts and equality mean anything: rates are left out.

A line has what was measured, of what, how, and the figure; each figure is of one update or a
second. ``graph`` should be on by default if it is faster than ``off`` everywhere, equal to it, and
a killed run resumes equally.
"""

import argparse
import gc
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PICTURES, NUMBERS = (f"gym/benchmarks.made_envs:{name}-v0" for name in ("Pictures", "Numbers"))
SIMBA = {"agent.network": "simba"}
NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "dqn nature 32": ("dqn/asterix", {"env.id": PICTURES}),
    "sac 2 × 256": (
        "sac/h1_walk",
        {"env.id": NUMBERS, "agent.network": "mlp"},
    ),
    "sac simba fp32": ("sac/h1_walk", {"env.id": NUMBERS} | SIMBA),
    "sac simba high": (
        "sac/h1_walk",
        {"env.id": NUMBERS, "matmul": "high"} | SIMBA,
    ),
}
INSIDE: dict[str, dict[str, Any]] = {
    "nothing": {},
    "swr": {"hooks": [{"method": "swr", "every": "1 updates"}]},
    "cbp": {"hooks": [{"method": "cbp", "every": "1 updates"}]},
    "lifecycle": {"layers": [{"method": "lifecycle"}]},
}
LONG = {"stream": {"name": "single_task", "epochs": 100_000}}
TRAINERS: dict[str, dict[str, Any]] = {
    "supervised/fire_cifar10_resnet18": LONG,
    "supervised/fire_cifar100_vit": LONG,
    "gpt/fire_a42_phase1": {"batch_size": 32, "micro_batch": None},
}
LIKE = {"supervised/fire_cifar10_resnet18": "cifar10", "supervised/fire_cifar100_vit": "cifar100"}
TINY: dict[str, dict[str, Any]] = {  # of a pretended device
    "supervised/fire_cifar100_vit": {"batch_size": 16},
    "supervised/fire_cifar10_resnet18": {"model.width": 4, "model.hidden": [16]},
    "gpt/fire_a42_phase1": {"model.layers": 2, "model.width": 48, "model.context": 8},
}
QUIET = {
    "log": {"every": "5%"},
    "evaluate": {"every": None},
    "metrics": {"every": None},
    "checkpoint": {"every": "10%"},
}
PRECISIONS: dict[str, dict[str, Any]] = {
    "fp32": {"precision": "fp32"},
    "high": {"precision": "fp32", "matmul": "high"},
    "bf16": {"precision": "bf16"},
}
COMMON: dict[str, Any] = {
    "device": "cuda",
    "threads": 1,
    "hooks": [],
    "layers": [],
    "total": "400k env_steps",
    "env.options": {},
    "env.num_envs": 1,
    "agent.buffer_size": 20_000,
    "agent.initial_steps": 1000,
    "replay_ratio": 1,
}


def config_of(network: str, inside: str, how: str) -> Any:
    """Return a config."""
    from rlplast.run.config_file import read_config

    name, keys = NETWORKS[network]
    keys = COMMON | keys | INSIDE[inside]
    if name.startswith("dqn"):
        keys |= {"env.options": {"frame_stack": 4}}
    if "device" in how:
        keys |= {"agent.replay": "device"}
    return read_config(name, keys)


def agent_of(network: str, inside: str, how: str) -> Any:
    """Return an agent past its random steps, whose replay is filled."""
    from rlplast.core.fast.graphs import graphs_of
    from rlplast.run.timing import ready

    accelerate = "compile" if how.startswith("compile") else how.split(",")[0]
    agent, _ = ready(config_of(network, inside, how), accelerate)
    if how == "compile in graph":
        agent._graphs = graphs_of("graph", agent.device, "agent.accelerate")
    return agent


def trainer_keys(name: str, accelerate: str, pretend: bool) -> dict[str, Any]:
    """Return a config's keys for a classifier or a GPT, with data that need no file."""
    keys: dict[str, Any] = {"device": "cuda", "threads": 8, "hooks": [], "accelerate": accelerate}
    data: Any = {"corpora": {"wikitext": "embedded/stdlib"}}
    if name.startswith("supervised"):  # ten batches
        data = {"data": {"name": "random", "examples": 2560, "like": LIKE[name]}}
    return keys | TRAINERS[name] | data | (TINY[name] if pretend else {})


def trainer_of(name: str, precision: str, accelerate: str, pretend: bool) -> Any:
    """Return a classifier or a GPT."""
    from rlplast.run.timing import built

    return built(name, trainer_keys(name, accelerate, pretend) | PRECISIONS[precision])[0]


def repeated(step: Callable[[], object]) -> Callable[[int], None]:
    """Return what makes so many updates, and waits for them."""
    import torch

    def run(count: int) -> None:
        for _ in range(count):
            step()
        torch.cuda.synchronize()

    return run


def rate(run: Callable[[int], object], count: int) -> float:
    """Return updates per second: the median of five turns, after a few that set things up."""
    seconds = []
    run(max(8, count // 10))
    for _ in range(5):
        started = time.perf_counter()
        run(count)
        seconds.append(time.perf_counter() - started)
    return count / statistics.median(seconds)


def profiled(run: Callable[[int], object], count: int) -> dict[str, float]:
    """Return launches of kernels and graphs, and milliseconds of kernels, by torch's profiler."""
    import torch
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        run(count)
    torch.cuda.synchronize()
    names = ("cudaLaunchKernel", "cudaGraphLaunch", "cuLaunchKernel", "cudaLaunchKernelExC")
    rows = seen.key_averages()
    kernels = [row for row in rows if row.device_type == DeviceType.CUDA]  # not their operators
    return {
        "launches": sum(row.count for row in rows if row.key in names) / count,
        "GPU ms": sum(row.self_device_time_total for row in kernels) / count / 1000,
    }


def host_ms(step: Callable[[], object], count: int) -> float:
    """Return the milliseconds until an update is launched: few, so that no queue is full."""
    import torch

    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(count):
        step()
    milliseconds = 1000 * (time.perf_counter() - started) / count
    torch.cuda.synchronize()
    return milliseconds


def pretended_launches(run: Callable[[int], object], count: int) -> float:
    """Return the same of the pretended device."""
    from tests.pretend.device import counted

    with counted() as seen:
        run(count)
    return (seen.launched + seen.graphs) / count


def waits(agent: Any, count: int) -> str:
    """Return what the host waits for in updates: an error of torch, or nothing."""
    import torch

    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(count):
            agent.update()
    except RuntimeError as error:
        return str(error).splitlines()[0][:100]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return "none"


def equal(network: str, inside: str, count: int) -> str:
    """Say whether graphs have the bits of eager updates, and in how many tensors not."""
    import torch

    found = []
    for how in ("off", "graph"):
        agent = agent_of(network, inside, how)
        for _ in range(count):
            agent.update()
        modules = [network.module for network in agent.networks.values()]
        found.append([t.cpu().clone() for module in modules for t in module.state_dict().values()])
        agent.close()
    bad = sum(not torch.equal(a, b) for a, b in zip(*found, strict=True))
    return f"{bad} of {len(found[0])} tensors differ" if bad else "equal"


def agent_resumed(network: str, how: str) -> str:
    """Say whether an agent's run that was killed ends as one that was not."""
    import dataclasses

    config = dataclasses.asdict(config_of(network, "nothing", how))
    config |= QUIET | {"total": "1200 env_steps"}
    config["agent"] |= {"accelerate": how, "buffer_size": 2000}
    return resumed(config, 1300)


def trainer_resumed(name: str, how: str, pretend: bool) -> str:
    """Say the same of a classifier's or a GPT's; `how` is off or graph, and deterministic."""
    import dataclasses

    from rlplast.run.config_file import read_config

    accelerate, _, deterministic = how.partition(", ")
    keys = trainer_keys(name, accelerate, pretend) | QUIET | {"deterministic": bool(deterministic)}
    if name.startswith("supervised"):
        keys |= {"stream": {"name": "single_task", "epochs": 4}}
    else:
        keys |= {"total": "40 updates"}
    return resumed(dataclasses.asdict(read_config(name, keys)), 25)


def resumed(config: Any, killed_after: int) -> str:
    """Say whether a run that is killed after so many steps ends as one that is not."""
    from rlplast.run import api
    from tests.runs import Killed, at_step, final, kill

    with tempfile.TemporaryDirectory() as folder:
        whole, cut = Path(folder, "whole"), Path(folder, "cut")
        api.train(config, whole)
        try:
            api.train(config, cut, observer=at_step(killed_after, kill))
        except Killed:
            api.resume(cut)
        else:
            return "was not killed"
        return "equal" if final(whole) == final(cut) else "differs"


def processes(number: int, count: int) -> float:
    """Return the updates per second of so many processes together."""
    command = [sys.executable, "-m", "benchmarks.gpu", "--one", str(count)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(number)]
    return sum(float(process.communicate()[0].split()[-1]) for process in running)


class Notes:
    """What was measured: printed line by line, and kept in a file."""

    def __init__(self, path: Path) -> None:
        import torch

        from rlplast.core.device import device_info

        self.path = path
        self.found = {"device": device_info(torch.device("cuda")), "torch": torch.__version__}
        print(self.found, flush=True)

    def __call__(self, what: str, *key: str, value: Any) -> None:
        """Note one value."""
        self.found.setdefault(what, {})[", ".join(key)] = value
        shown = value if isinstance(value, str) else f"{value:,.{0 if value > 99 else 2}f}"
        print(what, *key, shown, sep=" | ", flush=True)
        self.path.write_text(json.dumps(self.found, indent=1))

    def found_by(self, measure: Callable[..., Any], what: str, *key: str, of: Any) -> None:
        """Note what a function returns, or its problem."""
        with self.problems_of(*key):
            self(what, *key, value=measure(*of))

    @contextmanager
    def problems_of(self, *key: str) -> Iterator[None]:
        """Note an error in place of a value: the other figures matter too."""
        import torch

        gc.collect()  # the memory of trainers and their graphs is needed again
        torch.cuda.empty_cache()
        try:
            yield
        except Exception as error:  # whatever a GPU of somebody else does
            traceback.print_exc()
            self("problems", *key, value=f"{type(error).__name__}: {error}"[:300])


def ways(network: str, inside: str) -> list[str]:
    """Return how a network's updates are measured with a method inside them, but for compile."""
    pictures = network.startswith("dqn") and inside == "nothing"
    return ["off", "graph"] + (["graph, frames on the device"] if pictures else [])


def measure(note: Notes, turn: int, compared: int, pretend: bool) -> None:
    """Measure everything, what takes long last."""
    few = max(2, turn // 40)
    for network, inside in itertools.product(NETWORKS, INSIDE):
        for how in ways(network, inside):
            measure_agent(note, turn, pretend, network, inside, how)
    for name, precision, how in itertools.product(TRAINERS, PRECISIONS, ("off", "graph")):
        measure_trainer(note, few, pretend, name, precision, how)
    for number in () if pretend else (1, 2, 4, 8):
        note.found_by(processes, "updates/s together", f"{number} processes", of=(number, turn))
    for network, how in itertools.product(("dqn nature 32", "sac 2 × 256"), ("off", "graph")):
        note.found_by(agent_resumed, "kill and resume", network, how, of=(network, how))
    for name, how in itertools.product(TRAINERS, ("off", "graph", "off, deterministic")):
        note.found_by(trainer_resumed, "kill and resume", name, how, of=(name, how, pretend))
    for network, inside in itertools.product(NETWORKS, INSIDE):
        note.found_by(equal, "graph and off", network, inside, of=(network, inside, compared))
    if pretend:
        return  # which no code is compiled for
    for network, how in itertools.product(NETWORKS, ("compile", "compile in graph")):
        measure_agent(note, turn, pretend, network, "nothing", how)
    for name, precision in itertools.product(TRAINERS, PRECISIONS):
        measure_trainer(note, few, pretend, name, precision, "compile")


def measure_updates(
    note: Notes, step: Callable[[], object], turn: int, pretend: bool, *key: str
) -> None:
    """Measure updates: rate, launches, time of host and GPU; on a pretended device launches."""
    run = repeated(step)
    if pretend:
        run(8)  # which set things up
        note("launches", *key, value=pretended_launches(run, 4))
        return
    note("updates/s", *key, value=rate(run, turn))
    note("host ms", *key, value=host_ms(step, 4))
    for what, value in profiled(run, 4).items():
        note(what, *key, value=value)


def measure_trainer(note: Notes, turn: int, pretend: bool, *key: str) -> None:
    """Measure a classifier or a GPT, and of convolutions both orders of weights in memory."""
    import torch

    name, precision, how = key
    for first in (False, True) if name.startswith("supervised") and how == "off" else (False,):
        with note.problems_of(*key):
            trainer = trainer_of(name, precision, how, pretend)
            if first:
                trainer.model.to(memory_format=torch.contiguous_format)
            key = (name, precision, how + ", channels first" * first)
            measure_updates(note, trainer.step, turn, pretend, *key)
            trainer.close()


def measure_agent(note: Notes, turn: int, pretend: bool, *key: str) -> None:
    """Measure a DQN or a SAC."""
    with note.problems_of(*key):
        agent = agent_of(*key)
        measure_updates(note, agent.update, turn, pretend, *key)
        if not pretend:  # where tests/pretend/test_captured.py counts them
            note("waits", *key, value=waits(agent, 20))
        agent.close()


def main() -> None:
    """Read arguments, and measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--updates", type=int, default=300, help="timed at once (default 300)")
    parser.add_argument(
        "--equal", type=int, default=1000, help="after which graph and off are compared (1000)"
    )
    parser.add_argument("--out", type=Path, default=Path("gpu.json"), help="default gpu.json")
    parser.add_argument("--pretend", action="store_true", help="on the pretended device")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.pretend:
        from tests.pretend import device

        device.load()
    import torch

    if not torch.cuda.is_available():
        parser.error("PyTorch sees no GPU here: try --pretend")
    warnings.simplefilter("ignore")
    if args.one is not None:  # one of several processes
        print(rate(repeated(agent_of("sac 2 × 256", "nothing", "graph").update), args.one))
        return
    measure(Notes(args.out), args.updates, args.equal, args.pretend)


if __name__ == "__main__":
    main()
