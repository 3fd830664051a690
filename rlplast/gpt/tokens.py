"""Text files into a folder of tokens, as a stream: no file is held in memory."""

import codecs
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlplast.core.errors import ConfigError, RlplastError, check_choice
from rlplast.gpt.corpus import DTYPES, FORMAT, PARTS, sha256_of
from rlplast.training.files import fsync, whole
from rlplast.training.run_folder import write_json

__all__ = ["TOKENIZERS", "Tokenizer", "text_files", "write_corpus", "write_tokens"]

Advance = Callable[[int, int], None]  # bytes read since the last call, bytes in all

CHUNK = 1 << 20  # bytes read at once
BLANKS = b" \n"
# Up to the last blank that follows something else: GPT-2's tokens never reach across it.
_WHOLE_TOKENS = re.compile(r".*\S(?=[ \n])", re.DOTALL)


@dataclass(frozen=True)
class Tokenizer:
    """Text to token ids."""

    name: str
    vocab_size: int
    separator: int  # the id that ends each document
    encode: Callable[[str], np.ndarray]  # of two texts that meet at a blank, one after another
    anywhere: bool = False  # whether that holds wherever two texts meet


def _bytes() -> Tokenizer:
    return Tokenizer("bytes", 256, 0, lambda text: np.frombuffer(text.encode(), np.uint8), True)


def _gpt2() -> Tokenizer:
    try:
        import tiktoken
    except ImportError as error:
        raise ConfigError(
            'tokenizer gpt2 needs tiktoken: pip install "rlplast[tokens]"; or use tokenizer bytes'
        ) from error
    try:
        encoding: Any = tiktoken.get_encoding("gpt2")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"tokenizer gpt2: tiktoken could not get its vocabulary, which it downloads once "
            f"({error}): try again with a network, set TIKTOKEN_CACHE_DIR to a folder that has "
            "it, or use tokenizer bytes"
        ) from error
    return Tokenizer(
        "gpt2",
        encoding.n_vocab,
        encoding.eot_token,
        lambda text: np.asarray(encoding.encode_ordinary(text)),
    )


TOKENIZERS: dict[str, Callable[[], Tokenizer]] = {"bytes": _bytes, "gpt2": _gpt2}


def text_files(paths: Iterable[Path]) -> list[Path]:
    """Return the files meant: a file is itself, a folder every ``*.txt`` in it and below, by name.

    A file that is meant twice, under whatever name or link, counts once, where it is first.
    ConfigError for a path that does not exist, and a folder without such a file.
    """
    files: dict[Path, Path] = {}
    for path in paths:
        texts = [path] if path.is_file() else sorted(p for p in path.rglob("*.txt") if p.is_file())
        if not texts:
            what = "has no *.txt file" if path.is_dir() else "does not exist"
            raise ConfigError(f"{path} {what}: allowed are text files and folders of *.txt files")
        for file in texts:
            files.setdefault(file.resolve(), file)
    return list(files.values())


@dataclass(frozen=True)
class _Span:
    path: Path
    start: int
    stop: int


def _split(files: Sequence[Path], share: float) -> tuple[list[_Span], list[_Span]]:
    """Cut the text before a blank, so that the last `share` of it is for validation."""
    whole = [_Span(path, 0, path.stat().st_size) for path in files]
    left = round((1 - share) * sum(span.stop for span in whole))
    train, validation = [], []
    for span in whole:
        cut = span.stop if left >= span.stop else _blank(span.path, left) if left > 0 else 0
        left -= span.stop
        train.append(_Span(span.path, 0, cut))
        validation.append(_Span(span.path, cut, span.stop))
    return [s for s in train if s.stop > s.start], [s for s in validation if s.stop > s.start]


def _blank(path: Path, position: int) -> int:
    """Return the place of the first blank of a file at or after `position`, or its length."""
    with path.open("rb") as file:
        file.seek(position)
        while chunk := file.read(CHUNK):
            blanks = [i for blank in BLANKS if (i := chunk.find(blank)) >= 0]
            if blanks:
                return position + min(blanks)
            position += len(chunk)
    return position


def _text(span: _Span, advance: Callable[[int], None]) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    position = span.start
    with span.path.open("rb") as file:
        file.seek(position)
        while position < span.stop:
            chunk = file.read(min(CHUNK, span.stop - position))
            if not chunk:
                raise RlplastError(f"{span.path} became shorter while it was read: try again")
            position += len(chunk)
            advance(len(chunk))
            try:
                text = decoder.decode(chunk, position == span.stop)
            except UnicodeDecodeError as error:
                at = position - len(error.object) + error.start
                raise ConfigError(
                    f"{span.path} is no UTF-8 text: byte {at} ({error.reason}); convert it, for "
                    "example with iconv"
                ) from error
            yield text


