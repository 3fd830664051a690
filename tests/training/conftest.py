"""What the tests of loops and files share."""

import errno
import os
from typing import Any

import pytest

from tests.core.toy import loop, run
from tests.runs import final


@pytest.fixture(scope="session")
def through(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a run leaves that nobody interrupted."""
    folder = tmp_path_factory.mktemp("through")
    run(loop(folder))
    return final(folder)


@pytest.fixture
def no_hard_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let files be as on a file system without hard links."""

    def refuse(*paths: Any, **options: Any) -> None:
        raise OSError(errno.EXDEV, "no links here")

    monkeypatch.setattr(os, "link", refuse)
