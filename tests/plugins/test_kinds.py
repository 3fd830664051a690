"""Kinds of runs: registered by name, imported when a config needs them."""

import subprocess
import sys
from pathlib import Path

import pytest

from rlplast import register_kind
from rlplast.agents.dqn_config import DQNConfig
from rlplast.cli.list_command import list_rows
from rlplast.core.errors import ConfigError
from rlplast.run.build import build_trainable
from rlplast.run.config_file import read_config
from rlplast.training.config import RunConfig
from rlplast.training.kinds import get_kind, kinds
from tests.cli.commands import command
from tests.cli.runs import SMALL

pytestmark = pytest.mark.usefixtures("site")
DQN = "rlplast.agents.dqn:DQN"


def test_ours_are_there_with_their_classes() -> None:
    assert list(kinds()) == ["dqn", "sac", "ppo", "supervised", "gpt"]
    for name, kind in kinds().items():
        assert kind.config_class()().kind == name
        assert kind.trainable_class().__module__.startswith("rlplast.")
        assert kind.origin == "rlplast"


def test_a_kind_that_nobody_needs_is_not_imported() -> None:
    code = "import sys; from rlplast.training.kinds import get_kind as get; "
    code += "get('gpt').config_class(); get('sac'); "
    code += "sys.exit(bool({'rlplast.agents', 'rlplast.gpt.trainer'} & sys.modules.keys()))"
    root = Path(__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("dqnn", r"kind = 'dqnn': did you mean 'dqn'\?$"),
        ("zzz", r"kind = 'zzz': allowed: dqn, gpt, ppo, sac, supervised; your own: `rlplast"),
        (3, r"kind = 3: allowed: dqn"),
        ([1], r"kind = \[1\]: allowed: dqn"),
    ],
)
def test_an_unknown_kind_names_the_nearest_or_all(name: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        get_kind(name)


def test_a_module_of_ones_own_brings_a_kind(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "import rlplast\nfrom rlplast.agents.dqn import DQN\n"
    text += "from rlplast.agents.dqn_config import DQNConfig as Config\n"
    text += "rlplast.register_kind('mine', config='own_kind:Config', trainable='own_kind:DQN')\n"
    (site / "own_kind.py").write_text(text)
    monkeypatch.chdir(site)
    assert "own_kind:DQN" in command("--import", "own_kind", "list", "kinds").out
    changed = SMALL | {"kind": "mine", "hooks": []}
    assert type(read_config(changed)) is DQNConfig
    register_kind("mine", config="own_kind:Config", trainable="own_kind:DQN")  # imported twice
    with pytest.raises(ConfigError, match="kind 'mine' is taken, by own_kind: choose another"):
        register_kind("mine", config="own_kind:Other", trainable="own_kind:DQN")


@pytest.mark.parametrize("path", ["own_kind", "own_kind:", ":Config", "", None])
def test_a_class_is_named_with_its_module(path: str) -> None:
    for keys in ({"config": path, "trainable": DQN}, {"config": "a:B", "trainable": path}):
        with pytest.raises(ConfigError, match=r"kind 'mine': \w+ = .*: allowed is 'module:Class'"):
            register_kind("mine", **keys)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            "no_such_module:Config",
            r"from pathlib: no_such_module:Config cannot be imported \(Mod",
        ),
        ("pathlib:Nothing", r"from pathlib: pathlib:Nothing cannot be imported \(AttributeError"),
        ("pathlib:Path", r"from pathlib: pathlib:Path is no class derived from RunConfig$"),
    ],
)
def test_a_config_that_is_none_is_refused_by_name(config: str, message: str) -> None:
    register_kind("mine", config=config, trainable="pathlib:Path")
    with pytest.raises(ConfigError, match="^kind 'mine' " + message):
        read_config(SMALL | {"kind": "mine"})
    with pytest.raises(ConfigError, match="kind 'mine' from"):
        list_rows("kinds")


def test_what_trains_must_be_callable() -> None:
    register_kind("mine", config="rlplast.agents.dqn_config:DQNConfig", trainable="sys:path")
    with pytest.raises(ConfigError, match="kind 'mine' from sys: sys:path is no class"):
        build_trainable(read_config(SMALL | {"kind": "mine"}))


def test_a_config_needs_no_checks_of_its_own() -> None:
    RunConfig().check()


def test_whether_several_processes_can_train_is_said_by_what_trains(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "2", "RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=r"kind = 'dqn' with 2 processes: .* without torchrun"):
        build_trainable(read_config(SMALL))
    makers = {name: kind.trainable_class() for name, kind in kinds().items()}
    assert [n for n, make in makers.items() if hasattr(make, "several_processes")] == ["gpt"]
