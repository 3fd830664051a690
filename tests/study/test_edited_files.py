"""Files of runs and studies that somebody has edited: a value of another type is named."""

import copy
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlplast.core.errors import DamagedFile
from rlplast.report.frame import read
from rlplast.run.show import show_run
from rlplast.study import api
from rlplast.study.show import show_study
from tests.cli.runs import SMALL
from tests.study.inline import inline

FREE = {"devices", "altered"}  # what is in them is only printed


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("edited")
    (folder / "base.yaml").write_text(yaml.safe_dump(SMALL | {"hooks": []}))
    hooks = [{"method": "fire", "at": "50%"}, {"method": "redo", "at": "75%"}]
    arms = {"none": {}, "fire": {"hooks": hooks}}
    keys = {"base": str(folder / "base.yaml"), "seeds": 1, "arms": arms, "baseline": "none"}
    with inline():
        api.study(keys, folder / "study")
    return folder / "study"


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield where each value is, of a list where the first is."""
    if path:
        yield path
    if isinstance(value, dict | list) and path[:1] not in {(key,) for key in FREE}:
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value[:1]):
            yield from places(inner, (*path, key))


def altered(value: Any, path: tuple[Any, ...]) -> Any:
    """Return a copy with a value of another type in one place."""
    found = copy.deepcopy(value)
    inner = found
    for key in path[:-1]:
        inner = inner[key]
    before = inner[path[-1]]
    number = isinstance(before, int | float) and not isinstance(before, bool)
    inner[path[-1]] = ["x"] if before is None else "x" if number else 5
    return found


def cell(study: Path) -> Path:
    return next(study.glob("cells/**/fire-*"))


@pytest.mark.parametrize("key", ["seed", "env", "env.id", "evaluate", "hooks", "kind"])
def test_a_key_of_a_config_that_is_read_is_refused_by_its_name(
    key: str, whole: Path, tmp_path: Path
) -> None:
    study = Path(shutil.copytree(whole, tmp_path / "study", symlinks=True))
    file = cell(study) / "config.yaml"
    config = altered(yaml.safe_load(file.read_text()), tuple(key.split(".")))
    file.write_text(yaml.safe_dump(config))
    for reader in (lambda: show_run(cell(study)), lambda: read([study])):
        with pytest.raises(DamagedFile, match=rf"config\.yaml: {re.escape(key)} = "):
            reader()


# Reports read by the same functions.
READERS: dict[str, Callable[[Path], object]] = {
    "run.json": lambda study: show_run(cell(study)),
    "metrics.jsonl": lambda study: show_run(cell(study)),
    "receipts.jsonl": lambda study: show_run(cell(study)),
    "study.json": show_study,
}


@pytest.mark.parametrize("name", READERS)
def test_a_value_of_another_type_is_refused_by_its_file_and_key(
    name: str, whole: Path, tmp_path: Path
) -> None:
    study = Path(shutil.copytree(whole, tmp_path / "study", symlinks=True))
    file = (study if name == "study.json" else cell(study)) / name
    lines = [json.loads(line) for line in file.read_text().splitlines()] if "l" == name[-1] else []
    data = max(lines, key=len) if lines else json.loads(file.read_text())
    found = list(places(data))
    assert len(found) > 5
    for path in found:
        others = [line for line in lines if line is not data]
        rows = [altered(data, path), *others]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        key = [part for part in path if isinstance(part, str)][-1]
        with pytest.raises(DamagedFile) as raised:
            READERS[name](study)
        assert name in str(raised.value) and key in str(raised.value), path
