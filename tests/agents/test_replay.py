import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplast.agents.replay import Batch, Replay
from rlplast.agents.sampling import SampleWeightDecay
from rlplast.core.errors import ConfigError
from tests.agents.replay_episodes import FRAME, Episodes, assert_equal, copy, fill, make, save
from tests.naive.replay import NaiveReplay


def newest_frames(obs: torch.Tensor, frame_stack: int) -> np.ndarray:
    return obs.numpy().reshape(-1, frame_stack, *FRAME)[:, -1]


def assert_same_as_naive(replay: Replay, naive: NaiveReplay, rng: np.random.Generator) -> None:
    expected = naive.transitions()
    assert replay.size == len(expected)
    if not expected:
        with pytest.raises(ConfigError, match="no transition to sample"):
            replay.sample_from(1, rng)
        return
    # So many draws that leaving one out is less likely than 1e-11.
    batch = replay.sample_from(30 * len(expected), rng)
    frames = newest_frames(batch.obs, naive.frame_stack)
    keys, first = np.unique(frames, axis=0, return_index=True)
    assert {tuple(key) for key in keys.tolist()} == set(expected)
    for key, index in zip(keys.tolist(), first, strict=True):
        want = expected[tuple(key)]
        shape = batch.obs.shape[1:]
        np.testing.assert_array_equal(batch.obs[index], want.obs.reshape(shape))
        np.testing.assert_array_equal(batch.obs_next[index], want.obs_next.reshape(shape))
        np.testing.assert_array_equal(batch.action[index], want.action)
        assert float(batch.reward[index]) == pytest.approx(want.reward, rel=1e-6, abs=1e-6)
        assert float(batch.discount[index]) == pytest.approx(want.discount, rel=1e-6)


@settings(max_examples=60)
@given(data=st.data(), seed=st.integers(0, 2**32 - 1))
def test_every_transition_agrees_with_the_naive_replay(data: st.DataObject, seed: int) -> None:
    draw, rng = data.draw, np.random.default_rng(seed)
    num_envs, n_step = draw(st.integers(1, 3)), draw(st.integers(1, 5))
    options: dict[str, Any] = {
        "frame_stack": draw(st.sampled_from([1, 2, 4])),
        "n_step": n_step,
        "gamma": draw(st.sampled_from([0.0, 0.9, 1.0])),
        "repeat_first": draw(st.booleans()),
    }
    rows = n_step + options["frame_stack"] + draw(st.integers(0, 20))
    capacity = rows * num_envs + min(draw(st.integers(0, 2)), num_envs - 1)
    action_dim = draw(st.sampled_from([None, 1, 3]))
    ends = [draw(st.sampled_from([0.0, 0.05, 0.4])) for _ in range(2)]
    own: dict[str, Any] = {"capacity": capacity, "batch_size": 4, "rng": rng}
    replay = make(num_envs=num_envs, action_dim=action_dim, **own, **options)
    naive = NaiveReplay(rows, num_envs, **options)
    episodes = Episodes(num_envs, seed, *ends, action_dim)
    for memory in (replay, naive):
        memory.start(episodes.start())
    steps = 4 * rows
    compared = {*rng.integers(0, steps, 4).tolist(), int(rng.integers(0, rows)), steps - 1}
    restart = int(rng.integers(0, 2 * steps))  # in half of the cases
    for step in range(steps):
        transition = episodes.step()
        replay.add(*transition)
        naive.add(*transition)
        if step == restart:
            first = episodes.reset()
            replay.start(first)
            naive.start(first)
        if step in compared:
            assert_same_as_naive(replay, naive, rng)


def filled(steps: int = 50, p_truncated: float = 0.0, **options: Any) -> Replay:
    replay = make(**options)
    num_envs, action_dim = options.get("num_envs", 1), options.get("action_dim")
    episodes = Episodes(num_envs, 0, p_truncated=p_truncated, action_dim=action_dim)
    replay.start(episodes.start())
    fill(replay, episodes, steps)
    return replay


def test_draws_are_uniform_over_transitions() -> None:
    # some rings have wrapped around, others have not
    replay = filled(37, 0.3, rows=40, num_envs=3, frame_stack=4, n_step=3)
    batch = replay.sample_from(100_000, np.random.default_rng(2))
    _, counts = np.unique(newest_frames(batch.obs, 4), axis=0, return_counts=True)
    assert len(counts) == replay.size
    expected = counts.sum() / len(counts)
    chi_square, freedom = ((counts - expected) ** 2 / expected).sum(), len(counts) - 1
    # Mean and standard deviation of the chi-square distribution; too even is wrong as well.
    assert abs(chi_square - freedom) < 4 * np.sqrt(2 * freedom)


