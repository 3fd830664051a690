"""How often code waits for a device: counted on a CPU, where each wait costs nothing."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

# Operations whose result, or the shape of it, the host has to know.
_READING = {
    "_local_scalar_dense",  # item, bool, float and int of a tensor
    "equal",
    "is_nonzero",
    "masked_select",
    "nonzero",
    "unique",
    "_unique2",
    "unique_dim",
}
_WHOLE = {Tensor.tolist: "tolist", Tensor.numpy: "numpy", Tensor.cpu: "cpu"}


class _Operations(TorchDispatchMode):
    def __init__(self, found: list[str]) -> None:
        super().__init__()
        self.found = found

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name = func.overloadpacket.__name__
        indices = args[1] if name in ("index", "index_put", "index_put_") else ()
        masks = any(isinstance(i, Tensor) and i.dtype == torch.bool for i in indices)
        if name in _READING or masks:
            self.found.append(name)
        return func(*args, **(kwargs or {}))


class _Functions(TorchFunctionMode):
    def __init__(self, found: list[str]) -> None:
        super().__init__()
        self.found = found

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func in _WHOLE:
            self.found.append(_WHOLE[func])
        return func(*args, **(kwargs or {}))


@contextmanager
def host_reads() -> Iterator[list[str]]:
    """Yield a list that gets the name of each operation that waits for a device."""
    found: list[str] = []
    with _Functions(found), _Operations(found):
        yield found
