"""Charts of what runs measured as many numbers at once: densities, and paths of the weights.

- `parts`: those that the runs of a report have.
- `champions_words`: which iterations are the champions, for captions.
- `networks_of`: of which networks a metric was measured.

Both look at iteration 0 and the champion of runs that have iterations, else at the whole run.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from rlplast.report.lines import LOWEST, Kind, Line, chart_of_lines, outline
from rlplast.report.page import Chart
from rlplast.report.run_data import RunData
from rlplast.report.stretches import (
    champion,
    has_iterations,
    last_density,
    path_of,
    starts_at_initial,
    stretches,
)
from rlplast.report.view import Report, slug_of

__all__ = ["champions_words", "networks_of", "parts"]

# Metric → title, label of the axis, kind of chart.
_DENSITIES: dict[str, tuple[str, str, Kind]] = {
    "activation_histogram": ("histogram of activations", "activation", "density"),
    "hessian_density": ("eigenvalues of the Hessian", "eigenvalue", "log density"),
}
_SKETCH = "weight_sketch"


def parts(report: Report) -> Iterator[Chart]:
    """Yield charts of each task, one per metric and network that has it."""
    for task in report.tasks:
        for network in networks_of(report.of(task), _SKETCH):
            yield from _trajectories(report, task, network)
        for metric in _DENSITIES:
            for network in networks_of(report.of(task), metric):
                yield from _densities(report, task, metric, network)


def networks_of(runs: Sequence[RunData], metric: str) -> dict[str, list[str]]:
    """Return network → the keys of a metric, in the order in which they were measured."""
    found: dict[str, dict[str, None]] = {}
    for key in dict.fromkeys(key for run in runs for row in run.metrics for key in row):
        if key.startswith(f"metric/{metric}/"):
            found.setdefault(key.split("/")[2], {})[key] = None
    return {network: list(keys) for network, keys in found.items()}


def champions_words(report: Report, task: str) -> str:
    """Return which iteration is the champion of each arm, by seed; "" without iterations."""
    found = []
    for look in report.arms:
        bests = [champion(run) for run in report.of(task, look.name)]
        if any(best is not None for best in bests):
            numbers = ("–" if best is None else str(best) for best in bests)
            found.append(f"arm {look.label}: {', '.join(numbers)}")
    return f"Champion's iteration, by seed: {'; '.join(found)}." if found else ""


def _densities(report: Report, task: str, metric: str, network: str) -> Iterator[Chart]:
    """Yield the chart of a density, a panel per arm, of its first seed."""
    title, label, kind = _DENSITIES[metric]
    key, found = f"metric/{metric}/{network}", {}
    for look, run in _first_runs(report, task, key):
        for stretch in stretches(run):
            density = last_density(run, stretch, key)
            if density is not None:
                own = Line(look, stretch.words, *outline(*density))
                found.setdefault(_title(report, look, run), []).append(own)
    if not found:
        return
    several = any(map(has_iterations, report.of(task)))
    when = "Last measurement of each iteration." if several else "Last measurement of the run."
    caption = f"{_seeds_words(report, task)}{when}"
    if kind == "log density":
        caption += (
            f" The axis is logarithmic. Values below {LOWEST:g} of a curve's largest are not drawn."
        )
    spec = chart_of_lines(report.arms, found, (label, "density"), kind)
    name = f"{slug_of(metric)}-{report.slugs[task]}-{slug_of(network)}"
    yield Chart(name, f"{task}, {network}: {title}", caption, spec)


def _trajectories(report: Report, task: str, network: str) -> Iterator[Chart]:
    """Yield the chart of the paths of the weights, a panel and a plane per arm, of one seed."""
    key, found, shares, size = f"metric/{_SKETCH}/{network}", {}, [], 0
    for look, run in _first_runs(report, task, key):
        paths = {stretch: path_of(run, stretch, key) for stretch in stretches(run)}
        paths = {stretch: own for stretch, own in paths.items() if len(own)}
        if not paths:
            continue
        plane, share = plane_of(list(paths.values()))
        for stretch, own in paths.items():
            if starts_at_initial(run, stretch, network):  # where the sketch is 0
                paths[stretch] = np.concatenate([np.zeros((1, own.shape[1])), own])
        size = len(plane)
        title = _title(report, look, run)
        found[title] = [Line(look, s.words, *(own @ plane).T) for s, own in paths.items()]
        shares.append(f"arm {report.arms[look].label}: {share:.0%}")
    if not found:
        return
    caption = (
        f"{_seeds_words(report, task)}Cross: θ0; dots: ends. Each panel has its own plane, the "
        f"one through θ0 that keeps most of the squared distances from it ({', '.join(shares)}). "
        f"Distances are those of sketches of {size} numbers: the standard error is "
        f"{(2 * size) ** -0.5:.0%}. A line begins at the cross where training started at θ0, else "
        "at its first measurement."
    )
    spec = chart_of_lines(report.arms, found, ("first direction", "second direction"), "plane")
    name = f"trajectories-{report.slugs[task]}-{slug_of(network)}"
    yield Chart(name, f"{task}, {network}: trajectories of the weights", caption, spec)


def plane_of(paths: Sequence[np.ndarray]) -> tuple[np.ndarray, float]:
    """Return the plane through the origin that keeps most of the squared sizes of all points.

    Args:
        paths: points (n, numbers) in their order, of each path.

    Returns:
        Two orthonormal directions (numbers, 2), and the share that they keep. The first path ends
        on the positive side of the first, the last path on that of the second.
    """
    points = np.concatenate(
        [*paths, np.zeros((2, paths[0].shape[1]))]
    )  # two directions in any case
    _, sizes, directions = np.linalg.svd(points, full_matrices=False)
    ends = np.array([paths[0][-1] @ directions[0], paths[-1][-1] @ directions[1]])
    total = float((sizes**2).sum())
    share = float((sizes[:2] ** 2).sum()) / total if total else 1.0
    return directions[:2].T * np.where(ends < 0, -1.0, 1.0), share


def _first_runs(report: Report, task: str, key: str) -> Iterator[tuple[int, RunData]]:
    """Yield the index of each arm with its run of the first seed that measured `key`."""
    for look in report.arms:
        for run in report.of(task, look.name):
            if any(f"{key}/0" in row for row in run.metrics):
                yield look.index, run
                break


def _title(report: Report, look: int, run: RunData) -> str:
    best = champion(run)
    words = f", champion: iteration {best}" if best is not None else ""
    return f"{report.arms[look].label}{words}"


def _seeds_words(report: Report, task: str) -> str:
    return "Of each arm's first seed. " if len(report.of(task)) > len(report.arms) else ""
