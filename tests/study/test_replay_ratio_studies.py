"""The studies of the replay ratio beside the papers and their official code.

The values below were copied from the codes' configs and flags, not from the studies.
"""

import functools
from typing import Any

import pytest

from rlplast.core.clock import Clock, Time
from rlplast.core.method.schedule import KEYS, Schedule
from rlplast.run.config_file import read_config
from rlplast.run.shipped import shipped_configs
from rlplast.study.api import read_study_config
from rlplast.study.published import published_curves
from rlplast.study.spec import runs_of

FOLDER = "study/replay_ratio/"
NAMES = sorted(name for name in shipped_configs() if name.startswith(FOLDER))
ON_DMC = ("control_1", "hopper_hop_32", "nikishin_dmc10", "priming", "quadruped_16", "sr_sac_dmc15")
SR_SAC = {8: 320_000, 16: 160_000, 32: 80_000, 128: 20_000}  # replay ratio → reset interval
# D'Oro et al. 2023, DMC15.
DMC15 = """walker-run quadruped-run quadruped-walk reacher-hard humanoid-run humanoid-walk
humanoid-stand swimmer-swimmer6 cheetah-run hopper-hop hopper-stand acrobot-swingup
pendulum-swingup finger-turn_hard fish-swim""".split()


@functools.cache
def configs(name: str) -> dict[tuple[str, str], Any]:
    """Return the config of the first seed by task and arm; tests only read it."""
    study = read_study_config(name)
    first = study.seed_list()[0]
    return {
        (run.task, run.arm): read_config(study.base, *run.overrides)
        for run in runs_of(study)
        if run.seed == first
    }


@pytest.mark.parametrize("name", [FOLDER + name for name in (*ON_DMC, "published_sac")])
def test_the_agent_is_that_of_the_published_code(name: str) -> None:
    for (task, _), config in configs(name).items():
        agent, optimizer, evaluate = config.agent, config.optimizer, config.evaluate
        assert config.env.id == f"dmc/{task}" and config.env.options == {}
        assert (agent.network, agent.init, agent.activation) == ("mlp", "orthogonal", "relu")
        assert (agent.actor_width, agent.actor_blocks) == (256, 2)
        assert (agent.critic_width, agent.critic_blocks, agent.critics) == (256, 2, 2)
        assert (optimizer.name, optimizer.lr, optimizer.weight_decay) == ("adam", 3e-4, 0)
        assert (agent.gamma, agent.tau, agent.batch_size) == (0.99, 0.005, 256)
        assert (agent.initial_temperature, agent.target_entropy_scale) == (1.0, 0.5)
        assert (agent.log_std, agent.log_std_min, agent.log_std_max) == ("squash", -10, 2)
        assert (agent.normalize_obs, agent.buffer_size) == (False, 10**6)
        assert agent.initial_steps == 10_000 or "priming" in name
        assert (evaluate.every, evaluate.episodes) == ("5k env_steps", 10)


@pytest.mark.parametrize("name", NAMES)
def test_a_full_reset_makes_a_whole_new_agent(name: str) -> None:
    """Actor, critics, targets, temperature and all optimizers, with new draws each time."""
    wanted = {"optimizer": "network", "followers": "copy", "params": {"init": "fresh"}}
    for (_, arm), config in configs(name).items():
        rows = [dict(row) for row in config.hooks]
        if arm.startswith(("full_reset", "sr_sac")):
            (row,) = rows
            assert row["method"] == "full_reset" and "networks" not in row and "scope" not in row
            assert {key: row[key] for key in wanted} == wanted


def check_resets(row: dict[str, Any], every: int, end: int) -> None:
    """The old agent is evaluated at each multiple, and is gone one env_step later."""
    schedule = Schedule.parse({key: row.get(key) for key in KEYS}, Time(end, "env_steps"))
    moments = range(every, end, every)
    assert schedule.count(Clock(env_steps=end)) == len(moments)
    for moment in moments:
        before, after = Clock(env_steps=moment), Clock(env_steps=moment + 1)
        assert schedule.crossings(before, after) == 1


def test_periodic_resets_are_where_the_code_had_them() -> None:
    found = configs(FOLDER + "control_1")
    check_resets(found["cheetah-run", "full_reset"].hooks[0], 200_000, 500_000)
    ten = configs(FOLDER + "nikishin_dmc10")
    for ratio in (1, 32):
        config = ten["walker-run", f"full_reset_{ratio}"]
        assert config.replay_ratio == ten["walker-run", f"none_{ratio}"].replay_ratio == ratio
        check_resets(config.hooks[0], 200_000, 2_000_000)
    fifteen = configs(FOLDER + "sr_sac_dmc15")
    assert sorted({task for task, _ in fifteen}) == sorted(DMC15)
    for ratio, every in SR_SAC.items():
        config = fifteen["fish-swim", f"sr_sac_{ratio}"]
        assert (config.replay_ratio, ratio * every) == (ratio, 2_560_000)
        check_resets(config.hooks[0], every, 500_000)


@pytest.mark.parametrize(
    ("name", "ratio", "moment", "end"),
    [("quadruped_16", 16, 160_000, 260_000), ("hopper_hop_32", 32, 80_000, 120_000)],
)
def test_single_interventions_follow_the_last_update_of_their_env_step(
    name: str, ratio: int, moment: int, end: int
) -> None:
    for (_, arm), config in configs(FOLDER + name).items():
        assert (config.replay_ratio, config.total) == (ratio, f"{end // 1000}k env_steps")
        due = config.update_plan().updates_at(moment)
        assert due == ratio * (moment - 10_000)
        if arm not in ("redo", "swr"):  # which act all the time
            assert {row["at"] for row in config.hooks} <= {f"{due // 1000}k updates"}


