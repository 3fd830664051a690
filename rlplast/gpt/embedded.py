"""Text that needs no download: it comes with the running Python, and differs by its version."""

import ast
import functools
import html.entities
import sysconfig
from collections.abc import Callable, Iterable, Sized
from pathlib import Path

from rlplast.core.errors import ConfigError, did_you_mean

__all__ = ["EMBEDDED", "SEPARATOR", "embedded_text"]

SEPARATOR = b"\0"  # after each file
LIMIT = 8_000_000  # bytes of source
VALIDATION = 0.1  # share of documents
# Tests, third-party packages, applications, tables, and what a build generates.
LEFT_OUT = {
    *("test", "tests", "idle_test", "idlelib", "turtledemo", "ensurepip", "lib2to3"),
    *("site-packages", "dist-packages", "lib-dynload", "encodings", "pydoc_data"),
}
GENERATED = ("config-", "_sysconfig")


def _files(root: Path) -> list[Path]:
    """Return the modules of the standard library, by name, as many as fit into `LIMIT`."""
    files, size = [], 0
    for path in sorted(root.rglob("*.py"), key=lambda p: p.relative_to(root).as_posix()):
        parts = path.relative_to(root).parts
        if LEFT_OUT.isdisjoint(parts) and not any(p.startswith(GENERATED) for p in parts):
            size += path.stat().st_size
            if size > LIMIT:
                break
            files.append(path)
    return files


def _docstrings(source: bytes) -> bytes:
    """Return the docstrings of a module, its classes and functions, in order of their lines."""
    documented = ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef
    nodes = [n for n in ast.walk(ast.parse(source)) if isinstance(n, documented)]
    texts = {n.body[0].lineno: text for n in nodes if (text := ast.get_docstring(n))}
    return "".join(texts[line] + "\n\n" for line in sorted(texts)).encode()


def _of_files(text: Callable[[bytes], bytes]) -> list[bytes]:
    """Return what each module gives, the last tenth for validation the same in every text."""
    root = Path(sysconfig.get_paths()["stdlib"])
    files = _files(root)
    if len(files) < 2:
        raise ConfigError(
            f"corpus embedded/stdlib or embedded/docstrings: {root} has no Python source: use a "
            "Python installed with its standard library's .py files, or write a corpus with "
            "`rlplast tokens`"
        )
    return [text(path.read_bytes()) for path in files]


def _spread(documents: list[str], encoding: str = "utf-8") -> list[bytes]:
    """Return documents with those for validation last: some of all, evenly spaced."""
    count = _held_out(documents)
    chosen = {i * len(documents) // count for i in range(count)}
    order = sorted(range(len(documents)), key=lambda i: i in chosen)
    return [documents[i].encode(encoding, "replace") for i in order]


def _held_out(documents: Sized) -> int:
    return max(round(VALIDATION * len(documents)), 1)


def _topics() -> list[str]:
    """Return the texts that ``help()`` has apart from docstrings, by name."""
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise ConfigError(
            "corpus embedded/topics or embedded/ebcdic: this Python has no pydoc_data: use one "
            "with its whole standard library, or write a corpus with `rlplast tokens`"
        ) from error
    return [topics[name] for name in sorted(topics)]


def _entities() -> list[str]:
    """Return each name of HTML after its character, or characters, such as ``é eacute``."""
    named = sorted(html.entities.html5.items())
    return [f"{text} {name[:-1]}" for name, text in named if name.endswith(";")]


# Documents of each text, the last tenth of them for validation.
EMBEDDED: dict[str, Callable[[], list[bytes]]] = {
    "stdlib": lambda: _of_files(lambda source: source),
    "docstrings": lambda: _of_files(_docstrings),
    "topics": lambda: _spread(_topics()),  # the language reference that `help()` shows
    "ebcdic": lambda: _spread(_topics(), "cp500"),  # the same in IBM's code page 500
    "entities": lambda: _spread(_entities()),
}


def _joined(documents: Iterable[bytes]) -> bytes:
    return b"".join(text + SEPARATOR for text in documents if text)


@functools.cache
def embedded_text(name: str) -> tuple[bytes, bytes]:
    """Return a text as (training, validation); a 0 byte ends each document.

    A document is a file of the library, a topic or an entity, in order of their names. A tenth of
    them is for validation: the last files, topics and entities from everywhere.

    Raises:
        ConfigError: for a name not in `EMBEDDED`, or if this Python has no such text.
    """
    if name not in EMBEDDED:
        raise ConfigError(f"corpus embedded/{name}: {did_you_mean(name, EMBEDDED)}")
    documents = EMBEDDED[name]()
    cut = len(documents) - _held_out(documents)
    return _joined(documents[:cut]), _joined(documents[cut:])
