"""How torch computes on a device: set by each run, so that none inherits what another one set."""

import os
from collections.abc import Iterator

import pytest
import torch

from rlplast.core.device import set_up

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.fixture(autouse=True)
def put_back(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(os, "environ", os.environ.copy())
    yield
    set_up(CPU)


def tf32() -> tuple[bool, bool]:
    return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32


def test_products_and_convolutions_have_one_precision_which_the_next_run_does_not_inherit() -> None:
    for matmul, expected in (("high", True), ("highest", False)):
        set_up(CPU, matmul)
        assert tf32() == (expected, expected)


def test_deterministic_kernels_are_a_gpus_alone_and_of_one_run() -> None:
    for device, asked, expected in ((GPU, True, True), (CPU, True, False), (GPU, False, False)):
        set_up(device, deterministic=asked)
        assert torch.are_deterministic_algorithms_enabled() == expected
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
