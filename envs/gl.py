"""OpenGL for MuJoCo's pictures, which also has to work on machines without a display."""

import ctypes.util
import importlib
import os
import sys
from contextlib import suppress
from typing import Any

import numpy as np

from rlplast.envs.base import MissingPackage

__all__ = ["cannot_draw", "choose_gl", "compiler_first", "draw"]

# Value of MUJOCO_GL that needs no display: the library it loads, and Debian's packages for it.
_WITHOUT_DISPLAY = {
    "egl": ("EGL", "libegl1 libegl-mesa0 libopengl0"),
    "osmesa": ("OSMesa", "libosmesa6"),
}


def compiler_first() -> None:
    """Import Triton before OpenGL, if this process may compile with it.

    Both bring an LLVM. If Mesa's is loaded first, Triton calls into it and the process crashes.
    """
    if "torch" in sys.modules:
        with suppress(Exception):  # none, or a broken one, which torch will speak of
            importlib.import_module("triton")


def choose_gl() -> None:
    """Set MUJOCO_GL when it is unset and there is no display; otherwise leave it alone.

    Call it before a package that reads MUJOCO_GL when imported, such as dm_control.
    """
    compiler_first()
    has_display = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if os.environ.get("MUJOCO_GL") or has_display or not sys.platform.startswith("linux"):
        return
    for backend, (library, _) in _WITHOUT_DISPLAY.items():
        if ctypes.util.find_library(library):
            os.environ["MUJOCO_GL"] = backend
            return


def draw(renderer: Any) -> np.ndarray:
    """Return the picture of a Gymnasium `MujocoRenderer`.

    Raises:
        MissingPackage: when there is no OpenGL to draw it with.
    """
    choose_gl()
    fatal = importlib.import_module("mujoco").FatalError
    try:
        if renderer.viewer is not None:
            # Another environment of this process may have drawn since.
            renderer.viewer.make_context_current()
        return renderer.render("rgb_array")
    except (AttributeError, ImportError, RuntimeError, fatal) as error:
        raise cannot_draw(error) from error


def cannot_draw(error: Exception) -> MissingPackage:
    """Return the error to raise from whatever a renderer raised."""
    backend = os.environ.get("MUJOCO_GL", "")
    known = {name: packages for name, (_, packages) in _WITHOUT_DISPLAY.items()}
    wanted = {backend: known[backend]} if backend in known else known
    remedy = " or ".join(f"'{p}' for MUJOCO_GL={name}" for name, p in wanted.items())
    return MissingPackage(
        f"MuJoCo cannot draw with MUJOCO_GL={backend or 'unset'} ({error}): "
        f"install Debian's {remedy}, or their like"
    )
