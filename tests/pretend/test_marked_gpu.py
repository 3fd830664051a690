"""The project's tests that need a CUDA device."""

import ast
from pathlib import Path

from tests.agents.test_replay import test_batches_on_a_gpu_equal_those_on_the_cpu
from tests.core.network.test_optim_state import (
    test_capturable_state_is_zeroed_in_place_on_the_device,
)
from tests.gpt.test_trainer import test_fp16_scales_gradients_and_saves_the_scale
from tests.methods.test_lifecycle_tick import test_tick_waits_for_nothing_and_can_be_captured
from tests.supervised.test_augment import test_draws_are_the_same_on_every_device
from tests.supervised.test_data import test_normaliser_is_the_same_on_every_device
from tests.test_invariants_compiled import test_every_update_edit_can_be_captured_in_a_cuda_graph

__all__ = [
    "test_batches_on_a_gpu_equal_those_on_the_cpu",
    "test_capturable_state_is_zeroed_in_place_on_the_device",
    "test_draws_are_the_same_on_every_device",
    "test_every_update_edit_can_be_captured_in_a_cuda_graph",
    "test_fp16_scales_gradients_and_saves_the_scale",
    "test_normaliser_is_the_same_on_every_device",
    "test_tick_waits_for_nothing_and_can_be_captured",
]


def test_all_tests_marked_gpu_are_here() -> None:
    marked = set()
    for path in Path(__file__).parents[1].rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                marks = map(ast.unparse, node.decorator_list)
                marked |= {node.name} if "pytest.mark.gpu" in marks else set()
    assert marked == {name for name in __all__ if name.startswith("test_")}
