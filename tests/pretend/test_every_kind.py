"""Runs of every kind on the device: with all interventions or a layer, killed and resumed."""

from pathlib import Path
from typing import Any

import pytest
import torch

from rlplast.run.timing import built
from tests.every_kind import KINDS, small_run
from tests.test_every_kind import RESUMES, accepted, check_hooks, check_layer

DEVICE: dict[str, dict[str, Any]] = {kind: {"device": "cuda"} for kind in KINDS}
DEVICE["gpt"]["deterministic"] = True  # a GPU sums the gradients of attention in any order


@pytest.mark.filterwarnings(
    "ignore:agent.accelerate = 'graph'.*(distill|pfo)"
)  # eager from then on
@pytest.mark.parametrize("kind", KINDS)
def test_all_interventions_in_one_run_wait_and_resume(
    kind: str, corpora: dict[str, str], tmp_path: Path
) -> None:
    check_hooks(kind, accepted(kind), corpora, tmp_path, **DEVICE[kind])


# Those that count or remember something on the device.
@pytest.mark.parametrize("layer", ["lifecycle", "normalize_project", "dropout", "rigl"])
def test_layers_resume(layer: str, corpora: dict[str, str], tmp_path: Path) -> None:
    kind = RESUMES[layer][0]
    check_layer(kind, layer, corpora, tmp_path, **DEVICE[kind])


@pytest.mark.parametrize("keys", [{"matmul": "high"}, {"precision": "bf16"}], ids=str)
def test_classifiers_in_tensor_cores_wait_and_resume_with_channels_last(
    keys: dict[str, str], corpora: dict[str, str], tmp_path: Path
) -> None:
    changes = {"device": "cuda", "model": {"name": "cnn", "width": 4}, **keys}
    check_hooks("supervised", accepted("supervised"), corpora, tmp_path, **changes)
    run, _ = built(small_run("supervised", corpora, hooks=[], **changes))
    order = [p.is_contiguous(memory_format=torch.channels_last) for p in weights(run)]
    assert order and all(order)


def weights(run: Any) -> list[torch.Tensor]:
    return [p for p in run.model.parameters() if p.ndim == 4 and p.shape[1] > 1]