def test_one_transition_in_a_thousand_rows_is_found() -> None:
    replay = make(rows=4, num_envs=400, n_step=3)
    frames, final = np.ones((2, 400, *FRAME), np.int32)
    ended, no = np.arange(400) == 77, np.zeros(400, bool)
    replay.start(frames)
    replay.add(np.arange(400), np.zeros(400), ended, no, frames, final)
    replay.add(np.arange(400), np.zeros(400), no, no, frames, final)
    assert replay.size == 1
    assert (replay.sample().action == 77).all()


def test_batches_have_the_types_an_update_expects_and_its_tensors() -> None:
    for action_dim, action in ((None, ((5,), torch.int64)), (3, ((5, 3), torch.float32))):
        shape: dict[str, Any] = {"obs_dtype": "uint8", "obs_shape": (6, 7)}
        replay = make(frame_stack=4, batch_size=5, action_dim=action_dim, **shape)
        frames, no = np.ones((1, 6, 7), np.uint8), np.array([False])
        replay.start(frames)
        replay.add(np.ones((1, *action[0][1:]), int), np.array([1]), no, no, frames, frames)
        for batch in (replay.sample(), replay.sample_from(5, np.random.default_rng(0))):
            assert {name: (t.shape, t.dtype) for name, t in batch._asdict().items()} == {
                **dict.fromkeys(("obs", "obs_next"), ((5, 4, 6, 7), torch.uint8)),
                **dict.fromkeys(("reward", "discount"), ((5,), torch.float32)),
                "action": action,
            }
        replay = filled(action_dim=action_dim)
        first = replay.sample()
        addresses, values = [t.data_ptr() for t in first], copy(first)
        second = replay.sample()
        assert [t.data_ptr() for t in second] == addresses
        assert any((a != b).any() for a, b in zip(values, copy(second), strict=True))


@pytest.mark.parametrize("sampling", [None, SampleWeightDecay(4, 0.3)], ids=["all", "decay"])
@pytest.mark.parametrize(("n_step", "p_truncated"), [(1, 0.1), (5, 0.6)])
def test_a_block_is_what_its_batches_would_be_one_by_one(
    n_step: int, p_truncated: float, sampling: SampleWeightDecay | None
) -> None:
    options: dict[str, Any] = {"num_envs": 2, "frame_stack": 2, "seed": 3, "n_step": n_step}
    one, block = (filled(80, p_truncated, rows=30, sampling=sampling, **options) for _ in "ab")
    for count in (1, 3, 7, 2, 7):
        for mine in block.sample_block(count):
            assert_equal(mine, one.sample())
    assert one.state_dict()["rng"] == block.state_dict()["rng"]


def test_a_continuation_draws_anew_and_the_run_itself_goes_on(tmp_path: Path) -> None:
    replay = filled(seed=5)
    save(replay, tmp_path)
    state, goes_on, anew = replay.state_dict(), make(seed=6), make(seed=6)
    goes_on.load(tmp_path, state)
    anew.load(tmp_path, state, new_draws=True)
    expected = copy(replay.sample())
    assert all((a == b).all() for a, b in zip(expected, copy(goes_on.sample()), strict=True))
    assert any((a != b).any() for a, b in zip(expected, copy(anew.sample()), strict=True))


def test_sample_from_uses_the_other_stream_and_new_tensors() -> None:
    replay, same = (filled(seed=5) for _ in "ab")
    probe = replay.sample_from(16, np.random.default_rng(5))
    assert_equal(probe, same.sample())
    assert_equal(replay.sample(), probe)
    assert not {t.data_ptr() for t in probe} & {t.data_ptr() for t in replay.sample()}


@pytest.mark.gpu
def test_batches_on_a_gpu_equal_those_on_the_cpu() -> None:
    host, device = filled(frame_stack=4), filled(frame_stack=4, device="cuda")
    addresses = [t.data_ptr() for t in device.sample()]
    host.sample()
    torch.cuda._sleep(10**8)  # so that copies wait, and nothing waits for them
    batches = []
    for _ in range(5):
        batch = device.sample()
        assert [t.data_ptr() for t in batch] == addresses
        assert all(t.is_cuda for t in batch)
        batches.append(Batch(*(t.clone() for t in batch)))
    for batch in batches:
        assert_equal(batch, host.sample())


