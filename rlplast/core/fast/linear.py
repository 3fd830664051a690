"""x Wᵀ + b in float32 on a CPU, by the faster of the two libraries that PyTorch brings.

PyTorch multiplies float32 matrices with MKL. On AMD CPUs with AVX-512 that uses half of a vector
register where oneDNN uses all of it: 104 against 215 GFLOP/s on one core of an AMD EPYC (Zen 5).
Calling oneDNN costs more, so small products stay with MKL. So do all on CPUs without AVX-512: there
MKL has 91 GFLOP/s and oneDNN 80, on one core of an AMD EPYC (Zen 3).

- `affine`: `torch.nn.functional.linear`.
- `stacked_affine`: the same of every member of an ensemble.
- `Linear`: `torch.nn.Linear` that computes with `affine`.
- `use_fast_linear`: makes a model's linear layers compute with it.
- `uses_onednn`: whether oneDNN computes it.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = [
    "Linear",
    "affine",
    "stacked_affine",
    "use_fast_linear",
    "uses_onednn",
]

# Multiply-adds from which oneDNN pays for its calls: forward and backward, a layer costs 60 µs more
# of Python in eager code, and 25 in compiled code. 32 × 256 × 256 are 1 << 21.
LEAST_EAGER, LEAST_COMPILED = 1 << 23, 1 << 22
NARROW = 16  # inputs up to which `_narrow` pays, in compiled code
_ONEDNN: Any = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
_WIDE = torch.backends.cpu.get_cpu_capability() != "AVX2"  # whether oneDNN is the faster one

# An operator of our own for compiled code: inductor takes oneDNN's with a constant weight only.
torch.library.define(
    "rlplast::affine",
    "(Tensor x, Tensor weight, Tensor? bias) -> Tensor",
    tags=torch.Tag.needs_fixed_stride_order,
)
_op: Any = torch.ops.rlplast.affine


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    bias = None if bias is None else bias.contiguous()  # oneDNN would read past a view
    return _ONEDNN(x, weight, bias, "none", [], "")


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    (x, weight, _), needs = inputs, ctx.needs_input_grad
    ctx.save_for_backward(x if needs[1] else None, weight if needs[0] else None)


def _gradients(
    product: Callable[..., Tensor], saved: Sequence[Any], needs: Sequence[bool], grad: Tensor
) -> tuple[Tensor | None, ...]:
    """Return the gradients in x, weight and bias; their products are as large as the first."""
    x, weight = saved
    return (
        product(grad, weight.mT, None) if needs[0] else None,
        product(grad.mT.contiguous(), x.mT, None) if needs[1] else None,
        grad.sum(0) if needs[2] else None,
    )


torch.library.impl("rlplast::affine", "cpu", _product)
torch.library.register_fake(
    "rlplast::affine", lambda x, weight, bias: x.new_empty(x.shape[0], weight.shape[0])
)
torch.library.register_autograd(
    "rlplast::affine",
    lambda ctx, grad: _gradients(_op, ctx.saved_tensors, ctx.needs_input_grad, grad),
    setup_context=_save,
)


class _Affine(torch.autograd.Function):
    """The operator for eager code, where `torch.func` may transform it.

    Dynamo would warn of it, and `torch.func` takes no operator with gradients.
    """

    setup_context = staticmethod(_save)

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return _product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        return _gradients(_Affine.apply, ctx.saved_tensors, ctx.needs_input_grad, *grad_outputs)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Tensor, int]:
        def mapped(i: int) -> Tensor:
            dim = in_dims[i]
            return args[i] if dim is None else args[i].movedim(dim, 0)

        y = torch.matmul(mapped(0), mapped(1).mT)
        if args[2] is not None:
            y = y + (args[2] if in_dims[2] is None else mapped(2).unsqueeze(1))
        return y.expand(info.batch_size, -1, -1), 0


def uses_onednn(rows: int, weight: Tensor) -> bool:
    """Say whether oneDNN computes the product of `rows` inputs with a weight (..., d_out, d_in).

    It depends on the kind of CPU, sizes, type, device, autocast and whether code is compiled, never
    on time: the same run has the same bits.
    """
    least = LEAST_COMPILED if torch.compiler.is_compiling() else LEAST_EAGER
    return (
        rows * weight.shape[-1] * weight.shape[-2] >= least
        and weight.is_cpu
        and weight.dtype == torch.float32
        and _ONEDNN is not None
        and _WIDE
        and not torch.is_autocast_enabled("cpu")
    )


def affine(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x Wᵀ + b; gradients of every order, and transforms of `torch.func` but forward mode.

    Args:
        x: shape (..., d_in).
        weight: shape (d_out, d_in).
        bias: shape (d_out,), or None.

    Returns:
        Shape (..., d_out).
    """
    if _is_narrow(x, weight):
        return _narrow(x, weight, bias)
    fits = uses_onednn(x.shape[:-1].numel(), weight)
    fits = fits and x.dtype == torch.float32 and x.shape[-1:] == weight.shape[1:]
    fits = fits and (bias is None or (bias.shape == weight.shape[:1] and bias.dtype == x.dtype))
    if not fits:  # errors are torch's own
        return F.linear(x, weight, bias)
    product = _op if torch.compiler.is_compiling() else _Affine.apply
    y = product(x.reshape(-1, x.shape[-1]), weight, bias)
    return y.view(*x.shape[:-1], weight.shape[0])


