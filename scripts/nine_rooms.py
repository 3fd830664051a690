"""Goals of the nine rooms, kept run by run, and what arms reach on them.

    python scripts/nine_rooms.py add docs/findings/nine_rooms.csv runs/nine_rooms
    python scripts/nine_rooms.py table docs/findings/nine_rooms.csv docs/images/nine_rooms.png

`add` writes a row per finished run and measure into a CSV, in place of those of the same task, arm
and seed: the mean over each goal's env_steps of the share of training episodes that reach it
(success), of their return, the return of the evaluation at the goal's end, and of PPO the entropy
of the policy in the goal's first log row. `table` prints the
interquartile means over seeds of the last goals (of 20 ten, of fewer all but the first) with 95%
intervals, and p of the success against `none` (Holm), and draws the goals.
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

MEASURES = {  # what is logged, what of a goal's values is kept, and a title
    "success": ("train/success_rate", "mean", "success"),
    "return": ("train/return", "mean", "return in training"),
    "end": ("eval/return_mean", "last", "return at the end"),
    "entropy": ("train/entropy", "first", "entropy as a goal begins"),
}
DRAWN = {
    "none": "#b3001b",
    "shrink_perturb": "#e09f3e",
    "fire": "#33658a",
    "parseval": "#5f9e6e",
    "oracle": "#7a6f9b",
    "actor_head_shrunk": "#222222",
    "full_reset": "#7a6f9b",
}
KEY = ["task", "arm", "seed", "measure"]


def add(path: Path, folders: list[Path]) -> None:
    """Write the goals of finished runs into a CSV."""
    found, parts = read(folders), []
    for measure, (key, kept, _) in MEASURES.items():
        rows = found.numbers[found.numbers.name == key]
        if rows.empty:
            continue
        rows = rows.merge(found.done[KEY[:3]], left_on="run", right_index=True)
        goals = rows.groupby(["run", *KEY[:3], "phase"], observed=True).value
        values = goals.agg(kept).map("{:.4f}".format)
        table = values.unstack("phase").rename(columns=lambda phase: f"goal_{phase + 1}")
        infos = [found.infos[run] for run in table.index.get_level_values("run")]
        table["git_revision"] = [str(info.get("git_revision"))[:7] for info in infos]
        parts.append(table.reset_index().assign(measure=measure))
    old = [pd.read_csv(path, dtype=str).astype({"seed": int})] if path.exists() else []
    rows = pd.concat([*old, *parts]).drop_duplicates(KEY, keep="last").sort_values(KEY)
    goals = sorted(goals_of(rows), key=lambda goal: int(goal.removeprefix("goal_")))
    write_text(path, rows[[*KEY, *goals, "git_revision"]].to_csv(index=False))
    runs = len(found.done), len(rows.drop_duplicates(KEY[:3]))
    print(f"{path}: {runs[0]} runs written, {runs[1]} in all")


def goals_of(rows: pd.DataFrame) -> list[str]:
    """Return the names of the columns of goals."""
    return [name for name in rows if name.startswith("goal_")]


def table(path: Path, picture: Path) -> None:
    """Print a table of all tasks and arms, and draw some arms goal by goal."""
    rows = pd.read_csv(path)
    goals = goals_of(rows)
    judged = goals[-10:] if len(goals) == 20 else goals[1:]
    rows["last"] = np.ascontiguousarray(rows[judged]).mean(axis=1)
    shown = [measure for measure in MEASURES if (rows.measure == measure).any()]
    found = {
        key: [stratified_interval([own["last"][own.measure == m].to_numpy()]) for m in shown]
        for key, own in rows.groupby(["task", "arm"])
    }
    last = rows[rows.measure == "success"].assign(score="success", final=rows["last"])
    tests = compare(last, "none").dropna(subset="p_holm").set_index(["task", "arm"]).p_holm
    titles = " | ".join(MEASURES[measure][-1] for measure in shown)
    print(f"| task | arm | seeds | {titles} | p |")
    print("|---" * (len(shown) + 4) + "|")
    for key in sorted(found, key=lambda key: (*by_size(key[0]), -found[key][0].value)):
        texts = " | ".join(words(e, 2) if e.count else "" for e in found[key])
        p_value = p_words(tests[key]) if key in tests else ""
        print(f"| {key[0]} | `{key[1]}` | {found[key][0].count} | {texts} | {p_value} |")
    draw(rows[rows.measure == "success"], picture)


def by_size(task: str) -> tuple[int, str]:
    """Return a sort key that has ratio-4 before ratio-16."""
    return len(task), task


def draw(success: pd.DataFrame, picture: Path) -> None:
    """Draw the share of episodes that reach each goal: interquartile means and intervals."""
    import altair as alt

    rows = []
    for (task, arm), own in success[success.arm.isin(list(DRAWN))].groupby(["task", "arm"]):
        for goal, name in enumerate(goals_of(own), 1):
            found = stratified_interval([own[name].to_numpy()], (0.0, 1.0))
            ends = {"value": found.value, "low": found.low, "high": found.high}
            rows.append({"task": task, "arm": arm, "goal": goal} | ends)
    tasks = sorted({row["task"] for row in rows}, key=by_size)
    arms = [arm for arm in DRAWN if any(row["arm"] == arm for row in rows)]
    colours = alt.Scale(domain=arms, range=[DRAWN[arm] for arm in arms])
    legend = alt.Legend(title=None, symbolType="stroke", symbolStrokeWidth=3, symbolOpacity=1)
    goals = alt.Scale(domain=[1, max(row["goal"] for row in rows)], nice=False)
    base = alt.Chart().encode(
        x=alt.X("goal:Q", title="goal", scale=goals),
        color=alt.Color("arm:N", scale=colours, sort=arms, legend=legend),
    )
    band = base.mark_area(opacity=0.12).encode(y="low:Q", y2="high:Q")
    title = "episodes that reach the goal"
    axis = alt.Y("value:Q", title=title, scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(format="%"))
    line = base.mark_line(strokeWidth=2, point=True).encode(y=axis)
    layers = alt.layer(band, line, data=alt.Data(values=rows))
    chart = layers.properties(width=640 // len(tasks), height=280)
    if len(tasks) > 1:
        chart = chart.facet(column=alt.Column("task:N", sort=tasks, title=None))
    chart.save(str(picture), scale_factor=2)


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
