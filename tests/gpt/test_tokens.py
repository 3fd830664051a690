import hashlib
import sys
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplast.core.errors import ConfigError, RlplastError
from rlplast.gpt import tokens
from rlplast.gpt.corpus import open_corpus
from rlplast.gpt.tokens import text_files, write_corpus
from tests.refused import check_refused

regex = pytest.importorskip("regex")  # knows \p{L}, as GPT-2's pattern needs

# The pattern that cuts text into words before they are encoded; Radford et al. 2019, encoder.py.
WORDS = regex.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")
TEXTS = st.text(st.sampled_from("ab7'.é中 \n\t\r\u00a0"), max_size=60)


def encoded(text: str) -> list[int]:
    """One id per word, so that a word cut in two is seen."""
    return [zlib.crc32(word.encode()) % 50256 for word in WORDS.findall(text)]


@pytest.fixture
def gpt2(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tiktoken whose words are GPT-2's, but not its ids: it needs no download."""
    made = SimpleNamespace(n_vocab=50257, eot_token=50256, encode_ordinary=encoded)
    module = SimpleNamespace(get_encoding={"gpt2": made}.__getitem__)
    monkeypatch.setitem(sys.modules, "tiktoken", module)


def put(folder: Path, files: dict[str, str | bytes]) -> list[Path]:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return [folder / name for name in files]


def read(folder: Path) -> tuple[bytes, bytes]:
    """The two parts of a corpus of bytes."""
    corpus = open_corpus("mine", folder)
    train, validation = (a.astype(np.uint8).tobytes() for a in (corpus.train, corpus.validation))
    return train, validation


def test_the_last_share_of_the_text_is_for_validation(tmp_path: Path):
    files = put(tmp_path, {"a": "one two\r\n", "b": "three four five\n", "c": "sé"})
    about = write_corpus(files, tmp_path / "out", validation=0.5)
    # 14 of 28 bytes lie before the cut, 5 of them in b: "three", then a blank.
    train, validation = read(tmp_path / "out")
    assert (train, validation) == (b"one two\r\n\0three\0", " four five\n\0sé\0".encode())
    expected = {"format": 1, "tokenizer": "bytes", "vocab_size": 256, "dtype": "uint16"}
    for part in ("train", "validation"):
        expected |= {f"{part}_tokens": 16, f"{part}_bytes": 14, f"{part}_files": 2}
    as_written = np.frombuffer(train + validation, np.uint8).astype("<u2").tobytes()
    assert about == expected | {"sha256": hashlib.sha256(as_written).hexdigest()}
    assert open_corpus("mine", tmp_path / "out").bytes_per_token == 14 / 16


def test_a_file_is_cut_before_the_next_blank(tmp_path: Path):
    text = "aaaa bbbb cccc dddd"
    for share, train in ((0.25, text[:14]), (0.45, text[:14]), (0.55, text[:9]), (0.95, text[:4])):
        write_corpus(put(tmp_path, {"a": text}), tmp_path / str(share), validation=share)
        rest = text.removeprefix(train)
        assert read(tmp_path / str(share)) == (f"{train}\0".encode(), f"{rest}\0".encode())


def test_validation_text_of_its_own(tmp_path: Path):
    train = put(tmp_path, {"train/b.txt": "b", "train/a.txt": "a", "train/empty.txt": ""})
    held_out = put(tmp_path, {"valid/sub/c.txt": "c", "valid/notes.md": "no text"})
    write_corpus([train[0].parent], tmp_path / "out", validation=held_out[1].parent)
    assert read(tmp_path / "out") == (b"a\0b\0", b"c\0")


def test_text_in_both_parts_is_refused(tmp_path: Path):
    train = put(tmp_path, {"t/a.txt": "a", "t/valid/b.txt": "b"})
    (tmp_path / "link").symlink_to(train[1].parent)
    for held_out in (train[1], train[1].parent, tmp_path / "link", tmp_path / "t/valid/../valid"):
        with pytest.raises(ConfigError, match=r"b\.txt is validation text and text to train on"):
            write_corpus([tmp_path / "t"], tmp_path / "out", validation=held_out)
    assert not (tmp_path / "out").exists()


def test_a_folder_stands_for_its_txt_files_by_name_and_a_file_meant_twice_counts_once(
    tmp_path: Path,
):
    put(
        tmp_path, {"d/b.txt": "b", "d/a/z.txt": "z", "d/c.md": "", "d/a.txt/in.txt": "", "e.md": ""}
    )
    found = text_files([tmp_path / "e.md", tmp_path / "d"])
    names = [path.relative_to(tmp_path).as_posix() for path in found]
    assert names == ["e.md", "d/a/z.txt", "d/a.txt/in.txt", "d/b.txt"]
    (tmp_path / "f").mkdir()
    check_refused(
        lambda path: text_files([path]),
        [(tmp_path / "nothing", "nothing does not exist"), (tmp_path / "f", "f has no *.txt file")],
    )
    b, z = tmp_path / "d" / "b.txt", tmp_path / "d" / "a" / "z.txt"
    (z.parent / "y.txt").symlink_to(b)
    assert text_files([b, z.parent, tmp_path / "d" / ".." / "d" / "b.txt"]) == [b, z]
    (held_out,) = put(tmp_path, {"v": "v"})
    write_corpus([b, z.parent, b], tmp_path / "out", validation=held_out)
    assert read(tmp_path / "out") == (b"b\0z\0", b"v\0")
    assert (tmp_path / "out").stat().st_mode == (tmp_path / "d").stat().st_mode  # by the umask


@settings(max_examples=50)
@given(texts=st.lists(TEXTS, min_size=1, max_size=3), chunk=st.integers(1, 40))
def test_streamed_pieces_meet_where_no_token_reaches_across(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], chunk: int
):
    folder = tmp_path_factory.mktemp("text")
    files = put(folder, {str(i): text for i, text in enumerate(texts)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokens, "CHUNK", chunk)
        for path, text in zip(files, texts, strict=True):
            read = []
            span = tokens._Span(path, 0, path.stat().st_size)
            pieces = list(tokens._pieces(tokens._text(span, read.append)))
            assert "".join(pieces) == text
            words = [word for piece in pieces for word in WORDS.findall(piece)]
            assert words == WORDS.findall(text)
            assert sum(read) == len(text.encode())


def test_long_texts_come_in_pieces_of_bounded_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tokens, "CHUNK", 101)
    (path,) = put(tmp_path, {"a": "some words\n" * 1000})
    texts = list(tokens._text(tokens._Span(path, 0, 11_000), lambda read: None))
    assert max(map(len, texts)) <= 101
    assert max(map(len, tokens._pieces(texts))) <= 111
    shortened = tokens._text(tokens._Span(path, 0, 12_000), lambda read: None)
    with pytest.raises(RlplastError, match="became shorter"):
        list(shortened)