def test_atari_transition_takes_at_most_7300_bytes() -> None:
    replay = make(rows=250, num_envs=4, obs_shape=(84, 84), obs_dtype="uint8", frame_stack=4)
    assert replay.nbytes / 1000 <= 7300


def test_a_stack_longer_than_its_counter_is_refused() -> None:
    with pytest.raises(ConfigError, match="frame_stack = 257"):
        make(frame_stack=257, rows=300)


# Rows that are drawn with weights: `rlplast.agents.sampling`.


def weights(rows: int, decay: int, least: float, step: int) -> np.ndarray:
    """max(least, 1 − age/decay) of each row, newest first."""
    return np.array([max(least, 1 - k * step / decay) for k in range(rows)])


def test_inverse_is_that_of_the_running_sum_of_the_weights() -> None:
    cases = itertools.product(
        (1, 7, 100, 10_000), ((1e-3, 3), (0.1, 1), (0.1, 50), (1.0, 1)), (1, 2, 8, 300)
    )
    for decay, (least, step), rows in cases:
        sampling = SampleWeightDecay(decay, least)
        sums = np.cumsum(weights(rows, decay, least, step))
        assert sampling.totals(np.array([rows]), step) == pytest.approx(sums[-1], rel=1e-12)
        point = np.linspace(0, sums[-1], 5000, endpoint=False)
        clear = np.abs(point[:, None] - sums).min(axis=1) > 1e-9  # not where rounding decides
        point = point[clear]
        found = sampling.rows_at(point, np.full(len(point), rows), step)
        np.testing.assert_array_equal(found, np.searchsorted(sums, point, side="right"))
    sampling, many = SampleWeightDecay(), 10**12  # a memory of any length costs nothing
    total = sampling.totals(np.array([many]), 1)
    assert total == pytest.approx(0.1 * many, rel=1e-6)
    ends = sampling.rows_at(np.array([0.0, total[0] * (1 - 1e-12)]), np.full(2, many), 1)
    assert ends[0] == 0 and many - 100 < ends[1] < many


@pytest.mark.parametrize(  # before the ring's seam, at it, long after it
    ("steps", "num_envs", "frame_stack", "n_step"), [(9, 3, 1, 1), (24, 1, 1, 1), (61, 2, 2, 3)]
)
def test_frequencies_are_the_weights_of_what_can_be_sampled(
    steps: int, num_envs: int, frame_stack: int, n_step: int
) -> None:
    rows, decay, least = 24, 30, 0.25
    options: dict[str, Any] = {"batch_size": 100_000, "sampling": SampleWeightDecay(decay, least)}
    replay = make(rows, num_envs, frame_stack=frame_stack, n_step=n_step, **options)
    naive: Any = NaiveReplay(rows, num_envs, frame_stack, n_step, 0.9)
    for memory in (replay, naive):
        episodes = Episodes(num_envs, 5)
        memory.start(episodes.start())
        fill(memory, episodes, steps)
    expected = {}
    for ring in naive.rings:
        for at, row in enumerate(ring.rows):
            if naive.transition(ring, at) is not None:
                age = (len(ring.rows) - 2 - at) * num_envs
                expected[tuple(row.stack[-1].tolist())] = max(least, 1 - age / decay)
    frames = replay.sample().obs.numpy().reshape(100_000, frame_stack, 3)[:, -1]
    keys, counts = np.unique(frames, axis=0, return_counts=True)
    assert {tuple(key) for key in keys.tolist()} == set(expected)
    share = np.array([expected[tuple(key)] for key in keys.tolist()])
    wanted = 100_000 * share / share.sum()
    chi2, freedom = float(((counts - wanted) ** 2 / wanted).sum()), len(keys) - 1
    assert chi2 < freedom + 4 * np.sqrt(2 * freedom)
    uniform = 100_000 / len(keys)
    assert ((counts - uniform) ** 2 / uniform).sum() > 1000  # the weights are seen


def test_probes_and_passes_stay_uniform_and_draws_go_on_after_loading(tmp_path: Path) -> None:
    plain, decayed = (filled(seed=3, sampling=how) for how in (None, SampleWeightDecay(10, 0.1)))
    left, right = (r.sample_from(30, np.random.default_rng(1)) for r in (plain, decayed))
    assert_equal(left, right)
    left, right = (r.batches(None, 100, np.random.default_rng(1)) for r in (plain, decayed))
    assert_equal(next(left), next(right))
    save(decayed, tmp_path / "replay")
    restored = make(sampling=SampleWeightDecay(10, 0.1))
    restored.load(tmp_path / "replay", decayed.state_dict())
    for _ in range(3):
        assert_equal(decayed.sample(), restored.sample())
