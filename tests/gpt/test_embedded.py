import bisect
import html
import inspect
import pydoc_data.topics
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest

from rlplast.core.errors import ConfigError
from rlplast.gpt import embedded
from rlplast.gpt.corpus import check_corpus, open_corpus

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


def test_files_go_by_name_and_the_last_tenth_is_for_validation(library):
    library({f"m{i:02}.py": f"x = {i}\n" for i in reversed(range(20))})
    train, validation = embedded.embedded_text("stdlib")
    assert train == b"".join(b"x = %d\n\0" % i for i in range(18))
    assert validation == b"x = 18\n\0x = 19\n\0"


def test_tests_tables_and_installed_packages_are_left_out(library):
    left_out = [
        *("test/test_a.py", "json/tests/a.py", "site-packages/p/a.py", "idlelib/a.py"),
        *("encodings/cp1.py", "config-3/a.py", "_sysconfigdata__linux_.py", "notes.txt"),
    ]
    library({name: "left_out = 1\n" for name in left_out} | {"a.py": "a = 1\n", "b/c.py": "c\n"})
    assert embedded.embedded_text("stdlib") == (b"a = 1\n\0", b"c\n\0")


def test_source_stops_before_the_limit(library, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(embedded, "LIMIT", 25)
    library({name: "x" * 10 for name in ("a.py", "b.py", "c.py", "d.py")})
    assert embedded.embedded_text("stdlib") == (b"x" * 10 + b"\0", b"x" * 10 + b"\0")


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


def test_a_python_without_its_reference_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    embedded.embedded_text.cache_clear()
    with pytest.raises(ConfigError, match=r"embedded/topics or .* this Python has no pydoc_data"):
        open_corpus("mine", "embedded/ebcdic")


def test_a_python_without_source_is_refused(library):
    with pytest.raises(ConfigError, match=r"has no Python source: use .* `rlplast tokens`"):
        open_corpus("mine", "embedded/stdlib")


def test_another_name_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match=r"embedded/stdlb: did you mean 'stdlib'\?"):
        open_corpus("mine", "embedded/stdlb")


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
    embedded.embedded_text.cache_clear()
    again = open_corpus("other", "embedded/stdlib")
    assert np.array_equal(again.train, corpus.train)
    assert again.sha256 == corpus.sha256


@pytest.mark.slow
def test_the_docstrings_of_this_python_are_a_corpus():
    corpus = open_corpus("said", "embedded/docstrings")
    check_corpus(corpus, 1024, 256)
    text = corpus.train.astype(np.uint8).tobytes().decode()
    assert len(text) > 500_000
    for thing in (bisect, bisect.insort, inspect.Parameter):
        assert str(inspect.getdoc(thing)) in text
