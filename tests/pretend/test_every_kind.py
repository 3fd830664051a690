"""Runs of every kind on the device: with all interventions or a layer, killed and resumed."""

from pathlib import Path

import pytest

from tests.every_kind import KINDS
from tests.test_every_kind import FAST, accepted, check_hooks, check_layer

pytestmark = pytest.mark.usefixtures("no_disk_sync")


@pytest.mark.parametrize("kind", KINDS)
def test_all_interventions_in_one_run_wait_and_resume(
    kind: str, corpora: dict[str, str], tmp_path: Path
) -> None:
    check_hooks(kind, accepted(kind), corpora, tmp_path, device="cuda")


@pytest.mark.parametrize(
    ("kind", "layer"), [(kind, layer) for layer in FAST for kind in FAST[layer]]
)
def test_layers_resume(kind: str, layer: str, corpora: dict[str, str], tmp_path: Path) -> None:
    check_layer(kind, layer, corpora, tmp_path, device="cuda")
