"""How the time of a SAC update grows with width and batch size, ours beside others; as a picture.

    python -m benchmarks.widths [--threads 1] [--rounds 7] [--out docs/images/sac_widths.png]

SAC on Pendulum, an env_step and an update in turn. The limit is the arithmetic of the update at the
rate at which this machine multiplies matrices of 768 × 768.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

from benchmarks.agents import Task, sides_of
from benchmarks.tools import machine, medians, on_cores
from rlplast.run.timing import paced

WIDTHS, BATCHES = (64, 128, 256, 512, 1024, 2048), (32, 64, 128, 256, 512, 1024)
LIMIT = "arithmetic"
SIDE = 768  # of the matrices of the limit


def milliseconds(width: int, batch: int, threads: int, rounds: int) -> dict[str, float]:
    """Return what an env_step with an update takes, of each side, and its arithmetic."""
    keys: dict[str, Any] = {"agent.batch_size": batch}
    keys |= {"agent.actor_width": width, "agent.critic_width": width}
    sides, _ = sides_of(Task("sac/pendulum", keys), threads)
    found = {name: 1e3 * value for name, value in medians(paced(sides, rounds)).items()}
    torch._dynamo.reset()
    return found | {LIMIT: 1e3 * flops(width, batch) / rate()}


def flops(width: int, batch: int) -> float:
    """Return the operations of the products in an update of two layers a network.

    An actor's and both critics' weights are used forward for the targets. Critics then learn, and
    the actor learns through them: forward, by inputs, and by weights where these are learnt. No
    product is for the gradient of a batch's own entries.
    """
    obs, actions = 3, 1
    actor = obs * width + width * width + width * 2 * actions
    critics = 2 * ((obs + actions) * width + width * width + width)
    inputs = obs * width, 2 * (obs + actions) * width
    return 2 * batch * (4 * actor - inputs[0] + 6 * critics - inputs[1])


def rate() -> float:
    """Return the operations a second of products."""
    matrix = torch.randn(SIDE, SIDE)

    def run(count: int) -> None:
        for _ in range(count):
            torch.mm(matrix, matrix)

    return 2 * SIDE**3 / medians(paced({"": run}, 5))[""]


def draw(panels: dict[str, dict[int, dict[str, float]]], out: Path) -> None:
    """Draw a panel for each varied size, both axes logarithmic."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    axes = figure.subplots(1, len(panels), sharey=True)
    for ax, (name, rows) in zip(axes, panels.items(), strict=True):
        for side in next(iter(rows.values())):
            style = {"color": "black", "linestyle": "--"} if side == LIMIT else {"marker": "o"}
            ax.plot(list(rows), [row[side] for row in rows.values()], label=side, **style)
        ax.set_xscale("log", base=2)
        ax.set_yscale("log")
        ax.set_xticks(list(rows), [str(size) for size in rows])
        ax.set_xlabel(name)
        ax.grid(alpha=0.3)
    axes[0].set_ylabel("ms per env_step with one update")
    axes[0].legend(frameon=False)
    figure.savefig(out, dpi=150)


def main() -> None:
    """Measure all sizes, print them, and draw them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, default=Path("docs/images/sac_widths.png"))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(json.dumps(machine()))
    panels: dict[str, dict[int, dict[str, float]]] = {}
    with on_cores(args.threads):
        for name, sizes in (("width, batch 256", WIDTHS), ("batch, width 256", BATCHES)):
            panels[name] = {}
            for size in sizes:
                width, batch = (size, 256) if sizes is WIDTHS else (256, size)
                row = milliseconds(width, batch, args.threads, args.rounds)
                panels[name][size] = row
                print(f"{name} {size}:", {k: f"{v:.3g} ms" for k, v in row.items()}, flush=True)
    draw(panels, args.out)


if __name__ == "__main__":
    main()
