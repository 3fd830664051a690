"""Imports point one way.

plugins <- core <- optimizers <- training <- methods, metrics <- supervised, gpt, adapters,
agents <- run <- study, report <- cli; envs imports plugins alone, and only run and cli import
agents or envs.
Inside core: fast <- network <- method.
"""

import ast
import functools
import graphlib
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("rlplast", "agents", "envs")  # agents and envs are imported as rlplast.agents, …

CORE_RANK = {"": 0, "fast": 1, "network": 2, "method": 3}  # "": core's own files
TIERS = (
    ("plugins",),
    ("core",),
    ("optimizers",),
    ("training",),
    ("methods", "metrics"),
    ("supervised", "gpt", "adapters", "agents"),
    ("run",),
    ("study", "report"),
    ("cli",),
)
RANK = {room: rank for rank, rooms in enumerate(TIERS) for room in rooms}
ONLY_RUN_IMPORTS, ONLY_CLI_IMPORTS = {"agents", "envs"}, {"cli", "rlplast"}
FACADE_IMPORTS = {"core", "training", "optimizers", "methods", "metrics"}
FACADE_LATE_IMPORTS = {"run", "study", "report"}  # inside functions

LEAN = ("core", "training")  # they import few packages of others
CORE_THIRD_PARTY = {"torch", "numpy", "pydantic"}
CORE_THIRD_PARTY_OF_FILE = {
    "rlplast/core/mean_interval.py": {"scipy"},
    "rlplast/training/checkpoint.py": {"safetensors"},
    "rlplast/training/config.py": {"ruamel"},
}
MODULE_OF_DISTRIBUTION = {
    "ruamel.yaml": "ruamel",
    "ale-py": "ale_py",
    "scikit-learn": "sklearn",
    "pillow": "PIL",
    "vl-convert-python": "vl_convert",
}


class Import(NamedTuple):
    """One imported module: where, what (dotted, absolute) and when it is loaded."""

    path: str
    line: int
    target: str
    unconditional: bool  # a statement of the module itself, in no function, `if` or `try`


def room_of_path(path: str) -> str:
    parts = path.removesuffix(".py").split("/")
    if parts[0] != "rlplast":
        return parts[0]
    return {"__init__": "rlplast", "__main__": "cli"}.get(parts[1], parts[1])


def room_of_target(target: str) -> str | None:
    """The room a dotted name belongs to; None for the standard library and third parties."""
    first, *parts = target.split(".")
    if first != "rlplast":
        return None
    return parts[0] if parts and parts[0] in RANK.keys() | {"envs"} else "rlplast"


def core_room(name: str) -> str:
    parts = re.split(r"[./]", name)
    return parts[2] if len(parts) > 2 and parts[2] in CORE_RANK else ""


def targets_of_node(node: ast.AST, package: list[str]) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        base = package[: len(package) - node.level + 1] if node.level else []
        module = ".".join([*base, *([node.module] if node.module else [])])
        # Names matter only where they may be rooms: `from rlplast import core`.
        return [f"rlplast.{a.name}" for a in node.names] if module == "rlplast" else [module]
    if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        name = ast.unparse(node.func).split(".")[-1]
        if name in ("import_module", "__import__") and isinstance(node.args[0].value, str):
            return [node.args[0].value]
    return []


def imports_of_source(source: str, path: str) -> Iterator[Import]:
    def visit(node: ast.AST, depth: int) -> Iterator[Import]:
        for target in targets_of_node(node, path.split("/")[:-1]):
            yield Import(path, getattr(node, "lineno", 0), target, depth == 1)
        for child in ast.iter_child_nodes(node):
            yield from visit(child, depth + 1)

    return visit(ast.parse(source, filename=path), 0)


