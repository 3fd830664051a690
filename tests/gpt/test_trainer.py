import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from rlplast.core.clock import Clock
from rlplast.core.errors import ConfigError
from rlplast.core.network.network import Network
from rlplast.core.rng import numpy_stream, torch_stream
from rlplast.gpt.config import GPTConfig
from rlplast.gpt.model import GPT
from rlplast.gpt.trainer import GPTTrainer
from rlplast.run.build import build_trainable
from tests.gpt.runs import MODEL, rows, run, tiny, write_corpus
from tests.refused import check_refused
from tests.runs import final

CPU = torch.device("cpu")


def steps(config: GPTConfig, number: int) -> GPTTrainer:
    trainer = GPTTrainer(config, CPU)
    for _ in range(number):
        trainer.step()
    return trainer


def weights(trainer: GPTTrainer) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in trainer.gpt.state_dict().items()}


def assert_close(mine: dict[str, Any], theirs: dict[str, Any], atol: float = 1e-6) -> None:
    assert mine.keys() == theirs.keys()
    for name, value in theirs.items():
        torch.testing.assert_close(mine[name], value, rtol=0, atol=atol, msg=name)


# The update.


def cosine(done: int, length: int, low: float, high: float) -> float:
    warm = max(1, length // 10)
    if done < warm:
        return high * (done + 1) / (warm + 1)
    return low + 0.5 * (high - low) * (1 + math.cos(math.pi * (done - warm) / (length - warm)))


def by_hand(folders: dict[str, str]) -> tuple[GPT, list[float]]:
    """Train as `tiny` says, without hooks, in a plain loop; a new optimizer per phase."""
    config = tiny(folders)
    gpt = GPT(config.model)
    Network("gpt", gpt).initialise(torch_stream(3, "init", "gpt"))
    rng, losses = numpy_stream(3, "data"), []
    tokens = {name: np.fromfile(f"{path}/train.bin", "<u2") for name, path in folders.items()}
    for shares in ({"low": 1.0}, {"high": 9 / 9.1, "low": 0.1 / 9.1}):
        matrices = [p for p in gpt.parameters() if p.ndim > 1]
        vectors = [p for p in gpt.parameters() if p.ndim == 1]
        groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors}]
        optimizer = torch.optim.AdamW(groups, lr=1.0, betas=(0.9, 0.95), weight_decay=0.0)
        for done in range(10):
            for group in optimizer.param_groups:
                group["lr"] = cosine(done, 10, 1e-3, 1e-2)
            pick, place = rng.random((2, 8))
            names = ["low" if len(shares) == 1 or p >= 9 / 9.1 else "high" for p in pick]
            starts = [int(p * (len(tokens[n]) - 8)) for n, p in zip(names, place, strict=True)]
            batch = np.stack([tokens[n][i : i + 9] for n, i in zip(names, starts, strict=True)])
            x = torch.from_numpy(batch.astype(np.int64))
            optimizer.zero_grad()
            loss = F.cross_entropy(gpt(x[:, :-1]).reshape(-1, 256), x[:, 1:].reshape(-1))
            loss.backward()
            norm = math.sqrt(sum(float(p.grad.square().sum()) for p in gpt.parameters()))  # type: ignore
            for p in gpt.parameters():
                p.grad *= min(1.0, 1 / (norm + 1e-6))  # type: ignore
            optimizer.step()
            losses.append(loss.item())
    return gpt, losses


def test_run_is_that_of_a_plain_loop(corpora: dict[str, str], tmp_path: Path) -> None:
    gpt, losses = by_hand(corpora)
    trainer = run(tiny(corpora, hooks=[], log={"every": "1 updates"}), tmp_path)
    assert_close(weights(trainer), gpt.state_dict(), atol=2e-4)
    logged = [value for _, value in rows(tmp_path, "train/loss")]
    assert logged == pytest.approx(losses, abs=1e-5)
    assert min(losses[:10]) < losses[0] - 0.2
    rates = [value for _, value in rows(tmp_path, "train/lr")]
    assert rates == pytest.approx([cosine(i, 10, 1e-3, 1e-2) for i in range(10)] * 2)


