"""What plain runs are called in a report: the task by what they train on, the arm by its hooks.

- `task_of`, `label_of`: names from a config.
- `substance`, `treatment`: the parts of a config that two runs of one arm have in common.
- `differences`: where two configs differ.
- `number_variants`: " (2)" for a second config of one label.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rlplast.core.method.schedule import KEYS
from rlplast.run.differences import differing, is_free, texts

__all__ = ["differences", "label_of", "number_variants", "substance", "task_of", "treatment"]

Config = Mapping[str, Any]

NO_TREATMENT = "none"

_TREATMENT = ("hooks", "layers", "penalties")


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
        >>> label_of({"hooks": []})
        'none'
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


def substance(config: Config) -> str:
    """Return what a run's training depends on but its seed, as text to compare."""
    return _text(sorted((k, v) for k, v in texts(config).items() if not is_free(k)))


def treatment(config: Config) -> str:
    """Return a run's hooks, layers and penalties, as text to compare."""
    return _text({key: config.get(key) or [] for key in _TREATMENT})


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


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

    Returns:
        The label of each run, and notes that say what the numbered ones differ in.
    """
    variants: dict[tuple[str, str], dict[str, Config]] = {}
    for config, task, label in zip(configs, tasks, labels, strict=True):
        variants.setdefault((task, label), {}).setdefault(substance(config), config)
    names: dict[tuple[str, str, str], str] = {}
    notes = []
    for (task, label), own in variants.items():
        first, *others = sorted(own)
        names[task, label, first] = label
        for number, text in enumerate(others, start=2):
            names[task, label, text] = f"{label} ({number})"
            parts = differences(own[first], own[text])
            shown = "; ".join(parts[:4]) + ("; …" if len(parts) > 4 else "")
            notes.append(f"{task}: {label} and {label} ({number}) differ in {shown}")
    runs = zip(configs, tasks, labels, strict=True)
    return [names[task, label, substance(config)] for config, task, label in runs], notes
