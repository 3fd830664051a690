"""Persistent Neurons: its figures 2, 3, 5 and 6, the last three small.

    python scripts/persistent_cases.py [CASE ...] --out docs/images

two_dimensions is a loop of its own. The paper's loss lacks a bracket; this one has the two minima
that its text names. The other cases are short runs of the arm `persistent` of study/persistent,
whose weights are looked at on the way: curve (figures 3 and 5, with `--iterations` of `--steps`)
and trajectories on digits (6, with the contours that `scripts/persistent_figures.py` lacks). The
champion is the best iteration but the plain one, by validation.
"""

import argparse
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from persistent_figures import iterations, plane_of
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import rlplast
from rlplast.report.frame import read
from rlplast.run import api
from rlplast.run.config_file import read_config
from rlplast.study.api import read_study_config
from rlplast.study.spec import runs_of

START = (-0.335, -1.4)


def valley(x: Tensor, y: Tensor) -> Tensor:
    """Return the loss of the paper's section 2, with minima near (2, −2) and (−2, −1)."""
    first = torch.exp(-((x - 2) ** 2 + (y + 2) ** 2) / 5)
    return -first - 1.5 * torch.exp(-((x + 2) ** 2 + (y + 1) ** 2))


def two_dimensions(folder: Path, steps: int = 50_000) -> None:
    """Draw figure 2: the plain and the persistent trajectory over the contours of the loss."""
    point = nn.Linear(2, 1, bias=False).double()
    with torch.no_grad():
        point.weight.copy_(torch.tensor([START]))
    optimizer = torch.optim.SGD(point.parameters(), lr=1e-3)
    network = rlplast.Network("net", point, optimizer)
    penalties = rlplast.Penalties([], network)
    row = {"method": "persistent", "on": "phase_start", "params": {"coef": 0.1, "solutions": 1}}
    hooks = rlplast.Hooks([row], network, f"{2 * steps + 1} updates", penalties=penalties)
    x, y = np.meshgrid(np.linspace(-4, 4, 200), np.linspace(-4, 1, 150))
    z = valley(torch.as_tensor(x), torch.as_tensor(y)).numpy()
    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    axes.contour(x, y, z, 20, cmap="Greys_r", linewidths=0.7)
    for phase, (name, colour) in enumerate({"plain": "green", "persistent": "red"}.items()):
        hooks.step(updates=phase * steps, phase=phase)
        path = []
        for _ in range(steps):
            path.append(point.weight[0].tolist())
            optimizer.zero_grad()
            penalties.add("net", valley(*point.weight[0])).backward()
            optimizer.step()
        end = point.weight[0].tolist()
        print(f"two dimensions, {name}: {end}")
        words = f"{name}: ({end[0]:.3f}, {end[1]:.3f})"
        axes.plot(*zip(*path[::50], strict=True), color=f"tab:{colour}", label=words)
        axes.plot(*end, "o", color=f"tab:{colour}")
    axes.plot(*START, "k*", label="start")
    axes.set(xlabel="x", ylabel="y")
    axes.legend()
    figure.savefig(folder / "persistent_two_dimensions.png", dpi=110)


@dataclass(frozen=True)
class Trained:
    """A run of persistent training.

    Attributes:
        trainable: what trained, with its last weights.
        weights: the weights (n,) by iteration and epoch in it; (i, 0) is θ0, but for i = 0.
        best: a row per iteration, `iterations` of scripts/persistent_figures.py.
    """

    trainable: Any
    weights: dict[tuple[int, int], Tensor]
    best: pd.DataFrame

    @property
    def champion(self) -> int:
        """The iteration with the best evaluation, without the plain one."""
        return int(self.best.iteration[self.best.champion].iloc[0])

    def put(self, weights: Tensor) -> Any:
        """Return what trained with other weights."""
        vector_to_parameters(weights, self.trainable.model.parameters())
        return self.trainable


