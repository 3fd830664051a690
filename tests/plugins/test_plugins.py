"""Installed packages bring methods, environments and kinds of runs, without --import."""

import dataclasses
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import yaml

from rlplast import envs, plugins
from rlplast.core import registry
from rlplast.core.errors import ConfigError
from tests.cli.commands import command, printed
from tests.cli.runs import jsonl, refused, small_config
from tests.plugins.packages import RUN, install, install_toy
from tests.runs import final, forget


def write(site: Path, module: str, text: str, group: str = plugins.METHODS, **more: str) -> None:
    """Install a package that is one module, with one entry point named `point`."""
    (site / f"{module}.py").write_text(text)
    install(site, module.replace("_", "-"), {group: {"point": module}}, **more)


def method_called(name: str, imports: str = "") -> str:
    return f"""
from dataclasses import dataclass
from rlplast import Method, method
{imports}

@method({name!r}, source="a test")
@dataclass(frozen=True)
class Mine(Method):
    '''Do nothing.'''

    def plan(self, context, state):
        return []
"""


def test_rows_say_which_package_they_come_from(site: Path) -> None:
    install_toy(site)
    found = {(row["family"], row["name"]): row["from"] for row in printed("list")}
    toys = {key for key, package in found.items() if package == "toy-plugin 0.1"}
    assert toys == {
        ("interventions", "toy_scale"),
        ("envs", "toy/walk"),
        ("envs", "gym/ToyWalk-v0"),
        ("kinds", "toy_agent"),
    }
    assert {package for key, package in found.items() if key not in toys} == {"rlplast"}
    assert "toy-plugin 0.1" in command("list", "interventions").out
    everything = " ".join(command("list").out.split())
    assert "rlplast; toy-plugin 0.1" in everything  # the environments of gym/…


def test_a_plugin_is_imported_when_something_is_looked_up_and_then_once(site: Path) -> None:
    text = "import sys\nsys.path.append('counted')\nfrom rlplast.core import registry\n"
    text += "assert registry.get('interventions', 'fire')"  # it may look something up itself
    write(site, "counting", method_called("counted", text))
    assert "counting" not in sys.modules
    try:
        for _ in range(3):
            assert registry.get("interventions", "counted").origin == "counting 0.1"
        assert sys.path.count("counted") == 1
        assert len(plugins._loaded) == 1
    finally:
        sys.path.remove("counted")


