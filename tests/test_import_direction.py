"""Imports point one way.

plugins <- core <- training <- optimizers, methods, metrics <- supervised, gpt, adapters, agents <-
run <- study, report <- cli; envs imports plugins alone, and only run and cli import agents or envs.
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
    ("training",),
    ("optimizers", "methods", "metrics"),
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
    "rlplast/training/config.py": {"yaml"},
}
MODULE_OF_DISTRIBUTION = {
    "pyyaml": "yaml",
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
    in_function: bool
    unconditional: bool  # a statement of the module itself, in no function, `if` or `try`

    @property
    def where(self) -> str:
        return f"{self.path}:{self.line}"


def room_of_path(path: str) -> str:
    parts = path.removesuffix(".py").split("/")
    if parts[0] != "rlplast":
        return parts[0]
    return {"__init__": "rlplast", "__main__": "cli"}.get(parts[1], parts[1])


def room_of_target(target: str) -> str | None:
    """The room a dotted name belongs to; None for the standard library and third parties."""
    parts = target.split(".")
    if parts[0] != "rlplast":
        return None
    known = RANK.keys() | {"envs"}
    return parts[1] if len(parts) > 1 and parts[1] in known else "rlplast"


def core_room(parts: list[str]) -> str:
    return parts[2] if len(parts) > 2 and parts[2] in CORE_RANK else ""


def targets_of_node(node: ast.AST, package: list[str]) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        base = package[: len(package) - node.level + 1] if node.level else []
        module = ".".join([*base, *([node.module] if node.module else [])])
        # Names matter only where they may be rooms: `from rlplast import core`.
        return (
            [f"{module}.{alias.name}" for alias in node.names] if module == "rlplast" else [module]
        )
    if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        name = ast.unparse(node.func).split(".")[-1]
        if name in ("import_module", "__import__") and isinstance(node.args[0].value, str):
            return [node.args[0].value]
    return []


def imports_of_source(source: str, path: str) -> Iterator[Import]:
    package = path.split("/")[:-1]

    def visit(node: ast.AST, in_function: bool, depth: int) -> Iterator[Import]:
        for target in targets_of_node(node, package):
            yield Import(path, getattr(node, "lineno", 0), target, in_function, depth == 1)
        in_function |= isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            yield from visit(child, in_function, depth + 1)

    return visit(ast.parse(source, filename=path), False, 0)


def rooms_violation(item: Import) -> str | None:
    source, target = room_of_path(item.path), room_of_target(item.target)
    if source not in RANK and source not in ("rlplast", "envs"):
        return f"'{source}' is no known room; give it a place in TIERS"
    if target is None or target == source or source == "cli":
        return None
    if source == "rlplast":
        late = target in FACADE_LATE_IMPORTS and not item.unconditional
        allowed = target in FACADE_IMPORTS or late
        return None if allowed else f"the facade may not import '{target}' (run: inside functions)"
    if (source, target) in (("agents", "envs"), ("envs", "plugins")):
        return None
    if source == "run" and target in ONLY_RUN_IMPORTS:
        return None
    only = ONLY_RUN_IMPORTS | ONLY_CLI_IMPORTS
    if source == "envs" or target in only or RANK[target] > RANK[source]:
        return f"'{source}' may not import '{target}'"
    return None


def core_violation(item: Import) -> str | None:
    top = item.target.split(".")[0]
    room = room_of_path(item.path)
    if room not in LEAN or top in sys.stdlib_module_names or top in PACKAGES:
        return None
    allowed = CORE_THIRD_PARTY | CORE_THIRD_PARTY_OF_FILE.get(item.path, set())
    return None if top in allowed else f"{room!r} may not import '{top}' here"


def core_rooms_violation(item: Import) -> str | None:
    if room_of_path(item.path) != "core" or room_of_target(item.target) != "core":
        return None
    source = core_room(item.path.removesuffix(".py").split("/"))
    target = core_room(item.target.split("."))
    if target == source or CORE_RANK[target] < CORE_RANK[source]:
        return None
    return f"core's '{source}' may not import its '{target}'"


def base_violation(item: Import, base: set[str]) -> str | None:
    """Modules must load with the base install, so optional libraries wait inside functions."""
    top = item.target.split(".")[0]
    known = top in sys.stdlib_module_names or top in PACKAGES or top in base
    if known or not item.unconditional:
        return None
    return f"'{top}' is not in [project] dependencies; import it inside the function that needs it"


def violations(imports: list[Import], base: set[str]) -> list[str]:
    checks = (rooms_violation, core_violation, core_rooms_violation)
    found = [
        (i, says) for i in imports for says in (*(c(i) for c in checks), base_violation(i, base))
    ]
    return [f"{item.where}: {problem}" for item, problem in found if problem]


def room_graph(imports: list[Import]) -> dict[str, set[str]]:
    graph: dict[str, set[str]] = {}
    for item in imports:
        source, target = room_of_path(item.path), room_of_target(item.target)
        if target not in (None, source, "rlplast") and source != "rlplast":
            graph.setdefault(source, set()).add(str(target))
    return graph


@functools.cache
def imports_of_repository() -> list[Import]:
    paths = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    assert paths, f"no modules under {ROOT}"
    return [
        item
        for path in paths
        for item in imports_of_source(
            path.read_text(encoding="utf-8"), path.relative_to(ROOT).as_posix()
        )
    ]


def base_modules() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = [re.split(r"[^\w-]", line)[0].lower() for line in project["dependencies"]]
    return {MODULE_OF_DISTRIBUTION.get(name, name) for name in names}


def test_imports_point_one_way():
    found = violations(imports_of_repository(), base_modules())
    assert not found, "\n" + "\n".join(found)


def test_rooms_form_no_cycle():
    # Rooms of one tier may import each other, but not in circles.
    graphlib.TopologicalSorter(room_graph(imports_of_repository())).prepare()


BASE = {"torch", "numpy", "safetensors", "yaml", "rich", "altair"}


def check(source: str, path: str) -> list[str]:
    return violations(list(imports_of_source(source, path)), BASE)


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
    ):
        (found,) = check(source, path)
        assert found.startswith(f"{path}:{line}: ")
