"""What all tests of studies share."""

import copy
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from rlplast.run.shipped import config_folder
from rlplast.training.config import read_yaml


@pytest.fixture(autouse=True, scope="package")
def shipped_files_are_parsed_once() -> Iterator[None]:
    """A study reads its base again for each arm, and nearly all of the time goes there."""
    parsed = functools.cache(read_yaml)

    def read(path: Path) -> Any:
        shipped = path.is_relative_to(config_folder())
        return copy.deepcopy(parsed(path)) if shipped else read_yaml(path)

    with (
        mock.patch("rlplast.run.config_file.read_yaml", read),
        mock.patch("rlplast.study.api.read_yaml", read),
    ):
        yield
