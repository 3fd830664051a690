"""Tensors in a file of the safetensors format, written piece by piece.

- `write_tensors`: writes what `safetensors.torch.save_file` does, byte for byte; that one takes
  all tensors in a single call, in which training cannot go first.
"""

import json
import struct
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from rlplast.core.checkpoint.files import write_pieces
from rlplast.core.errors import RlplastError

__all__ = ["write_tensors"]

_DTYPES = {  # in the order in which their tensors lie in a file, wide ones first
    torch.uint64: "U64",
    torch.int64: "I64",
    torch.float64: "F64",
    torch.complex64: "C64",
    torch.float32: "F32",
    torch.uint32: "U32",
    torch.int32: "I32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.uint16: "U16",
    torch.int16: "I16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_RANK = {dtype: rank for rank, dtype in enumerate(_DTYPES)}


def write_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write contiguous CPU tensors by name.

    Raises:
        RlplastError: if the format has no name for a tensor's dtype.
        OSError: if the disk is full or not writable.
    """
    for name, tensor in tensors.items():
        if tensor.dtype not in _DTYPES:
            known = ", ".join(str(dtype) for dtype in _DTYPES)
            raise RlplastError(f"tensor {name!r} has dtype {tensor.dtype}: stored are {known}")
    ordered = sorted(tensors.items(), key=lambda item: (_RANK[item[1].dtype], item[0]))
    header, end = {}, 0
    for name, tensor in ordered:
        header[name] = {
            "dtype": _DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [end, end := end + tensor.nbytes],
        }
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, tensor in ordered:
            write_pieces(file, tensor.reshape(-1).view(torch.uint8).numpy().data)