def _pieces(texts: Iterable[str]) -> Iterator[str]:
    """Yield a text that comes in parts in pieces that meet where no token reaches across."""
    rest = [""]  # parts since the last such place; none is within or between them
    for text in filter(None, texts):  # each is searched once
        match = _WHOLE_TOKENS.match(rest[-1][-1:] + text)
        if match:
            cut = match.end() - len(rest[-1][-1:])
            yield "".join([*rest, text[:cut]])
            rest = [text[cut:]]
        else:
            rest.append(text)
    if last := "".join(rest):
        yield last


def _plan(paths: Sequence[Path], validation: float | Path) -> dict[str, list[_Span]]:
    if isinstance(validation, Path):
        files, held_out = text_files(paths), text_files([validation])
        trained_on = {path.resolve() for path in files}
        for path in held_out:
            if path.resolve() in trained_on:
                raise ConfigError(
                    f"{path} is validation text and text to train on: move it out of one of them"
                )
        parts = _split(files, 0)[0], _split(held_out, 1)[1]
    elif 0 < validation < 1:
        parts = _split(text_files(paths), validation)
    else:
        raise ConfigError(f"validation = {validation}: allowed is a share in (0, 1), or a path")
    spans: dict[str, list[_Span]] = dict(zip(PARTS, parts, strict=True))
    for part, kept in spans.items():
        if not kept:
            raise ConfigError(f"no text is left for the {part} part: give more or longer files")
    return spans


def write_corpus(
    paths: Sequence[Path],
    out: Path,
    tokenizer: str = "bytes",
    validation: float | Path = 0.1,
    advance: Advance = lambda read, total: None,
) -> dict[str, Any]:
    """Write text as a folder of tokens: ``train.bin``, ``validation.bin``, ``corpus.json``.

    Each file is a document and ends with a separator: token 0 of ``bytes``, 50256 of ``gpt2``
    (``<|endoftext|>``). The folder appears whole or not at all.

    Args:
        paths: UTF-8 files, and folders of ``*.txt`` files; see `text_files`.
        out: the folder; absent or empty.
        tokenizer: a key of `TOKENIZERS`.
        validation: share of the text, at its end, that is for validation and not for training; or a
            file or folder with the validation text, of which no file may be in `paths`.
        advance: called with the bytes read since the last call, and those there are in all.

    Returns:
        What ``corpus.json`` holds.

    Raises:
        ConfigError: for an unknown tokenizer or one that is not installed, text that is absent, too
            short to be split, no UTF-8 or in both parts, and an `out` that holds something.
        RlplastError: if the disk is full or not writable.
    """
    check_choice("tokenizer", tokenizer, TOKENIZERS)
    out = out.resolve()
    if out.exists() and not (out.is_dir() and next(out.iterdir(), None) is None):
        raise ConfigError(f"{out} exists already: choose another folder, or delete it")
    spans = [(part, span) for part, spans in _plan(paths, validation).items() for span in spans]
    total = sum(span.stop - span.start for _, span in spans)
    documents = ((part, _text(span, lambda read: advance(read, total))) for part, span in spans)
    counts = Counter(f"{part}_files" for part, _ in spans)
    made = TOKENIZERS[tokenizer]()
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with whole(out) as folder:
            folder.mkdir()
            about = write_tokens(folder, documents, made) | counts
            write_json(folder / "corpus.json", about)
        fsync(out.parent)
    except OSError as error:
        raise RlplastError(
            f"{out} could not be written ({error}): free space or fix permissions"
        ) from error
    return about


def write_tokens(
    folder: Path, documents: Iterable[tuple[str, Iterable[str]]], tokenizer: Tokenizer
) -> dict[str, Any]:
    """Write ``train.bin`` and ``validation.bin``; return what ``corpus.json`` is to hold.

    Documents are of ``train`` or ``validation``, their text in parts that follow one another. Each
    ends with the tokenizer's separator.
    """
    dtype = "uint16" if tokenizer.vocab_size <= 1 << 16 else "uint32"
    counts = {f"{part}_{of}": 0 for part in PARTS for of in ("tokens", "bytes")}
    with ExitStack() as stack:
        files = {part: stack.enter_context((folder / f"{part}.bin").open("xb")) for part in PARTS}
        for part, texts in documents:
            for text in texts if tokenizer.anywhere else _pieces(texts):
                ids = tokenizer.encode(text)
                files[part].write(ids.astype(DTYPES[dtype]).tobytes())
                counts[f"{part}_tokens"] += len(ids)
                counts[f"{part}_bytes"] += len(text.encode())
            files[part].write(np.array([tokenizer.separator], DTYPES[dtype]).tobytes())
            counts[f"{part}_tokens"] += 1
    for part in PARTS:
        fsync(folder / f"{part}.bin")
    return {
        "format": FORMAT,
        "tokenizer": tokenizer.name,
        "vocab_size": tokenizer.vocab_size,
        "dtype": dtype,
        **counts,
        "sha256": sha256_of(folder),
    }
