"""GPT runs of a second: two small corpora, a small model, hooks of every kind."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rlplast.gpt.config import GPTConfig
from rlplast.gpt.trainer import GPTTrainer
from rlplast.metrics.probe import measure_run
from rlplast.run.build import build
from rlplast.run.config_file import read_config
from rlplast.training import checkpoint, distributed
from rlplast.training.loop import Loop

MODEL: dict[str, Any] = {"layers": 2, "heads": 2, "width": 16, "context": 8, "vocab_size": 256}
HOOKS: list[dict[str, Any]] = [
    {"method": "fire", "on": "phase_start", "scope": "gpt", "params": {"iterations": 5}},
    {"method": "shrink_perturb", "at": ["20%", "70%"], "params": {"init": "fresh"}},
    {"method": "shrink_perturb", "every": "1 updates", "from": "60%", "params": {"coef": 0.001}},
]


def write_corpus(folder: Path, tokens: np.ndarray, **changes: Any) -> None:
    """Write tokens below 256 as `rlplast tokens` would, the last quarter for validation."""
    folder.mkdir(parents=True)
    about: dict[str, Any] = {"format": 1, "tokenizer": "bytes", "vocab_size": 256}
    about |= {"dtype": "uint16", "sha256": "the sum"}
    dtype = "<u4" if changes.get("dtype") == "uint32" else "<u2"
    train, validation = np.split(tokens, [len(tokens) * 3 // 4])
    for name, part in (("train", train), ("validation", validation)):
        part.astype(dtype).tofile(folder / f"{name}.bin")
        about |= {f"{name}_tokens": len(part), f"{name}_bytes": len(part)}
    (folder / "corpus.json").write_text(json.dumps(about | changes))


def write_corpora(folder: Path) -> dict[str, str]:
    """Write two corpora of different alphabets; return their config."""
    rng = np.random.default_rng(0)
    steps = rng.integers(1, 4, size=1200).cumsum()
    found = {"low": steps % 30, "high": 30 + (2 * steps) % 34}
    for name, tokens in found.items():
        write_corpus(folder / name, tokens)
    return {name: str(folder / name) for name in found}


def tiny(corpora: dict[str, str], /, **changes: Any) -> GPTConfig:
    """Return a config of two phases of 10 updates."""
    return read_config(copy.deepcopy(plain(corpora) | changes))  # type: ignore[return-value]


def plain(corpora: dict[str, str]) -> dict[str, Any]:
    return {
        "kind": "gpt",
        "seed": 3,
        "threads": 1,
        "device": "cpu",
        "model": MODEL,
        "corpora": corpora,
        "phases": [
            {"updates": 10, "mixture": {"low": 1}},
            {"updates": "10 updates", "mixture": {"high": 9, "low": 0.1}},
        ],
        "batch_size": 8,
        "optimizer": {"lr": 1e-2, "lr_min": 1e-3},
        "hooks": HOOKS,
        "log": {"every": "3 updates", "to": []},
        "evaluate": {"every": "5 updates", "batches": 2},
        "metrics": {"every": "25%", "names": ["weight_norm", "srank", "gradient_norm"]},
        "checkpoint": {"every": "10%", "keep": 2},
    }


def loop(config: GPTConfig, path: Path, observer: Callable[[Loop], None] | None = None) -> Loop:
    """Return the loop of a run, resumed from what is in its folder."""
    resumed = any((path / "checkpoints").glob("*-*"))
    trainer, hooks = build(config.to_resume() if resumed else config)
    made = Loop(
        trainable=trainer,
        hooks=hooks,
        total=config.total_time(),
        folder=distributed.open_folder(path),
        intervals=config.intervals(),
        measure=lambda t, number: measure_run(t, config.metrics.names, 4, number),
        observer=observer or (lambda loop: None),
    )
    if resumed:
        made.load(checkpoint.newest(path / "checkpoints")[0])
    else:
        made.folder.cut(dict.fromkeys(made.folder.lengths(), 0))
    return made


def run(
    config: GPTConfig, path: Path, observer: Callable[[Loop], None] | None = None
) -> GPTTrainer:
    """Run to the end, whatever that is."""
    made = loop(config, path, observer)
    try:
        made.run()
    finally:
        made.folder.close()
    assert isinstance(made.trainable, GPTTrainer)
    return made.trainable


def rows(path: Path, key: str, name: str = "metrics") -> list[tuple[int, Any]]:
    """Return (updates, value) of every line that has a key."""
    lines = [json.loads(line) for line in (path / f"{name}.jsonl").read_text().splitlines()]
    return [(line["updates"], line[key]) for line in lines if key in line]