@pytest.mark.usefixtures("gpt2")
def test_gpt2_writes_its_ids_and_a_separator_after_each_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tokens, "CHUNK", 16)
    text = "It's 1 text,\n\n  with words <|endoftext|>\n" * 3
    files = put(tmp_path, {"a": text, "b": "more", "c": "validation"})
    about = write_corpus(files, tmp_path / "out", "gpt2", validation=10 / (len(text) + 14))
    corpus = open_corpus("mine", tmp_path / "out")
    assert corpus.train.tolist() == [*encoded(text), 50256, *encoded("more"), 50256]
    assert corpus.validation.tolist() == [*encoded("validation"), 50256]
    assert (corpus.vocab_size, corpus.tokenizer, about["dtype"]) == (50257, "gpt2", "uint16")
    assert corpus.bytes_per_token == 10 / 2


def test_gpt2_without_tiktoken_or_its_vocabulary_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def offline(name: str) -> None:
        raise ConnectionError("no route")

    files = put(tmp_path, {"a": "some text here"})
    for module, words in (
        (None, r"rlplast\[tokens\]"),
        (SimpleNamespace(get_encoding=offline), r"no route.* TIKTOKEN_CACHE_DIR"),
    ):
        monkeypatch.setitem(sys.modules, "tiktoken", module)
        with pytest.raises(ConfigError, match=words):
            write_corpus(files, tmp_path / "out", "gpt2", validation=0.5)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("chunk", [1, 7, 1 << 20])
def test_text_that_is_not_utf8_names_file_and_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
):
    monkeypatch.setattr(tokens, "CHUNK", chunk)
    for raw, at in ((b"fine \xff then", 5), (b"cut \xe4\xb8", 4), ("é ö".encode("latin-1"), 0)):
        bad, good = put(tmp_path, {"bad": raw, "good": "x"})
        with pytest.raises(ConfigError, match=rf"bad is no UTF-8 text: byte {at} "):
            write_corpus([bad], tmp_path / "out", validation=good)
    assert {path.name for path in tmp_path.iterdir()} == {"bad", "good"}


def test_shares_that_leave_no_text_are_refused(tmp_path: Path):
    def write(given: tuple[str, Any]) -> None:
        text, share = given
        write_corpus(put(tmp_path, {"a": text}), tmp_path / "out", **share)

    shares = (0.0, 1.0, -0.1, 2.0, float("nan"))
    texts = {"": "train", "nothingtocut": "validation", " x": "validation"}
    rows = [(("some text", {"validation": share}), "a share in (0, 1)") for share in shares]
    rows += [((text, {}), f"no text is left for the {part} part") for text, part in texts.items()]
    check_refused(write, rows)
    assert not (tmp_path / "out").exists()


def test_what_is_there_stays_and_an_empty_folder_is_used(tmp_path: Path):
    files = put(tmp_path, {"a": "some text here"})
    out = tmp_path / "out"
    out.mkdir()
    write_corpus(files, out, validation=0.4)
    before = read(out)
    for taken in (out, files[0]):
        with pytest.raises(ConfigError, match="exists already"):
            write_corpus(put(tmp_path, {"b": "other text"}), taken, validation=0.4)
    assert read(out) == before


def test_a_disk_that_fails_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(path: Path) -> None:
        raise OSError(28, "No space left on device")

    files = put(tmp_path, {"a": "some text here"})
    monkeypatch.setattr(tokens, "fsync", full)
    with pytest.raises(RlplastError, match=r"out could not be written .*No space left"):
        write_corpus(files, tmp_path / "out", validation=0.5)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
