"""What is printed and drawn when a run has ended."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rlplast.cli.output import new_console, say, warn
from rlplast.cli.tables import figure, receipt_table
from rlplast.core.duration import counted
from rlplast.core.errors import DamagedFile, RlplastError
from rlplast.report.plot import plot_run
from rlplast.run.api import Run
from rlplast.run.tasks import tasks_of
from rlplast.training.run_folder import near

__all__ = ["finish"]

_SHOWN = 20  # receipts


def finish(run: Run) -> None:
    """Print a run's receipts and last scores, and draw ``plot.png``; damaged lines only warn."""
    try:
        _finish(run)
    except DamagedFile as error:
        warn(f"rlplast: {error}")
        say(f"run: {near(run.path)}")


def _finish(run: Run) -> None:
    console = new_console()
    rows = run.lines("receipts")
    receipts = [r for r in rows if r["norm_after"] is not None]  # no summaries
    if receipts:
        unit = run.config.total_time().unit
        unit = "updates" if unit in ("epochs", "phase") else unit  # many firings within one
        console.print(receipt_table(receipts[-_SHOWN:], unit, console.width))
        if len(receipts) > _SHOWN:
            say(f"these are the last {_SHOWN} of {len(receipts):,} receipts")
    for line in _inside([r for r in rows if r["norm_after"] is None and r.get("units")]):
        say(line)
    metrics = run.lines("metrics")
    fired = {str(row.get("hook")) for row in rows}
    keys = zip(run.config.hooks, run.config.hook_keys(), strict=True)
    for line in _never_fired([(row, key in fired) for row, key in keys], metrics):
        say(line)
    scores = [m for m in metrics if any(key.startswith("eval/") for key in m)]
    if scores:
        say(_evaluated(scores[-1], tasks_of(run.config)))
    words = [f"run: {near(run.path)}"]
    try:
        words.append(f"picture: {near(plot_run(run.path))}")
    except RlplastError as error:
        warn(f"rlplast: {error}")
    console.print("   ".join(words), soft_wrap=True)


def _inside(summaries: Sequence[dict[str, Any]]) -> list[str]:
    """Say in a line for each method and network how many units it reset inside updates."""
    units, firings = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for row in summaries:
        key = row["method"], row["network"]
        units[key] += sum(row["units"].values())
        firings[key] += row["firings"]
    return [
        f"{method} in {firings[method, network]:,} updates of {network}: "
        f"{counted(units[method, network], 'unit')} reset"
        for method, network in units
    ]


def _never_fired(
    hooks: Sequence[tuple[Mapping[str, Any], bool]], metrics: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    """Say of each hook whose condition never held how often it was read, and how near it came."""
    for number, (hook, fired) in enumerate(hooks):
        when = hook.get("when")
        if when is None or fired:
            continue
        values = [
            value
            for row in metrics
            for key, value in row.items()
            if value is not None and _is_read(key, when["metric"], hook.get("networks"))
        ]
        side = "above" if when.get("above") is not None else "below"
        nearest = max if side == "above" else min
        words = f"measured {counted(len(values), 'time')} in the run"
        words += f", the nearest was {figure(nearest(values))}" if values else ""
        yield (
            f"hooks[{number}] ({hook['method']}) never fired: {when['metric']} {side} "
            f"{when[side]}, {words}"
        )


def _is_read(key: str, metric: str, networks: Sequence[str] | None) -> bool:
    """Say whether a condition on `metric` reads a key of metrics.jsonl."""
    if "/" in metric or key.count("/") < 2:
        return key == metric
    family, name, *rest = key.split("/")  # rest: the network; then one of its tensors, if any
    return [family, name] == ["metric", metric] and (
        len(rest) == 1 and (not networks or rest[0] in networks)
    )


def _evaluated(row: dict[str, Any], tasks: Sequence[str]) -> str:
    """Say in a line what the last evaluation found, of the task of its phase."""
    if "eval/return_mean" in row:
        of = f" of {tasks[row['phase']]}" if len(tasks) > 1 else ""
        return (
            f"evaluation{of} after {row['env_steps']:,} env_steps: "
            f"mean return {row['eval/return_mean']:.2f}, median {row['eval/return_median']:.2f} "
            f"over {counted(round(row['eval/episodes']), 'episode')}"
        )
    found = [f"{k.removeprefix('eval/')} {figure(row[k])}" for k in row if k.startswith("eval/")]
    return f"evaluation after {row['updates']:,} updates: {', '.join(found)}"
