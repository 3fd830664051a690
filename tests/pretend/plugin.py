"""A pytest plugin that pretends a CUDA device in the whole process: `make test-pretend`.

It has to be loaded before torch is imported, hence ``-p tests.pretend.plugin``. Where no device
can be pretended, all tests are skipped and say why.
"""

import contextlib

import pytest

from tests.pretend import device

with contextlib.suppress(device.Unavailable):
    device.load()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if device.loaded():
        return
    skip = pytest.mark.skip(reason=f"no CUDA device can be pretended: {device.reason()}")
    for item in items:
        item.add_marker(skip)
