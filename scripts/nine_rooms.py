"""Goals of the nine rooms, kept run by run, and what arms reach on them.

    python scripts/nine_rooms.py add docs/findings/nine_rooms.csv runs/nine_rooms
    python scripts/nine_rooms.py table docs/findings/nine_rooms.csv docs/images/nine_rooms.png

`add` writes a row per finished run and measure into a CSV, in place of those of the same arm and
seed: the mean over each goal's env_steps of the share of training episodes that reach it
(success), of their return, and the return of the evaluation at the goal's end. `table` prints the
interquartile means over seeds of the last ten goals with 95% intervals, and p of the success
against `none` (Holm), and draws the goals.
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
from task_scores import words

from rlplast.report.estimators import stratified_interval
from rlplast.report.frame import read
from rlplast.report.statistics import compare
from rlplast.report.words import p_words
from rlplast.training.run_folder import write_text

MEASURES = {
    "success": "train/success_rate",
    "return": "train/return",
    "end": "eval/return_mean",
}
DRAWN = ["none", "shrink_perturb", "fire", "parseval", "oracle"]
KEY = ["arm", "seed", "measure"]


def add(path: Path, folders: list[Path]) -> None:
    """Write the goals of finished runs into a CSV."""
    found, parts = read(folders), []
    for measure, key in MEASURES.items():
        rows = found.numbers[found.numbers.name == key]
        rows = rows.merge(found.done[["arm", "seed"]], left_on="run", right_index=True)
        goals = rows.groupby(["run", "arm", "seed", "phase"]).value
        means = (goals.last() if measure == "end" else goals.mean()).map("{:.4f}".format)
        table = means.unstack("phase").rename(columns=lambda phase: f"goal_{phase + 1}")
        infos = [found.infos[run] for run in table.index.get_level_values("run")]
        table["git_revision"] = [str(info.get("git_revision"))[:7] for info in infos]
        parts.append(table.reset_index().assign(measure=measure))
    old = [pd.read_csv(path, dtype=str).astype({"seed": int})] if path.exists() else []
    rows = pd.concat([*old, *parts]).drop_duplicates(KEY, keep="last").sort_values(KEY)
    goals = sorted(goals_of(rows), key=lambda goal: int(goal.removeprefix("goal_")))
    write_text(path, rows[[*KEY, *goals, "git_revision"]].to_csv(index=False))
    runs = len(found.done), len(rows) // len(MEASURES)
    print(f"{path}: {runs[0]} runs written, {runs[1]} in all")


def goals_of(rows: pd.DataFrame) -> list[str]:
    """Return the names of the columns of goals."""
    return [name for name in rows if name.startswith("goal_")]


def table(path: Path, picture: Path) -> None:
    """Print a table of all arms and draw some of them goal by goal."""
    rows = pd.read_csv(path)
    rows["last"] = np.ascontiguousarray(rows[goals_of(rows)[-10:]]).mean(axis=1)
    found = {
        arm: [stratified_interval([own["last"][own.measure == m].to_numpy()]) for m in MEASURES]
        for arm, own in rows.groupby("arm")
    }
    last = rows[rows.measure == "success"].assign(task="", score="success", final=rows["last"])
    tests = compare(last, "none").dropna(subset="p_holm").set_index("arm").p_holm
    print("| arm | seeds | success | return in training | return at the end | p |")
    print("|---|---|---|---|---|---|")
    for arm, own in sorted(found.items(), key=lambda item: -item[1][0].value):
        texts = " | ".join(words(estimate, 2) for estimate in own)
        p_value = p_words(tests[arm]) if arm in tests else ""
        print(f"| `{arm}` | {own[0].count} | {texts} | {p_value} |")
    draw(rows[rows.measure == "success"], picture)


def draw(success: pd.DataFrame, picture: Path) -> None:
    """Draw the share of episodes that reach each goal: interquartile means and intervals."""
    import altair as alt

    rows = []
    for arm in DRAWN:
        for goal, name in enumerate(goals_of(success), 1):
            seeds = success[name][success.arm == arm].to_numpy()
            if len(seeds):
                found = stratified_interval([seeds], (0.0, 1.0))
                ends = {"value": found.value, "low": found.low, "high": found.high}
                rows.append({"arm": arm, "goal": goal} | ends)
    colours = alt.Scale(domain=DRAWN, range=["#b3001b", "#e09f3e", "#33658a", "#5f9e6e", "#7a6f9b"])
    legend = alt.Legend(title=None, symbolType="stroke", symbolStrokeWidth=3, symbolOpacity=1)
    goals = alt.Scale(domain=[1, max(row["goal"] for row in rows)], nice=False)
    base = alt.Chart(alt.Data(values=rows)).encode(
        x=alt.X("goal:Q", title="goal, 40,000 env_steps each", scale=goals),
        color=alt.Color("arm:N", scale=colours, sort=DRAWN, legend=legend),
    )
    band = base.mark_area(opacity=0.12).encode(y="low:Q", y2="high:Q")
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
