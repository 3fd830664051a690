"""Goals of the nine rooms, kept run by run, and what arms reach on them.

    python scripts/nine_rooms.py add docs/findings/nine_rooms.csv runs/nine_rooms
    python scripts/nine_rooms.py table docs/findings/nine_rooms.csv docs/images/nine_rooms.png

`add` writes a row per finished run and measure into a CSV, in place of those of the same arm and
seed: the mean over each goal's env_steps of the share of training episodes that reach it
(success), of their return, and the return of the evaluation at the goal's end. `table` prints the
interquartile means over seeds of the last ten goals with 95% intervals, and draws the goals.
"""

import argparse
import csv
import io
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from rlplast.report.gather import gather

from rlplast.core.mean_interval import FEWEST
from rlplast.report.statistics import Estimate, stratified_interval
from rlplast.training.run_folder import write_text

MEASURES = {
    "success": "train/success_rate",
    "return": "train/return",
    "end": "eval/return_mean",
}
DRAWN = ["none", "shrink_perturb", "fire", "parseval", "oracle"]
Scores = dict[str, dict[str, np.ndarray]]  # by arm and measure: (seeds, goals)


def add(path: Path, folders: list[Path]) -> None:
    """Write the goals of finished runs into a CSV."""
    rows = read(path) if path.exists() else []
    kept = {(row["arm"], int(row["seed"]), row["measure"]): row for row in rows}
    new = 0
    for run in gather(folders).runs:
        if run.info.get("status") != "done":
            continue
        new += 1
        for measure, key in MEASURES.items():
            goals: dict[int, list[float]] = defaultdict(list)
            for row in run.metrics:
                if key in row:
                    goals[int(row["phase"])].append(row[key])
            means = {k: v[-1] if measure == "end" else np.mean(v) for k, v in goals.items()}
            row: dict[str, Any] = {"arm": run.arm, "seed": run.seed, "measure": measure}
            row |= {f"goal_{k + 1}": f"{means[k]:.4f}" for k in sorted(means)}
            row["git_revision"] = str(run.info.get("git_revision"))[:7]
            kept[str(run.arm), int(run.seed or 0), measure] = row
    number = max(len(row) for row in kept.values()) - 4
    columns = ["arm", "seed", "measure", *(f"goal_{k + 1}" for k in range(number)), "git_revision"]
    file = io.StringIO()
    writer = csv.DictWriter(file, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(row for _, row in sorted(kept.items()))
    write_text(path, file.getvalue())
    print(f"{path}: {new} runs written, {len(kept) // len(MEASURES)} in all")


def read(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def scores(path: Path) -> Scores:
    """Return the goals of all seeds, by arm and measure."""
    found: dict[str, dict[str, list[list[float]]]] = defaultdict(lambda: defaultdict(list))
    for row in read(path):
        goals = [float(value) for key, value in row.items() if key.startswith("goal_") and value]
        found[row["arm"]][row["measure"]].append(goals)
    return {
        arm: {measure: np.array(goals) for measure, goals in by_measure.items()}
        for arm, by_measure in found.items()
    }


def table(path: Path, picture: Path) -> None:
    """Print a table of all arms and draw some of them goal by goal."""
    arms = scores(path)
    last = {
        arm: [stratified_interval([found[m][:, -10:].mean(1)]) for m in MEASURES]
        for arm, found in arms.items()
    }
    print("| arm | seeds | success | return in training | return at the end |")
    print("|---|---|---|---|---|")
    for arm, found in sorted(last.items(), key=lambda item: -item[1][0].value):
        print(f"| `{arm}` | {found[0].count} | {' | '.join(map(words, found))} |")
    draw(arms, picture)


def words(found: Estimate) -> str:
    """Return a mean with its interval, if there are seeds enough."""
    parts = [f"{value:.2f}".replace("-", "−") for value in (found.value, found.low, found.high)]
    return f"{parts[0]} [{parts[1]}, {parts[2]}]" if found.count >= FEWEST else parts[0]


def draw(arms: Scores, picture: Path) -> None:
    """Draw the share of episodes that reach each goal: interquartile means and intervals."""
    import altair as alt

    rows = []
    for arm in [arm for arm in DRAWN if arm in arms]:
        for goal, seeds in enumerate(arms[arm]["success"].T, 1):
            found = stratified_interval([seeds], (0.0, 1.0))
            ends = {"value": found.value, "low": found.low, "high": found.high}
            rows.append({"arm": arm, "goal": goal} | ends)
    colours = alt.Scale(domain=DRAWN, range=["#b3001b", "#e09f3e", "#33658a", "#5f9e6e", "#7a6f9b"])
    base = alt.Chart(alt.Data(values=rows)).encode(
        x=alt.X("goal:Q", title="goal, 40,000 env_steps each", axis=alt.Axis(tickCount=20)),
        color=alt.Color("arm:N", scale=colours, sort=DRAWN, title=None),
    )
    band = base.mark_area(opacity=0.15).encode(y="low:Q", y2="high:Q")
    title = "episodes that reach the goal"
    axis = alt.Y("value:Q", title=title, scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(format="%"))
    line = base.mark_line(strokeWidth=2, point=True).encode(y=axis)
    alt.layer(band, line).properties(width=640, height=280).save(str(picture), scale_factor=2)


def main() -> None:
    """Run a command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    adding = commands.add_parser("add", help="write finished runs of studies into a CSV")
    adding.add_argument("csv", type=Path)
    adding.add_argument("folders", type=Path, nargs="+")
    showing = commands.add_parser("table", help="print a table and draw the goals")
    showing.add_argument("csv", type=Path)
    showing.add_argument("picture", type=Path)
    args = parser.parse_args()
    if args.command == "add":
        add(args.csv, args.folders)
    else:
        table(args.csv, args.picture)


if __name__ == "__main__":
    main()
