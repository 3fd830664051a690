"""Whole runs from Python: what stands in a folder that is none of a run's own making."""

import json
import os
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rlplast
from rlplast.core.errors import ConfigError, DamagedFile, RlplastError
from rlplast.run import api, read
from rlplast.training import checkpoint
from rlplast.training.best import best_checkpoint
from rlplast.training.checkpoint import SENTINEL
from rlplast.training.run_folder import RunFolder
from tests.runs import TINY, at_step, forget, status

SHORT: dict[str, Any] = TINY | {
    "total": "40 env_steps",
    "hooks": [],
    "evaluate": {"every": None},
    "metrics": {"every": None},
    "checkpoint": {"every": "50%", "keep": 9},
}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has ended; tests copy it."""
    return api.train(SHORT, tmp_path_factory.mktemp("done") / "run").path


@pytest.fixture
def run(done: Path, tmp_path: Path) -> Path:
    """A copy of it, half done."""
    shutil.copytree(done, tmp_path / "run")
    forget(tmp_path / "run", after=20)
    return tmp_path / "run"


@pytest.mark.parametrize("key", ["trainable", "clock"])
def test_a_state_that_fits_no_run_is_damage_to_evaluate(key: str, run: Path) -> None:
    folder = run / "checkpoints" / "step-20"
    state = json.loads((folder / "state.json").read_text())
    del state[key]
    text = json.dumps(state).encode()
    (folder / "state.json").write_bytes(text)
    seal = json.loads((folder / SENTINEL).read_text())  # the manifest is to match
    seal["files"]["state.json"] = [len(text), zlib.crc32(text)]
    (folder / SENTINEL).write_text(json.dumps(seal))
    with pytest.raises(DamagedFile, match="step-20 does not fit this run"):
        api.load(run).evaluate(episodes=1)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("device:", "tensorboard: null\ndevice:", "unknown key .tensorboard.: .*"),
        ("hooks: []", "hooks: [{method: gone, at: 50%}]", r"hooks\[0\]\.method = 'gone': .*"),
    ],
)
def test_a_run_whose_config_another_version_wrote_is_refused_and_that_version_named(
    before: str, after: str, message: str, run: Path
) -> None:
    info, file = json.loads((run / "run.json").read_text()), run / "config.yaml"
    info["versions"]["rlplast"] = "0.1"
    (run / "run.json").write_text(json.dumps(info))
    assert before in file.read_text()
    file.write_text(file.read_text().replace(before, after))
    with pytest.raises(ConfigError, match=rf"{message}; the run was begun with rlplast 0\.1, "):
        api.resume(run)


def test_a_run_goes_on_in_a_checkout_that_is_not_installed(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "versions", dict)
    info = api.resume(run).info
    assert (info["status"], info["devices"]) == ("done", [{"type": "cpu"}])  # the same one


def test_a_folder_that_another_run_took_meanwhile_is_refused(
    done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build, lines = api._loop, (done / "metrics.jsonl").read_bytes()

    def slow(*args: Any) -> Any:
        shutil.copytree(done, tmp_path / "run")  # a whole run, while this one is being built
        return build(*args)

    monkeypatch.setattr(api, "_loop", slow)
    with pytest.raises(ConfigError, match="is not empty: `rlplast resume"):
        api.train(SHORT, tmp_path / "run")
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == lines


def test_the_current_folder_may_change_while_a_run_trains(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in ("run", "new"):
        monkeypatch.chdir(tmp_path)
        moves = at_step(3, lambda: os.chdir(elsewhere))
        go_on = name == "run"
        found = (
            api.resume(name, observer=moves) if go_on else api.train(SHORT, name, observer=moves)
        )
        assert Path.cwd() == elsewhere and not list(elsewhere.iterdir())
        assert status(tmp_path / name) == "done" == found.info["status"]


def test_an_observer_sees_what_was_logged_and_what_it_raises_ends_the_run(tmp_path: Path) -> None:
    seen: list[Any] = []

    def observe(loop: Any) -> None:
        seen.append((loop.trainable.clock.env_steps, loop.latest.get("time/seconds")))
        if loop.trainable.clock.env_steps == 30:
            raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        rlplast.train(SHORT, tmp_path / "run", observer=observe)
    assert status(tmp_path / "run") == "failed"
    rows = rlplast.load(tmp_path / "run").lines()
    logged = {row["env_steps"]: row["time/seconds"] for row in rows if "time/seconds" in row}
    assert {step: value for step, value in seen if step in logged} == logged != {}
    assert seen[-1][0] == 30


# Reading.


@pytest.mark.parametrize(
    ("name", "reader"),
    [
        ("run.json", lambda folder: read.read_json(folder / "run.json")),
        ("config.yaml", read.read_config),
        ("metrics.jsonl", lambda folder: read.read_lines(folder / "metrics.jsonl")),
        ("metrics.jsonl", RunFolder),
        ("COMPLETE", checkpoint.load),
        ("best.json", best_checkpoint),
    ],
)
def test_a_pipe_in_place_of_a_file_is_refused_by_name(
    name: str, reader: Callable[[Path], Any], tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / name)  # reading it would wait for a writer for ever
    with pytest.raises(RlplastError, match=name):
        reader(tmp_path)


def test_an_integer_too_long_to_be_a_count_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    for digits in (21, 400, 5000):
        path.write_text(
            '{"updates": 18446744073709551616}\n{"updates": ' + "9" * digits + "}\n{}\n"
        )
        with pytest.raises(DamagedFile, match=r"metrics\.jsonl, line 2 "):
            read.read_lines(path)
    path.write_text('{"updates": 18446744073709551616}\n')
    assert read.read_lines(path) == [{"updates": 2**64}]
