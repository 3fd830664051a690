"""Batches of one sample, in which BatchNorm finds no variance."""

from typing import Any

import numpy as np
import pytest

from rlplast.core.errors import ConfigError
from rlplast.run.build import build
from rlplast.run.config_file import read_config
from tests.supervised_runs import small_supervised

MODEL = {"name": "cnn_bn", "width": 4}


def supervised(**keys: Any) -> dict[str, Any]:
    return small_supervised(**{"hooks": [], "penalties": []} | keys)


def test_a_network_that_cannot_learn_from_one_is_refused() -> None:
    for config, keys in (
        (supervised(model=MODEL, batch_size=1), "batch_size = 1, micro_batch = None"),
        (supervised(model=MODEL, micro_batch=1), "batch_size = 100, micro_batch = 1"),
        (supervised(model=MODEL, batch_size=5, micro_batch=2), "batch_size = 5, micro_batch = 2"),
    ):
        with pytest.raises(ConfigError, match=rf"^{keys}: .* one input"):
            build(read_config(config))


def test_a_network_that_can_learns_from_one() -> None:
    trainer = build(read_config(supervised(batch_size=1)))[0]
    while trainer.clock.updates < 2:
        trainer.step()
    assert all(np.isfinite(value) for value in trainer.metrics().values())


def test_a_single_left_over_sample_joins_the_batch_before() -> None:
    count, size = 1346, 269  # training images of the digits; one is left over
    dash = {"method": "dash", "at": "1 updates", "params": {"batch": size}}
    stream = {"name": "single_task", "epochs": 2}
    trainer, hooks = build(read_config(supervised(model=MODEL, stream=stream, hooks=[dash])))
    lengths = [len(batch.y) for batch in trainer.batches(None, size, 0)]
    assert sum(lengths) == count and lengths[-1] == size + 1
    before = trainer.clock
    trainer.step()
    (receipt,) = hooks.fire(before, trainer.clock)
    assert receipt.entries_touched > 0
