"""A study whose arms go on from their branch several times, from its command to its report."""

import json
from pathlib import Path
from typing import Any

from rlplast.report.frame import averaged, read
from tests.cli.commands import command
from tests.runs import final
from tests.study.inline import run_study, write_study
from tests.supervised_runs import small_supervised

QUIET: dict[str, Any] = {"metrics": {"every": None}, "evaluate": {"every": "20%"}}
PERTURB = {"method": "shrink_perturb", "at": "50%", "params": {"init": "fresh"}}
ARMS = {"none": {"hooks": []}, "perturb": {"hooks": [PERTURB]}}


def by_number(out: Path) -> dict[tuple[str, int], Path]:
    cells = json.loads((out / "study.json").read_text())["cells"]
    return {(c["arm"], c["continuation"]): out / c["folder"] for c in cells if c["kind"] == "arm"}


def test_a_study_of_continuations_trains_each_from_the_shared_prefix(tmp_path: Path):
    base = small_supervised() | QUIET
    config, out = write_study(tmp_path, base, ARMS, continuations=3), tmp_path / "out"
    outcome, started = run_study(config, out)
    assert outcome.code == 0, outcome
    assert len(started) == len(set(started)) == 1 + 2 * 3
    assert "seed-3/perturb/continuation-2" in started
    found = by_number(out)
    assert sorted(found) == [(arm, n) for arm in ("none", "perturb") for n in (1, 2, 3)]
    weights = [final(own)["tensors.safetensors"] for own in found.values()]
    assert len(set(weights)) == 6
    single = read([out])
    assert len(single.done) == 6
    assert len(averaged(single).done) == 2
    once, plain = write_study(tmp_path, base, ARMS), tmp_path / "plain"
    assert run_study(once, plain)[0].code == 0
    for (arm, _), folder in by_number(plain).items():
        assert final(folder) == final(found[arm, 1])
    _, started = run_study(write_study(tmp_path, base, ARMS, continuations=2), plain)
    assert sorted(started) == ["seed-3/none/continuation-2", "seed-3/perturb/continuation-2"]


def test_the_plan_shows_an_arm_once_with_its_number_of_continuations(tmp_path: Path):
    config = write_study(tmp_path, small_supervised() | QUIET, ARMS, continuations=5)
    outcome = command("study", config, "--plan")
    assert outcome.code == 0
    assert outcome.out.count("perturb") == 1
    assert "perturb × 5" in outcome.out
    assert "11 cells" in outcome.out
