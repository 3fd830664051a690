"""What the tests of a loop share."""

from typing import Any

import pytest

from tests.core.toy import loop, run
from tests.runs import final


@pytest.fixture(autouse=True)
def _fast(no_disk_sync: None) -> None:
    pass


@pytest.fixture(scope="session")
def through(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a run leaves that nobody interrupted."""
    folder = tmp_path_factory.mktemp("through")
    run(loop(folder))
    return final(folder)
