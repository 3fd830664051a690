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
one. A child process does the work, so that a crash or a hang is one case.
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
import select
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

LIMIT = 20.0  # seconds
LONGEST = 300  # characters of a refusal
MEMORY = 6 << 30  # bytes a child may take

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


BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)


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
            BOMB + text,
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

RUNS: dict[str, dict[str, Any]] = {
    "dqn": {
        "kind": "dqn",
        "total": "60 env_steps",
        "env": {"id": "gym/CartPole-v1", "num_envs": 2},
        "agent": {"network": "mlp", "initial_steps": 10, "buffer_size": 100, "batch_size": 4},
        "hooks": [{"method": "cbp", "every": "1 updates"}, {"method": "fire", "at": "50%"}],
    },
    "supervised": {
        "kind": "supervised",
        "model": {"name": "mlp", "hidden": [8]},
        "stream": {"name": "warm_start", "epochs": 1},
        "batch_size": 256,
    },
}
COMMON = {"log": {"to": []}, "evaluate": {"every": None}, "metrics": {"every": None}}


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
    source = runs / draw.choice(sorted(RUNS))
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
            total = "90 env_steps" if "dqn" in source.name else None
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


# --- the child and its keeper ----------------------------------------------------------------


def child(kind: str, first: int, last: int, seed: int, runs: Path) -> None:
    """Try cases, a line of JSON for each."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    import torch

    torch.set_num_threads(1)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        os.chdir(folder)
        for number in range(first, last):
            if kind == "configs":
                ended, text = attack_config(number, seed, folder)
            else:
                ended, text = attack_checkpoint(number, seed, runs, folder)
            print(json.dumps([number, ended, text]), file=out, flush=True)


def keep(kind: str, count: int, seed: int, runs: Path) -> tuple[Counter[str], dict[str, str]]:
    """Run the cases in children; one that dies or hangs is a case, and the next takes over."""
    counts: Counter[str] = Counter()
    firsts: dict[str, str] = {}

    def note(number: int, ended: str, text: str) -> None:
        counts[ended] += 1
        firsts.setdefault(ended, f"{kind} case {number}: {text}")

    at_ = 0
    while at_ < count:
        words = [kind, str(at_), str(count), str(seed), str(runs)]
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.attack", "--child", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            bufsize=1,
        )
        assert process.stdout is not None
        grace = 60.0  # to start
        while at_ < count:
            started = time.monotonic()
            ready, _, _ = select.select([process.stdout], [], [], grace)
            line = process.stdout.readline() if ready else ""
            if line:
                number, ended, text = json.loads(line)
                slow = time.monotonic() - started > LIMIT and grace == LIMIT
                note(number, "hang" if slow else ended, text)
                at_, grace = number + 1, LIMIT
                continue
            process.kill()
            note(at_, "hang" if not ready else "crash", f"exit {process.wait()}")
            at_ += 1
            break
        process.kill()
        process.wait()
    return counts, firsts


FAILURES = (
    "traceback",
    "hang",
    "crash",
    "long refusal",
    "nameless refusal",
    "altered state loaded",
    "passed over without a word",
)


def main() -> int:
    """Attack, and print what came of it."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--configs", type=int, default=5000)
    parser.add_argument("--corruptions", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--child", nargs=5, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        kind, first, last, seed, runs = args.child
        child(kind, int(first), int(last), int(seed), Path(runs))
        return 0
    failed = False
    with tempfile.TemporaryDirectory() as temporary:
        runs = Path(temporary)
        if args.corruptions:
            from rlplast.run import api

            for name, config in RUNS.items():
                api.train(
                    {**config, **COMMON, "checkpoint": {"every": "25%", "keep": 9}}, runs / name
                )
                info = json.loads((runs / name / "run.json").read_text())
                (runs / name / "run.json").write_text(json.dumps(info | {"status": "running"}))
        for kind, count in (("configs", args.configs), ("corruptions", args.corruptions)):
            counts, firsts = keep(kind, count, args.seed, runs)
            print(f"{kind}: " + ", ".join(f"{n} {e}" for e, n in counts.most_common()))
            for ended in FAILURES:
                if counts[ended]:
                    failed = True
                    print(f"--- {counts[ended]} × {ended}, the first: {firsts[ended]}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
