"""`rlplast bench` measures graphs where there is a GPU."""

from typing import Any

import pytest
import torch

from rlplast.run import bench, timing
from rlplast.run.config_file import read_config
from tests.every_kind import KINDS, small_run


@pytest.mark.parametrize("kind", KINDS)
def test_graphs_are_measured(
    kind: str, corpora: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_compiler(*args: Any, **options: Any) -> Any:
        raise RuntimeError("no Triton")

    monkeypatch.setattr(timing, "TURN", 0.01)
    monkeypatch.setattr(torch, "compile", no_compiler)
    config = read_config(small_run(kind, corpora, device="cuda", hooks=[]))
    sides = bench.measure(config, lambda part: None)
    assert sides["off"].times and sides["graph"].times
    assert sides["compile"].problem == "no Triton"
