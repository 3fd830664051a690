"""`rlplast.study` and `plan`: what the commands do, without a word."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import rlplast
from rlplast.core.errors import ConfigError, Interrupted
from rlplast.training.config import read_yaml
from tests.cli.commands import command
from tests.cli.studies import ALL, ARMS, TINY, folder_of
from tests.study.inline import attempts, inline, write_study

SCRIPT = """
import rlplast

result = rlplast.study("study.yaml", "out", jobs=2)
print(sorted(set(result.cells.values())))
"""


def test_study_says_what_has_become_of_each_cell_and_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, seen = write_study(tmp_path, TINY, ARMS), []
    with inline() as backend:
        first = rlplast.study(config, tmp_path / "study", observer=lambda p: seen.append(p.event))
        again = rlplast.study(config, tmp_path / "study")
    assert sorted(backend.started) == sorted(ALL)
    assert (first.began, again.began) == (True, False)
    assert first.cells == again.cells == {str(path): "done" for path in first.cells}
    assert {tmp_path / "study" / path for path in first.cells} == {
        folder_of(tmp_path / "study", name) for name in ALL
    }
    assert sorted(filter(None, seen)) == sorted(f"done: {name}" for name in ALL)
    assert capsys.readouterr() == ("", "")
    file = tmp_path / "study" / "study.json"
    plan = json.loads(file.read_text())
    file.write_text(json.dumps(plan | {"versions": plan["versions"] | {"torch": "1.0"}}))
    before = file.read_bytes()
    with pytest.raises(ConfigError, match=r"was begun with torch 1\.0, this is "):
        rlplast.study(config, tmp_path / "study")
    assert file.read_bytes() == before


def test_a_mapping_is_a_study_too(tmp_path: Path) -> None:
    keys = read_yaml(write_study(tmp_path, TINY, ARMS))
    with inline():
        rlplast.study(keys, tmp_path / "study")
        again = rlplast.study(tmp_path / "study" / "study.yaml", tmp_path / "study")
    assert not again.began
    with pytest.raises(ConfigError, match="say out=FOLDER"):
        rlplast.study(keys)


def test_cells_that_fail_are_told_and_raise_nothing(tmp_path: Path) -> None:
    def fault(name: str, attempt: int) -> int | None:
        return 1 if name == "seed-3/prefix to 75 env_steps" else None

    config = write_study(tmp_path, TINY, ARMS)
    with inline(fault):
        found = rlplast.study(config, tmp_path / "study")
    states = {name: found.cells[str(folder_of(found.folder, name).relative_to(found.folder))]
              for name in ALL}  # fmt: skip
    assert list(states.values()) == ["done", "done", "failed", "skipped", "skipped"]
    assert [failure.cell.name for failure in found.failures] == ALL[2:]


def test_an_interruption_is_an_error_that_says_how_to_go_on(tmp_path: Path) -> None:
    def fault(name: str, attempt: int) -> int | None:
        raise KeyboardInterrupt

    config = write_study(tmp_path, TINY, ARMS)
    with inline(fault), pytest.raises(Interrupted, match="the same command goes on with"):
        rlplast.study(config, tmp_path / "study")
    assert [row["end"] for row in attempts(tmp_path / "study", ALL[0])] == ["stopped"]


def test_plan_is_what_the_command_prints(tmp_path: Path) -> None:
    config = write_study(tmp_path, TINY, ARMS)
    found, output = rlplast.plan(config, tmp_path / "study"), command("study", config, "--plan").out
    assert f"{len(found.cells)} cells" in output
    steps = sum(own["env_steps"] for own in found.takes.values())
    assert f"estimate: {steps:,.0f} env_steps" in output
    assert found.problem is None and "timed here" in found.notes[0]
    assert not (tmp_path / "study").exists()


def test_plan_of_an_arm_that_cannot_be_built_has_its_cells_all_the_same(tmp_path: Path) -> None:
    arms = {"none": {}, "a": {"hooks": [{"method": "fier", "at": "50%"}]}}
    found = rlplast.plan(write_study(tmp_path, TINY, arms))
    assert len(found.cells) == 3
    assert "hooks[0].method = 'fier': did you mean 'fire'?" in str(found.problem)


@pytest.mark.slow
def test_a_script_needs_no_guard(tmp_path: Path) -> None:
    """Its cells are processes of their own, which do not run the script."""
    write_study(tmp_path, TINY, {"none": {}, "fire": ARMS["fire"]})
    (tmp_path / "script.py").write_text(SCRIPT)
    words, ours = [sys.executable, "script.py"], str(Path(rlplast.__file__).parents[1])
    environment = os.environ | {"PYTHONPATH": ours}
    done = subprocess.run(
        words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "['done']\n"), done.stderr
    infos = [json.loads(path.read_text()) for path in (tmp_path / "out").rglob("run.json")]
    assert [info["status"] for info in infos] == ["done"] * 3
