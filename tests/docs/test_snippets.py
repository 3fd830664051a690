"""The pages' code runs as it stands, in any order, in one folder; their configs are accepted.

A block that is a file, named just before it as in "`my_redo.py`:", lies in the folder from the
start. A run that a block loads and that a command of its page trains is there too, made small, and
so is the study that pages on reports read.
"""

import dataclasses
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch

from rlplast.core import registry
from rlplast.core.method.listing import ROW_KEYS
from rlplast.core.network import optim_state
from rlplast.envs import registry as envs
from rlplast.run import api
from rlplast.run.config_file import read_config
from rlplast.study.smoke import small
from rlplast.training import kinds
from rlplast.training.config import RunConfig, parse_yaml
from tests.docs.snippets import BLOCKS, DOCS, Block
from tests.docs.test_commands import train_commands
from tests.marks import slow
from tests.report.drawn import undrawn
from tests.report.runs import write_study
from tests.study.inline import inline

PYTHON = [block for block in BLOCKS if block.language == "python"]
YAML = [block for block in BLOCKS if block.language == "yaml"]
FILES = [block for block in BLOCKS if block.file]


def loaded_runs(block: Block) -> dict[str, RunConfig]:
    """Return the configs of the runs that a block loads and a command of its page trains."""
    commands = train_commands(block.page)
    return {out: c for out, c in commands.items() if f'load("{out}")' in block.text}


def is_slow(block: Block) -> bool:
    trains = "rlplast.study(" in block.text or "optuna" in block.text or loaded_runs(block)
    return bool(trains) or block.page.parent == DOCS / "methods"


# The last block comes first, so that one that needs another one's leavings fails.
TO_RUN = [slow(b) if is_slow(b) else b for b in reversed(PYTHON)]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that pages have the reader save."""
    folder = tmp_path_factory.mktemp("reader")
    for block in FILES:
        (folder / block.file).write_text(block.text)
    write_study(folder / "runs", seeds=range(1, 6), tasks=("asterix", "walk"), name="my-study")
    return folder


@pytest.fixture
def reader(shared: Path, own_methods: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Be in the folder; leave no method, kind, environment, module or draw behind."""
    monkeypatch.chdir(shared)
    monkeypatch.syspath_prepend(shared)
    for block in FILES:  # another test may have left a module of its name
        monkeypatch.delitem(sys.modules, Path(block.file).stem, raising=False)
    tables = [optim_state.RULES, kinds._KINDS, envs._FAMILY_OF, envs._FROM, gymnasium.registry]
    before = [dict(table) for table in tables]
    modules = set(sys.modules)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield shared
    for table, known in zip(tables, before, strict=True):
        for key in set(table) - set(known):
            del table[key]
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(shared)):
            del sys.modules[name]


def test_no_two_blocks_are_the_same_file() -> None:
    names = [block.file for block in FILES]
    assert len(names) > 5
    assert sorted(set(names)) == sorted(names)


def test_every_block_says_its_language() -> None:
    known = {"python", "yaml", "sh", "text", "toml", "bibtex"}
    assert not [str(block) for block in BLOCKS if block.language not in known]


@pytest.mark.filterwarnings("ignore:.*exists and is not empty")  # Lightning
@pytest.mark.filterwarnings("ignore:.*does not have many workers")
@pytest.mark.filterwarnings("ignore:.*treespec, LeafSpec")
@pytest.mark.parametrize("block", TO_RUN, ids=str)
def test_python_blocks_run(block: Block, reader: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for out, config in loaded_runs(block).items():
        if Path(out).exists():  # another block loads it too
            continue
        api.train(dataclasses.asdict(small(config, {})), out)
    monkeypatch.setattr("rlplast.report.drawing.draw", undrawn)
    code = "\n" * block.line + block.text  # so that a traceback has the page's line
    namespace: dict[str, Any] = {"__name__": "block"}
    with inline():  # cells in processes of their own: tests/study/test_from_python.py
        exec(compile(code, f"{block} (a block)", "exec"), namespace)
    for name, value in list(namespace.items()):
        if name.startswith("test_"):
            value()


def check_lists(data: Mapping[str, Any]) -> None:
    """Check keys, methods and parameters of hooks, penalties and layers."""
    for key, family in registry.LISTS.items():
        for row in data.get(key, []):
            assert set(row) <= set(ROW_KEYS[key]), row
            registry.build(family, row["method"], row.get("params"))


def test_yaml_blocks_are_yaml_and_whole_configs_are_accepted(reader: Path) -> None:
    wrong = []
    for file in FILES:  # whose methods configs of their pages may name
        if file.file.endswith(".py") and any(block.page == file.page for block in YAML):
            __import__(Path(file.file).stem)
    for block in (block for block in YAML if not block.not_run):
        try:
            data = parse_yaml(block.text, str(block))
            check_lists(data)
            if "kind" in data:
                read_config(data)
        except Exception as error:
            wrong.append(f"{block}: {error!r}")
    assert not wrong, "\n".join(wrong)
