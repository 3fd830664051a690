"""Scores of a study of many tasks, kept run by run, and what its arms reach.

    python scripts/task_scores.py add docs/findings/permuted_pixels.csv runs/permuted_pixels
    python scripts/task_scores.py table docs/findings/permuted_pixels.csv docs/images/permuted.png

`add` writes two numbers of each finished run into a CSV: the mean score of the first and of the
last tenth of its tasks. They replace those of the same arm and seed. So a study can be run seed by
seed, on several machines. `table` prints, for each arm with five seeds or more, the interquartile
mean of the last tenth and of last minus first with their 95% intervals, and draws both.
"""

import argparse
from pathlib import Path

import pandas as pd

from rlplast.core.mean_interval import FEWEST
from rlplast.report.estimators import Estimate, stratified_interval
from rlplast.report.frame import read
from rlplast.training.run_folder import write_text

COLUMNS = ["arm", "seed", "first", "last", "git_revision"]


def add(path: Path, folders: list[Path], score: str) -> None:
    """Write the scores of finished runs into a CSV."""
    found, rows = read(folders), []
    for run, about in found.done.iterrows():
        scores = found.named(score, run).value.to_numpy()
        if len(scores):
            tenth = max(1, len(scores) // 10)
            ends = [f"{part.mean():.6f}" for part in (scores[:tenth], scores[-tenth:])]
            revision = str(found.infos[run].get("git_revision"))[:7]
            rows.append((about.arm, about.seed, *ends, revision))
    parts = [pd.read_csv(path, dtype=str).astype({"seed": int})] if path.exists() else []
    table = pd.concat([*parts, pd.DataFrame(rows, columns=COLUMNS)])
    kept = table.drop_duplicates(["arm", "seed"], keep="last").sort_values(["arm", "seed"])
    write_text(path, kept.to_csv(index=False))
    print(f"{path}: {len(rows)} runs written, {len(kept)} in all")


def arms_of(path: Path) -> dict[str, tuple[Estimate, Estimate]]:
    """Return, by arm, the last tenth and how it differs from the first; the best arm first."""
    found = {}
    for arm, rows in pd.read_csv(path).groupby("arm"):
        first, last = rows["first"].to_numpy(), rows["last"].to_numpy()
        if len(rows) < FEWEST:
            print(f"{arm}: {len(rows)} seeds, too few for an interval")
        else:
            found[str(arm)] = stratified_interval([last]), stratified_interval([last - first])
    return dict(sorted(found.items(), key=lambda item: -item[1][0].value))


def table(path: Path, picture: Path) -> None:
    """Print a table and draw the arms' intervals."""
    arms = arms_of(path)
    print("| arm | seeds | final | change |\n|---|---|---|---|")
    for arm, (last, change) in arms.items():
        print(f"| {arm} | {last.count} | {words(last)} | {words(change)} |")
    draw(arms, picture)


def words(found: Estimate, digits: int = 3) -> str:
    """Return a mean with its interval, if there are seeds enough."""
    parts = (
        f"{value:.{digits}f}".replace("-", "−") for value in (found.value, found.low, found.high)
    )
    value, low, high = parts
    return f"{value} [{low}, {high}]" if found.count >= FEWEST else value


def draw(arms: dict[str, tuple[Estimate, Estimate]], picture: Path) -> None:
    """Draw a row per arm: the last tenth, and how it differs from the first."""
    import altair as alt

    panels = []
    for part, title in enumerate(
        ("mean score of the last tenth of tasks", "last minus first tenth")
    ):
        rows = [
            {"arm": arm, "value": e[part].value, "low": e[part].low, "high": e[part].high}
            for arm, e in arms.items()
        ]
        usual = [row for row in rows if row["arm"] == "none"]
        axis = alt.Axis() if part == 0 else None
        base = alt.Chart(alt.Data(values=rows)).encode(
            y=alt.Y("arm:N", sort=list(arms), title=None, axis=axis),
            color=alt.condition("datum.arm == 'none'", alt.value("#b3001b"), alt.value("#33658a")),
        )
        x = alt.Scale(zero=False)
        bars = base.mark_rule(strokeWidth=2).encode(
            x=alt.X("low:Q", title=title, scale=x), x2="high:Q"
        )
        line = alt.Chart(alt.Data(values=usual)).mark_rule(color="#b3001b", opacity=0.4)
        dots = base.mark_point(filled=True, size=36, opacity=1).encode(x=alt.X("value:Q", scale=x))
        layers = alt.layer(line.encode(x="value:Q"), bars, dots)
        panels.append(layers.properties(width=330, height=alt.Step(15)))
    alt.hconcat(*panels).save(str(picture), scale_factor=2)


def main() -> None:
    """Run a command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    adding = commands.add_parser("add", help="write finished runs of studies into a CSV")
    adding.add_argument("csv", type=Path)
    adding.add_argument("folders", type=Path, nargs="+")
    adding.add_argument("--score", default="eval/online_accuracy", help="of the runs' metrics")
    showing = commands.add_parser("table", help="print a table and draw the arms")
    showing.add_argument("csv", type=Path)
    showing.add_argument("picture", type=Path)
    args = parser.parse_args()
    if args.command == "add":
        add(args.csv, args.folders, args.score)
    else:
        table(args.csv, args.picture)


if __name__ == "__main__":
    main()
