"""How the time of a SAC update grows with width and batch size, ours beside others; as a picture.

python scripts/bench_widths.py [--threads 1] [--rounds 7] [--out docs/images/sac_widths.png]

SAC on Pendulum, an env_step and an update in turn. The limit is the arithmetic of the update at the
rate at which this machine multiplies matrices of 768 × 768.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

from rlplast.run.config_file import read_config
from rlplast.run.roofline import Traced, measured
from rlplast.run.timing import machine, medians, on_cores, paced, peers, ready, training, updates

WIDTHS, BATCHES = (64, 128, 256, 512, 1024, 2048), (32, 64, 128, 256, 512, 1024)
LIMIT = "arithmetic"


def milliseconds(width: int, batch: int, threads: int, rounds: int) -> dict[str, float]:
    """Return what an env_step with an update takes, of each side."""
    keys: dict[str, Any] = {"device": "cpu", "threads": threads, "agent.batch_size": batch}
    keys |= {"agent.actor_width": width, "agent.critic_width": width}
    config: Any = read_config("sac/pendulum", keys)
    agents = {f"ours, {how}": ready(config, how)[0] for how in ("off", "compile")}
    with Traced(measured(threads)) as traced:
        updates(agents["ours, off"])(1)
    others, _ = peers(config, agents["ours, off"])
    sides = others | {name: training(agent) for name, agent in agents.items()}
    found = {name: 1e3 * value for name, value in medians(paced(sides, rounds)).items()}
    for agent in agents.values():
        agent.close()
    torch._dynamo.reset()
    return found | {LIMIT: 1e3 * traced.flops / traced.machine.matmul}


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
