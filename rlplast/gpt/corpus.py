"""Corpora of tokens: what a GPT trains and is validated on."""

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from rlplast.core.errors import ConfigError, DamagedFile
from rlplast.gpt.embedded import EMBEDDED, SEPARATOR, embedded_text

__all__ = [
    "FORMAT",
    "Corpus",
    "batch",
    "check_corpus",
    "open_corpus",
    "sha256_of",
    "validation_batches",
]

FORMAT = 1
PREFIX = "embedded/"
BYTES = 256  # vocabulary of the tokenizer `bytes`
PARTS = ("train", "validation")
DTYPES = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}
_NEEDED = (
    *("format", "tokenizer", "vocab_size", "dtype", "sha256"),
    *(f"{part}_{of}" for part in PARTS for of in ("tokens", "bytes")),
)


@dataclass(frozen=True, eq=False)
class Corpus:
    """Tokens to train on and to validate on: 1-D uint16 or uint32, of a folder memory-mapped."""

    name: str  # in the config
    train: np.ndarray
    validation: np.ndarray
    vocab_size: int  # of the tokenizer: 256 for ``bytes``, 50257 for ``gpt2``
    tokenizer: str
    # Of text per token of `validation`, separators not counted: a loss in nats per token, divided
    # by ln 2 and by this, is in bits per byte.
    bytes_per_token: float
    sha256: str  # of the bytes of `train`, then of `validation`, as they were written


def open_corpus(name: str, source: str | Path) -> Corpus:
    """Open ``embedded/`` and a name of `EMBEDDED`, or a folder that ``rlplast tokens`` wrote.

    Raises:
        ConfigError: if there is no such folder or embedded text.
        DamagedFile: if a folder's files are cut, or do not fit its ``corpus.json``.
    """
    if str(source).startswith(PREFIX):
        return _embedded(name, str(source).removeprefix(PREFIX))
    folder = Path(source)
    about = _read_about(name, folder)
    train, validation = (_map(folder, about, part) for part in PARTS)
    per_token = about["validation_bytes"] / max(about["validation_tokens"], 1)
    ids = about["vocab_size"], about["tokenizer"]
    return Corpus(name, train, validation, *ids, per_token, about["sha256"])


def _embedded(name: str, text: str) -> Corpus:
    train, validation = (
        np.frombuffer(part, np.uint8).astype(DTYPES["uint16"]) for part in embedded_text(text)
    )
    per_token = 1 - np.count_nonzero(validation == SEPARATOR[0]) / len(validation)
    sha256 = hashlib.sha256(train.tobytes() + validation.tobytes()).hexdigest()
    return Corpus(name, train, validation, BYTES, "bytes", per_token, sha256)


def _read_about(name: str, folder: Path) -> dict[str, Any]:
    path = folder / "corpus.json"
    if not path.is_file():
        what = "has no corpus.json" if folder.is_dir() else "does not exist"
        raise ConfigError(
            f"corpus {name!r}: folder {folder} {what}: allowed is a folder that `rlplast tokens "
            "TEXT… --out DIR` or `rlplast data NAME --root DIR` wrote (train.bin, validation.bin, "
            "corpus.json), or "
            f"{' or '.join(PREFIX + text for text in EMBEDDED)}"
        )
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
        found = {key: about[key] for key in _NEEDED}
    except (OSError, ValueError, TypeError, LookupError) as error:
        raise DamagedFile(f"{path} cannot be read ({error!r}): write the corpus again") from error
    if found["format"] != FORMAT or str(found["dtype"]) not in DTYPES:
        raise DamagedFile(
            f"{path} has format {found['format']!r} and dtype {found['dtype']!r}: allowed are "
            f"{FORMAT} and {' or '.join(DTYPES)}; write the corpus again with `rlplast tokens`"
        )
    return found


