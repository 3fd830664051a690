"""Persistent Neurons, figures 1 to 5: two parameters, and a curve, in loops of their own.

    python scripts/persistent_cases.py --out docs/images

The paper's loss lacks a bracket; this one has the two minima that its text names. Its curve exists
as a picture only: here y = |x| + 3 sin(2x) at 40 points of [−3, 3]. `--iterations` and `--steps`
shorten the curve's training.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch
from torch import Tensor, nn

import rlplast

START = (-0.335, -1.4)
WIDTH, CURVE_LR, MOMENTUM = 32, 1e-3, 0.9


def valley(x: Tensor, y: Tensor) -> Tensor:
    """Return the loss of the paper's section 2, with minima near (2, −2) and (−2, −1)."""
    first = torch.exp(-((x - 2) ** 2 + (y + 2) ** 2) / 5)
    return -first - 1.5 * torch.exp(-((x + 2) ** 2 + (y + 1) ** 2))


def iterate(
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: Callable[[], Tensor],
    iterations: int,
    steps: int,
    coef: float,
    note: Callable[[int, int, float], object],
) -> None:
    """Train persistently: after each iteration the weights are remembered and start anew.

    Args:
        module: what trains.
        optimizer: trains it.
        loss: its loss, without the penalty.
        iterations: the first of them is plain.
        steps: updates of each.
        coef: strength of the penalty.
        note: told iteration, step and loss before each update, and at the end of an iteration.
    """
    network = rlplast.Network("net", module, optimizer)
    penalties = rlplast.Penalties([], network)
    params = {"coef": coef, "solutions": max(1, iterations - 1)}
    row = {"method": "persistent", "on": "phase_start", "params": params}
    hooks = rlplast.Hooks([row], network, f"{iterations * steps + 1} updates", penalties=penalties)
    for phase in range(iterations):
        hooks.step(updates=phase * steps, phase=phase)
        for step in range(steps):
            value = loss()
            note(phase, step, float(value.detach()))
            optimizer.zero_grad()
            penalties.add("net", value).backward()
            optimizer.step()
        note(phase, steps, float(loss().detach()))


def two_dimensions(folder: Path, steps: int) -> None:
    """Draw figure 2: both trajectories over the contours of the loss."""
    import matplotlib.pyplot as plt

    point = nn.Linear(2, 1, bias=False).double()
    with torch.no_grad():
        point.weight.copy_(torch.tensor([START]))
    paths: list[list[list[float]]] = [[], []]

    def note(phase: int, step: int, value: float) -> None:
        if step % 50 == 0:
            paths[phase].append(point.weight[0].tolist())

    optimizer = torch.optim.SGD(point.parameters(), lr=1e-3)
    iterate(point, optimizer, lambda: valley(*point.weight[0]), 2, steps, 0.1, note)
    x, y = np.meshgrid(np.linspace(-4, 4, 200), np.linspace(-4, 1, 150))
    z = valley(torch.as_tensor(x), torch.as_tensor(y)).numpy()
    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    axes.contour(x, y, z, 20, cmap="Greys_r", linewidths=0.7)
    for name, path, colour in zip(
        ("plain", "persistent"), paths, ("tab:green", "tab:red"), strict=True
    ):
        end = path[-1]
        axes.plot(
            *zip(*path, strict=True), color=colour, label=f"{name}: ({end[0]:.3f}, {end[1]:.3f})"
        )
        axes.plot(*end, "o", color=colour)
        print(f"two dimensions, {name}: {end}")
    axes.plot(*START, "k*", label="start")
    axes.set(xlabel="x", ylabel="y")
    axes.legend()
    figure.savefig(folder / "persistent_two_dimensions.png", dpi=110)


def curve(folder: Path, iterations: int, steps: int, seed: int) -> None:
    """Draw figures 3 and 5: the curve by the plain model and by the champion."""
    import matplotlib.pyplot as plt

    x = torch.linspace(-3, 3, 40)[:, None]
    y = x.abs() + 3 * torch.sin(2 * x)
    torch.manual_seed(seed)
    sizes = [(1, WIDTH), (WIDTH, WIDTH), (WIDTH, 1)]
    layers = [nn.Linear(*size) for size in sizes]
    for layer in layers:
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        nn.init.zeros_(layer.bias)
    module = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])
    ends: list[tuple[float, Tensor]] = []

    def note(phase: int, step: int, value: float) -> None:
        if step == steps:
            ends.append((value, module(x).detach()))

    optimizer = torch.optim.SGD(module.parameters(), lr=CURVE_LR, momentum=MOMENTUM)
    squared = nn.MSELoss()
    iterate(module, optimizer, lambda: squared(module(x), y), iterations, steps, 0.01, note)
    losses = [value for value, _ in ends]
    champion = int(np.argmin(losses))
    best = f"champion {losses[champion]:.4f} at iteration {champion}"
    print(f"one dimension: plain {losses[0]:.4f}, {best}")
    print("losses:", " ".join(f"{value:.4f}" for value in losses))
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
    left.plot(losses, "o-")
    left.set(xlabel="iteration", ylabel="squared error", yscale="log")
    right.plot(x, y, "k.", label="data")
    right.plot(x, ends[0][1], label="plain")
    right.plot(x, ends[champion][1], label=f"iteration {champion}")
    right.legend()
    figure.savefig(folder / "persistent_one_dimension.png", dpi=110)


def main() -> int:
    """Run both cases."""
    mpl.use("Agg")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--steps", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    two_dimensions(args.out, 50_000)
    curve(args.out, args.iterations, args.steps, args.seed)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
