"""The published texts: where they come from, and whether a folder has one as tokens.

The library ``datasets`` reads parquet shards, and downloads them when asked to.
"""

import re
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rlplast.core.downloads import Finding, Published
from rlplast.core.errors import ConfigError, RlplastError
from rlplast.core.optional import import_optional
from rlplast.gpt.corpus import PARTS, open_corpus, sha256_of
from rlplast.gpt.tokens import TOKENIZERS, write_tokens
from rlplast.training.files import fsync
from rlplast.training.run_folder import write_json

__all__ = ["TEXT_SETS", "TextSet", "check_text"]

HELD_OUT = 2000  # one document of so many is for validation, where a set has no split of its own
_SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.parquet")
_FILES = ("train.bin", "validation.bin", "corpus.json")  # the last one says that all are there

Rows = Iterable[Mapping[str, Any]]
Tables = dict[str, Callable[[], Rows]]  # split → its rows


@dataclass(frozen=True, kw_only=True)
class TextSet(Published):
    """A published text, whose rows have a column ``text``."""

    path: str  # name on the Hugging Face hub
    subset: str | None = None
    # Rows are lines of one running text, with a split for validation; else a row is a document, and
    # which ones are for validation follows from their text.
    lines: bool = False


def _text_set(title: str, licence: str, path: str, **options: Any) -> TextSet:
    page = f"https://huggingface.co/datasets/{path}"
    return TextSet(title, "corpora", licence, page, path=path, **options)


TEXT_SETS = {
    "openwebtext": _text_set(
        "8.0 million web pages, about 40 GB of text (9 billion tokens of GPT-2)",
        "CC0 for the collection; each text is its author's",
        "Skylion007/openwebtext",
    ),
    "wikipedia": _text_set(
        "6.4 million English articles of 2023-11-01, about 20 GB of text",
        "CC BY-SA 3.0 and GFDL",
        "wikimedia/wikipedia",
        subset="20231101.en",
    ),
    "wikitext103": _text_set(
        "WikiText-103, raw: 28 000 good English articles, about 0.5 GB of text",
        "CC BY-SA 3.0 and GFDL",
        "Salesforce/wikitext",
        subset="wikitext-103-raw-v1",
        lines=True,
    ),
}


def check_text(
    name: str,
    root: Path,
    tokenizer: str = "gpt2",
    download: bool = False,
    advance: Callable[[int], None] = lambda documents: None,
) -> Iterator[Finding]:
    """Yield what a folder has of a text; the last finding is what the reader of training says.

    Parquet shards anywhere in the folder become ``train.bin``, ``validation.bin`` and
    ``corpus.json`` in it, unless those are there already. Where it has no shards, ``datasets`` may
    `download` the set. `advance` is called with the rows read since the last call.

    Raises:
        ConfigError: if a library, the tokenizer or the network is missing.
        RlplastError: if the disk is full or not writable.
    """
    data = TEXT_SETS[name]
    if not (root / "corpus.json").is_file():
        finding, tables = _source(data, root, download)
        yield finding
        if finding.remedy:
            return
        _convert(data, tables, root, tokenizer, advance)
    yield _read(name, root)


def _source(data: TextSet, root: Path, download: bool) -> tuple[Finding, Tables]:
    """Return where the rows of a set are to come from, or what is in the way."""
    stray = next((f for f in _FILES if (root / f).exists()), None)
    if stray is not None:  # such as nanoGPT's, which would be replaced
        remedy = "move the .bin files elsewhere, or copy the corpus.json that belongs to them"
        return Finding(stray, "is there without corpus.json, which says what it is", remedy), {}
    shards = _shards(data, root)
    if shards:
        finding = _find_shards(data, shards)
        return finding, {} if finding.remedy else _local(shards)
    if not download:
        remedy = (
            f"give --download, and `datasets` fetches {data.path} from the hub; or put its parquet "
            f"files from {data.page}/tree/main into {root}"
        )
        return Finding(str(root), "has neither corpus.json nor a .parquet file", remedy), {}
    return Finding(data.page, "is downloaded with `datasets`, into its cache"), _hub(data)


def _shards(data: TextSet, root: Path) -> list[Path]:
    """Return the set's shards in a folder; a copy of the whole repository has other subsets too."""
    shards = sorted(path for path in root.rglob("*.parquet") if path.is_file())
    return [path for path in shards if data.subset in path.parts] or shards


