from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlplast.core.errors import ConfigError, DamagedFile
from rlplast.core.rng import numpy_stream
from rlplast.gpt.corpus import Corpus, batch, check_corpus, open_corpus, validation_batches
from tests.gpt.runs import write_corpus
from tests.refused import check_refused


def corpus(train: int = 0, validation: int = 0, first: int = 0, **fields: Any) -> Corpus:
    """A corpus whose tokens are consecutive numbers, so that a token tells its place."""
    arrays = [np.arange(first, first + n, dtype=np.uint16) for n in (train, validation)]
    made = Corpus("made", *arrays, 65536, "bytes", 1.0, "")
    return replace(made, **fields)


def written(folder: Path, **about: Any) -> Path:
    """A folder with 60 and 20 tokens, as `rlplast tokens` lays it out."""
    write_corpus(folder, np.arange(80), **about)
    return folder


def test_a_folder_is_mapped_not_read(tmp_path: Path):
    for dtype in ("uint16", "uint32"):
        opened = open_corpus("mine", written(tmp_path / dtype, dtype=dtype, validation_bytes=15))
        assert np.array_equal(opened.train, np.arange(60))
        assert np.array_equal(opened.validation, np.arange(60, 80))
        assert opened.train.dtype == opened.validation.dtype == np.dtype(dtype)
        assert isinstance(opened.train.base, np.memmap) and not opened.train.flags.writeable
        assert (opened.name, opened.tokenizer, opened.vocab_size) == ("mine", "bytes", 256)
        assert (opened.bytes_per_token, opened.sha256) == (0.75, "the sum")


def test_batch_is_what_a_loop_over_rows_gathers_and_draws_do_not_depend_on_the_corpora():
    corpora, shares = [corpus(100), corpus(64, first=300), corpus(30, first=500)], [1, 2, 2]
    pick, place = numpy_stream(7, "x").random((2, 50))
    expected = []
    for u, v in zip(pick, place, strict=True):
        tokens = corpora[int(u >= 0.2) + int(u >= 0.6)].train
        start = int(v * (len(tokens) - 16))
        expected.append(tokens[start : start + 17])
    one, other = numpy_stream(7, "x"), numpy_stream(7, "x")
    rows = batch(corpora, shares, 50, 16, one)
    assert rows.dtype == np.int64 and np.array_equal(rows, expected)
    batch([corpus(300), corpus(20), corpus(50)], [0.1, 0.2, 5], 50, 16, other)
    assert one.bit_generator.state == other.bit_generator.state


def test_a_share_of_zero_is_never_drawn():
    class Ends:
        """Draws the ends of the interval, and what lies next to them."""

        def random(self, shape: tuple[int, int]) -> np.ndarray:
            return np.broadcast_to([0.0, np.nextafter(0, 1), 0.5, np.nextafter(1, 0)], shape)

    for share, first in (([0.0, 1.0], 100), ([1.0, 0.0], 0)):
        rows = batch([corpus(9), corpus(9, first=100)], share, 4, 8, Ends())  # type: ignore
        assert set(rows[:, 0]) == {first}


@pytest.mark.parametrize("rows", [1, 3, 50])
@pytest.mark.parametrize("tokens", [9, 16, 17, 100])
def test_validation_predicts_every_token_once_but_a_rest(tokens: int, rows: int):
    found = list(validation_batches(corpus(validation=tokens), 8, None, rows))
    assert all(b.dtype == np.int64 and b.shape[1] == 9 for b in found)
    assert [len(b) for b in found[:-1]] == [rows] * (len(found) - 1)
    everything = np.concatenate(found)
    whole = (tokens - 1) // 8
    assert np.array_equal(everything[:, 1:].ravel(), np.arange(1, 8 * whole + 1))
    assert np.array_equal(everything[:, :-1], everything[:, 1:] - 1)


def test_fewer_validation_rows_are_spaced_evenly_from_the_start():
    made = corpus(validation=8 * 100 + 1)
    for batches, rows in ((1, 4), (2, 5), (3, 30)):
        found = np.concatenate(list(validation_batches(made, 8, batches, rows)))
        count = batches * rows
        assert (found[:, 0] == [i * 100 // count * 8 for i in range(count)]).all()
    everything = list(validation_batches(made, 8, 7, 50))
    assert [len(b) for b in everything] == [50, 50]
    assert list(validation_batches(made, 8, 0, 4)) == []


ABOUT: list[tuple[dict[str, Any], str]] = [
    ({"dtype": "float32"}, "dtype 'float32'"),
    ({"format": 2}, "format 2"),
    ({"train_tokens": 59}, "train.bin has 120 bytes: corpus.json counts 59 tokens, 118 bytes"),
]


def test_a_folder_that_is_cut_or_was_altered_is_damaged(tmp_path: Path):
    folder = written(tmp_path / "c")
    about, files = folder / "corpus.json", [folder / f"{n}.bin" for n in ("train", "validation")]
    for path in files:
        raw = path.read_bytes()
        for other in (raw[:-2], raw + b"\0", None):
            path.unlink() if other is None else path.write_bytes(other)
            found = f"has {len(other)} bytes" if other is not None else "is missing"
            with pytest.raises(DamagedFile, match=f"{path.name} {found}"):
                open_corpus("mine", folder)
        path.write_bytes(raw)
    for text in ("", '{"format": 1', "[1]", "\xff", "{}"):
        about.write_text(text, encoding="latin-1")
        with pytest.raises(DamagedFile, match=r"corpus\.json cannot be read"):
            open_corpus("mine", folder)
    folders = [(written(tmp_path / str(i), **row), says) for i, (row, says) in enumerate(ABOUT)]
    check_refused(lambda folder: open_corpus("mine", folder), folders, DamagedFile)


def test_what_is_no_corpus_names_what_is_expected(tmp_path: Path):
    (tmp_path / "empty").mkdir()
    rows = [(tmp_path / "nowhere", "rlplast tokens"), (tmp_path / "empty", "embedded/docstrings")]
    check_refused(lambda folder: open_corpus("mine", folder), rows)


@pytest.mark.parametrize("part", ["train", "validation"])
def test_a_token_that_is_no_id_is_found_when_it_is_read(tmp_path: Path, part: str):
    path = written(tmp_path / "c", vocab_size=80) / f"{part}.bin"
    tokens = np.fromfile(path, "<u2")
    tokens[6] = 80
    tokens.tofile(path)
    opened = open_corpus("mine", path.parent)
    with pytest.raises(DamagedFile, match=rf"token 6 of its {part} part is 80: .* below 80"):
        batch([opened], [1], 30, 8, numpy_stream(0, "x"))
        list(validation_batches(opened, 8, None, 2))


def test_a_model_that_cannot_read_a_corpus_is_told_so(tmp_path: Path):
    check_corpus(corpus(9, 9, vocab_size=256), 8, 256)
    folder = written(tmp_path / "c", validation_tokens=0, validation_bytes=0)
    (folder / "validation.bin").write_bytes(b"")
    for own, vocabulary, words in (
        (corpus(9, 8), 65536, "validation part has 8 tokens, a context of 8 needs 9"),
        (corpus(0, 8), 65536, "train part has 0 tokens"),
        (corpus(9, 9, vocab_size=256), 255, r"model\.vocab_size of at least 256"),
        (open_corpus("mine", folder), 256, "validation part has 0 tokens"),
    ):
        with pytest.raises(ConfigError, match=words):
            check_corpus(own, 8, vocabulary)
