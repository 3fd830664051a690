"""A SAC whose weights are no longer finite stops in order."""

from typing import Any

import numpy as np
import pytest
import torch

from rlplast.core.errors import RlplastError
from rlplast.run.build import build_trainable
from rlplast.run.config_file import read_config
from tests.sac_runs import small_sac


def test_actions_that_are_not_finite_end_the_run_with_the_clock_and_a_remedy() -> None:
    agent: Any = build_trainable(read_config(small_sac()))
    try:
        while agent.clock.updates < 1:
            agent.step()
        with torch.no_grad():
            agent.networks["actor"].blocks[0].view.fill_(np.nan)
        agent.experience.credit = 0.0
        with pytest.raises(RlplastError, match=r"not finite at .*diverged.*lower optimizer\.lr"):
            agent.step()
    finally:
        agent.close()
