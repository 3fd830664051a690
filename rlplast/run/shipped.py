"""The configs that come with the library, by name such as ``dqn/asterix``."""

import os
from pathlib import Path

from rlplast.core.errors import ConfigError, RlplastError, did_you_mean

__all__ = ["config_folder", "find_config", "shipped_configs"]

_PACKAGE = Path(__file__).resolve().parents[1]


def config_folder() -> Path:
    """Return the shipped configs' folder: in the package if installed, beside it in a checkout."""
    candidates = (_PACKAGE / "configs", _PACKAGE.parent / "configs")
    for folder in candidates:
        if folder.is_dir():
            return folder
    raise RlplastError(f"{candidates[0]} is missing: install rlplast again")


def shipped_configs() -> dict[str, Path]:
    """Return ``{name: file}`` of every shipped config, sorted by name, without lists of hooks."""
    folder = config_folder()
    files = {
        p.relative_to(folder).with_suffix("").as_posix(): p
        for p in folder.rglob("*.yaml")
        if p.parent.name != "hooks"
    }
    return dict(sorted(files.items()))


def find_config(name_or_path: str) -> Path:
    """Return the file of that path, else the shipped config of that name, else ConfigError."""
    if os.path.isfile(name_or_path):  # False also for what no file can be called
        return Path(name_or_path)
    shipped = shipped_configs()
    name = name_or_path.removesuffix(".yaml")
    if name not in shipped:
        raise ConfigError(
            f"config {name_or_path!r} is neither a file nor a shipped config: "
            f"{did_you_mean(name, shipped)}"
        )
    return shipped[name]
