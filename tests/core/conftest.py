"""What the tests of files share."""

import errno
import os
from typing import Any

import pytest


@pytest.fixture
def no_hard_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let files be as on a file system without hard links."""

    def refuse(*paths: Any, **options: Any) -> None:
        raise OSError(errno.EXDEV, "no links here")

    monkeypatch.setattr(os, "link", refuse)
