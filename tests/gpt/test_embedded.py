import bisect
import html
import inspect
import pydoc_data.topics
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest

from rlplast.gpt import embedded
from rlplast.gpt.corpus import check_corpus, open_corpus
from tests.refused import check_refused

MODULE = '''"""Say what this is.

    Indented.
"""
X = "no docstring"
class Named:
    """A class."""
    def method(self):
        """A method."""
        if X:
            async def inner():
                """Inside."""
        try:
            pass
        except ValueError:
            def late():
                """In a handler: ä."""
def bare():
    return X
'''
DOCSTRINGS = (
    "Say what this is.\n\nIndented.\n\nA class.\n\nA method.\n\nInside.\n\nIn a handler: ä.\n\n"
)


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A small standard library: file by file, given by a function that writes it."""
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    embedded.embedded_text.cache_clear()

    def write(files: dict[str, str]) -> None:
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")

    yield write
    embedded.embedded_text.cache_clear()


def test_files_go_by_name_up_to_a_limit_and_the_last_tenth_is_for_validation(
    library, monkeypatch: pytest.MonkeyPatch
):
    left_out = [
        *("test/test_a.py", "json/tests/a.py", "site-packages/p/a.py", "idlelib/a.py"),
        *("encodings/cp1.py", "config-3/a.py", "_sysconfigdata__linux_.py", "notes.txt"),
    ]
    files = {f"m/{i:02}.py": f"x = {i:02}\n" for i in reversed(range(30))}
    library({name: "left_out = 1\n" for name in left_out} | files)
    monkeypatch.setattr(embedded, "LIMIT", 20 * len(b"x = 00\n") + 3)
    train, validation = embedded.embedded_text("stdlib")
    assert train == b"".join(b"x = %02d\n\0" % i for i in range(18))
    assert validation == b"x = 18\n\0x = 19\n\0"


def test_docstrings_are_those_of_the_same_files_in_order(library):
    library({"a.py": MODULE, "b.py": "x = 1\n", "c.py": '"""Last."""\n'})
    train, validation = embedded.embedded_text("docstrings")
    assert train == DOCSTRINGS.encode() + b"\0"  # b.py says nothing
    assert validation == b"Last.\n\n\0"


def test_topics_are_those_of_help_and_a_tenth_of_them_is_for_validation():
    train, validation = (part.split(b"\0")[:-1] for part in embedded.embedded_text("topics"))
    told = set(pydoc_data.topics.topics.values())
    assert {text.decode() for text in (*train, *validation)} == told
    assert len(validation) == round(len(told) / 10)
    by_name = [text.encode() for _, text in sorted(pydoc_data.topics.topics.items())]
    places = [by_name.index(text) for text in validation]
    assert places == sorted(places)
    assert set(np.diff(places)) <= {len(told) // len(places), -(-len(told) // len(places))}


def test_ebcdic_is_the_same_text_in_another_code():
    for topics, ebcdic in zip(
        embedded.embedded_text("topics"), embedded.embedded_text("ebcdic"), strict=True
    ):
        latin = topics.decode().encode("latin-1", "replace").decode("latin-1")
        assert ebcdic.decode("cp500") == latin
    printed = range(ord(" "), 127)
    assert not [b for b in printed if bytes([b]).decode("cp500") == chr(b)]  # none means the same


def test_an_entity_is_a_character_and_its_name():
    train, validation = (part.split(b"\0")[:-1] for part in embedded.embedded_text("entities"))
    pairs = [text.decode().rsplit(" ", 1) for text in (*train, *validation)]
    assert len({name for _, name in pairs}) == len(pairs)
    assert all(html.unescape(f"&{name};") == character for character, name in pairs)
    assert ["é", "eacute"] in pairs
    assert len(validation) == round(len(pairs) / 10)


def test_a_python_without_its_source_or_reference_and_another_name_are_refused(
    library, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    rows = [
        ("embedded/ebcdic", "this Python has no pydoc_data"),
        ("embedded/stdlib", "has no Python source"),
        ("embedded/stdlb", "did you mean 'stdlib'?"),
    ]
    check_refused(lambda source: open_corpus("mine", source), rows)


def test_the_standard_library_of_this_python_is_a_corpus():
    corpus = open_corpus("code", "embedded/stdlib")
    check_corpus(corpus, 1024, 256)
    assert (corpus.vocab_size, corpus.tokenizer, corpus.train.dtype) == (256, "bytes", np.uint16)
    text = corpus.train.astype(np.uint8).tobytes()
    assert inspect.getsource(bisect).encode() in text
    assert 200_000 < corpus.validation.size < corpus.train.size < 8_001_000
    documents = [np.count_nonzero(part == 0) for part in (corpus.train, corpus.validation)]
    assert 0.09 < documents[1] / sum(documents) < 0.11
    assert corpus.bytes_per_token == 1 - documents[1] / corpus.validation.size