def test_micro_batches_add_up_to_the_same_update(corpora: dict[str, str]) -> None:
    penalties = [{"method": "l2", "params": {"coef": 0.1}}]
    whole = steps(tiny(corpora, hooks=[], penalties=penalties), 6)
    split = steps(tiny(corpora, hooks=[], penalties=penalties, micro_batch=2), 6)
    assert_close(weights(split), weights(whole), atol=1e-5)
    mine, theirs = split.metrics(), whole.metrics()
    assert mine == pytest.approx(theirs, abs=1e-5)
    assert mine["train/penalty"] > 0


def test_a_penalty_is_in_the_updates_of_its_tokens_and_not_in_the_logged_loss(
    corpora: dict[str, str],
) -> None:
    row = {"method": "l2", "params": {"coef": 0.5}}
    without = steps(tiny(corpora, hooks=[]), 1)
    loss = without.metrics()["train/loss"]
    tokens = 8 * MODEL["context"]
    for until, expected in ((3 * tokens, 3), (3 * tokens - 1, 2)):
        penalties = [row | {"until": f"{until} tokens"}]
        trainer = steps(tiny(corpora, hooks=[], penalties=penalties), 0)
        found = []
        for number in range(5):
            trainer.step()
            metrics = trainer.metrics()
            found.append(metrics["train/penalty"] > 0)
            if not number:
                assert metrics["train/loss"] == loss
                assert not torch.equal(trainer.gpt.wte.weight, without.gpt.wte.weight)
        assert found == [True] * expected + [False] * (5 - expected)


def test_bf16_follows_fp32_roughly(corpora: dict[str, str]) -> None:
    low = steps(tiny(corpora, hooks=[], precision="bf16"), 5)
    full = steps(tiny(corpora, hooks=[]), 5)
    assert low.metrics()["train/loss"] == pytest.approx(full.metrics()["train/loss"], abs=0.02)
    assert low.gpt.wte.weight.dtype == torch.float32
    assert not torch.equal(low.gpt.wte.weight, full.gpt.wte.weight)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")  # torch's own import
def test_compiled_updates_equal_eager_ones(corpora: dict[str, str]) -> None:
    small: dict[str, Any] = {"hooks": [], "model": MODEL | {"layers": 1}}
    compiled = steps(tiny(corpora, accelerate="compile", **small), 4)
    assert_close(weights(compiled), weights(steps(tiny(corpora, **small), 4)), atol=1e-5)


# Phases.


def test_start_of_a_phase_is_a_step_that_renews_the_optimizer_and_nothing_else(
    corpora: dict[str, str],
) -> None:
    trainer = steps(tiny(corpora), 10)
    before, stream = weights(trainer), trainer.streams.state_dict()
    moments = [s["exp_avg"] for s in trainer.updater.optimizers[0].state.values()]
    assert all(m.abs().sum() > 0 for m in moments)
    trainer.step()
    assert trainer.clock == Clock(updates=10, tokens=640, phase=1)
    assert_close(weights(trainer), before, atol=0)
    assert trainer.streams.state_dict()["numpy"] == stream["numpy"]
    assert all(m.abs().sum() == 0 for m in moments)  # the same tensors
    assert all(s["step"] == 0 for s in trainer.updater.optimizers[0].state.values())
    trainer.step()
    assert trainer.clock == Clock(updates=11, tokens=704, phase=1)
    kept = steps(tiny(corpora, optimizer={"renew": False}), 11)
    assert all(s["step"] == 10 for s in kept.updater.optimizers[0].state.values())


def test_evaluation_of_a_phase_comes_before_the_hooks_of_the_next(
    corpora: dict[str, str], tmp_path: Path
) -> None:
    hooks = [
        {"method": "full_reset", "on": "phase_start", "params": {"init": "stored"}},
        {"method": "full_reset", "at": "phase 1", "params": {"init": "stored"}},
    ]
    fresh = GPTTrainer(tiny(corpora), CPU).evaluate(0, 0)
    often = {"every": "1 updates", "batches": 2}
    run(tiny(corpora, hooks=hooks, evaluate=often), tmp_path)
    none = tmp_path / "none"
    shorter = run(tiny(corpora, hooks=[], total="10 updates", evaluate=often), none)
    assert shorter.clock == Clock(updates=10, tokens=640)  # it ends before the next phase
    with_reset, without = (dict(rows(path, "eval/low/loss")) for path in (tmp_path, none))
    assert [with_reset[i] for i in range(1, 11)] == [without[i] for i in range(1, 11)]
    assert with_reset[10] < fresh["low/loss"] - 0.3
    assert with_reset[11] > with_reset[10] + 0.1  # one update after θ0
    receipts = final(tmp_path)["receipts"]
    assert [(r["method"], r["clock"]) for r in receipts] == [
        ("full_reset", {"updates": 10, "tokens": 640, "phase": 1})
    ] * 2


