"""Continuations of one branch: one state, and draws of their own from there on."""

import copy
import dataclasses
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from rlplast.core.clock import Time
from rlplast.core.errors import ConfigError
from rlplast.core.rng import Streams, derive_seed, numpy_stream
from rlplast.envs.base import rng_state
from rlplast.run import api
from rlplast.run.build import build
from rlplast.training import checkpoint
from tests.agents.toy_env import same
from tests.every_kind import KINDS, small_run
from tests.gpt.runs import write_corpora
from tests.marks import slow_but
from tests.runs import Killed, at_step, final, kill

QUIET: dict[str, Any] = {
    "evaluate": {"every": None},
    "metrics": {"every": None},
    "checkpoint": {"every": "10%", "keep": 20},
    "hooks": [{"method": "shrink_perturb", "at": "80%", "params": {"init": "fresh"}}],
}


@pytest.mark.parametrize("kind", slow_but(["dqn"], KINDS))
def test_the_first_is_the_run_itself_and_others_draw_anew(kind: str, tmp_path: Path):
    config = api.read_config(small_run(kind, write_corpora(tmp_path), **QUIET))
    end = config.total_time()
    until = (Time(end.value // 2, end.unit),)

    def continued(name: str, number: int) -> Path:
        own = dataclasses.replace(config, continuation=number)
        api.branch(tmp_path / "prefix", tmp_path / name, own, until)
        return tmp_path / name

    api.train(config, tmp_path / "whole")
    api.train(config, tmp_path / "prefix", until=until)
    one, two, again = continued("one", 1), continued("two", 2), continued("again", 2)
    starts = [checkpoint.newest(own / "checkpoints")[0] for own in (one, two)]
    weights = [(start / "tensors.safetensors").read_bytes() for start in starts]
    assert weights[0] == weights[1]
    for own in (one, two):
        api.resume(own)
    assert final(one) == final(tmp_path / "whole")
    assert final(two)["tensors.safetensors"] != final(one)["tensors.safetensors"]
    with pytest.raises(Killed):
        api.resume(again, observer=at_step(5, kill))
    api.resume(again)
    assert final(again) == final(two)


def test_environments_go_on_from_their_state_with_new_draws():
    config = api.read_config(small_run("dqn", {}, **QUIET))
    first, second = (build(dataclasses.replace(config, continuation=n))[0] for n in (1, 2))
    for _ in range(4):
        first.step()
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    before, after = (t.state_dict()["experience"]["env"]["envs"] for t in (first, second))
    seed = derive_seed(config.seed, "continuation", 2)
    for number, (own, other) in enumerate(zip(before, after, strict=True)):
        drawn = rng_state(numpy_stream(seed, "environment", number))
        assert same(own | {"rng": drawn}, other) and not same(own, other)


def test_streams_of_a_continuation_are_new_ones_and_then_resume():
    streams = Streams(5)
    first = streams.numpy("replay").random(3)
    prefix = streams.state_dict()
    other = Streams(5, 2)
    other.load_state_dict(prefix)
    assert other.parted
    seed = derive_seed(5, "continuation", 2)
    assert np.array_equal(other.numpy("replay").random(3), numpy_stream(seed, "replay").random(3))
    assert not np.array_equal(numpy_stream(seed, "replay").random(3), first)
    saved = other.state_dict()
    expected = other.numpy("replay").random(3)
    resumed = Streams(5, 2)
    resumed.load_state_dict(saved)
    assert not resumed.parted
    assert np.array_equal(resumed.numpy("replay").random(3), expected)


def test_tasks_and_probes_are_those_of_the_seed():
    third = api.read_config(small_run("dqn", {}, **QUIET) | {"seed": 4, "continuation": 3})
    first = dataclasses.replace(third, continuation=1)
    assert first.stream_seed == first.seed == third.seed == 4
    assert third.stream_seed == derive_seed(4, "continuation", 3)
    config = small_run("supervised", {}, **QUIET)
    one, two = (build(api.read_config(config | {"continuation": n}))[0] for n in (1, 2))
    assert torch.equal(one.sample(8, 3).x, two.sample(8, 3).x)
    orders = [list(own.batches(2, 4, 3)) for own in (one, two)]
    assert all(torch.equal(a.x, b.x) for a, b in zip(*orders, strict=True))


def test_a_kind_whose_streams_know_no_continuations_says_so():
    config = small_run("dqn", {}, **QUIET) | {"continuation": 2}
    with (
        mock.patch("rlplast.training.trainable.Streams", lambda seed, continuation: Streams(seed)),
        pytest.raises(ConfigError, match="continuation = 2"),
    ):
        build(api.read_config(config))
