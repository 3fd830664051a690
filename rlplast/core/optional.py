"""Optional libraries: imported where they are needed, with word of what to install.

- `import_optional`: import a library of one of the package's extras.
"""

import importlib
from types import ModuleType

from rlplast.core.errors import ConfigError

__all__ = ["import_optional"]


def import_optional(name: str, extra: str) -> ModuleType:
    """Import an optional library.

    Args:
        name: dotted name of a module.
        extra: the extra of this package that installs it.

    Raises:
        ConfigError: if it is not installed, saying what to install.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f'{name} cannot be imported ({error}): pip install "rlplast[{extra}]"'
        ) from error
