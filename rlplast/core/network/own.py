"""Networks that a user's function makes: ``package.module:factory``.

- `is_factory`: whether a config's name of a network is one.
- `factory_of`: the function.
- `made`, `check_outputs`: what it makes, from a seed.
- `own_law`: the initializer: draws a Block as the function does.
"""

import importlib
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rlplast.core.errors import ConfigError
from rlplast.core.network.blocks import Block
from rlplast.core.network.network import Init, part_of, torch_default
from rlplast.core.rng import preserve_global_rng

__all__ = ["check_outputs", "factory_of", "is_factory", "made", "own_law"]

Factory = Callable[..., Any]


def is_factory(name: str) -> bool:
    """Say whether the name of a network is that of a function, such as ``my_nets:encoder``."""
    return ":" in name


def factory_of(key: str, name: str) -> Factory:
    """Import a function, from the current folder too.

    Args:
        key: of the config, for errors.
        name: ``package.module:factory``.

    Raises:
        ConfigError: if there is no such module, or nothing callable of that name in it.
    """
    module_name, _, function = name.partition(":")
    words = (*module_name.split("."), function)
    if not all(word.isidentifier() for word in words):
        raise ConfigError(f"{key} = {name!r}: allowed is package.module:factory")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)  # last, or folders of the user's would hide ours
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{key} = {name!r}: {error}; install the module, or put it into the current folder"
        ) from error
    found = getattr(module, function, None)
    if not callable(found):
        raise ConfigError(f"{key} = {name!r}: {module_name} has no function {function}")
    return found


def made(
    key: str, factory: Factory, seed: int, inputs: Sequence[Tensor], **spaces: Any
) -> nn.Module:
    """Return what a function makes; torch's global generator stays as it is.

    Args:
        key: of the config, for errors.
        factory: the function.
        seed: of the global generator while it runs, in [0, 2^63).
        inputs: zeros, with which the module is called, and lazy parts of it find their shapes.
        spaces: its arguments.

    Raises:
        ConfigError: if it raises, returns no module, or one without parameters, or one that fails
            on `inputs`.
    """
    with preserve_global_rng():
        torch.manual_seed(seed)
        try:
            module = factory(**spaces)
            if not isinstance(module, nn.Module):
                raise ConfigError(f"{key}: the function returned {module!r}: allowed is a module")
            with torch.no_grad():
                module.eval()(*inputs)
        except ConfigError:
            raise
        except Exception as error:  # a user's function may raise anything
            raise ConfigError(
                f"{key}: the function, called with {spaces}, or its module, called with zeros of "
                f"shape {_shapes(inputs)}, raised {type(error).__name__}: {error}"
            ) from error
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise ConfigError(f"{key}: the module has no parameters that could be trained")
    return module.train()


def check_outputs(
    key: str, module: nn.Module, inputs: Sequence[Tensor], width: int | None = None
) -> int:
    """Return how many values a module gives for each input.

    Args:
        key: of the config, for errors.
        module: the module.
        inputs: zeros, with which it is called.
        width: how many they have to be; None for any number.

    Raises:
        ConfigError: if it returns something else than a vector of so many values for each.
    """
    with preserve_global_rng(), torch.no_grad():
        found = module.eval()(*inputs)
    module.train()
    count = len(inputs[0])
    vectors = isinstance(found, Tensor) and found.ndim == 2 and len(found) == count
    if not vectors or (width is not None and found.shape[1] != width):
        what = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        expected = f"({count}, {'any number' if width is None else width})"
        raise ConfigError(
            f"{key}: of {count} inputs the module returned {what}: allowed is a tensor of "
            f"shape {expected}"
        )
    return found.shape[1]


def _shapes(inputs: Sequence[Tensor]) -> str:
    return " and ".join(str(tuple(each.shape)) for each in inputs)


def own_law(make: Callable[[int], nn.Module]) -> Init:
    """Return an initializer that draws a Block as a new module has it.

    What the module does not have, such as an installed layer's, is drawn by `torch_default`.

    Args:
        make: makes the module from a seed.
    """
    return partial(_drawn, make)


def _drawn(make: Callable[[int], nn.Module], block: Block, generator: torch.Generator) -> Tensor:
    seed = int(torch.randint(2**63 - 1, (), generator=generator))
    found = part_of(dict(make(seed).state_dict()), block)
    return torch_default(block, generator) if found is None else found.float()
