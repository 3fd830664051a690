"""GPT-2 in Hugging Face's format: `model.safetensors` and `config.json`; nothing is unpickled.

Their linear layers are stored transposed, and all of them have biases.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from rlplast.core.errors import ConfigError, DamagedFile, RlplastError
from rlplast.core.network.blocks import unwrap
from rlplast.gpt.model import GPT, GPTModelConfig
from rlplast.training.files import fsync, whole
from rlplast.training.run_folder import write_json

__all__ = ["load_gpt2", "save_gpt2"]

WEIGHTS, CONFIG = "model.safetensors", "config.json"
PREFIX = "transformer."
MASKS = (".attn.bias", ".attn.masked_bias")  # buffers of old files; no biases
TRANSPOSED = (".c_attn.weight", ".c_proj.weight", ".c_fc.weight")
SIZES = {
    "layers": "n_layer",
    "heads": "n_head",
    "width": "n_embd",
    "context": "n_positions",
    "vocab_size": "vocab_size",
}
# Their name of an activation → `GPTModelConfig.gelu`; the first is what a missing key means.
GELUS: dict[str, Any] = {"gelu_new": "tanh", "gelu_pytorch_tanh": "tanh", "gelu": "exact"}
# What `GPT` computes; the first is what is written and what a missing key means.
FIXED: dict[str, tuple[Any, ...]] = {
    "model_type": ("gpt2",),
    "layer_norm_epsilon": (1e-5,),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "add_cross_attention": (False,),
    "tie_word_embeddings": (True,),
}


def load_gpt2(
    folder: str | Path, vocab_size: int | None = None, bias: bool = True
) -> tuple[GPTModelConfig, dict[str, Tensor]]:
    """Read a GPT-2 in Hugging Face's format.

    Args:
        folder: holds ``model.safetensors`` and ``config.json``.
        vocab_size: rows of the embedding, at least the file's; None for as many. Added rows are the
            mean of the others.
        bias: whether the model has biases. Without them those of the file must be zero.

    Returns:
        The config, without dropout, and float32 tensors for ``GPT(config).load_state_dict``.

    Raises:
        ConfigError: if a file is absent, or the model is another one than `GPT` can be.
        DamagedFile: if a file is cut, or tensors are missing, there twice, not finite, or of other
            shapes.
    """
    path = Path(folder) / WEIGHTS
    config = _read_config(Path(folder) / CONFIG)
    tensors = _read_tensors(path)
    _drop_head(tensors, str(path))
    _check_shapes(tensors, config, path)
    if not bias:
        tensors = _without_biases(tensors, path)
        config.bias = False
    if vocab_size is not None:
        tensors["wte.weight"] = _padded(tensors["wte.weight"], vocab_size, path)
        config.vocab_size = vocab_size
    return config, tensors | {"lm_head.weight": tensors["wte.weight"]}


def _read_config(path: Path) -> GPTModelConfig:
    if not path.is_file():
        raise ConfigError(f"{path} does not exist: name a folder with a GPT-2 of transformers")
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
        sizes = {key: int(about[name]) for key, name in SIZES.items()}
    except (OSError, ValueError, TypeError, LookupError) as error:
        raise DamagedFile(f"{path} cannot be read as a GPT-2's ({error!r})") from error
    more: dict[str, tuple[Any, ...]] = {
        "activation_function": tuple(GELUS),
        "n_inner": (None, 4 * sizes["width"]),
        "quantization_config": (None,),
    }
    for key, allowed in (FIXED | more).items():
        if about.get(key, allowed[0]) not in allowed:
            raise ConfigError(
                f"{path}: {key} = {about[key]!r}: a GPT has {' or '.join(map(repr, allowed))}"
            )
    gelu = GELUS[about.get("activation_function", "gelu_new")]
    config = GPTModelConfig(**sizes, bias=True, gelu=gelu)
    config.check()
    return config


def _read_tensors(path: Path) -> dict[str, Tensor]:
    """Return a file's tensors by `GPT`'s names, laid out as there, in float32."""
    if not path.is_file():
        raise ConfigError(
            f"{path} does not exist: allowed is one file of that name; open a model stored "
            "otherwise in transformers, and save it with save_pretrained(..., "
            "max_shard_size='100GB')"
        )
    try:
        stored_tensors = safetensors.torch.load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise DamagedFile(f"{path} is damaged or no safetensors file: {error}") from error
    tensors = {}
    for stored, tensor in stored_tensors.items():
        name = stored.removeprefix(PREFIX)
        if name.endswith(MASKS):
            continue
        if name in tensors:
            raise DamagedFile(f"{path} has {name} twice, with the prefix {PREFIX!r} and without")
        tensors[name] = (tensor.T if name.endswith(TRANSPOSED) else tensor).float()
        if not tensors[name].isfinite().all():
            raise DamagedFile(f"{path}: {stored} has a value that is not finite in float32")
    return tensors


def _drop_head(tensors: dict[str, Tensor], where: str) -> None:
    """Take the head out, which not all files have, and which has to be the embedding."""
    embedding = tensors.get("wte.weight")
    head = tensors.pop("lm_head.weight", embedding)
    if embedding is not None and head is not None and not torch.equal(head, embedding):
        raise ConfigError(
            f"{where}: lm_head.weight differs from wte.weight: a GPT ties the two, and so does a "
            "GPT-2 of transformers"
        )


def _shapes(config: GPTModelConfig) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a GPT's tensors, without the head's, which is the embedding."""
    with torch.device("meta"):
        state = GPT(config).state_dict()
    return {name: tuple(t.shape) for name, t in state.items() if name != "lm_head.weight"}


