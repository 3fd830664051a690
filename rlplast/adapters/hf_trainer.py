"""Hooks in the Hugging Face Trainer."""

import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rlplast.adapters.callback import DriverCallback
from rlplast.adapters.reading import LastBatch
from rlplast.adapters.trained import find_networks, raw_optimizer
from rlplast.core.clock import Clock
from rlplast.core.errors import ConfigError
from rlplast.core.network.blocks import Block, blocks_of, unwrap
from rlplast.core.network.network import DefaultInit, Init, torch_default
from rlplast.core.rng import preserve_global_rng

try:
    from transformers import PreTrainedModel
    from transformers.trainer_callback import TrainerCallback
    from transformers.trainer_utils import has_length
except ModuleNotFoundError as error:
    raise ConfigError(
        f"rlplast.adapters.hf_trainer needs transformers and accelerate ({error}): "
        'pip install "rlplast[hf]"'
    ) from error

__all__ = ["HookCallback"]

FOLDER = "rlplast"  # in each of the Trainer's checkpoints


class HookCallback(DriverCallback, TrainerCallback):
    """Fire a list of hooks while ``Trainer(..., callbacks=[HookCallback(hooks)]).train()`` runs.

    Each checkpoint of the Trainer gets a folder ``rlplast`` with θ0 and the hooks' state, which is
    read back by ``train(resume_from_checkpoint=...)`` if the checkpoint lies in ``output_dir``;
    for another place call `load` first.

    Args:
        hooks: the hook list of a run's config, or the path of a YAML file that holds one.
        total: the run's length, which percentages refer to; default: ``max_steps`` updates.
        seed: seed of the streams that firings draw from.
        receipts: a file to which each receipt is appended.
        networks: network name → path of a part of the model, or a list of that path and
            those of its followers; default: one network ``model`` of everything.
        probe: as of `rlplast.Hooks`: a batch, or (size, generator) → a batch, that scheduled
            hooks read; default: the last training batch.
        loss: as of `rlplast.Hooks`, batch → loss, for hooks that read gradients.

    Raises:
        ConfigError: if the list, the model or its optimizer is not supported; the latter two when
            training begins.
    """

    def on_train_begin(
        self,
        args: Any,
        state: Any,
        control: Any,
        model: Any = None,
        optimizer: Any = None,
        **kwargs: Any,
    ) -> None:
        """Take hold of model and optimizer; fire what is due at the start."""
        if not isinstance(model, nn.Module) or optimizer is None:
            raise ConfigError(
                "HookCallback of rlplast.adapters.hf_trainer got no model and optimizer: pass it "
                "as one of a transformers Trainer's callbacks"
            )
        if state.global_step > 0 and self.driver.loaded is None:
            self.load(_saved(args, state.global_step))
        # Only with a length does the Trainer know epochs; without, a schedule in them is refused.
        loader = kwargs.get("train_dataloader")
        counted: dict[str, Any] = {"epochs": int(state.epoch)} if has_length(loader) else {}
        raw, root = raw_optimizer(optimizer), unwrap(model)
        networks = find_networks(root, [raw], self.paths, lambda path: _initializer(root, path))
        self.driver.begin(
            networks,
            lambda: {raw: lambda: True},
            Clock(updates=state.max_steps, epochs=state.num_train_epochs),
            f"{state.max_steps} updates",
            fresh=state.global_step == 0,
            units=tuple(counted),
            training=state,  # a new one at each call of `train`
            source=LastBatch(networks, [k for k, n in networks.items() if n.module is root]),
            shards=max(1, getattr(args, "n_gpu", 1)),  # of nn.DataParallel
            optimizers=None,  # a callback does not get at the Trainer
            **counted,
        )

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Count the epochs that are done, and fire what is due by them."""
        if "epochs" in self.driver.units:
            self.driver.advance(epochs=int(state.epoch))

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Forget the passes of a step that was skipped; after one that was made there are none."""
        self.driver.drop_passes()

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Leave the summaries of every-update hooks."""
        self.driver.flush()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Save θ0 and the hooks' state in the Trainer's checkpoint."""
        if state.is_world_process_zero:
            self.save(Path(args.output_dir) / f"checkpoint-{state.global_step}" / FOLDER)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Leave the last summaries and let go of the optimizer."""
        self.driver.end()


def _saved(args: Any, step: int) -> Path:
    """Return where the hooks' state of the checkpoint lies that the Trainer goes on from."""
    given, newest = args.resume_from_checkpoint, Path(args.output_dir) / f"checkpoint-{step}"
    for place in (*([Path(given)] if isinstance(given, str) else []), newest):
        if (place / FOLDER).is_dir():
            return place / FOLDER
    raise ConfigError(
        f"no folder {FOLDER!r} with the hooks' state in {newest}: call "
        f"HookCallback.load(CHECKPOINT/{FOLDER}) before train(resume_from_checkpoint=CHECKPOINT)"
    )


def _initializer(root: nn.Module, path: str) -> Init | None:
    """Return the initializer of a pretrained model's class for its part at `path`."""
    if not isinstance(root, PreTrainedModel):
        return None
    # The class's code fills whole models. So a firing's first draw initialises a copy of the model,
    # of which the others of that firing are read.
    drawn: dict[str, Any] = {"generator": None}

    def init(block: Block, generator: torch.Generator) -> Tensor:
        if block.role == "buffer" or "lora_" in block.path:  # an adapter is not the class's
            return torch_default(block, generator)
        if drawn["generator"] is not generator:
            drawn["generator"] = generator
            drawn["blocks"] = _draw(root, path, generator)
        return drawn["blocks"][block.name]

    return DefaultInit(init)


def _draw(root: Any, path: str, generator: torch.Generator) -> dict[str, Tensor]:
    fresh = copy.deepcopy(root).to("cpu", torch.float32)
    for module in fresh.modules():
        module._is_hf_initialized = False
    with preserve_global_rng():
        torch.manual_seed(int(torch.randint(2**62, (), generator=generator)))
        fresh.initialize_weights()
    return {block.name: block.view for block in blocks_of(fresh.get_submodule(path))}
