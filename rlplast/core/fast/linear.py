"""x Wᵀ + b in float32 on a CPU, by oneDNN's brgemm, which is part of libtorch (`linear.cpp`).

It is built once per machine. Where it cannot be, or without AVX2, PyTorch's own product serves.
"""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["Linear", "affine", "build", "use_fast_linear"]

_FLAGS = "-std=c++20 -O3 -mavx2 -mfma -fopenmp -DAT_PARALLEL_OPENMP=1 -shared -fPIC".split()
_operator: Any = None  # a global: torch.compile sees which one it is


def affine(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x Wᵀ + b, (..., d_out); gradients of every order, and all transforms of `torch.func`.

    Args:
        x: shape (..., d_in); or (members, batch, d_in), of a stack.
        weight: shape (d_out, d_in), or (members, d_out, d_in).
        bias: shape (d_out,), or (members, d_out); or None.
    """
    if _operator is None or not weight.is_cpu or _leaves_rlplast():
        return F.linear(x, weight, bias) if weight.ndim < 3 else _stacked(x, weight, bias)
    if bias is None or not torch.compiler.is_compiling():
        return _operator(x, weight, bias)
    y = _operator(x, weight, None)  # the bias is added in one pass with what comes next
    return y + (bias if bias.ndim < 2 else bias.unsqueeze(1)).to(y.dtype)


def _leaves_rlplast() -> bool:
    """Whether code is exported, to run where the operator may not be."""
    return torch.jit.is_tracing() or getattr(torch.compiler, "is_exporting", bool)()  # from 2.7 on


class _StackedAffine(torch.autograd.Function):
    """x Wᵀ + b per member, with the weight's gradient laid out as the weight."""

    # Autograd's is a transpose; the optimizer took 35 ms of a 200 ms update to turn it over.

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if bias is None:
            return torch.bmm(x, weight.mT)
        return torch.baddbmm(bias.unsqueeze(1), x, weight.mT)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, _ = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grad_outputs
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        return (
            torch.bmm(grad, weight) if needs_x else None,
            torch.bmm(grad.mT, x) if needs_weight else None,
            grad.sum(1) if needs_bias else None,
        )


def _stacked(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if torch.is_autocast_enabled(x.device.type):  # which does not look into the function
        low = torch.get_autocast_dtype(x.device.type)
        x, weight = x.to(low), weight.to(low)
        bias = None if bias is None else bias.to(low)
    return _StackedAffine.apply(x, weight, bias)


def compiled_calls() -> dict[str, Any]:
    """Return options by which inductor's code calls the operator itself."""
    if _operator is None:
        return {}
    call = """AOTITorchError aoti_torch_cpu_product(
        AtenTensorHandle, AtenTensorHandle, const AtenTensorHandle*, int64_t, AtenTensorHandle*)"""
    return {"aot_inductor.custom_ops_to_c_shims": {torch.ops.rlplast.product.default: [call]}}


@cache
def build() -> str | None:
    """Build the operator of `affine`, once per machine in 20 to 30 s; or return why not."""
    global _operator
    if not torch.backends.cpu.get_cpu_capability().startswith("AVX"):
        return "the CPU has no AVX2"
    compiler = os.environ.get("CXX", "g++")
    source = Path(__file__).with_name("linear.cpp")
    what = (source.read_bytes(), torch.__version__, platform.machine(), _FLAGS)
    name = f"rlplast_{hashlib.sha256(repr(what).encode()).hexdigest()[:16]}.so"
    try:
        cache_folder = os.environ.get("TORCH_EXTENSIONS_DIR")
        library = Path(cache_folder or Path.home() / ".cache/torch_extensions").absolute() / name
        if not library.exists():
            if shutil.which(compiler) is None:
                return (
                    f"there is no C++ compiler {compiler!r}, which CXX can name, without "
                    "arguments; without one updates are not compiled on a CPU either"
                )
            _compile(compiler, source, library)
        ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)  # for compiled code too
        torch.ops.rlplast.affine(torch.ones(1, 1), torch.ones(1, 1), None)  # raises without brgemm
    except (OSError, RuntimeError, subprocess.CalledProcessError) as error:
        detail = getattr(error, "stderr", None) or str(error)
        return f"its operator cannot be built or run here ({' '.join(detail.split())[:300]})"
    _operator = torch.ops.rlplast.affine
    return None


def _compile(compiler: str, source: Path, library: Path) -> None:
    """Write a library to a temporary folder, then move it: other processes may build it too."""
    torch_folder = Path(torch.__file__).parent
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        built = Path(folder) / library.name
        include, lib = torch_folder / "include", torch_folder / "lib"
        command = [compiler, *_FLAGS, "-isystem", include, source, "-o", built]
        libraries = [f"-L{lib}", f"-Wl,-rpath,{lib}", "-ltorch_cpu", "-lc10"]
        subprocess.run([*command, *libraries], check=True, capture_output=True, text=True)
        built.replace(library)


class Linear(nn.Linear):
    """`torch.nn.Linear`, computed by its `product`: PyTorch's, or `affine`."""

    product: Callable[[Tensor, Tensor, Tensor | None], Tensor] = staticmethod(F.linear)

    def forward(self, input: Tensor) -> Tensor:
        """Return x Wᵀ + b, shape (..., d_out)."""
        return self.product(input, self.weight, self.bias)


def use_fast_linear(model: nn.Module) -> None:
    """Let the linear layers of a model that are PyTorch's or ours compute by `affine`, in place."""
    build()
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = Linear
        if isinstance(module, Linear):
            module.product = affine
