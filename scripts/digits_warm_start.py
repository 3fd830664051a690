"""Warm start on the digits: is there a gap, and what do interventions do about it?

    python scripts/digits_warm_start.py OUT [--seeds 5] [--jobs 2] [--model cnn] [--picture FILE]

Every arm learns from a share of the scans and then from all of them, but `cold`, which learns
from all of them for as long as the second phase. A run's score is its mean test accuracy over the
last fifth of the second phase's epochs. Printed per arm: the mean over seeds and the mean
difference to `none`, paired by seed, each with its 95% bootstrap interval. Finished runs in OUT
are not repeated.
"""

import argparse
import json
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

AT_BOUNDARY = ("full_reset", "head_reset", "shrink_perturb", "fire")
ARMS: dict[str, list[dict[str, Any]]] = {
    "cold": [],
    "none": [],
    **{method: [{"method": method, "on": "phase_start"}] for method in AT_BOUNDARY},
    "swr": [{"method": "swr", "every": "1 updates", "params": {"coef": 1e-3}}],
}
CONFIG = "supervised/digits_warm_start"


def run(out: Path, arm: str, seed: int, model: str | None) -> None:
    import rlplast
    from rlplast.run import api

    folder = out / f"{arm}-{seed}"
    if (folder / "run.json").exists() and rlplast.load(folder).info.get("status") == "done":
        return
    stream = api.read_config(CONFIG).stream  # pyright: ignore[reportAttributeAccessIssue]
    keys: dict[str, Any] = {"seed": seed, "hooks": ARMS[arm], "log.to": []}
    keys |= {"evaluate__every": "1 epochs", "log__every": "1 epochs", "metrics__every": None}
    keys |= {"checkpoint__every": "100%"} | ({"model": {"name": model}} if model else {})
    if arm == "cold":
        keys["stream"] = {"name": "single_task", "epochs": stream.epochs_of_phases()[1]}
    rlplast.train(CONFIG, folder, **keys)


def curve(out: Path, arm: str, seed: int) -> np.ndarray:
    """Return the test accuracy after each epoch of the last phase."""
    import rlplast

    rows = [r for r in rlplast.load(out / f"{arm}-{seed}").lines() if "eval/accuracy" in r]
    return np.array([r["eval/accuracy"] for r in rows if r["phase"] == rows[-1]["phase"]])


def interval(values: np.ndarray) -> str:
    from scipy import stats

    found = stats.bootstrap(
        (values,), np.mean, n_resamples=10_000, method="percentile", rng=np.random.default_rng(0)
    ).confidence_interval
    return f"{100 * values.mean():6.2f} [{100 * found.low:.2f}, {100 * found.high:.2f}]"


def draw(curves: dict[str, np.ndarray], path: Path) -> None:
    """Draw mean test accuracy per epoch of the second phase, with a band of its standard error."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for arm, values in curves.items():
        epochs, mean = np.arange(1, values.shape[1] + 1), 100 * values.mean(0)
        error = 100 * values.std(0, ddof=1) / np.sqrt(len(values))
        (line,) = axes.plot(epochs, mean, label=arm, linestyle="--" if arm == "cold" else "-")
        axes.fill_between(epochs, mean - error, mean + error, alpha=0.15, color=line.get_color())
    axes.set(xlabel="epochs of the second phase", ylabel="test accuracy (%)")
    means = [100 * v[:, 4:].mean(0) for v in curves.values()]  # from the fifth epoch on
    axes.set_ylim(np.min(means) - 0.2, np.max(means) + 0.2)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--model", help="another model than the config's")
    parser.add_argument("--picture", type=Path)
    args = parser.parse_args()
    seeds = range(1, args.seeds + 1)
    with ProcessPoolExecutor(args.jobs) as pool:
        cells = [(arm, seed) for seed in seeds for arm in ARMS]
        futures = [pool.submit(run, args.out, arm, seed, args.model) for arm, seed in cells]
        for future in futures:
            future.result()
    curves = {arm: np.stack([curve(args.out, arm, s) for s in seeds]) for arm in ARMS}
    last = {arm: v[:, -(v.shape[1] // 5) :].mean(1) for arm, v in curves.items()}
    print(f"{'arm':15} {'test accuracy (%)':24} {'minus none':24} after 1 epoch (%)")
    rows = []
    for arm, values in last.items():
        first = curves[arm][:, 0]
        shown = (interval(scores) for scores in (values, values - last["none"], first))
        print(f"{arm:15}", *(f"{text:24}" for text in shown))
        rows.append({"arm": arm, "final": values.tolist(), "first": first.tolist()})
    (args.out / "scores.json").write_text(json.dumps(rows, indent=1))
    if args.picture is not None:
        draw(curves, args.picture)


if __name__ == "__main__":
    main()
