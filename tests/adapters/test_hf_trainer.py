"""Hooks in the Hugging Face Trainer: what only it has; see test_trainers.py for the rest."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, TrainerCallback, TrainerState

from rlplast.adapters.hf_trainer import HookCallback
from rlplast.core.errors import ConfigError
from tests.adapters.hosts import UPDATES, Fit, WithLoss, hf_trainer, hook_callback, rows, same
from tests.adapters.test_trainers import HOOKS, RESET, small


def hooked(folder: Path, **options: Any) -> tuple[Fit, HookCallback]:
    callback = hook_callback("hf", HOOKS, receipts=folder / "receipts.jsonl", seed=2)
    return Fit("hf", folder, small(), callback, save=True, **options), callback


def test_checkpoint_elsewhere_is_loaded_by_hand(tmp_path: Path):
    folder = tmp_path / "run"
    whole = hooked(folder)[0].train()
    moved = tmp_path / "moved"
    shutil.move(folder / "checkpoint-16", moved)
    (folder / "receipts.jsonl").rename(tmp_path / "receipts.jsonl")
    fit, _ = hooked(tmp_path)
    with pytest.raises(ConfigError, match="load"):
        fit.trainer.train(resume_from_checkpoint=str(moved))
    fit, callback = hooked(tmp_path)
    callback.load(moved / "rlplast")
    fit.trainer.train(resume_from_checkpoint=str(moved))
    assert same(whole.state(), fit.state())


class Endless(torch.utils.data.IterableDataset[Any]):
    def __iter__(self) -> Any:
        yield from rows(64)


def test_epochs_are_refused_where_data_have_no_length(tmp_path: Path):
    def trained(due: str) -> HookCallback:
        callback = HookCallback([RESET | {"every": due}])
        trainer = hf_trainer(tmp_path, WithLoss(small()), [callback])
        trainer.train_dataset = Endless()
        trainer.train()
        return callback

    with pytest.raises(ConfigError, match="counts epochs"):
        trained("1 epochs")
    found = trained("12 updates")
    assert [r.clock.updates for r in found.receipts] == [12]  # in the second pass


def test_extending_a_run_moves_nothing_that_was_scheduled(tmp_path: Path):
    for total, resume in ((UPDATES, None), (24, str(tmp_path / "checkpoint-8"))):
        callback = HookCallback([RESET | {"at": "75%"}])
        fit = Fit("hf", tmp_path, small(), callback, save=True, max_steps=total)
        fit.trainer.train(resume_from_checkpoint=resume)
        assert [r.clock.updates for r in callback.receipts] == [15]


def test_networks_name_parts_and_followers(tmp_path: Path):
    model = WithLoss(small())
    model.target = small().requires_grad_(False)
    hooks = [RESET | {"at": "50%", "networks": ["body"]}]
    callback = HookCallback(hooks, networks={"body": ["net", "target"]})
    hf_trainer(tmp_path, model, [callback]).train()
    assert [r.followers for r in callback.receipts] == [{"target": "copy"}]


def test_what_is_attached_wrongly_is_refused(tmp_path: Path):
    for callbacks, words in (
        ([HookCallback([]), HookCallback([])], "two HookCallbacks"),
        ([HookCallback([], networks={"body": "nets"})], r"networks\['body'\] = 'nets'"),
    ):
        with pytest.raises(ConfigError, match=words):
            hf_trainer(tmp_path, WithLoss(small()), callbacks).train()
    with pytest.raises(ConfigError, match="transformers Trainer"):
        HookCallback([]).on_train_begin(None, None, None)


def test_pretrained_class_is_reset_by_its_own_law():
    sizes: dict[str, Any] = {
        "n_layer": 2,
        "n_embd": 64,
        "n_head": 2,
        "vocab_size": 300,
        "n_positions": 32,
    }
    model = GPT2LMHeadModel(GPT2Config(**sizes, attn_pdrop=0.0, initializer_range=0.05))
    before = {k: v.clone() for k, v in model.state_dict().items()}
    optimizer = torch.optim.AdamW(model.parameters())
    callback, state = HookCallback([RESET | {"at": "50%"}]), TrainerState(max_steps=2)
    state.num_train_epochs = 1
    callback.on_train_begin(None, state, None, model=model, optimizer=optimizer)
    generators = torch.get_rng_state().clone()
    optimizer.step()
    (receipt,) = callback.receipts
    assert torch.equal(torch.get_rng_state(), generators)
    after = model.state_dict()
    assert after["lm_head.weight"].data_ptr() == after["transformer.wte.weight"].data_ptr()
    for name, std in {
        "transformer.wte.weight": 0.05,
        "transformer.h.1.mlp.c_fc.weight": 0.05,
        "transformer.h.1.mlp.c_proj.weight": 0.05 / 2,  # √(2·2 layers)
        "transformer.h.0.attn.c_proj.weight": 0.05 / 2,
    }.items():
        assert not torch.equal(after[name], before[name])
        assert float(after[name].std()) == pytest.approx(std, rel=0.05)
    assert (after["transformer.ln_f.weight"] == 1).all()
    assert not after["transformer.h.0.mlp.c_fc.bias"].any()
    assert receipt.entries_touched == sum(p.numel() for p in model.parameters())


class WithLora(torch.nn.Module):
    """A frozen layer and an adapter beside it, as PEFT puts into a pretrained model."""

    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__()
        self.base, self.lora_A = layer, torch.nn.Linear(64, 4, bias=False)
        self.lora_B = torch.nn.Linear(4, 256, bias=False)
        torch.nn.init.zeros_(self.lora_B.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.lora_B(self.lora_A(x))


def test_adapters_in_a_pretrained_model_do_not_begin_as_its_layers_do(tmp_path: Path):
    sizes: dict[str, Any] = {
        "n_layer": 1,
        "n_embd": 64,
        "n_head": 2,
        "vocab_size": 10,
        "n_positions": 64,
    }
    model = GPT2LMHeadModel(GPT2Config(**sizes, initializer_range=0.9)).requires_grad_(False)
    mlp: Any = model.transformer.h[0].mlp
    mlp.c_fc = WithLora(mlp.c_fc)
    optimizer = torch.optim.SGD(mlp.parameters(), lr=0.1)
    callback, state = HookCallback([RESET | {"at": "2 updates"}]), TrainerState(max_steps=4)
    state.num_train_epochs = 1
    callback.on_train_begin(None, state, None, model=model, optimizer=optimizer)
    tokens, before = torch.arange(10)[None], mlp.c_fc.lora_A.weight.detach().clone()
    for _ in range(2):
        assert mlp.c_fc.lora_B.weight.any() == (callback.driver.clock.updates == 1)
        model(tokens, labels=tokens).loss.backward()
        optimizer.step()
    assert len(callback.receipts) == 1
    assert not mlp.c_fc.lora_B.weight.any()  # it changes nothing, as at the start
    assert not torch.equal(mlp.c_fc.lora_A.weight, before)
    assert mlp.c_fc.lora_A.weight.abs().max() <= 1 / 8  # torch's law of 64 inputs


class NewInTheTrainer(TrainerCallback):
    def __init__(self) -> None:
        self.trainer: Any = None

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 3:
            self.trainer.optimizer = torch.optim.Adam(self.trainer.model.parameters(), lr=1e-3)


def test_an_optimizer_that_is_another_one_under_way_is_an_error(tmp_path: Path):
    other = NewInTheTrainer()
    callbacks = [HookCallback([RESET | {"at": "50%"}]), other]
    other.trainer = hf_trainer(tmp_path, WithLoss(small()), callbacks)
    with pytest.raises(ConfigError, match="another Adam than when training began"):
        other.trainer.train()
