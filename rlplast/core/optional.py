"""What is imported when it is first used."""

import importlib
import inspect
import sys
from types import ModuleType
from typing import Any

from rlplast.core.errors import ConfigError

__all__ = ["callable_package", "import_optional"]


def import_optional(name: str, extra: str) -> ModuleType:
    """Import an optional library, or raise a ConfigError that says which `extra` installs it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f'{name} cannot be imported ({error}): pip install "rlplast[{extra}]"'
        ) from error


def callable_package(package: str, module: str) -> None:
    """Let a package be called: `rlplast.study(…)` calls ``study`` of its module ``api``."""

    def function() -> Any:
        return getattr(importlib.import_module(f"{package}.{module}"), package.split(".")[-1])

    class Callable(ModuleType):
        def __call__(self, *args: Any, **options: Any) -> Any:
            return function()(*args, **options)

        @property
        def __signature__(self) -> inspect.Signature:
            return inspect.signature(function())

    sys.modules[package].__class__ = Callable
