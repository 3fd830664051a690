"""Curves of long studies, kept seed by seed, beside the published ones.

    python scripts/curves.py add docs/findings/published_sac.csv runs/published_sac
    python scripts/curves.py compare docs/findings/published_sac.csv docs/images/published_sac.png

`add` writes the evaluations of a study's finished runs into a CSV, in place of those of the same
task, arm and seed. So a study can be run seed by seed, on several machines. `compare` prints, for
each task and arm, the mean of the evaluations in the last 20k env_steps with two standard errors,
beside the published band, and draws both.
"""

import argparse
import csv
import io
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

from rlplast.report.gather import gather

from rlplast.study.api import read_study_config
from rlplast.study.published import PublishedCurve, published_curves
from rlplast.training.run_folder import write_text

COLUMNS = ["task", "arm", "seed", "env_steps", "return_mean", "git_revision"]
WINDOW = 20_000  # env_steps up to a moment, whose evaluations are averaged
STUDY = "study/replay_ratio/published_sac"
Rows = list[dict[str, str]]


def add(path: Path, folders: list[Path]) -> None:
    """Write the evaluations of finished runs into a CSV."""
    kept = _read(path) if path.exists() else []
    new: Rows = []
    for run in gather(folders).runs:
        if run.info.get("status") != "done":
            continue
        for row in run.metrics:
            if "eval/return_mean" in row:
                values = (run.task, run.arm, run.seed, row["env_steps"], row["eval/return_mean"])
                revision = str(run.info.get("git_revision"))[:7]
                new.append(dict(zip(COLUMNS, map(str, (*values, revision)), strict=True)))
    there = {(row["task"], row["arm"], row["seed"]) for row in new}
    rows = [row for row in kept if (row["task"], row["arm"], row["seed"]) not in there] + new
    rows.sort(key=lambda r: (r["task"], r["arm"], int(r["seed"]), int(r["env_steps"])))
    path.parent.mkdir(parents=True, exist_ok=True)
    file = io.StringIO()
    writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, file.getvalue())
    print(f"{path}: {len(there)} runs written, {len(rows)} rows in all")


def _read(path: Path) -> Rows:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def windows(rows: Rows, moments: list[int]) -> dict[tuple[str, str], dict[int, list[float]]]:
    """Return, per task and arm and moment, each seed's mean evaluation in the window up to it."""
    curves: dict[Any, dict[int, float]] = defaultdict(dict)
    for row in rows:
        key = row["task"], row["arm"], row["seed"]
        curves[key][int(row["env_steps"])] = float(row["return_mean"])
    found: Any = defaultdict(lambda: defaultdict(list))
    for (task, arm, _), curve in curves.items():
        for moment in moments:
            near = [value for step, value in curve.items() if 0 <= moment - step < WINDOW]
            if near and max(curve) >= moment:
                found[task, arm][moment].append(statistics.mean(near))
    return found


def compare(path: Path, picture: Path, study: str) -> None:
    """Print a table and draw the curves."""
    theirs = {(c.task, c.arm): c for c in published_curves(read_study_config(study))}
    moments = sorted({p.env_steps for curve in theirs.values() for p in curve.points})
    ours = windows(_read(path), moments)
    print("| task | arm | env_steps | seeds | ours | published | seeds | ours lies |")
    print("|---|---|---|---|---|---|---|---|")
    for key, found in ours.items():
        points = {p.env_steps: p for p in theirs[key].points} if key in theirs else {}
        for moment, values in sorted(found.items()):
            mean, error = statistics.mean(values), _error(values)
            cells = "| | |"
            if moment in points:
                point, (low, high) = points[moment], points[moment].band
                where = "above" if mean > high else "below" if mean < low else "inside"
                cells = f"{point.mean:.0f} ({low:.0f} to {high:.0f}) | {point.seeds} | {where} |"
            own = f"{len(values)} | {mean:.0f} ± {error:.0f}"
            print(f"| {' | '.join(key)} | {moment:,} | {own} | {cells}")
    draw(ours, theirs, picture)


def _error(values: list[float]) -> float:
    """Return two standard errors of a mean."""
    return 2 * statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")


def draw(ours: Any, theirs: dict[tuple[str, str], PublishedCurve], picture: Path) -> None:
    """Draw a panel per task: published bands in grey, ours in colour."""
    import altair as alt

    points = []
    titles = {  # of panels, with the seeds of ours
        task: f"{task}: {len(next(iter(found.values())))} seeds of ours"
        for (task, _), found in ours.items()
    }
    for (task, arm), found in ours.items():
        for moment, values in found.items():
            mean, error = statistics.mean(values), _error(values)
            what = f"ours, {arm}"
            points.append((task, what, moment, mean, mean - error, mean + error))
    last = max(moment for found in ours.values() for moment in found)
    for (task, arm), curve in theirs.items():
        if (task, arm) in ours:
            what = f"published, {curve.points[0].seeds} seeds"
            points += [
                (task, what, p.env_steps, p.mean, *p.band)
                for p in curve.points
                if p.env_steps <= last
            ]
    names = ("task", "what", "x", "y", "low", "high")
    points = [(titles[task], *rest) for task, *rest in points]
    data = alt.Data(values=[dict(zip(names, point, strict=True)) for point in points])
    colour = alt.Color("what:N", title=None, scale=alt.Scale(range=["#2f6fb0", "#8a8a8a"]))
    x = alt.X("x:Q", title="env_steps", axis=alt.Axis(format="~s"))
    title = "mean return of evaluations"
    y = alt.Y("y:Q", title=title)
    base = alt.Chart(data).encode(x=x, color=colour)
    band = base.mark_area(opacity=0.2).encode(y=alt.Y("low:Q", title=title), y2="high:Q")
    chart = alt.layer(band, base.mark_line(point=True).encode(y=y)).properties(
        width=300, height=220
    )
    chart = chart.facet(facet=alt.Facet("task:N", title=None), columns=2)
    chart.resolve_scale(y="independent").save(str(picture), scale_factor=2)


def main() -> None:
    """Run a command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    adding = commands.add_parser("add", help="write finished runs of studies into a CSV")
    adding.add_argument("csv", type=Path)
    adding.add_argument("folders", type=Path, nargs="+")
    comparing = commands.add_parser("compare", help="print a table and draw the curves")
    comparing.add_argument("csv", type=Path)
    comparing.add_argument("picture", type=Path)
    comparing.add_argument("--study", default=STUDY, help="whose published curves")
    args = parser.parse_args()
    if args.command == "add":
        add(args.csv, args.folders)
    else:
        compare(args.csv, args.picture, args.study)


if __name__ == "__main__":
    main()
