import json
import random

import numpy as np
import pytest
import torch

from rlplast.core.rng import (
    Streams,
    derive_seed,
    numpy_stream,
    preserve_global_rng,
    torch_stream,
)


def test_seeds_are_those_of_runs_already_made_and_fit_every_generator() -> None:
    assert derive_seed(0, "environment") == 4222051398853257072
    assert derive_seed(1, "hook", "fire#1", "q", 2) == 3254076454256413475
    for seed in (0, 1, -1, 2**70):
        assert 0 <= derive_seed(seed, "x") < 2**63
        torch_stream(seed, "x")
        numpy_stream(seed, "x")


def test_streams_of_other_names_numbers_or_seeds_are_other_streams() -> None:
    keys = [(0, "a"), (1, "a"), (0, "b"), (0, "a", 0), (0, "a", 1), (0, "a", 11), (0, "a", "x", 1)]
    firsts = {numpy_stream(*key).integers(2**63) for key in keys}
    assert len(firsts) == len(keys)
    assert len({torch.rand(1, generator=torch_stream(*key)).item() for key in keys}) == len(keys)


def test_long_lived_stream_goes_on_whatever_others_draw() -> None:
    streams = Streams(0)
    expected = numpy_stream(0, "replay").random(4).tolist()
    for value in expected:
        assert streams.numpy("replay").random() == value
        streams.numpy("exploration").random(100)


def test_restored_streams_go_on_in_the_generators_handed_out() -> None:
    state, kept = random.getstate(), str(np.random.get_state())
    streams = Streams(0)
    streams.numpy("replay").integers(2**32, dtype=np.uint32)  # PCG64 keeps the other half
    torch.rand(3)
    saved = streams.state_dict()
    saved["numpy"] = json.loads(json.dumps(saved["numpy"]))

    def drawn(generator: np.random.Generator) -> list[int]:
        return generator.integers(2**32, size=3, dtype=np.uint32).tolist()

    expected = drawn(streams.numpy("replay")), torch.rand(5)
    other = Streams(9)
    held = other.numpy("replay")
    other.load_state_dict(saved)
    assert drawn(held) == expected[0]
    assert torch.equal(torch.rand(5), expected[1])
    assert (random.getstate(), str(np.random.get_state())) == (state, kept)  # whose are no streams


def test_global_generators_are_put_back_even_after_an_error() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    with pytest.raises(ZeroDivisionError), preserve_global_rng():
        torch.rand(7)
        raise ZeroDivisionError
    assert torch.equal(torch.get_rng_state(), before)


def test_a_process_that_computes_on_no_gpu_begins_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def begun(*args: object) -> None:
        raise AssertionError("CUDA was begun")

    for name in ("get_rng_state", "get_rng_state_all", "set_rng_state", "set_rng_state_all"):
        monkeypatch.setattr(torch.cuda, name, begun)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    with preserve_global_rng():
        Streams(1).load_state_dict(Streams(0).state_dict())


def test_a_gpus_state_is_that_of_the_current_device_whatever_its_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda: "of cuda:1")
    monkeypatch.setattr(torch.cuda, "set_rng_state", given.append)
    Streams(1).load_state_dict(Streams(0).state_dict())
    assert given == ["of cuda:1"]
