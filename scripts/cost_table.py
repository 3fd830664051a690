"""What every registered method and the default metrics cost, as a table.

    python scripts/cost_table.py [--only METHOD ...] [--models NAME ...] [--threads 2] [--write]

Every method of the registry, with its default parameters, in an update of each model. A method
that is made for every update, a penalty or a layer: update with it over update without it, and what
it adds. A method with a schedule: a firing, also in updates. Sides alternate; figures are medians.
"–" stands for a method that refuses the model; the reason is printed, and not written.

A second table has the cost of the metrics that a run measures by default, in 100 k updates. With
``--write`` both go into docs/explanation/benchmarks.md, which takes all methods and all models.
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.tools import AGENTS, alternate, built, machine, medians
from rlplast.core.errors import RlplastError
from rlplast.core.method.method import implements
from rlplast.core.registry import LISTS, Info, rows
from rlplast.metrics.probe import measure_run

PAGE = Path(__file__).parents[1] / "docs" / "explanation" / "benchmarks.md"
MARKS = ("<!-- costs -->", "<!-- end of costs -->")
SIDE_SECONDS = 1.5  # of a comparison, for each side, unless three calls take longer
PARAMS = {"dash": {"batches": 4, "batch": 64}}  # where the default depends on the data
SCHEDULED = ("pfo", "restart_steps")  # leave the optimizer its moments, yet have a schedule
UPDATES = 100_000  # of the run of which metrics take a share
MEASUREMENTS = 20  # of a run with the default `metrics.every: 5%`


@dataclass(frozen=True)
class Model:
    """What is trained: a config, one of its networks, and changes of the config."""

    config: Any
    network: str
    changes: dict[str, Any]

    def build(self, threads: int, **lists: Any) -> tuple[Any, Any]:
        """Return a trainable that is ready for updates, and its hooks."""
        trainable, hooks = built(self.config, threads=threads, **self.changes, **lists)
        trainable.recorded = hooks.recorded()
        while hasattr(trainable, "_environment_step") and not trainable.owes():
            trainable.step()  # fills the replay
        return trainable, hooks


def models(folder: Path) -> dict[str, Model]:
    """Return the models by name; the images of one are written to a folder."""
    images = np.random.default_rng(0).integers(0, 256, (6, 200, 3073), dtype=np.uint8)
    images[..., 0] %= 10  # labels
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    for name, part in zip(names, images, strict=True):
        part.tofile(folder / f"{name}.bin")
    fixed = {"total": "400k env_steps", "agent__accelerate": "off"}
    agents = {
        name: Model(config, network, changes | fixed)
        for name, (config, network, changes) in AGENTS.items()
    }
    return agents | {
        "ResNet-18": Model(
            {
                "kind": "supervised",
                "data": {"name": "cifar10", "folder": str(folder)},
                "model": {"name": "resnet18"},
                "stream": {"name": "warm_start", "fraction": 0.9, "epochs": 10_000},
                "batch_size": 32,
            },
            "model",
            {},
        ),
        "GPT": Model(
            {
                "kind": "gpt",
                "model": {
                    "layers": 6,
                    "heads": 6,
                    "width": 384,
                    "context": 128,
                    "vocab_size": 256,
                },
                "corpora": {"stdlib": "embedded/stdlib"},
                "phases": [{"updates": 10**6, "mixture": {"stdlib": 1}}],
                "batch_size": 4,
            },
            "gpt",
            {},
        ),
    }


def update_of(trainable: Any) -> Callable[[], Any]:
    """Return what makes one update."""
    return trainable.update if hasattr(trainable, "_environment_step") else trainable.step


def in_updates(info: Info) -> bool:
    """Say whether a method acts in every update."""
    method: Any = info.target
    if info.name in SCHEDULED:
        return False
    return method.key != "hooks" or method.policies == ("keep", "leave")


def cost(info: Info, model: Model, plain: Callable[[], Any], seconds: float, threads: int) -> str:
    """Return what a method costs in a model, of which an update takes `seconds`.

    Raises:
        RlplastError: if the method refuses the model.
    """
    method: Any = info.target
    row: dict[str, Any] = {"method": info.name, "networks": [model.network]}
    row["params"] = PARAMS.get(info.name, {})
    if method.key == "hooks":
        inside = (
            {"every": "100000 updates"} if implements(method, "follow") else {"every": "1 updates"}
        )
        fires = "0%" if implements(method, "term") else "50%"  # a term counts from there on
        row |= inside if in_updates(info) else {"at": fires}
    trainable, hooks = model.build(threads, **{method.key: [row]})
    try:
        found = []
        if not in_updates(info):
            hook = hooks.hooks[0]
            one = _seconds(lambda: hook.fire(trainable.clock, 1, 0), method.fires_once)
            found.append(f"{_ms(one)} ms ({one / seconds:.1f})")
        if in_updates(info) or _stays(method):
            found.append(_ratio(plain, update_of(trainable), _rounds(seconds)))
        return ", then ".join(found)
    finally:
        trainable.close()


def _stays(method: Any) -> bool:
    """Say whether updates after a firing cost more than those before."""
    return implements(method, "install") or implements(method, "term")


def _rounds(seconds: float) -> int:
    return max(3, min(20, int(SIDE_SECONDS / seconds)))


def _seconds(call: Callable[[], Any], once: bool = False) -> float:
    """Return seconds per call; the first one warms up, unless it is long or the only one."""
    first = alternate({"": call}, 1)[""][0]
    if once or first > SIDE_SECONDS:
        return first
    return statistics.median(alternate({"": call}, min(5, _rounds(first)))[""])


def _ms(seconds: float) -> str:
    """Return milliseconds with three figures, or all before the point."""
    return f"{1e3 * seconds:.0f}" if abs(seconds) >= 0.1 else f"{1e3 * seconds:.3g}"


def _ratio(plain: Callable[[], Any], other: Callable[[], Any], rounds: int) -> str:
    seconds = alternate({"without": plain, "with": other}, rounds, 1)
    median = medians(seconds)
    pairs = zip(seconds["with"], seconds["without"], strict=True)
    added = statistics.median(a - b for a, b in pairs)
    return f"{median['with'] / median['without']:.2f} ({'+' * (added > 0)}{_ms(added)} ms)"


def method_table(
    chosen: Sequence[Info], measured: dict[str, tuple[Model, Any]], threads: int
) -> Iterator[str]:
    """Yield the lines of the table of methods; print why some cells are empty."""
    yield from (f"| method | when | {' | '.join(measured)} |", f"|---|---|{'---|' * len(measured)}")
    plain = {name: update_of(trainable) for name, (_, trainable) in measured.items()}
    seconds = {name: _seconds(call) for name, call in plain.items()}
    yield f"| an update without | | {' | '.join(f'{_ms(s)} ms' for s in seconds.values())} |"
    for info in chosen:
        cells = []
        for name, (model, _) in measured.items():
            try:
                cells.append(cost(info, model, plain[name], seconds[name], threads))
            except RlplastError as error:
                cells.append("–")
                print(f"{info.name}, {name}: {error}", file=sys.stderr)
        when = "every update" if in_updates(info) else "firing"
        yield f"| `{info.name}` | {when} | {' | '.join(cells)} |"


def metric_table(measured: dict[str, tuple[Model, Any]]) -> Iterator[str]:
    """Yield the lines of the table of what default metrics cost."""
    yield from ("| model | a measurement, ms | share of a run |", "|---|---|---|")
    for name, (_, trainable) in measured.items():
        one, update = _seconds(measuring(trainable)), _seconds(update_of(trainable))
        share = MEASUREMENTS * one / (UPDATES * update)
        yield f"| {name} | {_ms(one)} | {100 * share:.2f}% |"


def measuring(trainable: Any) -> Callable[[], Any]:
    """Return what makes one measurement of the default metrics."""
    default = trainable.config.metrics
    return lambda: measure_run(trainable, default.names, default.batch_size, 0)


def main() -> int:
    """Measure, print the tables, and write them if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="METHOD", help="default: all methods")
    parser.add_argument("--models", nargs="+", metavar="NAME", help="default: all models")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--write", action="store_true", help=f"into {PAGE.name}")
    args = parser.parse_args()
    if args.write and (args.only or args.models):
        parser.error("--write takes all methods and all models")
    infos = {info.name: info for family in LISTS.values() for info in rows(family)}
    with tempfile.TemporaryDirectory() as folder:
        known = models(Path(folder))
        for given, names in ((args.only, infos), (args.models, known)):
            if unknown := set(given or ()) - set(names):
                parser.error(f"unknown: {', '.join(unknown)}; allowed: {', '.join(names)}")
        chosen = [infos[name] for name in args.only or infos]
        built_ones = {n: (known[n], known[n].build(args.threads)[0]) for n in args.models or known}
        printed: list[str] = []
        for line in tables(chosen, built_ones, args.threads):
            print(line, flush=True)
            printed.append(line)
    if args.write:
        before, _, rest = PAGE.read_text().partition(MARKS[0])
        after = rest.partition(MARKS[1])[2]
        PAGE.write_text("\n\n".join([f"{before}{MARKS[0]}", "\n".join(printed), MARKS[1] + after]))
    return 0


def tables(
    chosen: Sequence[Info], measured: dict[str, tuple[Model, Any]], threads: int
) -> Iterator[str]:
    """Yield the lines of the page."""
    about = machine()
    yield f"{about['cpu']}, torch {about['torch']}, {threads} threads."
    yield ""
    yield from method_table(chosen, measured, threads)
    yield from ("", f"Default metrics, {MEASUREMENTS} times in a run of {UPDATES:,} updates:", "")
    yield from metric_table(measured)


if __name__ == "__main__":
    sys.exit(main())
