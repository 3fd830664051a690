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
from rlplast.training import kinds as all_kinds
from rlplast.training.kinds import get_kind, kinds
from tests.cli.commands import command
from tests.cli.runs import SMALL

pytestmark = pytest.mark.usefixtures("site")
DQN = "rlplast.agents.dqn:DQN"


def test_a_kind_that_nobody_needs_is_not_imported() -> None:
    code = "import sys; from rlplast.training.kinds import get_kind as get; "
    code += "get('gpt').config_class(); get('sac'); "
    code += "sys.exit(bool({'rlplast.agents', 'rlplast.gpt.trainer'} & sys.modules.keys()))"
    root = Path(__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0


def test_an_unknown_kind_names_the_nearest_or_all() -> None:
    for name, message in (("dqnn", r"'dqnn': .*'dqn'"), ("zzz", "dqn, gpt, ppo"), ([1], r"\[1\]")):
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


def test_a_kind_that_is_none_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for path in ("own_kind", ":Config", None):
        for keys in ({"config": path, "trainable": DQN}, {"config": "a:B", "trainable": path}):
            with pytest.raises(ConfigError, match=r"kind 'mine': \w+ = "):
                register_kind("mine", **keys)
    for config, message in (
        ("no_such_module:Config", "cannot be imported"),
        ("pathlib:Nothing", "cannot be imported"),
        ("pathlib:Path", "no class derived from RunConfig"),
        ("rlplast.agents.dqn_config:DQNConfig", "sys:path is no class"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(all_kinds, "_KINDS", dict(all_kinds._KINDS))
            register_kind("mine", config=config, trainable="sys:path")
            with pytest.raises(ConfigError, match=f"^kind 'mine' from .*{message}"):
                build_trainable(read_config(SMALL | {"kind": "mine"}))
            if "DQN" not in config:
                with pytest.raises(ConfigError, match="kind 'mine' from"):
                    list_rows("kinds")


def test_whether_several_processes_can_train_is_said_by_what_trains(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "2", "RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=r"kind = 'dqn' with 2 processes: .* without torchrun"):
        build_trainable(read_config(SMALL))
    makers = {name: kind.trainable_class() for name, kind in kinds().items()}
    assert [n for n, make in makers.items() if hasattr(make, "several_processes")] == ["gpt"]
