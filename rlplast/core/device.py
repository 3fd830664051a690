"""The device that a run computes on."""

import os
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from rlplast.core.errors import ConfigError, RlplastError

__all__ = [
    "NotCaptured",
    "capturing",
    "choose_device",
    "compile_options",
    "device_info",
    "on_device",
    "refuse_capture",
    "set_up",
    "uses_gpu",
]


def choose_device(name: str) -> torch.device:
    """Return the torch device a config asks for, or raise a ConfigError if it is not there."""
    if name == "auto":
        return torch.device("cuda" if uses_gpu(name) else "cpu")
    try:
        device = torch.device(name)
        known = device.type in ("cpu", "cuda")
    except RuntimeError:
        known, device = False, torch.device("cpu")
    if not known:
        raise ConfigError(f"device = {name!r}: allowed are auto, cpu, cuda, cuda:N")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise ConfigError(
            f"device = {name!r} is not there: torch sees {count} CUDA devices; use auto or cpu"
        )
    return device


def uses_gpu(name: str) -> bool:
    """Whether a config's ``device`` is a GPU here."""
    return name.startswith("cuda") or (name == "auto" and torch.cuda.is_available())


def device_info(device: torch.device) -> dict[str, Any]:
    """Return what results depend on of a device: of a GPU its name and versions."""
    if device.type != "cuda":
        return {"type": device.type}
    return {
        "type": "cuda",
        "name": torch.cuda.get_device_name(device),
        "driver": _driver(),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
    }


def _driver() -> str | None:
    try:
        with open("/proc/driver/nvidia/version", encoding="utf-8") as file:
            words = file.readline().split()
    except OSError:
        return None
    return next((word for word in words if word[:1].isdigit()), None)


def set_up(device: torch.device, matmul: str = "highest", deterministic: bool = False) -> None:
    """Let torch compute as a config says, in this process.

    `matmul` is highest, or high for TF32 in products and convolutions of a GPU. If `deterministic`,
    a GPU uses slower kernels whose results repeat bit for bit.
    """
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = matmul == "high"
    torch.backends.cudnn.deterministic = True
    deterministic = deterministic and device.type == "cuda"
    if deterministic:  # read when cuBLAS begins
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(deterministic)
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)  # pinned memory, generators and graphs are of the current one


def compile_options(device: torch.device) -> dict[str, Any]:
    """Return options of torch's compiler."""
    if device.type != "cuda":  # a GPU's kernels would be chosen by timing them
        return {}
    from torch._inductor import config

    asked = {"deterministic": True, "shape_padding": False}
    return {name: value for name, value in asked.items() if hasattr(config, name)}


def on_device(value: npt.NDArray[Any] | Tensor, device: torch.device) -> Tensor:
    """Return an array or tensor of the host on a device; on a GPU nothing waits for the copy."""
    tensor = value if isinstance(value, Tensor) else torch.from_numpy(value)
    if device.type != "cuda" or tensor.is_cuda:
        return tensor.to(device)
    refuse_capture("something is copied from the host")  # a replay would copy the same memory
    return tensor.pin_memory().to(device, non_blocking=True)  # kept until the copy is done


class NotCaptured(RlplastError):
    """Raised for work that waits for the host, or reads from it what differs each time."""


def capturing() -> bool:
    """Whether the work under way is being captured."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def refuse_capture(what: str) -> None:
    """Raise NotCaptured during a capture: `what` cannot be part of a CUDA graph."""
    if capturing():
        raise NotCaptured(what)
