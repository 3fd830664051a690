"""Networks that a user's function makes: ``package.module:factory``."""

import copy
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from rlplast.core.errors import ConfigError, shortened
from rlplast.core.network.blocks import Block
from rlplast.core.network.modes import reading
from rlplast.core.network.network import part_of, torch_default
from rlplast.core.rng import preserve_global_rng
from rlplast.plugins import import_named

__all__ = ["checked", "factory_of", "is_factory", "made"]


def is_factory(name: str) -> bool:
    """Whether the name of a network is that of a function, such as ``my_nets:encoder``."""
    return ":" in name


def factory_of(key: str, name: str) -> Callable[..., Any]:
    """Import the function ``package.module:factory``, from the current folder too, or refuse it."""
    module_name, _, function = name.partition(":")
    words = (*module_name.split("."), function)
    if not all(word.isidentifier() for word in words):
        raise ConfigError(f"{key} = {name!r}: allowed is package.module:factory")
    try:
        with preserve_global_rng():  # what is drawn as it is imported is drawn once a process
            module = import_named(module_name)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{key} = {name!r}: {error}; install the module, or put it into the current folder"
        ) from error
    factory = getattr(module, function, None)
    if not callable(factory):
        raise ConfigError(f"{key} = {name!r}: {module_name} has no function {function}")
    return factory


def made(key: str, build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Return what `build` makes of a user's function; the global generators stay as they are.

    They have the `seed` meanwhile, in [0, 2^63). Blocks are drawn anew as parts of new modules, and
    those drawn one after the other with one generator are of one.

    Raises:
        ConfigError: if it fails, with what it raised.
    """
    module = _made(key, build, seed)
    vars(module)["init_block"] = _Initializer(partial(_made, key, build))
    return module


def _made(key: str, build: Callable[[], nn.Module], seed: int) -> nn.Module:
    with preserve_global_rng(), torch.enable_grad():
        torch.manual_seed(seed)
        np.random.seed(seed % 2**32)
        random.seed(seed)
        try:
            return build()
        except ConfigError:
            raise
        except Exception as error:  # a user's function may raise anything
            raise ConfigError(
                f"{key}: the function, or its module called with zeros, raised "
                f"{type(error).__name__}: {error}"
            ) from error


def checked(
    key: str, returned: Any, inputs: Sequence[Tensor], width: int | None = None
) -> tuple[nn.Module, int]:
    """Return a copy of what a user's function returned, and how many values it gives per input.

    A function may keep layers, which are not to be shared. Lazy layers find their shapes of
    `inputs`, which are zeros.

    Raises:
        ConfigError: if it is no module, writes into its inputs, or gives anything but `width`
            floats for each (None: any number from 1) that depend on its parameters.
    """
    if not isinstance(returned, nn.Module):
        kind = f"a {type(returned).__name__}, {' '.join(shortened(returned).split())}"
        raise ConfigError(f"{key}: the function returned {kind}: allowed is a module")
    module, before = copy.deepcopy(returned), [each._version for each in inputs]
    if any(map(is_lazy, (*module.parameters(), *module.buffers()))):
        module.eval()(*inputs)
    with reading(module):
        outputs, count = module(*inputs), len(inputs[0])
    if before != [each._version for each in inputs]:
        raise ConfigError(
            f"{key}: the module writes into its input, which others read too: compute from it "
            "instead (x = x - 0.5, not x -= 0.5)"
        )
    tensor = isinstance(outputs, Tensor)
    right = tensor and outputs.ndim == 2 and outputs.is_floating_point() and outputs.requires_grad
    sizes = (count, width or max(1, outputs.shape[-1])) if right else None
    if sizes is None or outputs.shape != sizes:
        kind = f"{outputs.dtype} of shape {tuple(outputs.shape)}" if tensor else type(outputs)
        raise ConfigError(
            f"{key}: of {count} inputs the module returned {kind}: allowed are floats of shape "
            f"({count}, {'any number' if width is None else width}) that depend on its parameters"
        )
    return module.train(), sizes[1]


class _Initializer:
    """Draws Blocks as `make` does, which makes a module from a seed; others as torch does."""

    def __init__(self, make: Callable[[int], nn.Module]) -> None:
        self._make = make
        self._generator: torch.Generator | None = None  # whose module this is
        self._tensors: dict[str, Tensor] = {}
        self._given: set[str] = set()

    def __call__(self, block: Block, generator: torch.Generator) -> Tensor:
        if generator is not self._generator or block.name in self._given:
            seed = int(torch.randint(2**63 - 1, (), generator=generator))
            self._generator, self._given = generator, set()
            self._tensors = dict(self._make(seed).state_dict())
        self._given.add(block.name)
        value = part_of(self._tensors, block)
        return torch_default(block, generator) if value is None else value.float()

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Initializer":
        return _Initializer(self._make)  # a generator cannot be copied