class _StackedAffine(torch.autograd.Function):
    """x Wᵀ + b per member, with the weight's gradient laid out as the weight.

    Left to autograd it is the transpose of a product, and turning it over for the optimizer cost
    35 ms of a 200 ms update of SimBa's twin critics.
    """

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


def stacked_affine(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x Wᵀ + b of every member of a stack.

    Args:
        x: shape (members, batch, d_in).
        weight: shape (members, d_out, d_in).
        bias: shape (members, d_out), or None.

    Returns:
        Shape (members, batch, d_out).
    """
    if x.dtype == torch.float32 and uses_onednn(x.shape[1], weight):  # member by member
        biases = [None] * len(weight) if bias is None else bias.unbind()
        members = zip(x.unbind(), weight.unbind(), biases, strict=True)
        return torch.stack([affine(*member) for member in members])
    if torch.is_autocast_enabled(x.device.type):  # which does not look into the function below
        low = torch.get_autocast_dtype(x.device.type)
        x, weight = x.to(low), weight.to(low)
        bias = None if bias is None else bias.to(low)
    if torch.compiler.is_compiling():
        # The same function with the weight on the left, so that its gradient is laid out as
        # the weight here too: dynamo takes no function of its own without a warning.
        if bias is None:
            return torch.bmm(weight, x.mT).mT
        return torch.baddbmm(bias.unsqueeze(2), weight, x.mT).mT
    return _StackedAffine.apply(x, weight, bias)


def _is_narrow(x: Tensor, weight: Tensor) -> bool:
    return (
        torch.compiler.is_compiling()
        and weight.is_cpu
        and x.ndim == 2
        and x.shape[1] == weight.shape[1] <= NARROW < weight.shape[0]
        and x.dtype == weight.dtype == torch.float32
        and not torch.is_autocast_enabled("cpu")
    )


def _narrow(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x Wᵀ + b from copies of x and W that lie the other way round.

    autograd computes gradients in the layout of what they belong to. MKL takes 55 µs for a product
    of 256 × 256 with 256 × 4, and 9 for its transpose.
    """
    x, weight = x.mT.contiguous().mT, weight.mT.contiguous()
    return x @ weight if bias is None else torch.addmm(bias, x, weight)


class Linear(nn.Linear):
    """`torch.nn.Linear`, computed by `affine`."""

    def forward(self, input: Tensor) -> Tensor:
        """Return x Wᵀ + b, shape (..., d_out)."""
        return affine(input, self.weight, self.bias)


def use_fast_linear(model: nn.Module) -> None:
    """Let the plain linear layers of a model compute by `affine`, in place."""
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = Linear
