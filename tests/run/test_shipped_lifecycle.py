"""Shipped lifecycle configs: their plain runs, and lives of the same shares of a run.

The shares are those of supervised/lcl_cifar10: lives of 10 to 40 epochs of 100, and so on.
"""

import dataclasses
from typing import Any

import pytest

from rlplast.run.config_file import read_config

# A run with the layer, the one without, and what else they differ in.
TWINS = {
    "dqn/minatar_lifecycle": ("dqn/minatar_breakout", ()),
    "sac/pendulum_lifecycle": ("sac/pendulum", ()),
    "gpt/stdlib_lifecycle": ("gpt/stdlib_demo", ("hooks", "metrics")),
}


@pytest.mark.parametrize("name", TWINS)
def test_a_lifecycle_config_is_its_plain_run_with_lives_that_are_shares_of_it(name: str) -> None:
    plain, others = TWINS[name]
    config: Any = read_config(name)
    with_layer, without = dataclasses.asdict(config), dataclasses.asdict(read_config(plain))
    differ = {key for key in without if with_layer[key] != without[key]}
    assert differ == {"layers", *others}
    (row,) = config.layers
    updates = config.horizon().updates
    params = row["params"]
    shares = [n / updates for n in (*params["life"], *params["recovery"], params["warmup"])]
    assert shares == pytest.approx([0.1, 0.4, 0.05, 0.2, 0.01], rel=0.04)
