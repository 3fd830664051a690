"""Attack configs and checkpoints: nothing may end in a traceback, hang, or load what was altered.

    python -m tests.crash.attack [--configs 5000] [--corruptions 1000] [--seed 1]

Configs: a run's or a study's config of every kind gets one to three hostile changes (values, types,
keys, numbers without end, text, damage to the YAML itself) and goes the way of `rlplast train`: it
is read and checked, and every fifth one that is accepted is built. Corruptions: a checkpoint of a
short run is damaged in one file, with the manifest as it was or made to match, and the run is
resumed.

What ends well: a config that is accepted, or refused in less than 300 characters that name the key
or the file; a damaged checkpoint that is refused, or passed over. What does not: any other
exception, more than 20 seconds, a long or nameless refusal, a damaged state that is loaded though
the manifest does not match. Counts are printed, and the first of each failure; exit 1 if there is
one.
"""

import argparse
import contextlib
import copy
import io
import json
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import traceback
import warnings
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from tests.every_kind import small_run

LIMIT = 20.0  # seconds
LONGEST = 300  # characters of a refusal
MEMORY = 6 << 30  # bytes that the process may take

BASES = (
    "dqn/demo",
    "sac/pendulum",
    "ppo/cartpole",
    "supervised/digits_warm_start",
    "gpt/stdlib_demo",
    "study/demo",
)
ROWS: dict[str, list[dict[str, Any]]] = {
    "hooks": [
        {"method": "fire", "at": "50%"},
        {"method": "swr", "every": "1 updates", "params": {"coef": 1e-3, "approximate": True}},
        {"method": "cbp", "every": "1 updates"},
        {"method": "redo", "every": "10%", "params": {"threshold": 0.1}},
        {"method": "full_reset", "when": {"metric": "dormant_ratio", "above": 0.5}},
    ],
    "penalties": [{"method": "l2_init", "params": {"coef": 1e-4}}],
    "layers": [{"method": "lifecycle", "params": {"warmup": 100}}, {"method": "normalize_project"}],
}
HOSTILE: list[Any] = [
    None, True, False, 0, -1, 1, 2, 10**30, 10**400, -(10**400), 0.5, -0.0, 1e308, 1e-320,
    float("nan"), float("inf"), float("-inf"), "", " ", "x", "null", "~", "\0", "a\nb", "é\u202e😀",
    "A" * 100_000, "1" * 400, "1e400", "1e308 env_steps", "9" * 40 + " updates", "50%", "-5%",
    "0 updates", "1.5 updates", "phase -1", "5 parsecs", "../../etc/passwd", "/dev/zero", "{}", "[",
    "!!python/object:os.system", "${HOME}", "%s%n", [], {}, [[]], [None], {"": {}}, {"a": {"b": 1}},
    [1] * 10_000, {str(i): i for i in range(1000)}, {"class_path": "os.system"}, "1e-3", 1000000,
    1_000_000_000, "100000000 env_steps", [{"method": "fire"}], {"method": "fire"}, "fire",
]  # fmt: skip


# --- configs ---------------------------------------------------------------------------------