def of_rooms(item: Import, source: str, target: str | None) -> str | None:
    if source not in RANK and source not in ("rlplast", "envs"):
        return f"'{source}' is no known room; give it a place in TIERS"
    if target is None or target == source or source == "cli":
        return None
    if source == "rlplast":
        late = target in FACADE_LATE_IMPORTS and not item.unconditional
        allowed = target in FACADE_IMPORTS or late
        return None if allowed else f"the facade may not import '{target}' (run: inside functions)"
    if (source, target) == ("envs", "plugins") or (source == "run" and target in ONLY_RUN_IMPORTS):
        return None
    only = ONLY_RUN_IMPORTS | ONLY_CLI_IMPORTS
    if (source, target) != ("agents", "envs") and (
        source == "envs" or target in only or RANK[target] > RANK[source]
    ):
        return f"'{source}' may not import '{target}'"
    return None


def violation(item: Import, base: set[str]) -> str | None:
    source, target = room_of_path(item.path), room_of_target(item.target)
    if problem := of_rooms(item, source, target):
        return problem
    if source == target == "core":
        here, there = (core_room(n) for n in (item.path.removesuffix(".py"), item.target))
        if here != there and CORE_RANK[there] >= CORE_RANK[here]:
            return f"core's '{here}' may not import its '{there}'"
    top = item.target.split(".")[0]
    if top in sys.stdlib_module_names or top in PACKAGES:
        return None
    lean = CORE_THIRD_PARTY | CORE_THIRD_PARTY_OF_FILE.get(item.path, set())
    if source in LEAN and top not in lean:
        return f"'{source}' may not import '{top}' here"
    if top not in base and item.unconditional:  # optional libraries wait inside functions
        return f"'{top}' is not in [project] dependencies; import it inside the function"
    return None


def violations(imports: list[Import], base: set[str]) -> list[str]:
    found = [(item, violation(item, base)) for item in imports]
    return [f"{item.path}:{item.line}: {problem}" for item, problem in found if problem]


@functools.cache
def imports_of_repository() -> list[Import]:
    paths = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    assert paths, f"no modules under {ROOT}"
    names = {path: path.relative_to(ROOT).as_posix() for path in paths}
    return [i for path, name in names.items() for i in imports_of_source(path.read_text(), name)]


def test_imports_point_one_way():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = [re.split(r"[^\w-]", line)[0].lower() for line in project["dependencies"]]
    base = {MODULE_OF_DISTRIBUTION.get(name, name) for name in names}
    found = violations(imports_of_repository(), base)
    assert not found, "\n" + "\n".join(found)


def test_rooms_form_no_cycle():
    graph: dict[str, set[str]] = {}
    for item in imports_of_repository():  # rooms of one tier may import each other
        source, target = room_of_path(item.path), room_of_target(item.target)
        if target not in (None, source, "rlplast") and source != "rlplast":
            graph.setdefault(source, set()).add(str(target))
    graphlib.TopologicalSorter(graph).prepare()


def test_checker_reports_file_and_line():
    for path, source, line in (
        ("rlplast/training/loop.py", "import torch\nfrom rlplast.metrics import weights\n", 2),
        ("rlplast/training/loop.py", "from ..cli import main\n", 1),
        ("rlplast/training/loop.py", "from rlplast import study\n", 1),
        ("rlplast/training/loop.py", "import safetensors.torch\n", 1),
        ("rlplast/metrics/probe.py", "def f():\n    from rlplast.gpt import model\n", 2),
        ("rlplast/metrics/probe.py", "import scipy.stats\n", 1),
        ("rlplast/study/plan.py", "import rlplast.agents.dqn\n", 1),
        ("rlplast/study/plan.py", "\nimportlib.import_module('rlplast.envs.x')\n", 2),
        ("rlplast/extras/new.py", "import torch\n", 1),
        ("rlplast/__init__.py", "from rlplast.run import api\n", 1),
        ("rlplast/__init__.py", "def f():\n    from rlplast import agents\n", 2),
        ("envs/atari.py", "from rlplast.core import errors\n", 1),
        ("rlplast/plugins.py", "from rlplast.core import errors\n", 1),
        ("rlplast/core/fast/linear.py", "from rlplast.core.network import blocks\n", 1),
        ("rlplast/core/rng.py", "from rlplast.core.fast import linear\n", 1),
    ):
        (found,) = violations([*imports_of_source(source, path)], {"torch", "safetensors"})
        assert found.startswith(f"{path}:{line}: ")
