"""Networks that a user's function makes: ``package.module:factory``."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import is_fake
from torch.nn.parameter import is_lazy

from rlplast.core.errors import ConfigError, shortened
from rlplast.core.network.blocks import Block
from rlplast.core.network.modes import reading
from rlplast.core.network.network import Init, part_of, torch_default
from rlplast.core.rng import preserve_global_rng
from rlplast.plugins import import_named

__all__ = ["check_again", "check_outputs", "factory_of", "is_factory", "made", "own_initializer"]

Factory = Callable[..., Any]


def is_factory(name: str) -> bool:
    """Whether the name of a network is that of a function, such as ``my_nets:encoder``."""
    return ":" in name


def factory_of(key: str, name: str) -> Factory:
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


def made(
    key: str, factory: Factory, seed: int, inputs: Sequence[Tensor], **spaces: Any
) -> nn.Module:
    """Return what a function makes of `spaces`; the global generators stay as they are.

    They have the `seed` meanwhile, in [0, 2^63). The module is called with `inputs`, which are
    zeros.

    Raises:
        ConfigError: if it raises, returns no module, one without parameters or with unused lazy
            ones, one that writes into its inputs, or one that fails on `inputs`.
    """
    with preserve_global_rng():
        torch.manual_seed(seed)
        np.random.seed(seed % 2**32)
        random.seed(seed)
        try:
            module = factory(**spaces)
            if not isinstance(module, nn.Module):
                kind = f"a {type(module).__name__}, {' '.join(shortened(module).split())}"
                raise ConfigError(f"{key}: the function returned {kind}: allowed is a module")
            with torch.no_grad():
                before = [each._version for each in inputs]
                _materialise(key, module, inputs)
                with reading(module):
                    module(*inputs)
        except ConfigError:
            raise
        except Exception as error:  # a user's function may raise anything
            shapes = " and ".join(str(tuple(each.shape)) for each in inputs)
            raise ConfigError(
                f"{key}: the function, called with {spaces}, or its module, called with zeros of "
                f"shape {shapes}, raised {type(error).__name__}: {error}"
            ) from error
    if before != [each._version for each in inputs]:
        raise ConfigError(
            f"{key}: the module writes into its input, which others read too: compute from it "
            "instead (x = x - 0.5, not x -= 0.5)"
        )
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise ConfigError(f"{key}: the module has no parameters that could be trained")
    return module.train()


def _materialise(key: str, module: nn.Module, inputs: Sequence[Tensor]) -> None:
    """Let lazy parts of a module find their shapes; other buffers stay as they are."""
    if not _lazy(module):
        return
    kept = [(buffer, buffer.clone()) for buffer in module.buffers() if not is_lazy(buffer)]
    module.eval()(*inputs)
    for buffer, value in kept:
        buffer.copy_(value)
    if unused := _lazy(module):
        raise ConfigError(
            f"{key}: {unused[0]} is lazy, and no forward pass has given it a shape: leave it out"
        )


def _lazy(module: nn.Module) -> list[str]:
    named = (*module.named_parameters(), *module.named_buffers())
    return [name for name, tensor in named if is_lazy(tensor)]


def check_outputs(
    key: str, module: nn.Module, inputs: Sequence[Tensor], width: int | None = None
) -> int:
    """Return how many values a module gives for each of `inputs`, which are zeros.

    Anything is refused but a vector of `width` finite numbers for each (None: any number from 1),
    which depend on the module's parameters.
    """
    with reading(module):
        outputs = module(*inputs)
    count = len(inputs[0])
    vectors = isinstance(outputs, Tensor) and outputs.ndim == 2 and len(outputs) == count
    if not vectors or outputs.shape[1] != (width or max(1, outputs.shape[1])):
        what = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        expected = f"({count}, {'any number' if width is None else width})"
        raise ConfigError(
            f"{key}: of {count} inputs the module returned {what}: allowed is a tensor of "
            f"shape {expected}"
        )
    if not outputs.is_floating_point() or not outputs.requires_grad:
        what = (
            str(outputs.dtype) if outputs.requires_grad else f"{outputs.dtype} without a gradient"
        )
        raise ConfigError(
            f"{key}: the module returned {what}: allowed are floats that depend on its parameters"
        )
    if not _is_planned(outputs) and not bool(outputs.isfinite().all()):
        raise ConfigError(f"{key}: of zeros the module returned values that are not finite")
    return outputs.shape[1]


def check_again(key: str, one: nn.Module, other: nn.Module) -> None:
    """Refuse two modules of equal seeds that share a tensor, or differ."""
    first, second = _tensors(one), _tensors(other)
    known = {id(tensor) for tensor in first.values()}
    shared = [name for name, tensor in second.items() if id(tensor) in known]
    if shared:
        raise ConfigError(
            f"{key}: the function returned {shared[0]} twice: allowed are new layers at each call "
            "(a copy.deepcopy of those that it keeps), or agents, critics and targets share them"
        )
    alike = first.keys() == second.keys() and all(
        tensor.shape == second[name].shape
        and (_is_planned(tensor) or torch.equal(tensor, second[name]))
        for name, tensor in first.items()
    )
    if not alike:
        raise ConfigError(
            f"{key}: called twice with the same seed, the function returned different modules: it "
            "may depend on its arguments and on the global generators of PyTorch, NumPy and Python"
        )


def _is_planned(tensor: Tensor) -> bool:
    """Whether a tensor has a shape and no values, as where a run's cost is planned."""
    return tensor.is_meta or is_fake(tensor)


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    return dict([*module.named_parameters(), *module.named_buffers()])


def own_initializer(make: Callable[[int], nn.Module]) -> Init:
    """Return an initializer that draws Blocks as `make` does, which makes a module from a seed.

    Blocks drawn one after the other with one generator are of one new module, and so belong
    together. What it does not have, such as an installed layer's, is drawn by `torch_default`.
    """
    return _Initializer(make)


class _Initializer:
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
