"""How fast this machine is, part by part: what `rlplast bench` measures.

- `measure`: every part of an agent's config, as `Row`s.
- `verdict`: whether a choice to compile updates, or not to, is right for a run.
"""

import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import shorten
from typing import Any

import numpy as np

from rlplast.core.device import choose_device
from rlplast.core.errors import RlplastError
from rlplast.core.method.hooks import Hooks
from rlplast.core.rng import numpy_stream
from rlplast.run.timing import (
    Steps,
    inside,
    medians,
    on_cores,
    paced,
    peers,
    ready,
    timed,
    training,
    updates,
)
from rlplast.training.loop import Loop
from rlplast.training.run_folder import RunFolder

__all__ = ["Measured", "Row", "Verdict", "measure", "verdict"]

FIRST_CALLS = 3  # updates by whose end everything is compiled
SAME = 0.02  # share of a run's time within which two choices count as equal
METHODS: tuple[dict[str, Any], ...] = (  # measured whatever hooks a config has
    {"method": "fire", "at": "50%"},
    {"method": "shrink_perturb", "at": "50%"},
    {"method": "redo", "at": "50%"},
    {"method": "swr", "every": "1 updates"},
)


@dataclass(frozen=True)
class Row:
    """A line of the report.

    Attributes:
        name: what was measured.
        value: its median; None if it was not measured.
        unit: of the value.
        least: of all rounds; None if there was one.
        most: likewise.
        note: why there is no value.
    """

    name: str
    value: float | None
    unit: str = ""
    least: float | None = None
    most: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Measured:
    """What `measure` finds.

    Attributes:
        rows: the report.
        compile: seconds of the first compilation; None if updates do not compile here.
        eager: seconds of an update.
        compiled: seconds of a compiled update.
    """

    rows: list[Row]
    compile: float | None
    eager: float
    compiled: float


@dataclass(frozen=True)
class Verdict:
    """Whether a choice of `agent.accelerate` is right for a run.

    Attributes:
        best: the choice with which its updates take less time: off or compile.
        right: whether the choice made takes as long, or nearly so.
        lost: seconds that the choice made takes more than the other one.
        pays_from: updates from which compilation pays; None if it never does.
    """

    best: str
    right: bool
    lost: float
    pays_from: float | None


def verdict(choice: str, updates: float, compile: float, eager: float, compiled: float) -> Verdict:
    """Return whether a choice, off or compile, is right for a run of so many updates.

    `compile`, `eager` and `compiled` are seconds: of the compilation, and of an update.
    """
    seconds = {"off": updates * eager, "compile": compile + updates * compiled}
    best = "compile" if seconds["compile"] < seconds["off"] else "off"
    lost = seconds[choice] - seconds["off" if choice == "compile" else "compile"]
    pays_from = compile / (eager - compiled) if compiled < eager else None
    return Verdict(best, lost <= SAME * seconds[best], lost, pays_from)


def measure(config: Any, rounds: int, say: Callable[[str], None]) -> Measured:
    """Measure every part of an agent's config; files go to a folder that is removed.

    Args:
        config: of a DQN or SAC.
        rounds: turns that each side of a comparison gets; figures are medians over them.
        say: told of each part as it begins.

    Raises:
        RlplastError: for what the config asks that is not there.
    """
    n = config.env.num_envs
    with ExitStack() as stack:
        if choose_device(config.device).type == "cpu":
            _make_headers(say)
        files = TemporaryDirectory(prefix="rlplast-bench-", ignore_cleanup_errors=True)
        folder = Path(stack.enter_context(files))
        stack.enter_context(_compiling_into(folder / "compiled"))
        say("environment, acting, replay")
        agent, hooks = ready(config, "off")
        stack.callback(agent.close)
        rows = _experience(agent, rounds)
        say("compiling an update: up to a minute")
        sides = {"eager": agent}
        compiling, problem = None, ""
        try:
            other, _ = ready(config, "compile")
            stack.callback(other.close)
            compiling = timed(updates(other), FIRST_CALLS)
            sides["compiled"] = other
        except Exception as error:  # compilers may raise anything
            problem = f"does not compile here: {shorten(str(error), 160)}"
        say("updates")
        times = paced({name: updates(one) for name, one in sides.items()}, rounds)
        median = medians(times)
        rows += [_row(f"update, {name}", times[name], 1e3, "ms") for name in sides]
        if compiling is None:
            rows.append(Row("update, compiled", None, note=problem))
        else:
            compiling = max(0.0, compiling - FIRST_CALLS * median["compiled"])
            rows.append(Row("compilation, without caches", compiling, "s"))
        say("training, with Stable-Baselines3 and SBX")
        with on_cores(config.threads if config.env.workers == 0 else os.cpu_count() or 1):
            others, reasons = peers(config, agent)
            runs = {name: training(one) for name, one in sides.items()} | others
            for name, seconds in paced(runs, rounds).items():
                rows.append(_row(f"training, {name}", [n / s for s in seconds], 1, "env_steps/s"))
        rows += [Row(f"training, {name}", None, note=why) for name, why in reasons.items()]
        say("checkpoint")
        rows += _checkpoint(agent, hooks, folder / "run", rounds)
        say("methods")
        rows += _methods(agent, rounds)
    return Measured(rows, compiling, median["eager"], median.get("compiled", float("inf")))


