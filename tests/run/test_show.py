"""What a run's folder says of the run, for runs of every kind."""

import json
import os
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlplast.core.clock import Time
from rlplast.core.errors import ConfigError, DamagedFile
from rlplast.run import api
from rlplast.run.config_file import read_config
from rlplast.run.length import length_info
from rlplast.run.show import disk_used, next_firing, share_done, show_run
from rlplast.training.files import is_locked, lock
from tests.every_kind import KINDS
from tests.runs import TINY, lines


def edit(run: Path, **changes: Any) -> None:
    path = run / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("kind", KINDS)
def test_a_finished_run_is_at_its_end(kind: str, run_of: Callable[[str], Path]):
    run = run_of(kind)
    found = show_run(run)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    info = json.loads((run / "run.json").read_text())
    assert (found["status"], found["host"]) == ("done", info["host"])
    progress = found["progress"]
    assert progress["share"] == 1 and progress["done"] >= progress["total"]
    assert progress["seconds"] > 0 and progress["seconds_left"] is None and found["next"] is None
    rows = lines(run, "metrics")
    newest = next(row for row in reversed(rows) if any(key.startswith("eval/") for key in row))
    assert found["eval"].items() <= newest.items() and progress["unit"] in found["eval"]
    whole = {key for row in rows for key in row if re.fullmatch(r"metric/\w+/\w+", key)}
    newest = [row for row in rows if whole & row.keys()][-1]
    assert {key for key in found["metrics"] if key.startswith("metric/")} == whole & newest.keys()
    assert found["metrics"].items() <= newest.items() and progress["unit"] in found["metrics"]
    assert found["receipts"]["count"] == len(lines(run, "receipts"))
    names = [checkpoint["name"] for checkpoint in found["checkpoints"]]
    assert sorted(names) == sorted(path.name for path in (run / "checkpoints").glob("*-*"))
    assert all(c["complete"] and 0 < c["bytes"] <= found["bytes"] for c in found["checkpoints"])


def test_a_killed_run_is_stopped_and_says_what_is_next(killed: Path):
    edit(killed, status="running")
    before = {path: path.stat().st_mtime_ns for path in killed.rglob("*")}
    found = show_run(killed)
    assert before == {path: path.stat().st_mtime_ns for path in killed.rglob("*")}
    assert found["status"] == "stopped" and found["progress"]["seconds_left"] is None
    assert 0 < found["progress"]["share"] < 0.5
    assert found["progress"]["done"] == lines(killed, "metrics")[-1]["env_steps"]
    assert found["next"]["method"] in {"shrink_perturb", "head_reset"}


def test_a_run_whose_folder_is_locked_runs(killed: Path):
    edit(killed, status="running", host="elsewhere")
    assert show_run(killed)["status"] == "running"  # as far as one knows here
    edit(killed, host=socket.gethostname())
    taken = lock(killed / ".lock")
    assert taken is not None and is_locked(killed / ".lock")
    try:
        found = show_run(killed)
    finally:
        taken.close()
    assert found["status"] == "running"
    left, progress = found["progress"]["seconds_left"], found["progress"]
    assert left == pytest.approx((progress["total"] - progress["done"]) / progress["rate"])
    assert not is_locked(killed / ".lock")


def test_a_damaged_file_is_named(killed: Path, tmp_path: Path):
    for name in ("run.json", "config.yaml", "metrics.jsonl", "receipts.jsonl"):
        whole = (killed / name).read_bytes()
        for content in (b"{\n{", b"\xff\xfe\n\xff", b"[1]\n[2]\n"):
            (killed / name).write_bytes(content)
            with pytest.raises(DamagedFile, match=name):
                show_run(killed)
        (killed / name).write_bytes(whole)
    (killed / "receipts.jsonl").write_text('{"method": "fire"}\n')
    with pytest.raises(DamagedFile, match="line 1 has no clock"):
        show_run(killed)
    with pytest.raises(ConfigError, match="is no run's folder"):
        show_run(tmp_path)


def test_an_unsealed_checkpoint_is_incomplete(killed: Path):
    newest = max((killed / "checkpoints").glob("step-*"), key=os.path.getmtime)
    (newest / "COMPLETE").unlink()
    found = {c["name"]: c["complete"] for c in show_run(killed)["checkpoints"]}
    assert not found.pop(newest.name) and all(found.values())


def test_a_run_of_a_plug_in_is_shown_without_the_plug_in(killed: Path):
    path, before = killed / "config.yaml", show_run(killed)
    path.write_text(path.read_text().replace("kind: dqn", "kind: of_a_plug_in"))
    found = show_run(killed)
    assert (found["progress"], found["next"]) == (before["progress"], before["next"])
    assert found["progress"]["total"] == read_config(TINY).total_time().value


def test_a_run_without_its_length_is_shown_without_what_is_ahead(killed: Path):
    edit(killed, length=None)
    found = show_run(killed)
    assert (found["progress"], found["next"]) == (None, None) and found["clock"]["env_steps"] > 0


def test_a_longer_run_is_shown_with_its_new_length(killed: Path):
    total = read_config(TINY).total_time()
    api.resume(killed, f"{2 * total.value} {total.unit}")
    progress = show_run(killed)["progress"]
    assert progress["done"] >= progress["total"] == 2 * total.value


def test_linked_files_count_once(tmp_path: Path):
    (tmp_path / "a").write_bytes(b"x" * 1000)
    os.link(tmp_path / "a", tmp_path / "b")
    (tmp_path / "c").write_bytes(b"x" * 10)
    assert disk_used(tmp_path) == 1010


def test_the_first_of_two_ends_counts():
    starts, stops = [Time(50, "updates")], [Time(100, "updates"), Time(1, "phase")]
    for updates, phase, share in ((0, 0, 0), (60, 0, 0.2), (0, 1, 1), (990, 0, 1)):
        row = {"updates": updates, "phase": phase}
        assert share_done(row, starts, stops) == pytest.approx(share)


PHASES = {
    **{"kind": "supervised", "data": {"name": "digits"}, "model": {"name": "mlp", "hidden": [8]}},
    "stream": {"name": "random_labels", "phases": 4, "epochs": 3, "images": 30},
    "hooks": [
        {"method": "fire", "on": "phase_start"},
        {"method": "full_reset", "every": "5 updates"},
        {"method": "shrink_perturb", "at": ["2 epochs", "80%"]},
    ],
    **{"batch_size": 10, "total": "33 updates", "log": {"to": []}},
}


@pytest.mark.parametrize("tiny", [TINY, PHASES], ids=["agent", "classifier"])
def test_next_firing_is_the_loops_own(tiny: dict[str, Any], tmp_path: Path):
    config = read_config(tiny)
    expected = json.loads(json.dumps(length_info(config)))
    pairs: list[tuple[Any, Any]] = []

    def observe(loop: Any) -> None:
        clock = loop.trainable.clock
        counts: Callable[[str], int] = clock.__getitem__
        units = {unit: counts(unit) for unit in config.units}
        pairs.append((loop.hooks.next_due(clock), next_firing(config.hooks, expected, units)))

    api.train(tiny, tmp_path / "run", observer=observe)
    assert len(pairs) > 30 and all(ours == theirs for ours, theirs in pairs)
