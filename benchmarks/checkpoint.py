"""What a checkpoint costs: bytes on disk, and how much slower training is while one is written.

    python -m benchmarks.checkpoint [--rows 100000] [--num-envs 4] [--threads 1] [--arms 0]

A DQN with the Nature CNN and a full replay of N synthetic Atari frames makes checkpoints
10 000 env_steps apart, in the loop that every run uses. The emulator is not stepped: an environment
step stores frames drawn beforehand, and the env_steps between two checkpoints take no time.

Printed are the bytes of the first checkpoint and of the next ones, those of the first one
extrapolated to a million transitions by its bytes per transition; and the times of the updates that
run while a checkpoint is written, against the median of those that run while none is. The step
that a checkpoint is due at is longer by its snapshot, which is printed too and counts as a step.
With `--arms` so many processes then go on from the newest checkpoint at the same time: each samples
and adds 10 000 transitions, and what they take of the machine's memory is printed (Pss: a page that
several share counts as a part for each).
"""

import argparse
import multiprocessing
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlplast.agents.dqn import DQN
from rlplast.agents.replay import Replay
from rlplast.core.clock import Clock, Time
from rlplast.core.method.hooks import Hooks
from rlplast.core.method.schedule import Schedule
from rlplast.envs.base import EnvSpec
from rlplast.run import api
from rlplast.training import checkpoint
from rlplast.training.loop import Intervals, Loop
from rlplast.training.run_folder import RunFolder

APART = 10_000  # env_steps from one checkpoint to the next
MILLION = 1_000_000
FRAMES = EnvSpec("frames", (84, 84), "uint8", 4, 18, 4, None)