def _make_headers(say: Callable[[str], None]) -> None:
    """Let torch precompile its headers, which it does and keeps once for all compilations."""
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    if not Path(default_cache_dir(), "precompiled_headers").exists():
        say("headers of torch, once on a machine: up to a minute")
        how = "options={'cpp_wrapper': True}"  # as updates are compiled
        program = f"import torch; torch.compile(torch.sin, {how})(torch.ones(8))"
        with suppress(OSError, subprocess.TimeoutExpired):  # compiling says what is wrong
            command = [sys.executable, "-c", program]
            subprocess.run(command, capture_output=True, timeout=120, check=False)


@contextmanager
def _compiling_into(folder: Path) -> Iterator[None]:
    """Let the compiler find nothing, and leave nothing, in its caches."""
    names = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TMPDIR")
    before = {name: os.environ.get(name) for name in names}
    for name in names:
        path = folder / name.lower()
        path.mkdir(parents=True)
        os.environ[name] = str(path)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _row(name: str, times: list[float], scale: float, unit: str) -> Row:
    values = [scale * t for t in times]
    return Row(name, statistics.median(values), unit, min(values), max(values))


def _experience(agent: Any, rounds: int) -> list[Row]:
    """Return what stepping environments, acting and sampling take."""
    config, spec, n = agent.config, agent.spec, agent.config.env.num_envs
    rngs = [numpy_stream(config.seed, "bench", i) for i in range(n)]
    env = agent.tasks.make(0, rngs, config.env.workers)
    if spec.action_dim is None:
        actions: Any = rngs[0].integers(spec.num_actions, size=(64, n))
    else:
        actions = rngs[0].uniform(-1, 1, (64, n, spec.action_dim)).astype(np.float32)
    obs = agent.experience.obs()
    calls = {
        "env": lambda i: env.step(actions[i % 64]),
        "act": lambda i: agent._act_greedily(obs),
        "sample": lambda i: agent.experience.replay.sample(),
    }
    try:
        env.reset()
        times = {name: paced({name: _repeated(call)}, rounds)[name] for name, call in calls.items()}
    finally:
        env.close()
    batch, size = config.agent.batch_size, agent.experience.replay.size
    return [
        _row(
            f"environment alone, {n} side by side", [n / t for t in times["env"]], 1, "env_steps/s"
        ),
        _row(f"acting, {n} side by side", times["act"], 1e3, "ms"),
        _row(f"replay, a batch of {batch} from {size} transitions", times["sample"], 1e3, "ms"),
    ]


def _repeated(call: Callable[[int], object]) -> Steps:
    def run(count: int) -> None:
        for i in range(count):
            call(i)

    return run


def _checkpoint(agent: Any, hooks: Hooks, folder: Path, rounds: int) -> list[Row]:
    """Return what the run's own loop takes for a checkpoint, written to its end."""
    config, replay = agent.config, agent.experience.replay
    loop = Loop(agent, hooks, config.total_time(), RunFolder(folder), config.cadence())

    def save() -> None:
        loop._checkpoint()
        loop._settle()

    times = []
    try:
        for _ in range(rounds + 1):  # the first one has initial weights to write too
            agent.step()
            times.append(timed(save))
    finally:
        with suppress(RlplastError):  # of a thread whose folder is gone
            loop._background.wait()
        loop.folder.close()
    newest = max((folder / "checkpoints").iterdir(), key=lambda path: path.stat().st_mtime)
    count = sum(path.stat().st_size for path in newest.rglob("*") if path.is_file())
    stored = min(config.agent.buffer_size, replay.size)
    return [
        _row(f"checkpoint with {stored} transitions, time", times[1:], 1e3, "ms"),
        Row(f"checkpoint with {stored} transitions, size", count / 1e6, "MB"),
    ]


def _methods(agent: Any, rounds: int) -> list[Row]:
    """Return what each hook of a config takes, and a few methods whatever it has."""
    config = agent.config
    own = {row["method"] for row in config.hooks}
    rows: list[Row] = []
    for entry in [*config.hooks, *(row for row in METHODS if row["method"] not in own)]:
        try:
            rows += _method(agent, entry, rounds)
        except RlplastError as error:
            rows.append(Row(entry["method"], None, note=shorten(f"refused: {error}", 160)))
    return rows


def _method(agent: Any, entry: Mapping[str, Any], rounds: int) -> list[Row]:
    config, name = agent.config, entry["method"]
    hooks = Hooks(
        [entry],
        agent.networks,
        config.reference_time(),
        config.seed,
        agent.units,
        config.horizon(),
        source=agent,
        penalties=agent.penalties,
    )
    hook, rows = hooks.hooks[-1], []

    def fire(i: int) -> None:
        hook.fire(agent.clock, 1, config.seed)

    if not hook.schedule.every_update:
        once = hook.method.fires_once
        times = [timed(fire, 0)] if once else paced({"": _repeated(fire)}, rounds)[""]
        rows.append(_row(f"{name}, a firing", times, 1e3, "ms"))
    if hook in hooks.inside:
        sides = paced(inside(agent, hooks), rounds)
        added = [b - a for a, b in zip(sides["without"], sides["with"], strict=True)]
        rows.append(_row(f"{name}, added to an update", added, 1e3, "ms"))
    return rows
