import itertools
import math
from typing import Any

import numpy as np
import pytest

from rlplast.agents.anneal import AnnealConfig, check_anneal
from rlplast.agents.dqn_config import DQNConfig
from rlplast.agents.replay import Replay
from rlplast.core.errors import ConfigError
from rlplast.run.config_file import read_config
from tests.agents.replay_episodes import Episodes, assert_equal, fill, make
from tests.agents.toy_env import dqn

BBF: dict[str, Any] = {"every": 40_000, "updates": 10_000, "n_step": 10, "gamma": 0.97}


def moved(x: int) -> tuple[int, float]:
    """Where BBF is x updates after a reset: straight lines of log n and log(1 − γ)."""
    place = min(x / 10_000, 1)
    log_n = np.interp(place, [0, 1], [math.log(10), math.log(3)])
    log_rest = np.interp(place, [0, 1], [math.log(0.03), math.log(0.003)])
    return round(math.exp(log_n)), 1 - math.exp(log_rest)


def test_n_and_gamma_are_those_of_bbf_in_every_cycle_and_what_is_not_named_stays():
    anneal = AnnealConfig(**BBF)
    for cycle, done in itertools.product((0, 1, 5), (0, 1, 777, 5000, 9999, 10_000, 39_999)):
        n, gamma = anneal.at(40_000 * cycle + done, 3, 0.997)
        expected = moved(done)
        assert n == expected[0], done
        assert gamma == pytest.approx(expected[1], rel=1e-12), done
    only_n, only_gamma = AnnealConfig(10, 5, n_step=1), AnnealConfig(10, 10, gamma=0.5)
    assert [only_n.at(u, 4, 1.0)[0] for u in (0, 5, 9, 10)] == [1, 4, 4, 1]
    assert {only_n.at(u, 4, 1.0)[1] for u in range(20)} == {1.0}
    assert {only_gamma.at(u, 4, 0.9)[0] for u in range(20)} == {4}
    assert only_gamma.at(0, 4, 0.9)[1] == pytest.approx(0.5)


def test_a_replay_that_looks_ahead_samples_as_one_made_with_that_n_and_gamma():
    def filled(n_step: int, gamma: float) -> Replay:
        replay, episodes = make(40, 2, n_step=n_step, gamma=gamma), Episodes(2, 3)
        replay.start(episodes.start())
        fill(replay, episodes, 70)
        return replay

    wide = filled(6, 0.9)
    for n, gamma in ((6, 0.9), (2, 0.5), (1, 0.99), (4, 0.7)):
        own = filled(n, gamma)
        wide.look_ahead(n, gamma)
        assert wide.size == own.size
        found, expected = (r.sample_from(64, np.random.default_rng(n)) for r in (wide, own))
        assert_equal(found, expected)


def test_an_agent_learns_from_the_windows_of_its_next_update():
    anneal = AnnealConfig(6, 4, n_step=4, gamma=0.5)
    agent = dqn(anneal=anneal, gamma=0.9, n_step=1)
    seen = []
    while agent.clock.updates < 13:
        if agent.owes():
            seen.append(agent.replay()._n_step)
        agent.step()
    cycle = [4, 3, 2, 1, 1, 1]  # 4^(1, 3/4, 1/2, 1/4, 0, 0), rounded
    assert seen == [*cycle, *cycle, 4]
    values = agent.metrics()
    assert values["train/n_step"] == 3
    assert values["train/gamma"] == pytest.approx(1 - 0.1 * 5**0.75)


def test_what_makes_no_sense_is_refused_by_name():
    for value, words in (
        ({"every": 5, "updates": 2}, "needed is one of them"),
        ({**BBF, "updates": 50_000}, "agent.anneal.updates"),
    ):
        with pytest.raises(ConfigError, match=words):
            read_config({"agent": {"anneal": value}})
    with pytest.raises(ConfigError, match=r"agent\.gamma"):
        check_anneal(AnnealConfig(**BBF), 1.0)
    config = DQNConfig()  # a replay needs room for the longest return
    config.agent.anneal = AnnealConfig(**BBF)
    config.agent.initial_steps = 11 * config.env.num_envs - 1
    with pytest.raises(ConfigError, match="n_step"):
        config.check()
