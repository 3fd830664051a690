"""On a file of weights every method and metric works, or one line says what it needs."""

from pathlib import Path

import torch

from rlplast.core.registry import LISTS, rows
from rlplast.metrics.probe import check_names
from tests.cases import CASES
from tests.cli.commands import Outcome, command, printed, trained_pair

METHODS = {info.name: key for key, family in LISTS.items() for info in rows(family)}
# These must work; others may.
EDITORS = {"fire", "full_reset", "head_reset", "scale_weights", "shrink_perturb", "swr"}
EDITORS |= {"weight_clip"}
OF_WEIGHTS = {"dfi", "dfi_scaled", "effective_rank", "spectral_norm", "srank", "stable_rank"}
OF_WEIGHTS |= {"sfe", "sfe_normalized", "weight_difference", "weight_norm"}


def needs(outcome: Outcome, name: str) -> str:
    """Return the one line that says what else is needed."""
    assert (outcome.code, outcome.out) == (2, "")
    (line,) = outcome.err.splitlines()
    assert line.startswith(f"rlplast: {name} ") and " a file of weights has" in line
    return line


def test_a_method_edits_a_file_or_says_what_it_needs(tmp_path: Path) -> None:
    file, init = trained_pair(tmp_path)
    before = torch.load(file)
    for method, key in METHODS.items():
        out = tmp_path / f"{method}.pt"
        params = dict(CASES[method].params) if method in CASES else {}
        options = {"init": init} | params  # `--init fresh` where a case says so
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        outcome = command("apply", method, file, "--out", out, *words)
        if outcome.code == 0:
            after = torch.load(out)
            assert any(not torch.equal(before[name], after[name]) for name in before), method
        else:
            assert method not in EDITORS
            assert needs(outcome, method).endswith(f"list it under `{key}:` of a run")
            assert not out.exists()


def test_a_metric_measures_a_file_or_says_what_it_needs(tmp_path: Path) -> None:
    file, init = trained_pair(tmp_path)
    words = (file, "--reference", init)
    everything = printed("measure", *words)
    for metric in (info.name for info in rows("metrics")):
        outcome = command("measure", *words, "--metric", metric, "--json")
        if outcome.code == 0:
            found = printed("measure", *words, "--metric", metric)
            assert found["total"] == {metric: everything["total"][metric]}
            for tensor, row in found["tensors"].items():
                assert row == {metric: everything["tensors"][tensor][metric]}
                assert row[metric] is not None
            continue
        assert metric not in OF_WEIGHTS
        line = needs(outcome, metric)
        if line.endswith("name it in `metrics.names` of a run"):
            check_names([metric])
        else:
            assert line.endswith(("report it", f"call rlplast.metrics.{metric} in Python"))
    for metric, end in (("sfe", "give them with --reference FILE"), ("srnak", "'srank'?")):
        outcome = command("measure", file, "--metric", "srank", "--metric", metric)
        assert (outcome.code, outcome.out) == (2, "") and outcome.err.rstrip().endswith(end)
