"""Hooks in the Hugging Face Trainer: a small GPT-2 on made-up text, resumed from a checkpoint.

Run it with ``python docs/examples/hf_trainer_hooks.py``; it takes a few seconds and loads nothing.
"""

import tempfile
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from rlplast.adapters.hf_trainer import HookCallback

HOOKS = [
    {"method": "shrink_perturb", "at": "50%", "params": {"coef": 0.5}},
    {"method": "full_reset", "at": "75%"},  # by GPT-2's own initializer
]


def texts() -> list[dict[str, torch.Tensor]]:
    """Return 64 sequences that count upwards."""
    tokens = [(torch.arange(16) + start) % 50 for start in range(64)]
    return [{"input_ids": row, "labels": row} for row in tokens]


def model() -> GPT2LMHeadModel:
    """Return a GPT-2 of one block; the same at each call."""
    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=1,
        n_embd=32,
        n_head=2,
        vocab_size=50,
        n_positions=16,
        bos_token_id=0,
        eos_token_id=0,
    )
    return GPT2LMHeadModel(config)


def trainer(folder: Path, gpt: GPT2LMHeadModel) -> tuple[Trainer, HookCallback]:
    """Return a Trainer of 24 updates with hooks; an update is two batches."""
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=24,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        learning_rate=1e-2,
        save_steps=8,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    callback = HookCallback(HOOKS, receipts=folder / "receipts.jsonl")
    return Trainer(gpt, arguments, train_dataset=texts(), callbacks=[callback]), callback


def main() -> None:
    """Train, then go on from the checkpoint of update 8 as if it had been stopped there."""
    folder = Path(tempfile.mkdtemp())
    whole, resumed = model(), model()
    trainer(folder, whole)[0].train()
    second, callback = trainer(folder, resumed)
    second.train(resume_from_checkpoint=str(folder / "checkpoint-8"))
    for receipt in callback.receipts:
        norms = f"{receipt.norm_before:.2f} -> {receipt.norm_after:.2f}"
        print(f"{receipt.method:14} update {receipt.clock.updates} norm {norms}")
    pairs = zip(whole.parameters(), resumed.parameters(), strict=True)
    print("resumed equals uninterrupted:", all(torch.equal(a, b) for a, b in pairs))


if __name__ == "__main__":
    main()
