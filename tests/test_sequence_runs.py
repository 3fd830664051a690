"""Whole runs of several tasks: one task is the plain run, and interruptions change nothing."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlplast.core.clock import Clock, Time
from rlplast.run import api
from rlplast.run.config_file import read_config
from rlplast.run.tasks import tasks_of
from rlplast.training import checkpoint
from tests.marks import slow_but
from tests.runs import final, kill_at, lines
from tests.sequences import EACH, dqn_tasks, ppo_tasks, sac_tasks

HOOKS = [
    {"method": "shrink_perturb", "on": "phase_start", "params": {"init": "fresh"}},
    {"method": "redo", "at": "phase 2", "params": {"probe": 8}},
    {"method": "swr", "every": "1 updates", "from": "phase 1", "params": {"coef": 1e-3}},
]
PENALTIES = [{"method": "l2_init", "from": "phase 1", "until": "phase 2", "params": {"coef": 1e-3}}]
CONFIG = dqn_tasks(hooks=HOOKS, penalties=PENALTIES)


def test_every_phase_ends_with_an_evaluation_of_all_tasks_seen(run: Path):
    names = tasks_of(read_config(CONFIG))
    rows = [row for row in lines(run, "metrics") if "eval/return_mean" in row]
    for phase in range(4):
        keys = {f"eval/{name}/return_mean" for name in names[: phase + 1]}
        own = [row for row in rows if row["phase"] == phase]
        assert own[-1]["env_steps"] == EACH * (phase + 1)  # after its last update
        assert own[-1]["updates"] == 15 * (phase + 1)
        assert keys <= own[-1].keys()
        for row in own:
            assert row[f"eval/{names[phase]}/return_mean"] == row["eval/return_mean"]
    for row in lines(run, "metrics"):  # those of training do not mix tasks
        if "train/return" in row and row["env_steps"] % EACH == 0 and row["updates"] % 15 == 0:
            assert (row["train/return"] > 0) == (row["phase"] % 2 == 0)  # Acrobot pays -1 a step


def test_hooks_fire_at_phases_before_anything_of_the_new_task(run: Path):
    measured = [row for row in lines(run, "metrics") if "metric/weight_norm/q" in row]  # every 25%
    assert [row["updates"] for row in measured] == [15 * phase for phase in range(1, 5)]
    fired: dict[str, list[Any]] = {}
    for row in lines(run, "receipts"):
        fired.setdefault(row["method"], []).append((row["clock"]["phase"], row["clock"]))
    starts = [(phase, clock["env_steps"]) for phase, clock in fired["shrink_perturb"]]
    assert starts == [(phase, phase * EACH) for phase in (1, 2, 3)]
    assert [phase for phase, _ in fired["redo"]] == [2]
    assert min(phase for phase, _ in fired["swr"]) == 1


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tasks") / "run"
    api.train(CONFIG, folder)
    return folder


SWITCH: list[Callable[[Clock], bool]] = [
    lambda c: c.env_steps == EACH,  # an update is owed
    lambda c: c.phase == 1,  # not yet in its task
    lambda c: c.phase == 1 and c.env_steps == EACH + 2,  # in its first steps
    lambda c: c.phase == 2 and c.env_steps >= 2 * EACH + 6,
]
DELAYED = {"sequence": [], "id": "gym/CartPole-v1", "tasks": 2, "workers": 1}
DELAYED |= {"shift": {"name": "delayed_actions", "most": 4}}
RENEWED = {"statistics": "restart", "optimizer": "renew", "target": "renew"}


VARIANTS = {
    "dqn": CONFIG,
    "c_chain": dqn_tasks(env={"switch": "c_chain"}, replay_ratio=0.3),
    "delayed": dqn_tasks(env=DELAYED),
    "sac": sac_tasks(env={"switch": RENEWED}),
}


@pytest.mark.parametrize("name", slow_but(["dqn"], VARIANTS))
def test_killed_around_a_switch_and_resumed_equals(name: str, run: Path, tmp_path: Path):
    config = VARIANTS[name]
    through = run if name == "dqn" else api.train(config, tmp_path / "through").path
    kill_at(config, tmp_path / "run", SWITCH)
    assert final(tmp_path / "run") == final(through)


def test_prefix_to_a_phase_is_shared_by_what_begins_there(tmp_path: Path):
    shorter, at_phase_1 = CONFIG | {"total": f"{2 * EACH} env_steps"}, (Time(1, "phase"),)
    config = read_config(shorter | {"hooks": HOOKS[:1]})
    api.train(read_config(shorter | {"hooks": []}), tmp_path / "prefix", until=at_phase_1)
    api.branch(tmp_path / "prefix", tmp_path / "arm", config, at_phase_1)
    api.resume(tmp_path / "arm")
    api.train(config, tmp_path / "alone")
    assert final(tmp_path / "arm") == final(tmp_path / "alone")


def test_shorter_run_goes_on_into_the_next_task(tmp_path: Path):
    shorter = CONFIG | {"total": f"{EACH} env_steps", "hooks": [], "penalties": []}
    # Checkpoints before and after a switch have one count of env_steps.
    shorter |= {"checkpoint": {"every": f"{EACH} env_steps", "keep": 20}}
    api.train(shorter, tmp_path / "run")
    assert lines(tmp_path / "run", "metrics")[-1]["phase"] == 0
    api.resume(tmp_path / "run", total=f"{2 * EACH} env_steps")
    last = lines(tmp_path / "run", "metrics")[-1]
    assert (last["phase"], last["env_steps"], last["updates"]) == (1, 2 * EACH, 30)
    path, problems = checkpoint.newest(tmp_path / "run" / "checkpoints")
    assert not problems
    assert json.loads((path / "state.json").read_text())["clock"]["phase"] == 1


def without_task(row: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in row.items() if (k != "phase" and k.count("/") < 2) or "metric" in k}


@pytest.mark.parametrize(
    ("make", "switch"),
    [
        (dqn_tasks, "pt_dqn"),
        (sac_tasks, {}),
        (ppo_tasks, {"optimizer": "renew", "statistics": "restart"}),
    ],
)
def test_one_task_equals_the_plain_run_bit_for_bit(make: Any, switch: Any, tmp_path: Path):
    config = make()
    options = {"max_episode_steps": 25}
    env_id = "gym/Pendulum-v1" if make is sac_tasks else "gym/CartPole-v1"
    plain = {"id": env_id, "num_envs": 2, "options": options}
    tasks = {"sequence": [env_id], "steps_per_task": 90, "num_envs": 2, "options": options}
    hooks = [{"method": "shrink_perturb", "at": "50%"}]
    found = []
    for name, env in (("plain", plain), ("tasks", tasks | {"switch": switch})):
        made = config | {"env": env, "total": "90 env_steps", "hooks": hooks}
        api.train(made, tmp_path / name)
        left = final(tmp_path / name)
        left["metrics"] = [without_task(row) for row in left["metrics"]]
        for row in left["receipts"]:
            row["clock"].pop("phase", None)
        for key in ("hooks", "aliases"):
            left["state.json"].pop(key)  # the hooks' ends count phases
        found.append(left)
    assert found[0].keys() == found[1].keys()
    for key in found[0]:
        assert found[0][key] == found[1][key], key
