"""Frames of a replay on the device (``agent.replay: device``): equal batches, few bytes sent."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlplast.core.errors import ConfigError
from rlplast.run import api
from rlplast.run.build import build
from rlplast.run.config_file import read_config
from tests.agents.replay_episodes import Episodes, fill, make
from tests.every_kind import small_run
from tests.pretend.device import counted
from tests.runs import Killed, at_step, final, kill
from tests.test_every_kind import QUIET


@pytest.mark.parametrize("repeat_first", [False, True])
@pytest.mark.parametrize(("frame_stack", "n_step"), [(1, 1), (4, 1), (3, 5)])
def test_batches_are_those_of_the_host(
    frame_stack: int, n_step: int, repeat_first: bool, tmp_path: Path
) -> None:
    keys: dict[str, Any] = {"frame_stack": frame_stack, "n_step": n_step, "device": "cuda"}
    keys |= {"repeat_first": repeat_first, "rows": 30, "num_envs": 3}
    memories = [make(**keys, frames_on_device=there) for there in (False, True)]
    for memory in memories:
        episodes = Episodes(3, seed=1)
        memory.start(episodes.start())
        fill(memory, episodes, 70)
    host, device = memories
    for _ in range(20):
        assert all(map(torch.equal, host.sample(), device.sample()))
    device.begin_save()(tmp_path)
    again = make(**keys, frames_on_device=True)
    again.load(tmp_path, device.state_dict())
    for _ in range(20):
        assert all(map(torch.equal, host.sample(), again.sample()))


@pytest.mark.pretended
def test_no_pictures_are_sent_and_nothing_waits() -> None:
    keys: dict[str, Any] = {"obs_shape": (8, 8), "obs_dtype": "uint8", "frame_stack": 4}
    memory = make(**keys, device="cuda", frames_on_device=True)
    frames, no = np.ones((1, 8, 8), np.uint8), np.zeros(1, bool)
    memory.start(frames)
    for _ in range(9):
        memory.add(np.zeros(1, int), np.zeros(1), no, no, frames, frames)
    memory.sample()
    with counted() as seen:
        memory.sample()
    assert seen.waits == {}
    assert seen.copies == 3 + 2 * 2  # actions, rewards and discounts; rows and blanks of two stacks


def test_a_run_has_the_bits_of_one_with_frames_on_the_host(tmp_path: Path) -> None:
    for where in ("host", "device", "auto"):
        config = small_run("dqn", {}, device="cuda", **(QUIET | {"total": "60 env_steps"}))
        config["agent"] = config["agent"] | {"replay": where, "accelerate": "graph"}
        if where == "device":
            with pytest.raises(Killed):
                api.train(copy.deepcopy(config), tmp_path / where, observer=at_step(30, kill))
            api.resume(tmp_path / where)
        else:
            messages: list[str] = []
            api.train(config, tmp_path / where, report=messages.append)
            assert any("GiB of cuda's memory" in text for text in messages) == (where == "auto")
    assert final(tmp_path / "device") == final(tmp_path / "host") == final(tmp_path / "auto")


def test_without_a_gpu_it_is_refused() -> None:
    config = small_run("dqn", {}, device="cpu")
    config["agent"] = config["agent"] | {"replay": "device"}
    with pytest.raises(ConfigError, match="'device' on device cpu: allowed here are auto and host"):
        build(read_config(config, {}))