def test_priming_is_100_000_updates_on_100_transitions_and_what_is_done_follows_at_once() -> None:
    for (_, arm), config in configs(FOLDER + "priming").items():
        agent = config.agent
        primed = arm not in ("none", "unprimed")
        assert agent.initial_updates == (100_000 if primed else 0)
        assert agent.initial_steps == (10_000 if arm == "none" else 100)
        assert config.update_plan().updates_at(100) == agent.initial_updates
        assert {row["at"] for row in config.hooks} <= {"100k updates"}
        assert config.replay_ratio == 1
    assert read_study_config(FOLDER + "priming").baseline == "primed"


@pytest.mark.parametrize("name", [FOLDER + name for name in (*ON_DMC, "published_sac")])
def test_published_curves_are_of_the_arms_own_setting(name: str) -> None:
    study = read_study_config(name)
    found, curves = configs(name), published_curves(study)
    assert study.published is not None
    for arm, wanted in study.published.arms.items():
        own = {task: config for (task, there), config in found.items() if there == arm}
        assert {config.replay_ratio for config in own.values()} == {wanted["replay_ratio"]}
        rows = [row for config in own.values() for row in config.hooks]
        assert bool(rows) == bool(wanted["reset_every_env_steps"])
        with_curves = {curve.task for curve in curves if curve.arm == arm}
        if arm == "none_32" and "dmc15" in name:
            assert len(with_curves) == 9
        else:
            assert with_curves == set(own)


def test_redq_and_droq_have_the_published_values() -> None:
    found = configs(FOLDER + "redq_droq")
    entropies = {"Hopper": -1, "Walker2d": -3}  # MBPO's
    actions, ends = {"Hopper": 3, "Walker2d": 6}, {"Hopper": 125, "Walker2d": 300}
    for (task, arm), config in found.items():
        agent = config.agent
        assert (config.replay_ratio, agent.actor_every, agent.initial_steps) == (20, 20, 5000)
        assert (agent.log_std, agent.log_std_min, agent.log_std_max) == ("clamp", -20, 2)
        assert -agent.target_entropy_scale * actions[task] == pytest.approx(entropies[task])
        assert config.total == f"{ends[task]}k env_steps"
        redq = arm == "redq"
        assert (agent.critics, agent.critic_subset) == ((10, 2) if redq else (2, None))
        layers = {row["method"]: row.get("params", {}) for row in config.layers}
        assert layers == ({"layer_norm": {}, "dropout": {"p": 0.01}} if arm == "droq" else {})
    assert ("Hopper", "full_reset") not in found  # which ends before it


def test_simba_has_the_published_values() -> None:
    for (task, arm), config in configs(FOLDER + "simba_resets").items():
        agent, optimizer = config.agent, config.optimizer
        assert config.env.id == f"humanoid_bench/{task}-v0"
        assert config.env.options == {"action_repeat": 2} and config.total == "500k env_steps"
        assert (agent.network, config.replay_ratio) == ("simba", int(arm[-1]))
        assert (agent.actor_width, agent.actor_blocks) == (128, 1)
        assert (agent.critic_width, agent.critic_blocks) == (512, 2)
        assert (optimizer.name, optimizer.lr, optimizer.weight_decay) == ("adamw", 1e-4, 0.01)
        assert (agent.initial_temperature, agent.initial_steps) == (0.01, 5000)
        assert (agent.gamma, agent.tau, agent.batch_size) == (0.99, 0.005, 256)


def test_simba_v2_has_the_published_values() -> None:
    found = configs(FOLDER + "simba_v2_resets")
    resets = configs(FOLDER + "simba_resets")["h1-walk", "full_reset_2"]
    alone: Any = read_config("sac/simba_v2_humanoid_walk")
    assert (alone.agent.critics, alone.replay_ratio, alone.env.id) == (1, 2, "dmc/humanoid-walk")
    of_v2 = [config for (_, arm), config in found.items() if "_v2_" in arm]
    assert len(of_v2) == len(found) / 2
    for config in (*of_v2, alone):
        agent, optimizer = config.agent, config.optimizer
        assert config.env.options == {"action_repeat": 2} and config.total == "500k env_steps"
        assert (agent.network, agent.scale_rewards) == ("simba_v2", 5)
        values = agent.values
        assert (values.kind, values.bins, values.low, values.high) == ("c51", 101, -5, 5)
        assert (agent.actor_width, agent.actor_blocks) == (128, 1)
        assert (agent.critic_width, agent.critic_blocks) == (512, 2)
        assert (optimizer.name, optimizer.lr, optimizer.lr_min) == ("adam", 1e-4, 5e-5)
        assert (optimizer.schedule, optimizer.weight_decay) == ("linear", 0)
        assert (agent.initial_temperature, agent.target_entropy_scale) == (0.01, 0.5)
        assert (agent.gamma, agent.tau, agent.batch_size) == (0.99, 0.005, 256)
        assert (agent.initial_steps, agent.buffer_size) == (5000, 10**6)
        assert agent.normalize_obs and agent.n_step == 1
    for (task, arm), config in found.items():
        assert config.env.id == f"humanoid_bench/{task}-v0" and config.agent.critics == 2
        assert config.replay_ratio == int(arm[-1])
        assert config.agent.network == ("simba_v2" if "v2" in arm else "simba")
        assert config.hooks == (resets.hooks if arm.startswith("full_reset") else [])
