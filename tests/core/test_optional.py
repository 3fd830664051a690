"""Optional libraries: what a missing one says."""

import sys
from pathlib import Path

import pytest

from rlplast.core.errors import ConfigError
from rlplast.core.optional import import_optional


def test_a_missing_library_is_named_with_what_to_install() -> None:
    with pytest.raises(ConfigError, match=r"no_such_library .*rlplast\[vision\]"):
        import_optional("no_such_library", "vision")
    assert import_optional("os.path", "vision") is sys.modules["os.path"]


def test_other_errors_of_an_import_are_its_own(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "broken_library.py").write_text("raise RuntimeError('no driver')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RuntimeError, match="no driver"):
        import_optional("broken_library", "vision")