def _find_shards(data: TextSet, shards: Sequence[Path]) -> Finding:
    counts: dict[str, tuple[int, set[int]]] = {}
    for path in shards:
        named = _SHARD.fullmatch(path.name)
        if named is not None:
            counts.setdefault(named[1], (int(named[3]), set()))[1].add(int(named[2]))
    for split, (total, present) in counts.items():
        numbers = [i for i in range(total) if i not in present]
        absent = [f"{split}-{i:05d}-of-{total:05d}.parquet" for i in numbers]
        if absent:
            more = f" and {len(absent) - 1} more" if len(absent) > 1 else ""
            remedy = f"download it from {data.page}/tree/main"
            return Finding(f"{absent[0]}{more}", f"not there, of {total} of {split}", remedy)
    if data.lines and {"train", "validation"} - counts.keys():
        state = f"has shards of {', '.join(counts) or 'no split'}; needed are train and validation"
        remedy = f"download the others from {data.page}/tree/main"
        return Finding(str(shards[0].parent), state, remedy)
    return Finding(str(shards[0].parent), f"has all {len(shards)} shards")


def _local(shards: Sequence[Path]) -> Tables:
    """Return the rows of shards by split; those whose name says nothing are for training."""
    load = partial(import_optional("datasets", "tokens").load_dataset, "parquet", split="train")
    splits: dict[str, list[str]] = {}
    for path in shards:
        split = path.name.split("-")[0]
        split = split if split in ("validation", "test") else "train"
        splits.setdefault(split, []).append(str(path))
    return {s: partial(load, data_files=files, streaming=True) for s, files in splits.items()}


def _hub(data: TextSet) -> Tables:
    load = partial(import_optional("datasets", "tokens").load_dataset, data.path, data.subset)
    return {split: partial(load, split=split) for split in (PARTS if data.lines else ("train",))}


def _convert(
    data: TextSet, tables: Tables, root: Path, tokenizer: str, advance: Callable[[int], None]
) -> None:
    """Write a set's files into a folder, ``corpus.json`` last."""
    datasets, made = import_optional("datasets", "tokens"), TOKENIZERS[tokenizer]()
    try:
        with tempfile.TemporaryDirectory(".tmp", ".tokens.", root) as temporary:
            folder = Path(temporary)
            about = write_tokens(folder, _documents(data, tables, advance), made)
            write_json(folder / "corpus.json", about | {"source": data.page})
            for name in _FILES:
                (folder / name).rename(root / name)
        fsync(root)
    except RlplastError:
        raise
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        what = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise ConfigError(
            f"{data.path} could not be turned into tokens ({what}): check the network (or the "
            f"shards) and the free space of {root}, and give this command again"
        ) from error


def _documents(
    data: TextSet, tables: Tables, advance: Callable[[int], None]
) -> Iterator[tuple[str, Iterable[str]]]:

    def texts(table: Rows) -> Iterator[str]:
        for row in table:
            if "text" not in row:
                raise ConfigError(
                    f"{data.path}: a row has no column 'text', but {', '.join(row)}: the shards "
                    "are of another set"
                )
            advance(1)
            yield row["text"]

    if data.lines:
        for part in PARTS:
            yield part, texts(tables[part]())
        return
    for text in texts(tables["train"]()):
        held_out = zlib.crc32(text.encode()) % HELD_OUT == 0
        yield "validation" if held_out else "train", (text,)


def _read(name: str, root: Path) -> Finding:
    remedy = f"delete {', '.join(_FILES)} in {root}, and give this command again"
    try:
        corpus = open_corpus(name, root)
    except RlplastError as error:
        return Finding(str(root), f"cannot be used: {error}", remedy)
    sha256 = sha256_of(root)
    if sha256 != corpus.sha256:
        state = f"has sha256 {sha256}, corpus.json says {corpus.sha256}: a file was altered"
        return Finding(str(root), state, remedy)
    for part in PARTS:
        if not len(getattr(corpus, part)):
            return Finding(str(root), f"has no {part} tokens", remedy)
    return Finding(
        str(root),
        f"has {len(corpus.train):,} tokens to train on, {len(corpus.validation):,} to validate on "
        f"(tokenizer {corpus.tokenizer}), sha256 as written",
    )
