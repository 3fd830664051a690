"""Updates of our classifier and GPT trainers beside the loop one would write by hand.

The loop has the same model, data, optimizer and thread count, and nothing else: no clock, hooks,
sums or learning-rate schedule. Ours steps as `training/loop.Loop` drives it, hooks asked
after each.
"""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.tools import Row, alternate, built, medians, row
from rlplast.supervised.data import normaliser

UPDATES = 10  # per call
HOOKS = [{"method": "fire", "on": "phase_start"}]

CLASSIFIERS: dict[str, dict[str, Any]] = {
    "mlp on digits": {"model": {"name": "mlp"}, "batch_size": 256},
    "cnn_bn on digits": {"model": {"name": "cnn_bn"}, "batch_size": 256},
    "resnet18 of width 16 on digits": {
        "model": {"name": "resnet18", "width": 16},
        "batch_size": 64,
    },
}


def ours(trainable: Any, hooks: Any) -> Callable[[], None]:
    """Return what takes UPDATES updates, with what the loop does after each."""

    def run() -> None:
        for _ in range(UPDATES):
            previous = trainable.clock
            trainable.step()
            hooks.fire(previous, trainable.clock)

    return run


def by_hand(model: nn.Module, data: Any, factor: Any, offset: Any, size: int) -> Callable[[], None]:
    """Return a plain classifier loop of so many updates."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    order = torch.randperm(len(data.y))
    place = 0

    def run() -> None:
        nonlocal place, order
        for _ in range(UPDATES):
            chosen = order[place : place + size]
            place += size
            if place >= len(order):
                order, place = torch.randperm(len(data.y)), 0
            x = data.x[chosen].float() * factor + offset
            loss = F.cross_entropy(model(x), data.y[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return run


def supervised(threads: int, rounds: int) -> Iterator[Row]:
    """Yield updates per second of classifiers, ours over the loop by hand."""
    for name, keys in CLASSIFIERS.items():
        config = {
            "kind": "supervised",
            "threads": threads,
            "stream": {"name": "warm_start", "fraction": 0.9, "epochs": 10_000},
            "hooks": HOOKS,
        }
        trainable, hooks = built(config | keys)
        factor, offset = normaliser(trainable.data)
        model, images = copy.deepcopy(trainable.model), trainable.data.train
        loop = by_hand(model, images, factor, offset, keys["batch_size"])
        sides = {"by hand": loop, "ours": ours(trainable, hooks)}
        yield from _ratio(f"classifier, {name}", sides, rounds)


GPT: dict[str, Any] = {
    "kind": "gpt",
    "model": {"layers": 4, "heads": 4, "width": 128, "context": 128, "vocab_size": 256},
    "corpora": {"stdlib": "embedded/stdlib"},
    "phases": [{"updates": 10**6, "mixture": {"stdlib": 1}}],
    "batch_size": 16,
    "hooks": [{"method": "fire", "at": "50%", "scope": "gpt"}],
}


def gpt_by_hand(model: nn.Module, tokens: Any, size: int, context: int) -> Callable[[], None]:
    """Return a plain language-model loop, with the batches of nanoGPT."""
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    rest = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=6e-4, betas=(0.9, 0.95), fused=True)

    def run() -> None:
        for _ in range(UPDATES):
            starts = torch.randint(len(tokens) - context, (size,)).tolist()
            rows = np.stack([tokens[i : i + context + 1] for i in starts]).astype(np.int64)
            x, y = torch.from_numpy(rows[:, :-1]), torch.from_numpy(rows[:, 1:])
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

    return run


def gpt(threads: int, rounds: int) -> Iterator[Row]:
    """Yield updates per second of a small GPT, ours over the loop by hand."""
    trainable, hooks = built(GPT, threads=threads)
    tokens, context = trainable.corpora["stdlib"].train, GPT["model"]["context"]
    loop = gpt_by_hand(copy.deepcopy(trainable.gpt), tokens, GPT["batch_size"], context)
    sides = {"by hand": loop, "ours": ours(trainable, hooks)}
    yield from _ratio("gpt 4 x 128, context 128, batch 16", sides, rounds)


def _ratio(name: str, sides: dict[str, Callable[[], None]], rounds: int) -> Iterator[Row]:
    seconds = alternate(sides, 6 * rounds, 2)
    median = medians(seconds)
    for side, value in median.items():
        yield row(f"{name}, {side}", UPDATES / value, "updates/s", seconds[side])
    yield row(f"{name}, ours over by hand", median["by hand"] / median["ours"], "x")
