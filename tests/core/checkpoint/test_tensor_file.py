from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor

from rlplast.core.checkpoint import tensor_file
from rlplast.core.checkpoint.tensor_file import write_tensors
from rlplast.core.errors import RlplastError


def example(dtype: torch.dtype, *shape: int) -> Tensor:
    bits = torch.randint(0, 2, (*shape, dtype.itemsize), dtype=torch.uint8)
    return bits.view(dtype).reshape(shape)


DTYPES = list(tensor_file._DTYPES)
TENSORS = {
    "none": {},
    "empty": {"e": torch.zeros(0), "f": torch.zeros(3, 0, dtype=torch.bool)},
    "0-d": {"count": torch.tensor(7), "x": torch.tensor(0.5, dtype=torch.float64)},
    "odd names": {'a"b\\': torch.ones(1), "ü/\n\x7f\u2028😀": torch.ones(2), "": torch.ones(3)},
    "order": {n: torch.ones(2) for n in ("b", "a", "B", "é", "z.10", "z.9")},
    "several pieces": {"w": torch.arange(300_000), "v": torch.arange(300_001.0)},
    "all dtypes": {f"{i % 3}{d}": example(d, 2, i) for i, d in enumerate(DTYPES)},
}


@pytest.mark.parametrize("case", TENSORS)
def test_file_is_that_of_the_library_byte_for_byte(case: str, tmp_path: Path) -> None:
    write_tensors(TENSORS[case], tmp_path / "ours")
    safetensors.torch.save_file(TENSORS[case], tmp_path / "theirs")
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_is_written_and_read_back(dtype: torch.dtype, tmp_path: Path) -> None:
    tensor = example(dtype, 3, 5)
    write_tensors({"t": tensor}, tmp_path / "file")
    back = safetensors.torch.load_file(tmp_path / "file")["t"]
    assert back.dtype == dtype and back.shape == tensor.shape
    assert back.view(torch.uint8).equal(tensor.view(torch.uint8))


def test_dtype_that_the_format_has_no_name_for_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RlplastError, match=r"'z' has dtype torch.complex128: stored are .*float32"):
        write_tensors({"z": torch.zeros(1, dtype=torch.complex128)}, tmp_path / "file")
