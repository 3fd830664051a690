from pathlib import Path
from typing import Any

import pytest
import torch

from rlplast.core.clock import Clock
from rlplast.core.errors import RlplastError
from rlplast.training import checkpoint
from tests.core.toy import Toy, loop, run
from tests.runs import at_step, final, lines


def test_run_leaves_lines_receipts_and_a_last_checkpoint(through: dict[str, Any]) -> None:
    scheduled = [r["method"] for r in through["receipts"] if r["method"] != "swr"]
    assert scheduled == ["shrink_perturb", "fire", "head_reset", "shrink_perturb"]
    assert sum(r["firings"] for r in through["receipts"] if r["method"] == "swr") == 7
    assert through["state.json"]["clock"] == {**vars(Clock()), "updates": 8, "env_steps": 16}
    logged = [m for m in through["metrics"] if "train/loss" in m]
    assert [m["env_steps"] for m in logged] == [3, 6, 9, 12, 15, 16]


def test_checkpoints_precede_the_first_update_hold_the_last_and_only_the_newest_are_kept(
    tmp_path: Path,
) -> None:
    def names(folder: str) -> set[str]:
        return {p.name for p in (tmp_path / folder / "checkpoints").iterdir()}

    run(loop(tmp_path / "few", save="16 env_steps"))
    assert names("few") == {"step-0", "step-16"}
    tensors, state = checkpoint.load(tmp_path / "few" / "checkpoints" / "step-0")
    assert state["clock"]["updates"] == 0
    assert torch.equal(tensors["net.0.weight"], tensors["net.0.weight@initial"])
    run(loop(tmp_path / "many", save="2 env_steps", keep=3))
    assert names("many") == {"step-16", "step-14", "step-12"}
    same = {p.stat().st_ino for p in tmp_path.glob("many/checkpoints/*/initial.safetensors")}
    assert len(same) == 1  # written once


def test_run_ends_at_its_total_with_the_updates_owed(tmp_path: Path) -> None:
    for total in ("6 env_steps", "3 updates"):
        toy = run(loop(tmp_path / total, total=total, hooks=(), metrics=None))
        assert toy.clock == Clock(updates=3, env_steps=6)


def test_every_update_hooks_come_before_the_target_follows(tmp_path: Path) -> None:
    shrink = {"method": "shrink_perturb", "every": "1 updates", "params": {"coef": 0.5}}
    made = loop(tmp_path, total="3 updates", hooks=(shrink,), evaluate=None, metrics=None)
    toy = run(made)  # ends at the update at which the target is copied
    pairs = zip(toy.module.parameters(), toy.target.parameters(), strict=True)
    assert all(torch.equal(mine, theirs) for mine, theirs in pairs)


def test_cadence_changes_nothing_in_training(tmp_path: Path, through: dict[str, Any]) -> None:
    often = {"evaluate": "1 updates", "metrics": "1 env_steps", "log": "1 updates"}
    for change in ({"evaluate": None, "metrics": None}, often | {"save": "1 env_steps"}):
        run(loop(tmp_path / str(len(change)), **change))  # type: ignore[arg-type]
        changed = final(tmp_path / str(len(change)))
        for name in ("points.npy", "tensors.safetensors", "state.json"):
            assert changed[name] == through[name], (change, name)


def explode(toy: Toy) -> None:
    toy.lr_scale = float("inf")


def spoil(toy: Toy) -> None:
    with torch.no_grad():
        toy.module.get_parameter("0.weight")[1, 2] = float("nan")


def test_what_is_not_finite_ends_the_run_and_is_never_saved(tmp_path: Path) -> None:
    for diverge, log, last, word in (
        (explode, "3 env_steps", [None], "train/loss"),
        (spoil, "16 env_steps", [], r"net\.0\.weight"),
    ):
        folder = tmp_path / diverge.__name__
        made = loop(folder, hooks=(), evaluate=None, metrics=None, log=log)
        toy: Any = made.trainable
        made.observer = at_step(14, lambda diverge=diverge, toy=toy: diverge(toy))
        with pytest.raises(RlplastError, match=rf"{word} .*training diverged"):
            run(made)
        assert [row["train/loss"] for row in lines(folder, "metrics")][-1:] == last
        tensors, _ = checkpoint.load(checkpoint.newest(folder / "checkpoints")[0])
        assert all(tensor.isfinite().all() for tensor in tensors.values())
