import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from rlplast.core.checkpoint import checkpoint
from rlplast.core.clock import Clock
from rlplast.core.errors import ConfigError, DamagedFile
from rlplast.gpt.config import GPTConfig
from rlplast.gpt.huggingface import save_gpt2
from rlplast.gpt.trainer import GPTTrainer
from tests.gpt.runs import rows, run, tiny, write_corpora
from tests.runs import Killed, at_step, final

CPU = torch.device("cpu")
MODEL = {"layers": 2, "heads": 2, "width": 16, "context": 8, "vocab_size": 256}


@pytest.fixture(autouse=True)
def no_disk_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting for the disk would take most of the time."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return write_corpora(tmp_path_factory.mktemp("corpora"))


@pytest.fixture(scope="module")
def first(corpora: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A phase-1 run, whose best moment on what it does not train on is not its last."""
    folder = tmp_path_factory.mktemp("first")
    run(
        tiny(
            corpora,
            phases=[{"updates": 12, "mixture": {"low": 1}}],
            hooks=[],
            optimizer={"lr": 3e-2, "lr_min": 1e-3},
            evaluate={"every": "2 updates", "batches": 2},
            checkpoint={"every": "6 updates", "keep": 9, "best": "high/loss"},
        ),
        folder,
    )
    return folder


def second(corpora: dict[str, str], **changes: Any) -> GPTConfig:
    own: dict[str, Any] = {
        "phases": [{"updates": 4, "mixture": {"high": 1}}],
        "hooks": [],
        "seed": 8,
        "log": {"every": "1 updates"},
        "evaluate": {"every": "1 updates", "batches": 2},
    }
    return tiny(corpora, **(own | changes))


def tensors(path: Path) -> dict[str, torch.Tensor]:
    return checkpoint.load(path)[0]


def best_name(first: Path) -> str:
    by_loss = {value: at for at, value in rows(first, "eval/high/loss")}
    at = by_loss[min(by_loss)]
    assert 0 < at < 12
    return f"step-{at}" if at == 6 else f"best-{at}"


@pytest.mark.parametrize("which", ["newest", "best", "step-6", "step-0"])
def test_weights_and_initial_weights_are_those_of_the_checkpoint(
    which: str, corpora: dict[str, str], first: Path
) -> None:
    name = {"newest": "step-12", "best": best_name(first)}.get(which, which)
    saved = tensors(first / "checkpoints" / name)
    config = second(corpora, start={"run": str(first), "checkpoint": which})
    trainer = GPTTrainer(config, CPU)
    network = trainer.networks["gpt"]
    for block in network.blocks:
        assert torch.equal(block.view, saved[network.qualified(block)])
        assert torch.equal(network.initial[block.name], saved[f"gpt.{block.name}@initial"])
    assert trainer.clock == Clock() and not trainer.updater.optimizers[0].state
    assert config.start.checkpoint == name  # what config.yaml will say


def test_hook_at_the_start_edits_what_was_loaded(
    corpora: dict[str, str], first: Path, tmp_path: Path
) -> None:
    hooks = [{"method": "shrink_perturb", "at": "0%", "params": {"coef": 0.25, "init": "stored"}}]
    config = second(corpora, hooks=hooks, start={"run": str(first)}, total="1 updates")
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


def test_training_goes_on_from_where_the_first_run_was(
    corpora: dict[str, str], first: Path, tmp_path: Path
) -> None:
    begun = GPTTrainer(second(corpora, start={"run": str(first)}), CPU)
    low = dict(rows(first, "eval/low/loss"))[12]
    assert begun.evaluate(0, 0)["low/loss"] == pytest.approx(low, abs=1e-6)
    assert GPTTrainer(second(corpora), CPU).evaluate(0, 0)["low/loss"] > low + 0.3


def test_resume_does_not_need_the_run_it_started_from(
    corpora: dict[str, str], first: Path, tmp_path: Path
) -> None:
    config = second(corpora, start={"run": str(first), "checkpoint": "best"})
    run(config, tmp_path / "through")
    shutil.copytree(first, tmp_path / "first")
    config = second(corpora, start={"run": str(tmp_path / "first"), "checkpoint": "best"})

    def kill() -> None:
        raise Killed

    with pytest.raises(Killed):
        run(config, tmp_path / "run", at_step(3, kill))
    shutil.rmtree(tmp_path / "first")
    run(config, tmp_path / "run")
    assert final(tmp_path / "run") == final(tmp_path / "through")


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            {"width": 8},
            r"gpt\.wte\.weight is of shape \(256, 16\), this run's is of shape \(256, 8",
        ),
        (
            {"context": 4},
            r"gpt\.wpe\.weight is of shape \(8, 16\), this run's is of shape \(4, 16\)",
        ),
        ({"layers": 3}, r"gpt\.h\.2\.ln_1\.weight is absent"),
        ({"layers": 1}, r"has gpt\.h\.1\.attn\.c_attn\.k\.weight, 8 tensors in all"),
        ({"bias": True}, r"gpt\.h\.0\.ln_1\.bias is absent"),
    ],
    ids=str,
)
def test_another_model_is_refused_by_the_first_tensor_that_differs(
    model: dict[str, Any], message: str, corpora: dict[str, str], first: Path
) -> None:
    config = second(corpora, model=MODEL | model, start={"run": str(first)})
    with pytest.raises(ConfigError, match=message + r".*model: and layers:"):
        GPTTrainer(config, CPU)


def test_runs_and_checkpoints_that_are_not_there_are_refused(
    corpora: dict[str, str], first: Path, tmp_path: Path
) -> None:
    for start, message in (
        ({"run": str(tmp_path)}, r"is no run's folder: it has no checkpoints"),
        ({"run": str(first), "checkpoint": "step-7"}, r"start\.checkpoint = 'step-7' is not in"),
    ):
        with pytest.raises(ConfigError, match=message):
            GPTTrainer(second(corpora, start=start), CPU)
    shutil.copytree(first, tmp_path / "first")
    (tmp_path / "first" / "checkpoints" / "best.json").unlink()
    with pytest.raises(ConfigError, match="has no best checkpoint"):
        GPTTrainer(
            second(corpora, start={"run": str(tmp_path / "first"), "checkpoint": "best"}), CPU
        )
    (tmp_path / "first" / "checkpoints" / "step-6" / "tensors.safetensors").write_bytes(b"")
    with pytest.raises(DamagedFile, match=r"step-6/tensors\.safetensors has 0 bytes"):
        GPTTrainer(
            second(corpora, start={"run": str(tmp_path / "first"), "checkpoint": "step-6"}), CPU
        )


def test_gpt2_of_hugging_face_is_a_start_whose_initial_weights_are_its_own(
    corpora: dict[str, str], first: Path, tmp_path: Path
) -> None:
    trained = GPTTrainer(second(corpora, start={"run": str(first)}), CPU)
    save_gpt2(trained.gpt, tmp_path / "hf")
    trainer = GPTTrainer(second(corpora, start={"huggingface": str(tmp_path / "hf")}), CPU)
    network = trainer.networks["gpt"]
    for block, other in zip(network.blocks, trained.networks["gpt"].blocks, strict=True):
        assert torch.equal(block.view, other.view)
        assert torch.equal(network.initial[block.name], other.view)
    wrong = second(corpora, model=MODEL | {"heads": 4}, start={"huggingface": str(tmp_path / "hf")})
    with pytest.raises(ConfigError, match=r"has heads 2: allowed is model\.heads = 2, not 4"):
        GPTTrainer(wrong, CPU)
