from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlplast.core.errors import ConfigError, DamagedFile
from rlplast.core.rng import numpy_stream
from rlplast.gpt.corpus import Corpus, batch, check_corpus, open_corpus, validation_batches
from tests.gpt.runs import write_corpus


def corpus(train: int = 0, validation: int = 0, first: int = 0, **fields: Any) -> Corpus:
    """A corpus whose tokens are consecutive numbers, so that a token tells its place."""
    arrays = [np.arange(first, first + n, dtype=np.uint16) for n in (train, validation)]
    made = Corpus("made", *arrays, 65536, "bytes", 1.0, "")
    return replace(made, **fields)


def written(folder: Path, **about: Any) -> Path:
    """A folder with 60 and 20 tokens, as `rlplast tokens` lays it out."""
    write_corpus(folder, np.arange(80), **about)
    return folder


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_a_folder_is_mapped_not_read(tmp_path: Path, dtype: str):
    opened = open_corpus("mine", written(tmp_path / "c", dtype=dtype, validation_bytes=15))
    assert np.array_equal(opened.train, np.arange(60))
    assert np.array_equal(opened.validation, np.arange(60, 80))
    assert opened.train.dtype == opened.validation.dtype == np.dtype(dtype)
    assert isinstance(opened.train.base, np.memmap)
    assert not opened.train.flags.writeable
    assert (opened.name, opened.tokenizer, opened.vocab_size) == ("mine", "bytes", 256)
    assert opened.bytes_per_token == 0.75
    assert opened.sha256 == "the sum"


def test_rows_are_pieces_of_the_corpora_in_their_shares_from_every_place():
    corpora = [corpus(12), corpus(40, first=1000), corpus(30, first=5000)]
    rows = batch(corpora, [3, 0, 1], 20_000, 9, numpy_stream(0, "x"))
    assert (rows.dtype, rows.shape) == (np.int64, (20_000, 10))
    assert (np.diff(rows) == 1).all()
    starts = Counter(rows[:, 0].tolist())
    assert set(starts) == {0, 1, 2} | set(range(5000, 5021))  # none of the one whose share is 0
    for corpus_starts, share in ((range(3), 0.75), (range(5000, 5021), 0.25)):
        for start in corpus_starts:
            expected = 20_000 * share / len(corpus_starts)
            assert abs(starts[start] - expected) < 5 * expected**0.5


def test_batch_is_what_a_loop_over_rows_gathers():
    corpora, shares = [corpus(100), corpus(64, first=300)], [0.2, 0.8]
    pick, place = numpy_stream(7, "x").random((2, 50))
    expected = []
    for u, v in zip(pick, place, strict=True):
        tokens = corpora[int(u >= 0.2)].train
        start = int(v * (len(tokens) - 16))
        expected.append(tokens[start : start + 17])
    assert np.array_equal(batch(corpora, shares, 50, 16, numpy_stream(7, "x")), expected)


def test_draws_do_not_depend_on_the_corpora():
    states = []
    for corpora, shares in (
        ([corpus(20)], [1]),
        ([corpus(300), corpus(20), corpus(50)], [0.1, 0.2, 5]),
    ):
        rng = numpy_stream(3, "x")
        batch(corpora, shares, 5, 8, rng)
        states.append(rng.bit_generator.state)
    assert states[0] == states[1]


@pytest.mark.parametrize("share", [[0.0, 1.0], [1.0, 0.0]])
def test_a_share_of_zero_is_never_drawn(share: list[float]):
    class Ends:
        """Draws the ends of the interval, and what lies next to them."""

        def random(self, shape: tuple[int, int]) -> np.ndarray:
            return np.broadcast_to([0.0, np.nextafter(0, 1), 0.5, np.nextafter(1, 0)], shape)

    rows = batch([corpus(9), corpus(9, first=100)], share, 4, 8, Ends())  # type: ignore[arg-type]
    assert set(rows[:, 0]) == {0 if share[0] else 100}


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


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("nowhere", r"corpus 'mine': folder .*nowhere does not exist: .*`rlplast tokens"),
        ("empty", r"folder .*empty has no corpus\.json: allowed is .*embedded/docstrings"),
    ],
)
def test_what_is_no_corpus_names_what_is_expected(tmp_path: Path, source: str, says: str):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=says):
        open_corpus("mine", tmp_path / source)


