"""`rlplast data` of texts: shards become tokens; a hub that is not there is named."""

import json
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rlplast.gpt import downloads
from rlplast.gpt.corpus import open_corpus
from tests.cli.commands import Outcome, command
from tests.cli.runs import files

TEXTS = [f"document {i}, with words\n" for i in range(40)]
LINES = {"train": ["", " = Title = \n", "", " words of \n", " it \n"], "validation": [" more \n"]}


class DatasetsError(Exception):
    pass


class Hub:
    """A stand-in for the library `datasets`: shards hold JSON lists of texts."""

    def __init__(self) -> None:
        self.exceptions = SimpleNamespace(DatasetsError=DatasetsError)
        self.rows: dict[tuple[str, str | None, str], list[str]] = {}
        self.asked: list[tuple[Any, ...]] = []

    def load_dataset(self, path: str, subset: str | None = None, **options: Any) -> Iterator[dict]:
        self.asked.append((path, subset, options["split"]))
        if path == "parquet":
            assert options["streaming"]
            texts = [t for file in options["data_files"] for t in read_shard(Path(file))]
        elif (path, subset, options["split"]) in self.rows:
            texts = self.rows[path, subset, options["split"]]
        else:
            raise ConnectionError("no network")
        return ({"text": text, "url": ""} for text in texts)


def read_shard(path: Path) -> list[str]:
    return json.loads(path.read_bytes())


def shard(folder: Path, name: str, texts: list[str]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.parquet"
    path.write_bytes(json.dumps(texts).encode())
    return path


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    made = Hub()
    monkeypatch.setitem(sys.modules, "datasets", made)
    monkeypatch.setattr(downloads, "HELD_OUT", 4)
    return made


def data(*words: object) -> Outcome:
    return command("data", *words, "--tokenizer", "bytes")


def not_ready(outcome: Outcome) -> str:
    assert outcome.code == 2
    assert len(outcome.err.splitlines()) == 1
    return outcome.err


def read(folder: Path, part: str) -> bytes:
    return getattr(open_corpus("mine", folder), part).astype(np.uint8).tobytes()


def test_shards_become_tokens_with_every_document_in_one_part(tmp_path: Path, hub: Hub):
    root = tmp_path / "owt"
    shard(root / "data", "train-00000-of-00002", TEXTS[:25])
    shard(root / "data", "train-00001-of-00002", TEXTS[25:])
    outcome = data("openwebtext", "--root", root)
    assert (outcome.code, outcome.err) == (0, "")
    held_out = [t for t in TEXTS if zlib.crc32(t.encode()) % 4 == 0]
    kept = [t for t in TEXTS if t not in held_out]
    assert held_out and kept
    assert read(root, "train") == b"".join(t.encode() + b"\0" for t in kept)
    assert read(root, "validation") == b"".join(t.encode() + b"\0" for t in held_out)
    assert outcome.out.splitlines()[-1] == f"openwebtext is ready: corpora: {{openwebtext: {root}}}"
    assert json.loads((root / "corpus.json").read_text())["source"].endswith("openwebtext")
    before = files(root)
    asked = list(hub.asked)
    assert data("openwebtext", "--root", root).code == 0
    assert (files(root), hub.asked) == (before, asked)  # a second time nothing is converted


def test_lines_of_a_running_text_are_one_document(tmp_path: Path, hub: Hub):
    for subset in ("wikitext-103-raw-v1", "wikitext-2-raw-v1"):  # a copy of the repository has all
        for split, lines in (LINES | {"test": ["never"]}).items():
            words = lines if "103" in subset else ["of another subset"]
            shard(tmp_path / subset, f"{split}-00000-of-00001", words)
    assert data("wikitext103", "--root", tmp_path).code == 0
    for part, lines in LINES.items():
        assert read(tmp_path, part) == "".join(lines).encode() + b"\0"


def test_nothing_is_fetched_unless_asked_for(tmp_path: Path, hub: Hub):
    hub.rows["wikimedia/wikipedia", "20231101.en", "train"] = TEXTS
    output = not_ready(data("wikipedia", "--root", tmp_path))
    assert "neither corpus.json nor a .parquet file" in output
    assert "give --download" in output
    assert not hub.asked
    assert data("wikipedia", "--root", tmp_path / "new", "--download").code == 0
    assert hub.asked == [("wikimedia/wikipedia", "20231101.en", "train")]
    assert len(read(tmp_path / "new", "train") + read(tmp_path / "new", "validation")) == sum(
        len(t) + 1 for t in TEXTS
    )


def test_what_cannot_be_turned_into_tokens_is_named_and_leaves_nothing(
    tmp_path: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
):
    fetched = ("wikitext103", "--root", tmp_path, "--download")
    output = not_ready(data(*fetched))
    assert "Salesforce/wikitext could not be turned into tokens (ConnectionError" in output
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "datasets", None)
        assert 'pip install "rlplast[tokens]"' in not_ready(data(*fetched))
    assert not list(tmp_path.iterdir())
    hub.load_dataset = lambda *words, **options: [{"question": "?", "answer": "!"}]  # type: ignore[assignment]
    shard(tmp_path, "train-00000-of-00001", TEXTS)
    output = not_ready(data("openwebtext", "--root", tmp_path))
    assert "a row has no column 'text', but question, answer" in output
    assert [path.name for path in tmp_path.iterdir()] == ["train-00000-of-00001.parquet"]


def test_damaged_and_missing_shards_are_named(tmp_path: Path, hub: Hub):
    def says() -> str:
        return not_ready(data("openwebtext", "--root", tmp_path))

    shard(tmp_path, "train-00001-of-00003", TEXTS)
    assert "train-00000-of-00003.parquet and 1 more not there, of 3 of train" in says()
    for number in (0, 2):
        path = shard(tmp_path, f"train-0000{number}-of-00003", TEXTS)
    path.write_bytes(path.read_bytes()[:-9])
    assert "Skylion007/openwebtext could not be turned into tokens (JSONDecodeError" in says()
    hub.asked.clear()
    shard(tmp_path / "wiki", "train-00000-of-00001", LINES["train"])
    output = not_ready(data("wikitext103", "--root", tmp_path / "wiki"))
    assert "needed are train and validation" in output
    assert not hub.asked


def test_altered_tokens_are_named(tmp_path: Path, hub: Hub):
    shard(tmp_path, "train-00000-of-00001", TEXTS)
    assert data("openwebtext", "--root", tmp_path).code == 0
    path = tmp_path / "train.bin"
    whole = path.read_bytes()
    for content, says in (
        (whole[:-2], "train.bin has"),
        (b"\1\0" + whole[2:], "a file was altered; remedy: delete"),
    ):
        path.write_bytes(content)
        assert says in not_ready(data("openwebtext", "--root", tmp_path))
    (tmp_path / "corpus.json").unlink()
    kept = path.read_bytes()
    output = not_ready(data("openwebtext", "--root", tmp_path))
    assert "train.bin is there without corpus.json" in output and path.read_bytes() == kept