# What is measured.


def test_evaluation_is_the_mean_over_all_windows_of_every_corpus(corpora: dict[str, str]) -> None:
    trainer = steps(tiny(corpora, evaluate={"batches": 100}, micro_batch=1), 12)
    scores = trainer.evaluate(0, 0)
    for name, folder in corpora.items():
        tokens = np.fromfile(f"{folder}/validation.bin", "<u2").astype(np.int64)
        losses = []
        for start in range(0, len(tokens) - 8, 8):
            x = torch.from_numpy(tokens[start : start + 9])[None]
            with torch.no_grad():
                logits = trainer.gpt(x[:, :-1]).double()
            losses.append(F.cross_entropy(logits[0], x[0, 1:]).item())
        assert scores[f"{name}/loss"] == pytest.approx(np.mean(losses), abs=1e-5)
    mixed = (9 * scores["high/loss"] + 0.1 * scores["low/loss"]) / 9.1
    assert scores["loss"] == pytest.approx(mixed)
    assert list(scores) == ["low/loss", "high/loss", "loss"]


def test_evaluations_and_probes_are_the_same_every_time(corpora: dict[str, str]) -> None:
    trainer = steps(tiny(corpora, model=MODEL | {"layers": 1, "width": 8, "dropout": 0.5}), 3)
    assert trainer.evaluate(0, 1) == trainer.evaluate(1, 2)
    samples = [trainer.sample(5, number) for number in (7, 7, 8)]
    batches = [next(trainer.batches(1, 5, number)) for number in (7, 7, 8)]
    for one, again, other in (samples, batches):
        assert one.shape == (5, 9)
        assert torch.equal(one, again) and not torch.equal(one, other)
    assert trainer.activations("gpt", samples[0])["h.0.mlp.c_fc"].shape == (40, 32)


# What does not fit.


def test_what_does_not_fit_is_refused(
    corpora: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_corpus(tmp_path / "other", np.arange(200), tokenizer="gpt2")
    short = {"total": "10 updates"}  # ends before the second phase
    rows: list[tuple[dict[str, Any], str]] = [
        ({"precision": "fp16"}, "precision = 'fp16' on cpu"),
        ({"micro_batch": 3}, "micro_batch = 3: allowed is a divisor of 8"),
        ({"corpora": {"low": "nowhere", "high": "nowhere"}}, "nowhere does not exist"),
        ({"corpora": corpora | {"other": str(tmp_path / "other")}}, "different tokenizers"),
        ({"model": {"vocab_size": 200}}, "model.vocab_size of at least 256"),
        ({"model": {"context": 5000, "vocab_size": 256}}, "lower model.context"),
        ({"layers": [{"method": "lifecycle", "networks": ["q"]}]}, "layers[0]"),
        (short | {"hooks": [{"method": "fire", "on": "phase_start"}]}, "never be due"),
        (short | {"hooks": [{"method": "fire", "at": "phase 1"}]}, "past the end"),
    ]
    check_refused(lambda changes: run(tiny(corpora, **changes), tmp_path / "run"), rows)
    for name, value in (("TORCHELASTIC_RUN_ID", "x"), ("WORLD_SIZE", "3"), ("RANK", "0")):
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=r"batch_size = 8 with 3 processes"):
        build_trainable(tiny(corpora))


@pytest.mark.gpu
def test_fp16_scales_gradients_and_saves_the_scale(corpora: dict[str, str]) -> None:
    config = tiny(corpora, precision="fp16", device="cuda")
    trainer = GPTTrainer(config, torch.device("cuda"))
    for _ in range(8):
        trainer.step()
    state = trainer.state_dict()
    assert state["scaler"]["scale"] > 1
    assert trainer.metrics()["train/loss"] < math.log(256) + 0.1
    other = GPTTrainer(config, torch.device("cuda"))
    other.load_state_dict(state)
    assert other.scaler.state_dict() == state["scaler"]