def train(study: str, every: int, changes: dict[str, Any]) -> Trained:
    """Run the arm `persistent` of a study's first task, and keep its weights every so many epochs.

    Args:
        study: its name.
        every: epochs.
        changes: values by dotted key.
    """
    spec = read_study_config(study)
    overrides = next(run.overrides for run in runs_of(spec) if run.arm == "persistent")
    config: Any = read_config(spec.base, *overrides, changes)
    weights: dict[tuple[int, int], Tensor] = {}

    def keep(loop: Any) -> None:
        clock = loop.trainable.clock
        place = (clock.phase, clock.epochs - clock.phase * config.stream.epochs)
        if place[1] % every == 0 and place not in weights:
            weights[place] = parameters_to_vector(loop.trainable.model.parameters()).detach()

    with tempfile.TemporaryDirectory() as folder:
        run = api.train(config, Path(folder) / "run", observer=keep)
        trained = Trained(run.agent(), weights, iterations(read([Path(folder)])))
    best = ", ".join(f"{score:.4f}" for score in trained.best.validation)
    name = trained.best.score.iloc[0]
    print(f"{study}: best {name} by iteration {best}; champion {trained.champion}")
    return trained


def curve(folder: Path, iterations: int, steps: int) -> None:
    """Draw figures 3 and 5: the curve by the plain model and by the champion."""
    changes = {"stream.phases": iterations, "stream.epochs": steps}
    changes |= {"evaluate.every": f"{steps} epochs", "checkpoint.every": f"{steps} epochs"}
    trained = train("study/persistent/figures_3_4_5", steps, changes)
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
    left.plot(trained.best.validation, "o-")
    left.set(xlabel="iteration", ylabel="squared error", yscale="log")
    data = trained.trainable.data.train
    right.plot(data.x.flatten(), data.y.flatten(), "k.", markersize=3, label="data")
    for name, iteration in (("plain", 0), ("champion", trained.champion)):
        fit = trained.put(trained.weights[iteration, steps]).predict(data.x)
        right.plot(data.x.flatten(), fit, label=f"{name}, iteration {iteration}")
    right.legend()
    figure.savefig(folder / "persistent_one_dimension.png", dpi=110)


def trajectories(folder: Path) -> None:
    """Draw figure 6: trajectories of the plain model and of the champion, from one start.

    They are projected onto the plane through the start and both ends, which is ours: the paper does
    not say which. The contours are the validation error on that plane.
    """
    trained = train("study/persistent/digits", 1, {})
    paths = {
        name: torch.stack([w for (i, epoch), w in trained.weights.items() if i == number and epoch])
        for name, number in (("plain", 0), ("champion", trained.champion))
    }
    start = trained.weights[1, 0]
    last = ((path[-1] - start).numpy() for path in paths.values())
    plane = torch.from_numpy(plane_of(*last)).to(start)
    flat = {n: torch.cat([start[None], p]).sub(start) @ plane for n, p in paths.items()}
    every = torch.cat(list(flat.values()))
    margin = 0.2 * (every.amax(0) - every.amin(0))
    edges = zip(every.amin(0) - margin, every.amax(0) + margin, strict=True)
    x, y = (torch.linspace(float(low), float(high), 40) for low, high in edges)
    error = [
        [100 - 100 * trained.put(start + plane @ torch.stack([a, b])).evaluate(0, 0)["accuracy"]]
        for b in y
        for a in x
    ]
    figure, axes = plt.subplots(figsize=(6, 4.5), layout="constrained")
    lines = axes.contour(x, y, np.reshape(error, (40, 40)), 12, colors="0.6", linewidths=0.7)
    axes.clabel(lines, fontsize=6)
    for (name, path), colour in zip(flat.items(), ("tab:green", "tab:red"), strict=True):
        axes.plot(*path.T, ".-", color=colour, markersize=3, label=name)
        axes.plot(*path[-1], "o", color=colour)
    axes.plot(0, 0, "k*", label="start")
    axes.set(xlabel="towards the plain solution", ylabel="the champion's other direction")
    axes.set_aspect("equal")
    axes.legend(title="contours: validation error, %")
    figure.savefig(folder / "persistent_trajectories.png", dpi=110)


def main() -> int:
    """Draw the cases that are asked for."""
    cases = {
        "two_dimensions": two_dimensions,
        "curve": lambda folder: curve(folder, args.iterations, args.steps),
        "trajectories": trajectories,
    }
    mpl.use("Agg")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(cases)}; all")
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--steps", type=int, default=10_000)
    args = parser.parse_args()
    if unknown := set(args.cases) - set(cases):
        parser.error(f"unknown: {', '.join(unknown)}; allowed: {', '.join(cases)}")
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    for name in args.cases or cases:
        cases[name](args.out)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
