import json
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplast.agents.running_statistics import RewardScale, RunningStatistics


def rows(count: int, shape: tuple[int, ...] = (3,), seed: int = 0) -> np.ndarray:
    scale = np.linspace(0.1, 20, int(np.prod(shape))).reshape(shape)
    return 5 * scale + scale * np.random.default_rng(seed).normal(size=(count, *shape))


def split(data: np.ndarray, sizes: list[int]) -> Iterator[np.ndarray]:
    start, turn = 0, 0
    while start < len(data):
        yield data[start : start + sizes[turn % len(sizes)]]
        start, turn = start + sizes[turn % len(sizes)], turn + 1


@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    count=st.integers(1, 60),
    shape=st.sampled_from([(), (3,), (2, 2)]),
    offset=st.sampled_from([0.0, 1e6]),
)
@settings(max_examples=60)
def test_batches_add_up_to_mean_and_variance_of_all_data(
    sizes: list[int], count: int, shape: tuple[int, ...], offset: float
) -> None:
    data = rows(count, shape) + offset
    statistics = RunningStatistics(shape)
    for batch in split(data, sizes):
        statistics.update(batch)
    state = statistics.state_dict()
    assert statistics.count == state["count"] == count
    np.testing.assert_allclose(state["mean"], data.mean(axis=0), rtol=1e-13)
    # Squared distances from 1e6 taken naively would lose all digits.
    np.testing.assert_allclose(state["variance"], data.var(axis=0), rtol=1e-7, atol=1e-9)


def test_normalised_observations_are_those_of_numpy() -> None:
    data, obs = rows(40).astype(np.float32), rows(7, seed=1).astype(np.float32)
    data[:, 1] = obs[:, 1] = 0.1  # which never changes
    obs[:3, 1] += 1e-4
    statistics = RunningStatistics((3,))
    assert torch.equal(statistics.normalise(torch.from_numpy(obs / 90)), torch.from_numpy(obs / 90))
    for batch in split(data, [4]):
        kept = batch.copy()
        statistics.update(batch)
        np.testing.assert_array_equal(batch, kept)
    out = statistics.normalise(torch.from_numpy(obs))
    assert out.dtype == torch.float32
    exact = data.astype(np.float64)
    expected = (obs - exact.mean(axis=0)) / np.sqrt(exact.var(axis=0) + 1e-8)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-3)


def test_what_is_normalised_is_bounded_and_the_statistics_know_all_of_it() -> None:
    statistics = RunningStatistics((2,))
    statistics.update(np.array([[-1.0, 3.0], [1.0, 3.0]]))  # the second entry never varied
    obs = torch.tensor([[9.5, 3.0], [1e4, 4.0], [-1e4, -1e30]])
    found = statistics.normalise(obs)
    torch.testing.assert_close(found, torch.tensor([[9.5, 0.0], [10.0, 10.0], [-10.0, -10.0]]))
    statistics.update(obs.numpy()[:2])
    assert statistics.state_dict()["mean"][0] == pytest.approx(10_009.5 / 4)


def test_tensors_keep_their_place_and_a_compiled_reader_sees_the_update() -> None:
    statistics, obs = RunningStatistics((3,)), torch.from_numpy(rows(5).astype(np.float32))
    tensors, graphs = (statistics.mean, statistics.inv_std), []
    addresses = [t.data_ptr() for t in tensors]

    def backend(module: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> torch.fx.GraphModule:
        graphs.append(module)
        return module

    compiled = torch.compile(statistics.normalise, backend=backend, fullgraph=True)
    for seed in range(3):
        assert torch.equal(compiled(obs), statistics.normalise(obs))
        statistics.update(rows(8, seed=seed))
    statistics.load_state_dict(statistics.state_dict())
    assert statistics.mean is tensors[0] and statistics.inv_std is tensors[1]
    assert [t.data_ptr() for t in tensors] == addresses
    assert len(graphs) == 1


def test_restored_statistics_go_on_bit_for_bit() -> None:
    one = RunningStatistics((3,))
    one.update(rows(9))
    state = json.loads(json.dumps(one.state_dict(), default=np.ndarray.tolist))
    other = RunningStatistics((3,))
    other.update(rows(5, seed=3))
    other.load_state_dict(state)
    for _ in range(2):
        assert torch.equal(other.mean, one.mean) and torch.equal(other.inv_std, one.inv_std)
        for statistics in (one, other):
            statistics.update(rows(4, seed=4))


def test_rewards_are_scaled_by_the_deviation_of_their_discounted_sums() -> None:
    rng, gamma = np.random.default_rng(0), 0.9
    rewards, ended = rng.normal(2, 3, (40, 2)), rng.random((40, 2)) < 0.2
    scale, running, sums = RewardScale(2, gamma), np.zeros(2), []
    for reward, over in zip(rewards, ended, strict=True):
        running = gamma * running + reward
        sums.append(running.copy())
        running[over] = 0
        expected = reward / np.sqrt(np.var(sums) + 1e-8)
        np.testing.assert_allclose(scale.scaled(reward, over), expected, rtol=1e-5)


def test_state_of_a_reward_scale_goes_on_within_episodes() -> None:
    rewards, ended = rows(20, (2,)), np.zeros(2, np.bool_)
    one, two = RewardScale(2, 0.9), RewardScale(2, 0.9)
    for reward in rewards[:7]:
        one.scaled(reward, ended)
    two.load_state_dict(one.state_dict())
    for reward in rewards[7:]:
        assert (one.scaled(reward, ended) == two.scaled(reward, ended)).all()
    two.begin()
    assert (one.scaled(rewards[0], ended) != two.scaled(rewards[0], ended)).all()
