"""The first weights of a run: from another run, or from a GPT-2 of Hugging Face's."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlplast.core.errors import ConfigError
from rlplast.core.network.blocks import Block
from rlplast.core.network.network import Network
from rlplast.gpt.config import StartConfig
from rlplast.gpt.huggingface import load_gpt2
from rlplast.gpt.model import GPTModelConfig
from rlplast.training import checkpoint
from rlplast.training.best import find_checkpoint
from rlplast.training.config import read_yaml

__all__ = ["start"]


def start(network: Network, config: StartConfig, model: GPTModelConfig) -> StartConfig:
    """Copy the first weights into an initialised network, in place, if the config names a source.

    Returns:
        The config with the name of the checkpoint for ``newest`` or ``best``.

    Raises:
        ConfigError: if there is no such run or checkpoint, or its model is another one, naming the
            first tensor that differs.
        DamagedFile: if the checkpoint is damaged.
    """
    if config.huggingface is not None:
        _from_huggingface(network, Path(config.huggingface), model)
    if config.run is None:
        return config
    path = find_checkpoint(Path(config.run), config.checkpoint, "start.checkpoint")
    file = Path(config.run) / "config.yaml"
    sizes = {"gelu": "tanh", **read_yaml(file).get("model", {})} if file.is_file() else {}
    _check_sizes(f"start.run = {config.run!r}", sizes, model)
    tensors, _ = checkpoint.load(path)
    weights = {n: t for n, t in tensors.items() if n.startswith("gpt.") and ":" not in n}
    names = {network.qualified(block): block for block in network.blocks}
    _check(weights, names, f"start.run = {config.run!r}, {path.name}")
    with torch.no_grad():
        for name, block in names.items():
            if name in weights:  # all but layers that this run swapped in
                block.view.copy_(weights[name])
                network.initial[block.name].copy_(weights[f"{name}@initial"])
    return replace(config, checkpoint=path.name)


def _check_sizes(source: str, sizes: Mapping[str, Any], model: GPTModelConfig) -> None:
    """Compare the sizes of a model with those of this run's; heads and GELU have no shape."""
    for key in ("layers", "heads", "width", "context", "vocab_size", "bias", "gelu"):
        if key in sizes and sizes[key] != getattr(model, key):
            raise ConfigError(
                f"{source} has model.{key} = {sizes[key]}: allowed is the same, not "
                f"{getattr(model, key)}"
            )


def _check(weights: Mapping[str, Tensor], names: Mapping[str, Block], source: str) -> None:
    known = {name: tuple(t.shape) for name, t in weights.items() if not name.endswith("@initial")}
    own = {
        name: tuple(block.view.shape)
        for name, block in names.items()
        if name in known or block.kind != "lifecycle"
    }
    for name in sorted(known.keys() | own.keys()):
        if known.get(name) != own.get(name):
            raise ConfigError(
                f"{source}: tensor {name} has shape {known.get(name)}, this run's {own.get(name)} "
                "(None is absent): allowed is the same model: and layers: as in that run's "
                "config.yaml"
            )


def _from_huggingface(network: Network, folder: Path, model: GPTModelConfig) -> None:
    """Take weights, which become θ0 as well: theirs is not known."""
    sizes, tensors = load_gpt2(folder, vocab_size=model.vocab_size, bias=model.bias)
    _check_sizes(f"start.huggingface = {str(folder)!r}", vars(sizes), model)
    network.module.load_state_dict(tensors, strict=False)  # layers swapped in keep their buffers
    for block in network.blocks:
        network.initial[block.name].copy_(block.view)