def places(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of everything in nested mappings and lists."""
    found = [path] if path else []
    if isinstance(tree, dict | list):
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            found += places(value, (*path, key))
    return found


def at(tree: Any, path: tuple[Any, ...]) -> Any:
    """Return what is at a path."""
    for key in path:
        tree = tree[key]
    return tree


def mutate(tree: Any, draw: random.Random) -> str:
    """Change one thing in a config; return the key that a refusal may be expected to name."""
    path = draw.choice(places(tree))
    parent, key = at(tree, path[:-1]), path[-1]
    way = draw.choice(["value"] * 6 + ["delete", "typo", "unknown", "wrap", "swap"])
    if way == "value":
        parent[key] = copy.deepcopy(draw.choice(HOSTILE))
    elif way == "delete":
        del parent[key]
    elif way == "wrap":
        parent[key] = draw.choice([[parent[key]], {"x": parent[key]}])
    elif way == "swap":
        parent[key] = copy.deepcopy(at(tree, draw.choice(places(tree))))
    elif isinstance(parent, dict):
        wrong = f"{key}x" if way == "typo" else draw.choice(["x", "", "__class__", "é" * 300, "1"])
        parent[wrong] = parent.pop(key) if way == "typo" else copy.deepcopy(draw.choice(HOSTILE))
        return wrong
    return str(key)


def text_of(tree: Any, draw: random.Random) -> str:
    """Return a config as YAML, one in twenty damaged."""
    text = yaml.safe_dump(tree, sort_keys=False, allow_unicode=True)
    if draw.random() > 0.05:
        return text
    cut = draw.randrange(len(text))
    return draw.choice(
        [
            text[:cut],
            text[:cut] + draw.choice("\t{[&*!|>'\"%@`\x00:-") + text[cut:],
            text + "hooks: &h [*h]\n",
            "[" * 5000,
            text * 2,
            "key: " + "9" * 10_000 + "\n" + text,
        ]
    )


def attack_config(number: int, seed: int, folder: Path) -> tuple[str, str]:
    """Try one hostile config; return how it ended and what was said."""
    from rlplast.run.build import build
    from rlplast.run.config_file import read_config
    from rlplast.run.shipped import find_config
    from rlplast.study.api import read_study_config, study_cells

    draw = random.Random(f"{seed} config {number}")
    base = draw.choice(BASES)
    tree = yaml.safe_load(find_config(base).read_text())
    if not base.startswith("study/"):
        for key, rows in ROWS.items():
            if draw.random() < 0.5:
                tree[key] = [json.loads(json.dumps(draw.choice(rows)))]
    keys = [mutate(tree, draw) for _ in range(draw.choice([1, 1, 2, 3])) if places(tree)]
    path = folder / "attacked.yaml"
    path.write_bytes(text_of(tree, draw).encode("utf-8", "surrogatepass"))
    names = [path.name, *keys, *BASES, "config", "arm", "hooks", "penalties", "layers", "kind"]

    def go() -> str:
        if base.startswith("study/"):
            study_cells(read_study_config(str(path)))
            return "accepted"
        config = read_config(path)
        if number % 5:
            return "accepted"
        trainable, _ = build(config)
        trainable.close()
        return "built"

    return judged(go, names)


def judged(go: Callable[[], str], names: list[str]) -> tuple[str, str]:
    """Return how an attempt ended, and what was said."""
    from rlplast.core.errors import RlplastError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return go(), ""
    except RlplastError as error:
        text = str(error)
        if len(text) >= LONGEST:
            return "long refusal", text
        named = any(name and name in text for name in names) or re.search(r" = |'|\w\.\w", text)
        return ("refused" if named else "nameless refusal"), text
    except OSError as error:  # the command line says it in a line
        return ("refused" if error.filename else "nameless refusal"), str(error)
    except Exception:
        return "traceback", traceback.format_exc()


# --- checkpoints -----------------------------------------------------------------------------

RUNS = ("dqn", "supervised")
QUIET: dict[str, Any] = {
    "hooks": [{"method": "cbp", "every": "1 updates"}, {"method": "fire", "at": "50%"}],
    "evaluate": {"every": None},
    "metrics": {"every": None},
    "checkpoint": {"every": "25%", "keep": 9},
}


def damage(path: Path, draw: random.Random) -> str:
    """Damage a file; return what was done."""
    data = path.read_bytes()
    ways = ["flip", "cut", "empty", "grow", "zeros", "delete", "json", "folder", "pipe", "swap"]
    way = draw.choice(ways)
    if way == "flip" and data:
        at_, bit = draw.randrange(len(data)), 1 << draw.randrange(8)
        path.write_bytes(data[:at_] + bytes([data[at_] ^ bit]) + data[at_ + 1 :])
    elif way == "cut" and data:
        path.write_bytes(data[: draw.randrange(len(data))])
    elif way == "empty":
        path.write_bytes(b"")
    elif way == "grow":
        path.write_bytes(data + draw.randbytes(draw.randrange(1, 100)))
    elif way == "zeros":
        path.write_bytes(bytes(len(data)))
    elif way == "delete":
        path.unlink()
    elif way == "folder":
        path.unlink()
        path.mkdir()
    elif way == "pipe":
        path.unlink()
        os.mkfifo(path)
    elif way == "json" and path.suffix == ".json":
        tree = json.loads(data)
        for _ in range(draw.randrange(1, 4)):
            if places(tree):
                mutate(tree, draw)
        path.write_text(json.dumps(tree))
    else:
        path.write_bytes(draw.choice([b"null", b"[]", b"{}", b'{"a": ' * 5000, b"\x80\x04.", b"{"]))
    return way


def reseal(folder: Path) -> None:
    """Make the manifest match what lies in a checkpoint."""
    sentinel = folder / "COMPLETE"
    seal = json.loads(sentinel.read_text())
    for name in list(seal["files"]):
        path = folder / name
        if path.is_file():
            seal["files"][name] = [path.stat().st_size, zlib.crc32(path.read_bytes())]
        else:
            del seal["files"][name]
    sentinel.write_text(json.dumps(seal))


def attack_checkpoint(number: int, seed: int, runs: Path, folder: Path) -> tuple[str, str]:
    """Damage one file of a run; return how resuming it ended and what was said."""
    from rlplast.run import api

    draw = random.Random(f"{seed} corruption {number}")
    source = runs / draw.choice(RUNS)
    run = folder / "run"
    shutil.rmtree(run, ignore_errors=True)
    shutil.copytree(source, run)
    newest = max((run / "checkpoints").glob("step-*"), key=lambda p: int(p.name.split("-")[1]))
    inside = sorted(p for p in newest.rglob("*") if p.is_file())
    target = draw.choice([*inside, *inside, *(p for p in run.iterdir() if p.is_file())])
    name, before = target.relative_to(run).as_posix(), target.read_bytes()
    way = damage(target, draw)
    changed = not target.is_file() or target.read_bytes() != before
    sealed = target in inside and target.name != "COMPLETE" and draw.random() < 0.5
    if sealed:
        reseal(newest)
    messages: list[str] = []

    def go() -> str:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            total = "150 env_steps" if "dqn" in source.name else None
            api.resume(run, total, report=messages.append)
        from_damaged = any(f"from {newest.name}" in text for text in messages)
        guarded = target in inside and target.name != "COMPLETE" and changed and not sealed
        if guarded and from_damaged:
            return "altered state loaded"
        if guarded and not any(newest.name in t for t in messages):
            return "passed over without a word"
        return "resumed, manifest matching" if sealed else "resumed"

    ended, text = judged(go, [run.name, target.name, newest.name])
    return ended, f"{name} {way}{', manifest matching' if sealed else ''}: {text or messages}"


# --- all of them -----------------------------------------------------------------------------


class Hang(BaseException):
    """Raised in a case that takes too long."""


def timed(case: Callable[[], tuple[str, str]]) -> tuple[str, str]:
    """Return what came of a case, or that it hung."""

    def end(*of: object) -> None:
        raise Hang

    signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, LIMIT)
    try:
        return case()
    except Hang:
        return "hang", traceback.format_exc()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


FAILURES = (
    "traceback",
    "hang",
    "long refusal",
    "nameless refusal",
    "altered state loaded",
    "passed over without a word",
)


def main(words: list[str] | None = None) -> int:
    """Attack, and print what came of it."""
    from rlplast.run import api

    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--configs", type=int, default=5000)
    parser.add_argument("--corruptions", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args(words)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    counts: Counter[str] = Counter()
    firsts: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as temporary, contextlib.chdir(temporary):
        folder, runs = Path(temporary), Path(temporary) / "runs"
        for name in RUNS if args.corruptions else ():
            api.train(small_run(name, {}, **QUIET), runs / name, report=lambda text: None)
            info = json.loads((runs / name / "run.json").read_text())
            (runs / name / "run.json").write_text(json.dumps(info | {"status": "running"}))
        cases = [("config", number) for number in range(args.configs)]
        cases += [("corruption", number) for number in range(args.corruptions)]
        for kind, number in cases:
            print(f"\r{kind} {number} ", end="", file=sys.stderr, flush=True)
            if kind == "config":
                ended, text = timed(lambda n=number: attack_config(n, args.seed, folder))
            else:
                ended, text = timed(lambda n=number: attack_checkpoint(n, args.seed, runs, folder))
            counts[f"{kind} {ended}"] += 1
            firsts.setdefault(ended, f"{kind} {number}: {text}")
    print("", *(f"{count:6} {ended}" for ended, count in counts.most_common()), sep="\n")
    failed = [ended for ended in FAILURES if ended in firsts]
    for ended in failed:
        print(f"--- the first {ended}: {firsts[ended]}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
