import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from rlplast.core.clock import Clock
from rlplast.core.errors import ConfigError, DamagedFile
from rlplast.gpt.config import GPTConfig
from rlplast.gpt.huggingface import save_gpt2
from rlplast.gpt.trainer import GPTTrainer
from rlplast.run import api
from rlplast.training import checkpoint
from tests.gpt.runs import MODEL, rows, run, tiny
from tests.refused import check_refused
from tests.runs import Killed, at_step, final, kill

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def first(corpora: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A phase-1 run, whose best moment on what it does not train on is not its last."""
    folder = tmp_path_factory.mktemp("first")
    config = tiny(
        corpora,
        phases=[{"updates": 12, "mixture": {"low": 1}}],
        hooks=[],
        optimizer={"lr": 3e-2, "lr_min": 1e-3},
        evaluate={"every": "2 updates", "batches": 2},
        checkpoint={"every": "6 updates", "keep": 9, "best": "high/loss"},
    )
    run(config, folder)
    return folder


def second(corpora: dict[str, str], first: Path, checkpoint: str, **changes: Any) -> GPTConfig:
    """Return the config of a run that starts from a checkpoint of the first."""
    own: dict[str, Any] = {
        "phases": [{"updates": 4, "mixture": {"high": 1}}],
        "hooks": [],
        "seed": 8,
        "log": {"every": "1 updates"},
        "evaluate": {"every": "1 updates", "batches": 2},
        "start": {"run": str(first), "checkpoint": checkpoint},
    }
    return tiny(corpora, **(own | changes))


def tensors(path: Path) -> dict[str, torch.Tensor]:
    return checkpoint.load(path)[0]


def test_weights_and_initial_weights_are_those_of_the_checkpoint(
    corpora: dict[str, str], first: Path, tmp_path: Path
) -> None:
    by_loss = {value: at for at, value in rows(first, "eval/high/loss")}
    best = by_loss[min(by_loss)]
    assert 0 < best < 12
    names = {"newest": "step-12", "best": f"step-{best}" if best == 6 else f"best-{best}"}
    shutil.copytree(first, tmp_path / "seed-8")  # this run's seed
    for which in ("newest", "best", "step-6", "step-0"):
        name = names.get(which, which)
        saved = tensors(first / "checkpoints" / name)
        config = second(corpora, tmp_path / "seed-{seed}", which)
        trainer = GPTTrainer(config, CPU)
        network = trainer.networks["gpt"]
        for block in network.blocks:
            assert torch.equal(block.view, saved[network.qualified(block)]), which
            assert torch.equal(network.initial[block.name], saved[f"gpt.{block.name}@initial"])
        assert trainer.clock == Clock() and not trainer.updater.optimizers[0].state
        # what config.yaml will say
        assert (config.start.run, config.start.checkpoint) == (str(tmp_path / "seed-8"), name)


def test_hook_at_the_start_edits_what_was_loaded(
    corpora: dict[str, str], first: Path, tmp_path: Path
) -> None:
    hooks = [{"method": "shrink_perturb", "at": "0%", "params": {"coef": 0.25, "init": "stored"}}]
    config = second(corpora, first, "newest", hooks=hooks, total="1 updates")
    run(config, tmp_path)
    start = tensors(tmp_path / "checkpoints" / "step-0")
    saved = tensors(first / "checkpoints" / "step-12")
    name = "gpt.h.0.mlp.c_fc.weight"
    assert torch.equal(start[name], saved[name])  # saved before the hook
    (receipt,) = final(tmp_path)["receipts"]
    moved = sum(
        (saved[n] - saved[f"{n}@initial"]).double().square().sum().item()
        for n in saved
        if n.startswith("gpt.") and "@" not in n and ":" not in n
    )
    assert receipt["sfe"] == pytest.approx(0.25**2 * moved, rel=1e-4)


def test_resume_does_not_need_the_run_it_started_from_unless_there_is_no_checkpoint(
    corpora: dict[str, str], first: Path, tmp_path: Path
) -> None:
    shutil.copytree(first, tmp_path / "first")
    config = second(corpora, tmp_path / "first", "best")
    api.train(config, tmp_path / "through")
    run = tmp_path / "run"
    api.train(config, run)
    shutil.rmtree(run / "checkpoints")  # killed before the first one
    info = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(info | {"status": "running"}))
    with pytest.raises(Killed):
        api.resume(run, observer=at_step(3, kill))
    shutil.rmtree(tmp_path / "first")
    api.resume(run)
    assert final(run) == final(tmp_path / "through")


def test_models_runs_and_checkpoints_that_do_not_fit_are_refused(
    corpora: dict[str, str], first: Path, tmp_path: Path
) -> None:
    models = [
        ({"context": 4}, "gpt.wpe.weight has shape (8, 16), this run's (4, 16)"),
        ({"layers": 3}, "gpt.h.2.attn.c_attn.k.weight has shape None, this run's (16, 16)"),
        ({"layers": 1}, "gpt.h.1.attn.c_attn.k.weight has shape (16, 16), this run's None"),
    ]
    newest = partial(second, corpora, first, "newest")
    check_refused(lambda own: GPTTrainer(newest(model=MODEL | own), CPU), models)
    damaged = tmp_path / "first"
    shutil.copytree(first, damaged)
    (damaged / "checkpoints" / "best.json").unlink()
    (damaged / "checkpoints" / "step-6" / "tensors.safetensors").write_bytes(b"")
    start = lambda where: GPTTrainer(second(corpora, *where), CPU)  # noqa: E731
    runs = [
        ((tmp_path, "newest"), "is no run's folder"),
        ((first, "step-7"), "start.checkpoint = 'step-7'"),
        ((damaged, "best"), "has no best checkpoint"),
    ]
    check_refused(start, runs)
    check_refused(start, [((damaged, "step-6"), "step-6/tensors.safetensors")], DamagedFile)


def test_gpt2_of_hugging_face_is_a_start_whose_initial_weights_are_its_own(
    corpora: dict[str, str], first: Path, tmp_path: Path
) -> None:
    trained = GPTTrainer(second(corpora, first, "newest"), CPU)
    save_gpt2(trained.gpt, tmp_path / "hf")
    start = {"huggingface": str(tmp_path / "hf")}
    trainer = GPTTrainer(second(corpora, first, "", start=start), CPU)
    network = trainer.networks["gpt"]
    for block, other in zip(network.blocks, trained.networks["gpt"].blocks, strict=True):
        assert torch.equal(block.view, other.view)
        assert torch.equal(network.initial[block.name], other.view)
    for key, theirs, ours in (("heads", 2, 4), ("gelu", "tanh", "exact")):
        wrong = second(corpora, first, "", model=MODEL | {key: ours}, start=start)
        with pytest.raises(ConfigError, match=rf"model\.{key} = {theirs}"):
            GPTTrainer(wrong, CPU)
