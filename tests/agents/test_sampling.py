import itertools
from pathlib import Path

import numpy as np
import pytest

from rlplast.agents.replay import Replay
from rlplast.agents.sampling import SampleWeightDecay
from rlplast.run import api
from tests.agents.replay_episodes import Episodes, assert_equal, fill, make, save
from tests.naive.replay import NaiveReplay
from tests.runs import TINY, check_resumes, final


def weights(rows: int, decay: int, least: float, step: int) -> np.ndarray:
    """max(least, 1 − age/decay) of each row, newest first."""
    return np.array([max(least, 1 - k * step / decay) for k in range(rows)])


def test_three_rows_by_hand() -> None:
    # decay 4, one environment: weights 1, 3/4, 1/2; of the fourth 3/10 in place of 1/4
    sampling = SampleWeightDecay(decay=4, min=0.3)
    np.testing.assert_allclose(sampling.totals(np.array([3, 4, 5]), 1), [2.25, 2.55, 2.85])
    points = np.array([0, 0.99, 1.01, 1.74, 1.76, 2.24])
    rows = sampling.rows_at(points, np.full(6, 3), 1)
    assert rows.tolist() == [0, 0, 1, 1, 2, 2]
    assert sampling.rows_at(np.array([2.26, 2.54, 2.56]), np.full(3, 5), 1).tolist() == [3, 3, 4]

    sampling, many = SampleWeightDecay(), 10**12  # a memory of any length costs nothing
    total = sampling.totals(np.array([many]), 1)
    assert total == pytest.approx(0.1 * many, rel=1e-6)
    ends = sampling.rows_at(np.array([0.0, total[0] * (1 - 1e-12)]), np.full(2, many), 1)
    assert ends[0] == 0 and many - 100 < ends[1] < many


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


# --- what is drawn -----------------------------------------------------------------------------


@pytest.mark.parametrize(  # before the ring's seam, at it, long after it
    ("steps", "num_envs", "frame_stack", "n_step"),
    [(9, 3, 1, 1), (24, 1, 1, 1), (24, 2, 2, 3), (61, 2, 2, 3)],
)
def test_frequencies_are_the_weights_of_what_can_be_sampled(
    steps: int, num_envs: int, frame_stack: int, n_step: int
) -> None:
    rows, decay, least = 24, 30, 0.25
    replay = make(
        rows,
        num_envs,
        frame_stack=frame_stack,
        n_step=n_step,
        batch_size=100_000,
        sampling=SampleWeightDecay(decay, least),
    )
    naive = NaiveReplay(rows, num_envs, frame_stack, n_step, 0.9)
    episodes = Episodes(num_envs, 5)
    for memory in (replay, naive):
        memory.start(episodes.start())
    for _ in range(steps):
        transition = episodes.step()
        replay.add(*transition)
        naive.add(*transition)
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


def both() -> tuple[Replay, Replay]:
    made = make(seed=3), make(seed=3, sampling=SampleWeightDecay(10, 0.1))
    for replay in made:
        episodes = Episodes(1, 5)
        replay.start(episodes.start())
        fill(replay, episodes, 50)
    return made


def test_probes_and_passes_over_the_data_stay_uniform() -> None:
    plain, decayed = both()
    left, right = (r.sample_from(30, np.random.default_rng(1)) for r in (plain, decayed))
    assert_equal(left, right)
    left, right = (r.batches(None, 100, np.random.default_rng(1)) for r in (plain, decayed))
    assert_equal(next(left), next(right))


def test_without_it_rows_are_drawn_as_whole_numbers() -> None:
    replay = make(100, seed=3)
    replay.start(np.array([[1, 1, 1]], np.int32))
    no = np.array([False])
    for step in range(60):
        frame = np.array([[1, 1, step + 2]], np.int32)
        replay.add(np.array([step]), np.array([0.0]), no, no, frame, frame)
    expected = np.random.default_rng(3).integers(60, size=16)
    np.testing.assert_array_equal(replay.sample().action.numpy(), expected)


def test_draws_go_on_after_saving_and_loading(tmp_path: Path) -> None:
    _, replay = both()
    save(replay, tmp_path / "replay")
    restored = make(sampling=SampleWeightDecay(10, 0.1))
    restored.load(tmp_path / "replay", replay.state_dict())
    for _ in range(3):
        assert_equal(replay.sample(), restored.sample())


# --- configs -------------------------------------------------------------------------------------


def test_a_resumed_run_equals_the_uninterrupted_one(tmp_path: Path) -> None:
    row = {"method": "sample_weight_decay", "params": {"decay": 40, "min": 0.2}}
    config = TINY | {"hooks": [], "agent": TINY["agent"] | {"sampling": row}}
    left = check_resumes(config, tmp_path)
    api.train(TINY | {"hooks": []}, tmp_path / "uniform")
    assert final(tmp_path / "uniform")["metrics"] != left["metrics"]