class Synthetic(DQN):
    """A DQN that steps no environment: so many updates, then the env_steps up to a checkpoint."""

    def __init__(self, rows: int, num_envs: int, updates: int) -> None:
        keys = {"env.num_envs": num_envs, "agent.buffer_size": rows, "device": "cpu"}
        config: Any = api.read_config("dqn/asterix", keys)
        super().__init__(config, torch.device("cpu"))
        self.num_envs, self.apart = num_envs, updates
        rng = np.random.default_rng(0)
        self.frames = rng.integers(0, 256, (64, num_envs, 84, 84), np.uint8)
        self.actions = rng.integers(self.num_actions, size=(64, num_envs))
        self.step_ended = 0.0
        self.store(rows // num_envs + 1)
        self.update()  # its optimizer has state from the first checkpoint on
        self.clock = Clock()

    def store(self, steps: int) -> None:
        no, reward = np.zeros(self.num_envs, bool), np.ones(self.num_envs)
        for step in range(steps):
            frame = self.frames[step % 64]
            self.experience.replay.add(self.actions[step % 64], reward, no, no, frame, frame)

    def owes(self) -> bool:
        return self.clock.updates < self.apart * (self.clock.env_steps // APART + 1)

    def _environment_step(self) -> None:
        self.store(APART // self.num_envs)
        self.clock = self.clock.advance(env_steps=APART)

    def step(self) -> None:
        super().step()
        self.step_ended = time.perf_counter()


class Stopwatch:
    """Observer of a loop: seconds of each step, by whether a checkpoint was being written."""

    def __init__(self) -> None:
        self.quiet: list[float] = []
        self.writing: list[float] = []
        self.snapshots: list[float] = []
        self._last, self._saving, self._clock = 0.0, False, Clock()

    def __call__(self, loop: Loop) -> None:
        now, trainable = time.perf_counter(), loop.trainable
        assert isinstance(trainable, Synthetic)
        if trainable.clock.env_steps > self._clock.env_steps:
            self.snapshots.append(now - trainable.step_ended)
        elif self._last:  # the first one comes after the first checkpoint
            during = self._saving or loop.saving
            (self.writing if during else self.quiet).append(now - self._last)
        self._saving, self._clock, self._last = loop.saving, trainable.clock, time.perf_counter()


def bench(folder: Path, trainable: Synthetic, checkpoints: int) -> Stopwatch:
    """Run through so many checkpoints after the first, all of which are kept."""
    total = Time(checkpoints * APART + 1, "env_steps")
    every = Schedule.parse({"every": f"{APART} env_steps"}, total)
    watch = Stopwatch()
    loop = Loop(
        trainable,
        Hooks((), trainable.networks, str(total), 0, trainable.units),
        total,
        RunFolder(folder),
        Intervals(every, None, None, every, keep=checkpoints + 2),
        observer=watch,
        until=(Time(trainable.apart * (checkpoints + 1), "updates"),),
    )
    loop.run()
    loop.folder.close()
    return watch


def sizes(folder: Path, known: set[int]) -> tuple[int, int, int]:
    """Return bytes of a checkpoint, of its replay, and of files not in `known`, which they join."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    about = {path: path.stat() for path in files}
    total = sum(a.st_size for a in about.values())
    replay = sum(a.st_size for path, a in about.items() if path.parent.name == "replay")
    new = sum(a.st_size for a in about.values() if a.st_ino not in known)
    known |= {a.st_ino for a in about.values()}
    return total, replay, new


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=100_000, help="transitions in the replay")
    parser.add_argument("--num-envs", type=int, default=4, help="environments, a ring each")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of torch")
    parser.add_argument("--checkpoints", type=int, default=5, help="checkpoints after the first")
    parser.add_argument("--updates", type=int, default=200, help="updates between two checkpoints")
    parser.add_argument("--folder", type=Path, help="where to write; default: the system's own")
    parser.add_argument("--arms", type=int, default=0, help="processes that go on at once")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    trainable = Synthetic(options.rows, options.num_envs, options.updates)
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        watch = bench(Path(name), trainable, options.checkpoints)
        known: set[int] = set()
        found = sorted((Path(name) / "checkpoints").glob("step-*"), key=number)
        measured = [sizes(path, known) for path in found]
        arms: list[float] = []
        if options.arms:
            del trainable
            arms = memory_of_arms(found[-1], options.rows, options.num_envs, options.arms)
    first, replay, _ = measured[0]
    scaled = replay / options.rows * MILLION + first - replay
    print(f"first checkpoint, {options.rows} transitions: {first / 1e6:.1f} MB")
    print(
        f"    per transition {replay / options.rows:.1f} bytes, so for 10^6: {scaled / 1e9:.3f} GB"
    )
    new = ", ".join(f"{new / 1e6:.1f}" for _, _, new in measured[1 : options.checkpoints + 1])
    print(f"next ones, {APART} env_steps later each: {new} MB")
    if arms:
        shown = ", ".join(f"{one:.2f}" for one in arms)
        print(f"memory of {len(arms)} arms at once: {shown}: {sum(arms):.2f} GB in all")
    median = statistics.median(watch.quiet)
    longest = max([*watch.writing, *(median + s for s in watch.snapshots)])
    print(f"updates, {options.threads} threads, milliseconds: median / 95 % / longest")
    for words, times in (
        (f"{len(watch.quiet)} while nothing is written", watch.quiet),
        (f"{len(watch.writing)} while a checkpoint is written", watch.writing),
        (f"{len(watch.snapshots)} snapshots", watch.snapshots),
    ):
        shown = " / ".join(f"{np.quantile(times, q) * 1e3:.1f}" for q in (0.5, 0.95, 1))
        print(f"    {words}: {shown}")
    print(f"slowest step of a write / median step without: {longest / median:.2f}")
    print(f"slowest step without a write / median step without: {max(watch.quiet) / median:.2f}")


def memory_of_arms(checkpoint_folder: Path, rows: int, num_envs: int, arms: int) -> list[float]:
    """Return gigabytes of each of so many processes that go on from one checkpoint at once."""
    context = multiprocessing.get_context("spawn")
    all_there, asked = context.Barrier(arms + 1), context.Event()
    about = (checkpoint_folder, rows, num_envs, all_there, asked)
    processes = [context.Process(target=arm, args=about) for _ in range(arms)]
    for process in processes:
        process.start()
    all_there.wait(600)  # seconds, or it is given up
    texts = [Path(f"/proc/{process.pid}/smaps_rollup").read_text() for process in processes]
    asked.set()
    for process in processes:
        process.join()
    found = (line.split() for text in texts for line in text.splitlines())
    return [int(words[1]) * 1024 / 1e9 for words in found if words[0] == "Pss:"]


def arm(folder: Path, rows: int, num_envs: int, all_there: Any, asked: Any) -> None:
    """Go on from a checkpoint and wait to be measured."""
    torch.set_num_threads(1)
    replay = Replay(rows, num_envs, FRAMES, 1, 0.99, 32, np.random.default_rng(0))
    replay.load(folder / "replay", checkpoint.load(folder)[1]["trainable"]["experience"]["replay"])
    no, reward = np.zeros(num_envs, bool), np.ones(num_envs)
    frame = np.zeros((num_envs, 84, 84), np.uint8)
    for _ in range(APART // num_envs):
        replay.add(np.zeros(num_envs, int), reward, no, no, frame, frame)
    for _ in range(1000):
        replay.sample()
    all_there.wait(600)  # seconds, or it is given up
    asked.wait(60)


def number(path: Path) -> int:
    return int(path.name.split("-")[1])


if __name__ == "__main__":
    main()