def test_rows_are_of_the_plugin_that_registers_or_the_module_that_is_imported(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "import json\nfrom rlplast.core.registry import register\n"
    text += "register('metrics', 'dumped', source='json')(json.dumps)\n"
    write(site, "lender", text)
    assert registry.get("metrics", "dumped").origin == "lender 0.1"
    (site / "own_of_mine.py").write_text(method_called("own_method"))
    monkeypatch.chdir(site)
    found = printed("--import", "own_of_mine", "list", "interventions")
    assert [row["from"] for row in found if row["name"] == "own_method"] == ["own_of_mine"]


BROKEN: Mapping[str, tuple[str, str, str]] = {
    "import": (plugins.METHODS, "import no_such_package", "No module named 'no_such_package'"),
    "exit": (plugins.METHODS, "import sys\nsys.exit('no\\nlicence')\n", "SystemExit: no licence"),
    "method": (plugins.METHODS, method_called("fire"), "already has a 'fire', from rlplast"),
    "env": (
        plugins.ENVS,
        "from rlplast import envs\ndef make(rng): pass\n"
        "envs.register(envs.spec('minatar/breakout'), make, summary='', source='')\n",
        "is taken, by rlplast",
    ),
    "kind": (
        plugins.KINDS,
        "import rlplast\nrlplast.register_kind('dqn', config='a:B', trainable='a:C')\n",
        "kind 'dqn' is taken, by rlplast",
    ),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_plugin_is_one_line_with_package_cause_and_remedy(
    broken: str, site: Path, tmp_path: Path
) -> None:
    group, text, cause = BROKEN[broken]
    write(site, "broken_plugin", text, group, version="0.2")
    words = [("list",)]
    if group != plugins.ENVS:  # a known id needs none
        words.append(("train", str(small_config(tmp_path)), "--out", str(tmp_path / "run")))
    for each in words:
        message = refused(command(*each))
        assert f"entry point point = broken_plugin ({group}) of broken-plugin 0.2" in message
        assert cause in message
        assert message.endswith("fix the package, or `pip uninstall broken-plugin`")
    assert not (tmp_path / "run").exists()


def test_a_plugin_that_was_repaired_loads(site: Path) -> None:
    write(site, "fragile", "raise OSError('not yet')\n")
    with pytest.raises(ConfigError, match=r"fragile 0\.1 cannot be loaded \(OSError: not yet\)"):
        registry.rows("interventions")
    (site / "fragile.py").write_text(method_called("strong") + "# longer than before\n")
    assert registry.get("interventions", "strong").origin == "fragile 0.1"


def test_a_broken_plugin_stops_nothing_that_looks_up_none(site: Path) -> None:
    write(site, "broken_plugin", "import no_such_package", plugins.ENVS)
    assert command("--version").code == 0
    assert command("list", "configs").code == 0
    assert envs.spec("minatar/breakout").num_actions
    with pytest.raises(plugins.BrokenPlugin, match=r"broken-plugin 0\.1 cannot be loaded"):
        envs.spec("minatar/brekout")


# Environments.


def test_environments_of_a_plugin_run_here_and_in_workers(site: Path) -> None:
    install_toy(site)
    for env_id, workers in (("toy/walk", 0), ("gym/ToyWalk-v0", 0), ("toy/walk", 2)):
        rngs = [np.random.default_rng(seed) for seed in range(2)]
        vector = envs.make_vector(env_id, rngs, workers, max_episode_steps=3)
        single = envs.make(env_id, np.random.default_rng(1), max_episode_steps=3)
        np.testing.assert_array_equal(vector.reset()[1], single.reset())
        for _ in range(3):
            step = vector.step(np.array([1, 1]))
            obs, reward, *_ = single.step(1)
            np.testing.assert_array_equal(step.obs_final[1], obs)
            assert step.reward[1] == np.float32(reward)
        assert step.truncated.all()
        vector.close()


def test_ids_and_families_that_do_not_work_are_refused(site: Path) -> None:
    install_toy(site)
    with pytest.raises(envs.UnknownEnv, match="'toy/walk'"):
        envs.spec("toy/wlk")
    envs.spec("toy/walk")
    toy = sys.modules["toy_plugin.envs"]
    here, words = dataclasses.replace(toy.SPEC, id="toy/here"), {"summary": "", "source": ""}
    envs.register(here, lambda rng: toy.Walk(rng), **words)
    rngs = [np.random.default_rng(0)]
    assert envs.make_vector("toy/here", rngs).reset().shape == (1, 2)
    with pytest.raises(ValueError, match="'toy/here' cannot run in"):  # not sent to workers
        envs.make_vector("toy/here", rngs, workers=1)
    with pytest.raises(ValueError, match="'walk' has no family"):
        envs.register(dataclasses.replace(here, id="walk"), toy.Walk, **words)
    envs.register(toy.SPEC, toy.Walk, **words)  # its module is imported twice
    with pytest.raises(ValueError, match=r"'toy/walk' is taken, by toy-plugin"):
        envs.register(toy.SPEC, toy.GymWalk, **words)


def test_environments_of_plugins_need_no_torch(site: Path) -> None:
    install_toy(site)
    code = "import sys, rlplast.envs as e; e.spec('toy/walk'); e.list_envs(); "
    code += "sys.exit('torch' in sys.modules)"
    path = {"PYTHONPATH": f"{site}:{Path(__file__).parents[2]}"}
    assert subprocess.run([sys.executable, "-c", code], env=path, check=False).returncode == 0


# All three in one run.


def test_a_run_of_a_plugin_is_trained_resumed_and_evaluated(site: Path, tmp_path: Path) -> None:
    install_toy(site)
    config = tmp_path / "toy.yaml"
    config.write_text(yaml.safe_dump(RUN))
    whole, part = tmp_path / "whole", tmp_path / "part"
    assert command("train", config, "--out", whole).code == 0
    (receipt,) = jsonl(whole / "receipts.jsonl")
    assert (receipt["method"], receipt["clock"]["env_steps"]) == ("toy_scale", 30)
    assert yaml.safe_load((whole / "config.yaml").read_text())["env"]["id"] == "toy/walk"
    versions = json.loads((whole / "run.json").read_text())["versions"]
    assert versions["toy-plugin"] == "0.1"
    shutil.copytree(whole, part)
    forget(part, after=45)
    assert command("resume", part).code == 0
    assert final(part) == final(whole)
    assert "median" in command("evaluate", whole, "--episodes", 2).out


def test_kinds_are_named_in_errors(site: Path, tmp_path: Path) -> None:
    install_toy(site)
    config, out = tmp_path / "toy.yaml", ("--out", tmp_path / "run")
    for changes, words in (
        ({"kind": "toy_agnt"}, "did you mean 'toy_agent'?"),
        ({"halvd": True}, "did you mean 'halved'?"),
        ({"kind": "dqn", "halved": True}, "'halved': this key is for kind: toy_agent"),
    ):
        config.write_text(yaml.safe_dump(RUN | changes))
        assert words in refused(command("train", config, *out))
    assert not (tmp_path / "run").exists()