def _map(folder: Path, about: dict[str, Any], part: str) -> np.ndarray:
    path, dtype, tokens = folder / f"{part}.bin", DTYPES[about["dtype"]], about[f"{part}_tokens"]
    size = path.stat().st_size if path.is_file() else None
    if size != tokens * dtype.itemsize:
        what = "is missing" if size is None else f"has {size} bytes"
        raise DamagedFile(
            f"{path} {what}: corpus.json counts {tokens} tokens, {tokens * dtype.itemsize} "
            "bytes; copy it again, or write the corpus again with `rlplast tokens`"
        )
    # An empty file cannot be mapped.
    return np.asarray(np.memmap(path, dtype, "r")) if tokens else np.empty(0, dtype)


def sha256_of(folder: Path) -> str:
    """Return the SHA-256 of a folder's ``train.bin``, then ``validation.bin``."""
    sha256 = hashlib.sha256()
    for part in PARTS:
        with (folder / f"{part}.bin").open("rb") as file:
            hashlib.file_digest(file, lambda: sha256)
    return sha256.hexdigest()


def check_corpus(corpus: Corpus, context: int, vocab_size: int) -> None:
    """Check that a model of so many ids can train on a corpus and be validated on it.

    Raises:
        ConfigError: if a part is shorter than one row, or its tokenizer has more ids than the
            model.
    """
    if corpus.vocab_size > vocab_size:
        raise ConfigError(
            f"corpus {corpus.name!r}: its tokenizer {corpus.tokenizer!r} has {corpus.vocab_size} "
            f"ids, the model {vocab_size}: allowed is model.vocab_size of at least "
            f"{corpus.vocab_size}"
        )
    for part in PARTS:
        tokens = len(getattr(corpus, part))
        if tokens < context + 1:
            raise ConfigError(
                f"corpus {corpus.name!r}: its {part} part has {tokens} tokens, a context of "
                f"{context} needs {context + 1}: give it more text, or lower model.context"
            )


def batch(
    corpora: Sequence[Corpus],
    shares: Sequence[float],
    rows: int,
    context: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """Draw training rows: each from a corpus by share, from a uniformly drawn place in it.

    Shares are in any unit, not negative, one of them positive.

    Returns:
        Token ids, int64, (rows, context + 1): a row without its last token is an input, without its
        first the target.

    Raises:
        DamagedFile: if a token is no id of the tokenizer.
    """
    pick, place = rng.random((2, rows))  # two numbers per row, whatever the corpora are
    ends = np.cumsum(np.asarray(shares, np.float64))
    # The last end is 1 but for rounding: `side` passes over corpora whose share is zero.
    chosen = np.searchsorted(ends[:-1] / ends[-1], pick, side="right")
    out = np.empty((rows, context + 1), np.int64)
    for i, corpus in enumerate(corpora):
        drawn = np.flatnonzero(chosen == i)
        starts = (place[drawn] * (len(corpus.train) - context)).astype(np.int64)
        out[drawn] = _rows(corpus, "train", starts, context)
    return out


def validation_batches(
    corpus: Corpus, context: int, max_batches: int | None, rows: int
) -> Iterator[np.ndarray]:
    """Yield the rows of an evaluation, (rows, context + 1), int64; always the same ones.

    The last token of a row is the first of the next, so no token is predicted twice; if not all are
    asked for, they are spaced evenly. The last batch may have fewer rows.

    Raises:
        DamagedFile: if a token is no id of the tokenizer.
    """
    available = (len(corpus.validation) - 1) // context
    count = available if max_batches is None else min(available, max_batches * rows)
    starts = np.arange(count, dtype=np.int64) * available // max(count, 1) * context
    for i in range(math.ceil(count / rows)):
        yield _rows(corpus, "validation", starts[i * rows : (i + 1) * rows], context)


def _rows(corpus: Corpus, part: str, starts: np.ndarray, context: int) -> np.ndarray:
    tokens: np.ndarray = getattr(corpus, part)
    rows = sliding_window_view(tokens, context + 1)[starts]
    if rows.size and rows.max() >= corpus.vocab_size:
        row, column = np.argwhere(rows >= corpus.vocab_size)[0]
        raise DamagedFile(
            f"corpus {corpus.name!r}: token {starts[row] + column} of its {part} part is "
            f"{rows[row, column]}: its tokenizer {corpus.tokenizer!r} has ids below "
            f"{corpus.vocab_size}; write the corpus again"
        )
    return rows.astype(np.int64)
