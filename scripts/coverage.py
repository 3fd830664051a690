"""How often the intervals of a report hold the true value, and how often its tests err.

Scores of seeds are drawn from known distributions, so the true value is known. It is what the
estimator gives for infinitely many seeds: of an interquartile mean, the mean of the middle half of
the distribution. Beside the report's intervals stands the percentile bootstrap.

    python scripts/coverage.py [--studies 20000] [--picture docs/images/coverage.png]

Prints the tables of docs/explanation/statistics.md.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from scipy import stats

from rlplast.core.mean_interval import interval_of_mean
from rlplast.report.estimators import (
    Mean,
    curve_band,
    holm,
    interval_of,
    middle,
    newcombe_interval,
    p_value_of,
    welch,
)

POINTS = 2000  # equally likely scores that stand for a distribution
SHOWN = (3, 5, 10, 20)  # seeds in the tables
OLD_STUDIES = 1000  # of the bootstrap, which is slow
RESAMPLES = 500  # of each of its studies
KINDS = ("final score", "difference", "all tasks", "improvement")

Samples = list[np.ndarray]  # per task, shape (studies, seeds)


def grid(count: int = POINTS) -> np.ndarray:
    return (np.arange(count) + 0.5) / count


def failing(share: float) -> np.ndarray:
    """Normal scores, of which a share lies eight deviations lower."""
    failed = round(share * POINTS)
    return np.append(stats.norm.ppf(grid(failed)) - 8, stats.norm.ppf(grid(POINTS - failed)))


@cache
def distributions() -> dict[str, np.ndarray]:
    normal = stats.norm.ppf(grid())
    return {
        "normal": normal,
        "skewed (lognormal)": np.exp(0.8 * normal),
        "heavy tails (t, 3)": stats.t.ppf(grid(), 3),
        "20% of seeds fail": failing(0.2),
        "35% of seeds fail": failing(0.35),
        "50% of seeds fail": failing(0.5),
        "near a ceiling": stats.beta.ppf(grid(), 40, 1.2),
        "ties (11 values)": stats.binom.ppf(grid(), 10, 0.8) / 10,
    }


def iqm(scores: np.ndarray) -> np.ndarray:
    return stats.trim_mean(scores, 0.25, axis=-1)


@dataclass(frozen=True)
class Setup:
    """What is simulated: `draw` returns the samples of so many studies, of so many seeds."""

    name: str
    draw: Callable[[np.random.Generator, int, int], Samples]
    true: float


def setups(kind: str, scores: np.ndarray) -> Iterator[Setup]:
    """Yield the settings of one kind; `scores` are those of the distribution."""
    unit = (scores - np.median(scores)) / scores.std()
    if kind == "final score":
        yield Setup("", drawing(scores), float(iqm(scores)))
    elif kind == "difference":  # what seeds share drops out; the arm's own noise is half as large
        arm = stats.norm.ppf(grid()) / 2
        true = float(iqm(np.subtract.outer(arm, unit).ravel()))
        pairs = drawing(arm, unit)
        yield Setup("", lambda *size: [np.subtract(*pairs(*size))], true)
    elif kind == "all tasks":
        for count in (2, 6):
            for name, step in (("", 0.0), (", unequal spread", 0.8)):
                sizes = np.exp(step * np.arange(count))
                tasks = [size * (unit + 3) + k for k, size in enumerate(sizes)]
                yield Setup(
                    f"{count} tasks{name}", drawing(*tasks), float(iqm(np.concatenate(tasks)))
                )
    else:
        for gap in (0, 1, 2):
            arms = [unit + gap, unit]
            yield Setup(f"{gap} sd better", drawing(*arms), wins(*arms))
        yield Setup("4 tasks", drawing(*[unit + 1] * 4, *[unit] * 4), wins(unit + 1, unit))


def generator(name: str, seeds: int) -> np.random.Generator:
    return np.random.default_rng([seeds, *name.encode()])


def drawing(*scores: np.ndarray) -> Callable[[np.random.Generator, int, int], Samples]:
    return lambda rng, studies, seeds: [rng.choice(own, (studies, seeds)) for own in scores]


def wins(x: np.ndarray, y: np.ndarray) -> float:
    ordered = np.sort(y)
    below = np.searchsorted(ordered, x, "left") + np.searchsorted(ordered, x, "right")
    return float(below.mean() / 2 / len(y))


Ends = tuple[np.ndarray, np.ndarray]


def ours(kind: str, samples: Samples) -> Ends:
    """The report's intervals of all studies."""
    if kind != "improvement":
        return interval_of(middle(samples))
    shares = np.mean([own.mean(axis=(-2, -1)) for own in won(samples)], axis=0)
    seeds = samples[0].shape[-1]
    return newcombe_interval(shares, [(seeds, seeds)] * (len(samples) // 2))


def won(samples: Samples) -> list[np.ndarray]:
    """Per task, which pairs of seeds are won, shape (studies, seeds, seeds)."""
    pairs = zip(samples[: len(samples) // 2], samples[len(samples) // 2 :], strict=True)
    return [0.5 + np.sign(x[..., :, None] - y[..., None, :]) / 2 for x, y in pairs]


def bootstrap(kind: str, samples: Samples, rng: np.random.Generator) -> Ends:
    """Percentile bootstrap within tasks; one set of resamples serves all studies."""
    seeds = samples[0].shape[-1]
    drawn = [rng.integers(0, seeds, (RESAMPLES, seeds)) for _ in samples]
    lows, highs = [], []
    for study in range(len(samples[0])):
        if kind == "improvement":
            half = len(drawn) // 2
            counts = [(own[:, :, None] == np.arange(seeds)).mean(axis=1) for own in drawn]
            tables = won([own[[study]] for own in samples])
            values = np.mean(
                [
                    ((a @ table[0]) * b).sum(axis=1)
                    for a, table, b in zip(counts[:half], tables, counts[half:], strict=True)
                ],
                axis=0,
            )
        else:
            parts = [own[study][index] for own, index in zip(samples, drawn, strict=True)]
            values = iqm(np.concatenate(parts, axis=-1))
        low, high = np.percentile(values, [2.5, 97.5])
        lows.append(low)
        highs.append(high)
    return np.array(lows), np.array(highs)


def held(ends: Ends, true: float) -> float:
    """The share of studies whose interval holds the true value, in percent."""
    slack = 1e-9 * max(1.0, abs(true))  # of rounding
    return 100 * float(np.mean((ends[0] <= true + slack) & (ends[1] >= true - slack)))


Table = dict[tuple[str, str, str, int], float]  # kind, distribution, setup, seeds → percent


def coverage(studies: int, seeds: Sequence[int] = SHOWN, kinds: Sequence[str] = KINDS) -> Table:
    """Return how often the report's intervals hold the true value."""
    found: Table = {}
    for kind in kinds:
        for name, scores in distributions().items():
            for setup in setups(kind, scores):
                for count in seeds:
                    samples = setup.draw(generator(name, count), studies, count)
                    found[kind, name, setup.name, count] = held(ours(kind, samples), setup.true)
    return found


def old_coverage(studies: int) -> Table:
    """Return the same of the percentile bootstrap."""
    found: Table = {}
    for kind in KINDS:
        for name, scores in distributions().items():
            for setup in setups(kind, scores):
                for count in SHOWN:
                    rng = generator(name, count)
                    ends = bootstrap(kind, setup.draw(rng, studies, count), rng)
                    found[kind, name, setup.name, count] = held(ends, setup.true)
    return found


def ranges(table: Table) -> dict[str, dict[int, tuple[int, int]]]:
    """Return the lowest and the highest of each kind and number of seeds, from 5 on."""
    found: dict[str, dict[int, tuple[int, int]]] = {}
    for kind, _, _, count in table:
        own = [v for (k, _, _, n), v in table.items() if (k, n) == (kind, count)]
        if count >= 5:
            found.setdefault(kind, {})[count] = (round(min(own)), round(max(own)))
    return found


def band_coverage(studies: int, seeds: int) -> tuple[float, float]:
    """Return how often a band holds the true curve at a point, and at all of 100 points."""
    rng = np.random.default_rng(seeds)
    points, whole = [], []
    for _ in range(studies):
        curves = rng.normal(size=(seeds, 100)).cumsum(axis=1) / 10 + rng.normal(size=(seeds, 1))
        _, low, high = curve_band(curves)
        inside = (low <= 0) & (high >= 0)
        points.append(inside.mean())
        whole.append(inside.all())
    return 100 * float(np.mean(points)), 100 * float(np.mean(whole))


def plain_mean(sample: np.ndarray) -> Mean:
    """A mean as Student's t-test knows it."""
    seeds = sample.shape[-1]
    variance = sample.var(axis=-1, ddof=1) / seeds
    return Mean(sample.mean(axis=-1), variance, np.full(variance.shape, seeds - 1.0))


def rejected(shift: float, scores: np.ndarray, seeds: int, studies: int) -> list[float]:
    """Return how often each test says p < 0.05 of two arms that are `shift` deviations apart."""
    rng = np.random.default_rng(seeds)
    unit = (scores - np.median(scores)) / scores.std()
    x, y = (rng.choice(unit, (studies, seeds)) for _ in range(2))
    pairs = np.round(x + shift - y, 9)
    tests = (
        p_value_of(middle([pairs])),
        p_value_of(plain_mean(pairs)),
        p_value_of(welch([x + shift], [y])),
    )
    return [100 * float(np.mean(p < 0.05)) for p in tests]


def called(scores: np.ndarray, seeds: int, studies: int, arms: int, tasks: int) -> list[float]:
    """Return in how many of 100 studies without differences an arm is called better, or worse.

    Four numbers: where p is corrected for the arms of each task, better or worse, and better; then
    where it is corrected for arms × tasks.
    """
    rng = np.random.default_rng([seeds, arms, tasks])
    baseline = rng.choice(scores, (studies, 1, tasks, seeds))
    pairs = np.round(rng.choice(scores, (studies, arms, tasks, seeds)) - baseline, 9)
    found = middle([pairs])
    p, up = p_value_of(found), found.value > 0
    alone = np.array([[holm(list(task)) for task in own.T] for own in p]).transpose(0, 2, 1)
    joint = np.array([holm(list(own.ravel())) for own in p]).reshape(p.shape)
    differ = [own < 0.05 for own in (alone, joint)]
    differ = [either for own in differ for either in (own, own & up)]
    return [100 * float(own.any(axis=(1, 2)).mean()) for own in differ]


def of_episodes(scores: np.ndarray, count: int, studies: int) -> tuple[float, float]:
    """Return how often intervals of the mean of so many episodes hold it, and bootstraps do."""
    rng = np.random.default_rng(count)
    drawn = rng.choice(scores, (studies, count))
    ends = [interval_of_mean(list(own)) for own in drawn]
    found = np.array([own for own in ends if own is not None]).reshape(-1, 2).T
    picks = rng.integers(count, size=(OLD_STUDIES, count))
    old = np.quantile(drawn[:OLD_STUDIES, picks].mean(axis=-1), [0.025, 0.975], axis=-1)
    true = float(scores.mean())
    return held((found[0], found[1]), true) if len(found.T) else np.nan, held((*old,), true)


def print_episodes(studies: int) -> None:
    """How often `rlplast evaluate` holds the true mean."""
    own = distributions()
    names = ("normal", "skewed (lognormal)", "50% of seeds fail", "near a ceiling")
    returns = {name.replace("seeds", "episodes"): own[name] for name in names}
    shares = {f"{p:.0%} succeed": (grid() < p).astype(float) for p in (0.5, 0.9, 0.98)}
    counts = (2, 5, 10, 20, 100)
    print(f"\nmean of episodes, {studies} studies\n")
    print("| returns |" + "".join(f" {n} |" for n in counts))
    print("|---" * (len(counts) + 1) + "|")
    for name, scores in (returns | shares).items():
        found = (of_episodes(scores, n, studies) for n in counts)
        cells = (f" {'–' if new != new else round(new)} ({round(old)}) |" for new, old in found)
        print(f"| {name} |" + "".join(cells))


def span(values: Sequence[float]) -> str:
    low, high = round(min(values)), round(max(values))
    return str(low) if low == high else f"{low}–{high}"


def print_tables(new: Table, old: Table) -> None:
    for kind in KINDS:
        print(f"\n{kind}\n\n| seeds' scores |" + "".join(f" {n} seeds |" for n in SHOWN))
        print("|---" * (len(SHOWN) + 1) + "|")
        for name in distributions():
            cells = []
            for count in SHOWN:
                own, before = (
                    [v for (k, d, _, n), v in table.items() if (k, d, n) == (kind, name, count)]
                    for table in (new, old)
                )
                cells.append(f" {span(own)} ({span(before)}) |")
            print(f"| {name} |" + "".join(cells))
    print("\nby setting, over distributions")
    for kind, setting in dict.fromkeys((k, s) for k, _, s, _ in new if s):
        for title, table in (("new", new), ("old", old)):
            own = {
                n: span([v for (k, _, s, m), v in table.items() if (k, s, m) == (kind, setting, n)])
                for n in SHOWN
            }
            print(f"{kind}, {setting}, {title}: {own}")


def print_tests(studies: int) -> None:
    head = ("by seed", "paired t-test", "Welch's test")
    print("\n| seeds' scores | seeds |" + "".join(f" {name} |" for name in head))
    print("|---" * (len(head) + 2) + "|")
    for name, scores in distributions().items():
        for count in SHOWN[1:]:
            size, power = (
                rejected(shift, scores, count, studies) for shift in (0.0, 1.5 * (5 / count) ** 0.5)
            )
            cells = [f" {a:.1f} / {b:.0f} |" for a, b in zip(size, power, strict=True)]
            print(f"| {name} | {count} |" + "".join(cells))


def print_families(studies: int, arms: int = 4, tasks: int = 10) -> None:
    """How often a study in which nothing differs calls an arm better, by correction."""
    print(f"\n{arms} arms and a baseline on {tasks} tasks, {studies} studies")
    print("\n| seeds' scores |" + "".join(f" {count} seeds |" for count in SHOWN[1:]))
    print("|---" * len(SHOWN) + "|")
    for name, scores in distributions().items():
        own = [called(scores, count, studies, arms, tasks) for count in SHOWN[1:]]
        cells = [" {:.0f} ({:.0f}) → {:.1f} ({:.1f}) |".format(*four) for four in own]
        print(f"| {name} |" + "".join(cells))


def draw(new: Table, old: Table, path: Path) -> None:
    """Draw the coverage of final scores: a column per number of seeds, a row per distribution."""
    import altair as alt

    rows = [
        {"scores": name, "seeds": f"{n} seeds", "intervals": title, "coverage": value}
        for title, table in (("of reports", new), ("percentile bootstrap", old))
        for (kind, name, _, n), value in table.items()
        if kind == "final score" and n in SHOWN
    ]
    scale = alt.Scale(domain=[65, 100], zero=False)
    points = (
        alt.Chart()
        .mark_point(filled=True, size=70, opacity=1)
        .encode(
            x=alt.X("coverage:Q", title="% that hold the true value", scale=scale),
            y=alt.Y("scores:N", title=None, sort=list(distributions())),
            color=alt.Color("intervals:N", scale={"range": ["#0072b2", "#d55e00"]}),
        )
    )
    rule = (
        alt.Chart().mark_rule(strokeDash=[4, 3], color="#777").encode(x=alt.XDatum(95, scale=scale))
    )
    panels = alt.layer(rule, points, data=alt.Data(values=rows)).properties(width=150, height=170)
    order = [f"{n} seeds" for n in SHOWN]
    whole = panels.facet(column=alt.Column("seeds:N", title=None, sort=order))
    whole.configure_legend(orient="bottom", title=None).save(path, scale_factor=2)


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description="How often intervals hold and tests err.")
    parser.add_argument("--studies", type=int, default=20_000)
    parser.add_argument("--picture", type=Path)
    options = parser.parse_args(arguments)
    start = time.perf_counter()
    new, old = coverage(options.studies), old_coverage(OLD_STUDIES)
    print_tables(new, old)
    for seeds in SHOWN[1:]:
        point, whole = band_coverage(options.studies // 10, seeds)
        print(f"\nband, {seeds} seeds: a point {point:.1f}%, all of 100 points {whole:.1f}%")
    print_tests(options.studies)
    print_families(options.studies)
    print_episodes(options.studies // 10)
    if options.picture:
        draw(new, old, options.picture)
    print(f"\n{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main(sys.argv[1:])