@pytest.mark.parametrize("part", ["train", "validation"])
@pytest.mark.parametrize("change", [-2, -1, 1, 2, None])
def test_a_file_of_another_length_is_damaged(tmp_path: Path, part: str, change: int | None):
    path = written(tmp_path / "c") / f"{part}.bin"
    raw = path.read_bytes()
    if change is None:
        path.unlink()
    else:
        path.write_bytes(raw[:change] if change < 0 else raw + bytes(change))
    size = "is missing" if change is None else f"has {len(raw) + change} bytes"
    with pytest.raises(DamagedFile, match=rf"{part}\.bin {size}: corpus\.json counts"):
        open_corpus("mine", tmp_path / "c")


@pytest.mark.parametrize("text", ["", '{"format": 1', "[1]", "\xff", "{}"])
def test_a_description_that_is_cut_is_damaged(tmp_path: Path, text: str):
    (written(tmp_path / "c") / "corpus.json").write_text(text, encoding="latin-1")
    says = "has no 'format'" if text == "{}" else "cannot be read"
    with pytest.raises(DamagedFile, match=rf"corpus\.json {says}"):
        open_corpus("mine", tmp_path / "c")


@pytest.mark.parametrize(
    ("about", "says"),
    [
        ({"dtype": "float32"}, "has dtype 'float32'"),
        ({"dtype": ["uint16"]}, "has dtype"),
        ({"format": 2}, "has format 2: this version reads 1"),
        ({"train_tokens": -1}, "has train_tokens -1"),
        ({"train_tokens": "many"}, "has train_tokens 'many'"),
        ({"train_tokens": 60.0}, r"has train_tokens 60\.0"),
        ({"validation_bytes": float("inf")}, "has validation_bytes inf"),
        ({"vocab_size": float("nan")}, "has vocab_size nan"),
        ({"vocab_size": None}, "has vocab_size None"),
        ({"vocab_size": True}, "has vocab_size True"),
        ({"tokenizer": ["bytes"]}, "has tokenizer"),
    ],
)
def test_a_description_with_a_wrong_value_is_damaged(tmp_path: Path, about: dict, says: str):
    with pytest.raises(DamagedFile, match=says):
        open_corpus("mine", written(tmp_path / "c", **about))


@pytest.mark.parametrize("part", ["train", "validation"])
def test_a_token_that_is_no_id_is_found_when_it_is_read(tmp_path: Path, part: str):
    folder = written(tmp_path / "c", vocab_size=80)
    path = folder / f"{part}.bin"
    tokens = np.fromfile(path, "<u2")
    tokens[6] = 80
    tokens.tofile(path)
    opened = open_corpus("mine", folder)
    says = rf"corpus 'mine': token 6 of its {part} part is 80: .* has ids below 80"
    with pytest.raises(DamagedFile, match=says):
        if part == "train":
            batch([opened], [1], 30, 8, numpy_stream(0, "x"))
        else:
            list(validation_batches(opened, 8, None, 2))


def test_a_model_that_cannot_read_a_corpus_is_told_so():
    check_corpus(corpus(9, 9, vocab_size=256), 8, 256)
    says = r"corpus 'made': its validation part has 8 tokens, a context of 8 needs 9"
    with pytest.raises(ConfigError, match=says):
        check_corpus(corpus(9, 8), 8, 65536)
    with pytest.raises(ConfigError, match="its train part has 0 tokens"):
        check_corpus(corpus(0, 8), 8, 65536)
    says = r"'bytes' has 256 ids, the model 255: allowed is model\.vocab_size of at least 256"
    with pytest.raises(ConfigError, match=says):
        check_corpus(corpus(9, 9, vocab_size=256), 8, 255)


def test_an_empty_part_opens_and_is_refused_by_the_check(tmp_path: Path):
    folder = written(tmp_path / "c", validation_tokens=0, validation_bytes=0)
    (folder / "validation.bin").write_bytes(b"")
    opened = open_corpus("mine", folder)
    assert len(opened.validation) == 0
    with pytest.raises(ConfigError, match="validation part has 0 tokens"):
        check_corpus(opened, 8, 256)