def _check_shapes(tensors: Mapping[str, Tensor], config: GPTModelConfig, path: Path) -> None:
    needed, found = _shapes(config), {name: tuple(t.shape) for name, t in tensors.items()}
    for name in sorted(needed.keys() | found.keys()):
        if found.get(name) != needed.get(name):
            raise DamagedFile(
                f"{path}: {name} has shape {found.get(name)}, needed by {CONFIG} is "
                f"{needed.get(name)} (None is absent)"
            )


def _without_biases(tensors: Mapping[str, Tensor], path: Path) -> dict[str, Tensor]:
    for name, tensor in tensors.items():
        if name.endswith(".bias") and tensor.count_nonzero():
            raise ConfigError(
                f"{path}: {name} is not zero: a GPT without biases cannot hold this model; set "
                "model.bias = true"
            )
    return {name: tensor for name, tensor in tensors.items() if not name.endswith(".bias")}


def _padded(embedding: Tensor, vocab_size: int, path: Path) -> Tensor:
    added = vocab_size - len(embedding)
    if added < 0:
        raise ConfigError(
            f"vocab_size = {vocab_size}: {path} has {len(embedding)} tokens: allowed is at least "
            "as many"
        )
    return torch.cat([embedding, embedding.mean(0, keepdim=True).expand(added, -1)])


@torch.no_grad()
def save_gpt2(model: GPT, folder: str | Path) -> None:
    """Write a GPT in Hugging Face's format, which ``GPT2LMHeadModel.from_pretrained`` opens.

    For a model without biases zeros are written. Wrappers of DDP or torch.compile are taken off.

    Raises:
        ConfigError: if the head is not the embedding, or a layer was swapped for one that theirs
            has not.
        RlplastError: if the disk is full or not writable.
    """
    model = cast(GPT, unwrap(model))
    tensors = {n: t.detach().cpu().float() for n, t in model.state_dict().items()}
    _drop_head(tensors, str(folder))
    config = replace(model.config, bias=True)
    shapes = _shapes(config)
    for name in sorted(tensors.keys() - shapes.keys()):
        raise ConfigError(f"{name} has no place in a GPT-2 of transformers: save a plain GPT")
    for name in sorted(shapes.keys() - tensors.keys()):
        tensors[name] = torch.zeros(shapes[name])
    stored = {
        PREFIX + name: (tensor.T if name.endswith(TRANSPOSED) else tensor).contiguous()
        for name, tensor in tensors.items()
    }
    _write(Path(folder), stored, _about(config))


def _about(config: GPTModelConfig) -> dict[str, Any]:
    separator = 50256 if config.vocab_size > 50256 else 0  # as `rlplast tokens` writes them
    return {
        "architectures": ["GPT2LMHeadModel"],
        **{key: allowed[0] for key, allowed in FIXED.items()},
        **{name: getattr(config, key) for key, name in SIZES.items()},
        "activation_function": {"tanh": "gelu_new", "exact": "gelu"}[config.gelu],
        **dict.fromkeys(("embd_pdrop", "attn_pdrop", "resid_pdrop"), config.dropout),
        "bos_token_id": separator,
        "eos_token_id": separator,
    }


def _write(folder: Path, tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with whole(folder / WEIGHTS) as temporary:
            safetensors.torch.save_file(tensors, temporary, metadata={"format": "pt"})
        write_json(folder / CONFIG, about)
        fsync(folder)
    except (OSError, SafetensorError) as error:
        raise RlplastError(f"{folder} could not be written: {error}") from error
