"""Packages with entry points, installed as pip would: modules beside a dist-info folder."""

import importlib
import shutil
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["RUN", "TOY", "install", "install_toy"]

RUN: dict[str, Any] = {
    "kind": "toy_agent",
    "seed": 3,
    "device": "cpu",
    "total": "60 env_steps",
    "env": {"num_envs": 2},
    "replay_ratio": 0.5,
    "agent": {"batch_size": 8, "initial_steps": 20},
    "hooks": [{"method": "toy_scale", "at": "50%"}],
    "evaluate": {"every": "50%", "episodes": 2},
    "metrics": {"every": None},
    "log": {"to": []},
    "checkpoint": {"every": "25%", "keep": 9},
}

TOY = Path(__file__).parent / "toy_package"


def install(
    site: Path, name: str, groups: Mapping[str, Mapping[str, str]], version: str = "0.1"
) -> None:
    """Write the metadata of a package whose entry points are `groups`."""
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = []
    for group, points in groups.items():
        lines += [f"[{group}]", *(f"{key} = {value}" for key, value in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    importlib.invalidate_caches()


def install_toy(site: Path) -> None:
    shutil.copytree(TOY / "toy_plugin", site / "toy_plugin")
    project = tomllib.loads((TOY / "pyproject.toml").read_text())["project"]
    install(site, project["name"], project["entry-points"], project["version"])
