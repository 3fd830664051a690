"""What a method's card takes from the registry, the class and the table of costs."""

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from docs.generate.markdown import choices, code, table, yaml_code
from rlplast.core.errors import ConfigError
from rlplast.core.method.method import implements
from rlplast.core.network.network import Network
from rlplast.core.registry import Info, rows
from rlplast.study.schema import meanings

__all__ = ["frame", "is_card", "reads_and_policies", "with_defaults"]

_ROOT = Path(__file__).parents[2]
_COSTS = _ROOT / "docs" / "explanation" / "benchmarks.md"
# What the cells of the table of costs say, by its column "when".
_COST = {
    "firing": "one firing (in updates)",
    "every update": "every update, as a factor (added time)",
}


def is_card(name: str) -> bool:
    """Return whether a page of this name is the card of an intervention, layer or penalty."""
    return name in _method_rows()


def reads_and_policies(name: str) -> tuple[str, str]:
    """Return what a method reads, and its default policies, which only interventions have."""
    method: Any = _info(name).target
    policies = ", ".join(map(code, method.policies)) if method.key == "hooks" else ""
    return ", ".join(("weights", *method.reads)), policies


def frame(name: str) -> str:
    """Return what the registry, the class and the table of costs say of a method."""
    info = _info(name)
    method: Any = info.target
    reads, policies = reads_and_policies(name)
    facts = {
        "listed under": code(f"{method.key}:"),
        "source": info.source,
        "reads": reads,
        "state, saved with the run": _state(method),
        "default policies: `optimizer`, `followers`": policies,
        "fires": "once in a run" if method.fires_once else "",
        "cost": _cost(name),
    }
    short = table("in short | ", ((what, fact) for what, fact in facts.items() if fact))
    return "\n".join((short, *_parameters(info)))


def with_defaults(name: str, card: str) -> str:
    """Return the text of a method's card with its parameters' defaults above the example."""
    params = _info(name).params
    given = ", ".join(
        code(f"{key}: {yaml_code(p['default']).strip('`')}") for key, p in params.items()
    )
    about = f"Parameters: {given}. {code(f'rlplast list {name}')} says what they mean."
    words, example, rest = card.partition("\n\n```yaml\n")
    words = words.partition("\nParameters: ")[0]
    made = textwrap.fill(about, 140, break_long_words=False, break_on_hyphens=False)
    return words + (f"\n{made}" if params else "") + example + rest


def _parameters(info: Info) -> Iterator[str]:
    """Yield a table of a method's parameters, if it has any.

    Raises:
        KeyError: for a parameter that no docstring explains.
    """
    target: Any = info.target
    about = {key: words.replace("None", "null") for key, words in meanings(target).items()}
    made = [
        (code(key), yaml_code(p["default"]), choices(p["range"]), about[key])
        for key, p in info.params.items()
    ]
    if made:
        yield table("parameter | default | allowed | meaning", made)


def _method_rows() -> dict[str, Info]:
    return {info.name: info for f in ("interventions", "layers", "penalties") for info in rows(f)}


def _info(name: str) -> Info:
    """Return a method's row.

    Raises:
        ValueError: if no method has this name.
    """
    if name not in _method_rows():
        raise ValueError(f"{name}.md is the card of a method {name!r}, which there is not")
    return _method_rows()[name]


def _state(method: Any) -> str:
    """Return the names of a method's tensors, from a small network."""
    layers = torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8), torch.nn.ReLU()
    model = torch.nn.Sequential(*layers, torch.nn.Linear(8, 2))
    before = set(model.state_dict())
    try:
        if implements(method, "install"):
            method().install(model, 0)
        network = Network("net", model)
        names = set(method().setup(network, network.blocks)) | (set(model.state_dict()) - before)
    except ConfigError:
        return ""
    parts = {re.sub(r"(^|/)\d+(?=[./]|$)", r"\1LAYER", name) for name in names}
    return ", ".join(code(part) for part in sorted(parts)) or "none"


def _cost(name: str) -> str:
    """Return the method's row of the table of costs, in words; empty if it was not measured."""
    made = _COSTS.read_text().partition("<!-- costs -->")[2]
    lines = [line.strip("| ").split(" | ") for line in made.splitlines() if line.startswith("|")]
    for _, when, *cells in (line for line in lines if line[0] == code(name)):
        found = (f"{what} {cell}" for what, cell in zip(lines[0][2:], cells, strict=True))
        link = "[Benchmarks](../explanation/benchmarks.md#what-every-method-costs)"
        return f"{_COST[when]}: {', '.join(found)}; see {link}"
    return ""
