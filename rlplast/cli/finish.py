"""What is said and drawn when a run has ended."""

from rich.console import Console
from rich.table import Table

from rlplast.cli.api import Run
from rlplast.report.plot import plot_run

__all__ = ["finish"]


def finish(run: Run) -> None:
    """Print a run's receipts and last scores, and draw ``plot.png`` into its folder."""
    console = Console()
    receipts = [r for r in run.lines("receipts") if r["firings"] == 1]
    if receipts:
        table = Table("method", "network", "at", "SFE", "DfI before", "DfI after", "seconds")
        for row in receipts[-20:]:
            at = ", ".join(f"{v:,} {unit}" for unit, v in row["clock"].items() if unit != "frames")
            table.add_row(
                row["method"],
                row["network"],
                at,
                *(_number(row[key]) for key in ("sfe", "dfi_before", "dfi_after", "time/seconds")),
            )
        console.print(table)
    scores = [m for m in run.lines("metrics") if "eval/return_mean" in m]
    if scores:
        last = scores[-1]
        console.print(
            f"evaluation after {last['env_steps']:,} env_steps: "
            f"mean return {last['eval/return_mean']:.2f}, median {last['eval/return_median']:.2f} "
            f"over {last['eval/episodes']:.0f} episodes"
        )
    picture = plot_run(run.path, run.path / "plot.png")
    console.print(f"run: {run.path}   picture: {picture}", soft_wrap=True)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
