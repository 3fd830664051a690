"""A study's folder: one writer, one version, and nothing of anybody else's."""

import json
import re
from pathlib import Path

import pytest

from rlplast.core.errors import ConfigError, DamagedFile
from rlplast.run.info import versions
from rlplast.study.folder import (
    StudyFolder,
    cell_row,
    check_versions,
    read_study,
    study_of,
)
from rlplast.study.plan import PlannedRun, plan
from rlplast.training.config import RunConfig

VERSIONS = {"rlplast": "1", "torch": "2", "numpy": "3"}


@pytest.fixture
def study(tmp_path: Path) -> Path:
    folder = StudyFolder(tmp_path / "study")
    folder.write_plan({"versions": VERSIONS, "name": "x"}, [])
    folder.close()
    return folder.path


def test_second_writer_is_refused_until_the_first_has_closed(study: Path):
    first = StudyFolder(study)
    with pytest.raises(ConfigError, match=r"study is in use by another study: wait for it"):
        StudyFolder(study)
    first.close()
    StudyFolder(study).close()


def test_folder_that_nothing_was_written_to_is_removed(tmp_path: Path):
    StudyFolder(tmp_path / "study").close()
    assert list(tmp_path.iterdir()) == []


def test_plan_is_read_back(study: Path):
    hooks = [{"method": "fire", "at": "50%"}]
    runs = [
        PlannedRun("t", 3, arm, RunConfig(total="24 updates", hooks=rows))
        for arm, rows in (("none", []), ("fire", hooks))
    ]
    folder = StudyFolder(study)
    folder.write_plan({"versions": VERSIONS, "arms": ["none"]}, plan(runs))
    folder.close()
    found = read_study(study)
    assert (found["format"], found["arms"]) == (1, ["none"])
    prefix, none, _ = found["cells"]
    assert prefix | {"key": "", "folder": ""} == {
        "key": "",
        "kind": "prefix",
        "task": "t",
        "seed": 3,
        "arm": None,
        "continuation": 1,
        "name": "t/seed-3/prefix to 12 updates",
        "folder": "",
        "parent": None,
        "starts": [],
        "stops": ["12 updates"],
        "weight": 0.5,
    }
    assert (none["parent"], none["starts"], none["stops"]) == (prefix["key"], ["12 updates"], [])
    without = [{k: v for k, v in row.items() if k != "weight"} for row in found["cells"]]
    assert without == [cell_row(cell) for cell in plan(runs)]


@pytest.mark.parametrize("package", ["rlplast", "torch"])
def test_study_of_another_version_is_refused(package: str, study: Path):
    here = versions()
    check_versions(study, {"versions": here | {"numpy": "9"}})  # which may have been updated
    says = f"begun with {package} 9, this is {re.escape(here[package])}"
    with pytest.raises(ConfigError, match=says):
        check_versions(study, {"versions": here | {package: "9"}})


def test_folder_of_another_format_is_refused(study: Path):
    row = json.loads((study / "study.json").read_text())
    (study / "study.json").write_text(json.dumps(row | {"format": 9}))
    with pytest.raises(ConfigError, match="study format 9, written by rlplast 1: this version rea"):
        read_study(study)


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", '{"format": 1, "cells": []}'),
        '{"format": 1, "versions": [], "cells": []}',
        '{"format": 1, "versions": {}, "cells": 5}',
    ],
)
def test_damaged_plan_is_refused(text: str, study: Path):
    (study / "study.json").write_text(text)
    with pytest.raises(DamagedFile, match=r"study.json is damaged.*choose another --out"):
        read_study(study)


@pytest.mark.parametrize("names", [["thesis.tex"], ["run.json"], ["configs"], ["cells", "logs"]])
def test_folder_with_something_else_is_refused_and_left_as_it_is(names: list[str], tmp_path: Path):
    for name in names:
        (tmp_path / name).touch()
    with pytest.raises(ConfigError, match=r"is not empty and no study's folder: choose another"):
        StudyFolder(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)


@pytest.mark.parametrize(
    "names", [[], [".lock", ".study.yaml.tmp"], ["study.yaml", "configs", ".study.json.tmp"]]
)
def test_what_a_start_that_was_killed_leaves_is_a_studys(names: list[str], tmp_path: Path):
    for name in names:
        (tmp_path / name).touch()
    StudyFolder(tmp_path).close()


@pytest.mark.parametrize("below", ["", "study"])
def test_folder_that_cannot_be_made_is_refused(below: str, tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"--out .*file.* cannot be written: .*Not a dir|exists"):
        StudyFolder(tmp_path / "file" / below)


def test_folder_without_a_plan_is_no_studys(tmp_path: Path):
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "none", tmp_path / "file"):
        with pytest.raises(ConfigError, match=r"is no study's folder: it has no study.json"):
            read_study(path)


def test_cell_is_its_studys_also_where_cells_lie_elsewhere(study: Path, tmp_path: Path):
    (tmp_path / "disk" / "seed-1" / "a").mkdir(parents=True)
    (study / "cells").symlink_to(tmp_path / "disk")
    for cell in (study / "cells" / "seed-1" / "a", study / "cells" / "seed-1"):
        assert study_of(cell) == study
    (study / "logs").mkdir()
    for other in (study, study / "logs", tmp_path / "disk" / "seed-1", tmp_path):
        assert study_of(other) is None


def test_study_among_the_cells_of_another_is_refused(study: Path):
    with pytest.raises(ConfigError, match=r"new lies among the cells of the study .*study: choose"):
        StudyFolder(study / "cells" / "new")
    assert not (study / "cells").exists()
