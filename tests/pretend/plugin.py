"""A pytest plugin that gives the whole process a CUDA device: `make test-device`.

With a CUDA build of torch it is the real one, and tests marked ``pretended`` are skipped. With a
CPU build it is a pretended one. That has to be loaded before torch is imported, hence
``-p tests.pretend.plugin``. Where there is neither, all tests are skipped and say why.
"""

import contextlib

import pytest

from tests.pretend import device

with contextlib.suppress(device.Unavailable):
    device.load()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if device.loaded():
        return
    import torch

    real = torch.cuda.is_available()
    why = "counts what only a pretended device counts" if real else device.reason()
    for item in items:
        if not real or item.get_closest_marker("pretended"):
            item.add_marker(pytest.mark.skip(reason=why))
