"""What arms are called, and how they look, the same in all charts and tables of a report."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from rlplast.core.method.schedule import KEYS
from rlplast.run.differences import differing, is_free, texts

__all__ = [
    "COLOURS",
    "Look",
    "differences",
    "label_of",
    "looks",
    "number_variants",
    "task_of",
    "unused",
]

Config = Mapping[str, Any]

NO_TREATMENT = "none"

_TREATMENT = ("hooks", "layers", "penalties")

BASELINE = "#777777"
# Paul Tol's "vibrant" scheme, moved until each has a contrast of 3 to white and to dark paper, and
# colour-blind readers tell each pair apart (tests/report/test_arms.py).
COLOURS = ("#0077bb", "#e3772b", "#00a5a4", "#f0015f", "#918ae2", "#c03517")
DASHES = (*((1, 0), (6, 3), (2, 2), (8, 2, 2, 2)), *((12, 3), (4, 1), (1, 4), (12, 2, 2, 2, 2, 2)))


def task_of(config: Config) -> str:
    """Return what a run trains on: its environments, its data set and stream, or its corpora.

    Examples:
        >>> task_of({"env": {"id": "a/x", "sequence": ["a/y", {"id": "a/z"}], "cycles": 2}})
        'a/y → a/z, 2 times'
        >>> task_of({"kind": "dqn", "env": {"id": "atari/Asterix"}})
        'atari/Asterix'
        >>> task_of({"data": {"name": "digits"}, "stream": {"name": "warm_start"}})
        'digits warm_start'
        >>> task_of({"kind": "gpt", "corpora": {"a": "x.bin", "b": "y.bin"}})
        'a + b'
    """
    env, data, stream = (config.get(key) or {} for key in ("env", "data", "stream"))
    times = f", {env['cycles']} times" if env.get("cycles", 1) != 1 else ""
    if env.get("sequence"):
        names = [str(e["id"] if isinstance(e, Mapping) else e) for e in env["sequence"]]
        return f"{' → '.join(names)}{times}"
    if env.get("shift"):
        shift = env["shift"]
        return f"{env['id']} {shift['name'] if isinstance(shift, Mapping) else shift}{times}"
    if "id" in env:
        return str(env["id"])
    if "name" in data:
        return " ".join(str(part["name"]) for part in (data, stream) if "name" in part)
    return " + ".join(map(str, config.get("corpora") or {})) or str(config.get("kind", "run"))


def label_of(config: Config) -> str:
    """Return what is done to a run: its hooks, layers and penalties, with their times.

    Examples:
        >>> label_of({"hooks": [{"method": "fire", "at": "50%"}], "penalties": []})
        'fire at 50%'
    """
    rows = [row for key in _TREATMENT for row in config.get(key) or []]
    return " + ".join(map(_row_label, rows)) or NO_TREATMENT


def _row_label(row: Config) -> str:
    times = []
    for key in KEYS:
        value = row.get(key)
        if isinstance(value, Mapping):  # when
            words = [f"{k} {v}" for k, v in value.items() if k != "metric"]
            times.append(f"{key} {value.get('metric')} {' '.join(words)}")
        elif value is not None:
            points = value if isinstance(value, list) else [value]
            times.append(f"{key} {', '.join(map(str, points))}")
    return " ".join([str(row.get("method")), *times])


def differences(one: Config, other: Config) -> list[str]:
    """Return in words where two configs differ, but for what runs of one arm may differ in.

    Examples:
        >>> differences({"seed": 1, "agent": {"lr": 0.1}}, {"seed": 2, "agent": {"lr": 0.2}})
        ['agent.lr 0.1, 0.2']
    """
    both = differing(one, other)
    return [f"{key} {a}, {b}" for key, (a, b) in both.items() if not is_free(key)]


def number_variants(
    configs: Sequence[Config], tasks: Sequence[str], labels: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Tell apart runs of one task and label that are not of one config.

    The second config of a label gets " (2)", in an order that depends on the configs alone.

    Returns the label of each run, and notes that say what the numbered ones differ in.
    """
    kept = [
        json.dumps(sorted((k, v) for k, v in texts(own).items() if not is_free(k)))
        for own in configs
    ]
    variants: dict[tuple[str, str], dict[str, Config]] = {}
    for config, task, label, text in zip(configs, tasks, labels, kept, strict=True):
        variants.setdefault((task, label), {})[text] = config
    names, notes = {}, []
    for (task, label), own in variants.items():
        first = own[min(own)]
        for number, text in enumerate(sorted(own), start=1):
            name = names[task, label, text] = f"{label} ({number})" if number > 1 else label
            if number > 1:
                words = "; ".join(differences(first, own[text]))
                notes.append(f"{task}: {label} and {name} differ in {words}")
    return [names[key] for key in zip(tasks, labels, kept, strict=True)], notes


@dataclass(frozen=True)
class Look:
    """How an arm is drawn: its place in the study, name, colour and dashes."""

    index: int
    name: str
    colour: str
    dash: tuple[int, ...]


def looks(arms: Sequence[str], baseline: str | None) -> tuple[Look, ...]:
    """Return how each arm is drawn: the baseline grey, others in a colour that its name picks.

    So an arm looks the same in another report, unless an arm before it has that colour: it gets
    the next free one. From the seventh on, colours come again with dashed lines.
    """
    found: list[Look] = []
    taken: list[int] = []
    for index, name in enumerate(arms):
        if name == baseline:
            found.append(Look(index, name, BASELINE, DASHES[0]))
            continue
        turn = len(taken) // len(COLOURS)
        free = [c for c in range(len(COLOURS)) if taken.count(c) == turn]
        first = crc32(name.encode("utf-8", "replace")) % len(COLOURS)
        colour = next(c % len(COLOURS) for c in range(first, 99) if c % len(COLOURS) in free)
        found.append(Look(index, name, COLOURS[colour], DASHES[turn % len(DASHES)]))
        taken.append(colour)
    return tuple(found)


def unused(name: str, names: Collection[str]) -> str:
    """Return a name that is none of `names`: itself, or with a number from 2 on.

    Examples:
        >>> unused("a", ["a", "a-2"])
        'a-3'
    """
    number, free = 1, name
    while free in names:
        number += 1
        free = f"{name}-{number}"
    return free
