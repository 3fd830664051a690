"""Curves of long studies, kept seed by seed, beside the published ones.

    python scripts/curves.py add docs/findings/published_sac.csv runs/published_sac
    python scripts/curves.py compare docs/findings/published_sac.csv docs/images/published_sac.png

`add` writes the evaluations of a study's finished runs into a CSV, in place of those of the same
task, arm and seed. So a study can be run seed by seed, on several machines. `compare` prints, for
each task and arm, the mean of the evaluations in the last 20k env_steps with two standard errors,
beside the published band, and draws both.
"""

import argparse
from pathlib import Path

import pandas as pd

from rlplast.report.frame import read
from rlplast.study.api import read_study_config
from rlplast.study.published import PublishedCurve, published_curves
from rlplast.training.run_folder import write_text

COLUMNS = ["task", "arm", "seed", "env_steps", "return_mean", "git_revision"]
RUN = ["task", "arm", "seed"]
WINDOW = 20_000  # env_steps up to a moment, whose evaluations are averaged
STUDY = "study/replay_ratio/published_sac"


def add(path: Path, folders: list[Path]) -> None:
    """Write the evaluations of finished runs into a CSV."""
    found = read(folders)
    rows = found.numbers[found.numbers.name == "eval/return_mean"]
    new = rows.merge(found.done[RUN], left_on="run", right_index=True)
    new["return_mean"] = new.value.map(repr)  # all digits, as is what was read
    new["git_revision"] = [str(found.infos[run].get("git_revision"))[:7] for run in new.run]
    runs = new[RUN].drop_duplicates()
    kept = new[COLUMNS]
    if path.exists():
        old = _read(path, return_mean=str)
        written = old.merge(runs, how="left", indicator=True)["_merge"] == "both"
        kept = pd.concat([old[~written], kept])
    kept = kept.sort_values([*RUN, "env_steps"], kind="stable")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, kept.to_csv(index=False))
    print(f"{path}: {len(runs)} runs written, {len(kept)} rows in all")


def _read(path: Path, **types: type) -> pd.DataFrame:
    names = {"task": str, "arm": str, "git_revision": str}
    return pd.read_csv(path, dtype=names | types, keep_default_na=False)


def windows(rows: pd.DataFrame, moments: list[int]) -> pd.DataFrame:
    """Return mean, two standard errors and seeds of the evaluations in the windows up to moments.

    Returns:
        A row per task, arm and moment; a seed counts that has been there.
    """
    last = rows.groupby(RUN).env_steps.transform("max")
    parts = []
    for moment in moments:
        near = rows[rows.env_steps.between(moment - WINDOW + 1, moment) & (last >= moment)]
        parts.append(near.groupby(RUN, as_index=False).return_mean.mean().assign(moment=moment))
    seeds = pd.concat(parts).groupby(["task", "arm", "moment"]).return_mean
    errors = {"error": 2 * seeds.std() / seeds.count() ** 0.5}
    return pd.DataFrame({"mean": seeds.mean(), **errors, "seeds": seeds.count()}).reset_index()


def compare(path: Path, picture: Path, study: str) -> None:
    """Print a table and draw the curves."""
    theirs = {(c.task, c.arm): c for c in published_curves(read_study_config(study))}
    moments = sorted({p.env_steps for curve in theirs.values() for p in curve.points})
    ours = windows(_read(path), moments)
    print("| task | arm | env_steps | seeds | ours | published | seeds | ours lies |")
    print("|---|---|---|---|---|---|---|---|")
    for row in ours.itertuples():
        key = row.task, row.arm
        points = {p.env_steps: p for p in theirs[key].points} if key in theirs else {}
        cells = "| | |"
        if row.moment in points:
            point, (low, high) = points[row.moment], points[row.moment].band
            where = "above" if row.mean > high else "below" if row.mean < low else "inside"
            cells = f"{point.mean:.0f} ({low:.0f} to {high:.0f}) | {point.seeds} | {where} |"
        own = f"{row.seeds} | {row.mean:.0f} ± {row.error:.0f}"
        print(f"| {' | '.join(key)} | {row.moment:,} | {own} | {cells}")
    draw(ours, theirs, picture)


def draw(ours: pd.DataFrame, theirs: dict[tuple[str, str], PublishedCurve], picture: Path) -> None:
    """Draw a panel per task: published bands in grey, ours in colour."""
    import altair as alt

    points = [
        (row.task, f"ours, {row.arm}", row.moment, row.mean, *_around(row.mean, row.error))
        for row in ours.itertuples()
    ]
    for task, arm in ours[["task", "arm"]].drop_duplicates().itertuples(index=False):
        if (task, arm) in theirs:
            curve = theirs[task, arm]
            what = f"published, {curve.points[0].seeds} seeds"
            points += [
                (task, what, p.env_steps, p.mean, *p.band)
                for p in curve.points
                if p.env_steps <= ours.moment.max()
            ]
    names = ("task", "what", "x", "y", "low", "high")
    seeds = ours.groupby("task").seeds.first()  # at the first moment
    points = [(f"{task}: {seeds[task]} seeds of ours", *rest) for task, *rest in points]
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


def _around(mean: float, error: float) -> tuple[float, float]:
    return mean - error, mean + error


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
