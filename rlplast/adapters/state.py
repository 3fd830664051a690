"""What an adapter saves of its hooks, and whether it belongs to the run that goes on from it."""

import json
import os
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlplast.core.errors import ConfigError, DamagedFile
from rlplast.core.method.listing import method_of
from rlplast.core.network.network import Network
from rlplast.training.config import read_yaml
from rlplast.training.fingerprint import content

__all__ = [
    "HookList",
    "check_match",
    "check_start",
    "cut_lines",
    "fingerprint",
    "hooks_text",
    "read_list",
]

HookList = Sequence[Mapping[str, Any]] | str | Path

_REMEDY = "load the hooks' state that was saved together with this checkpoint of the model"
_REMEDY_AGAIN = (
    "pass the callback to every training of its model; if the weights were changed on purpose, "
    "call its save and then its load to go on from them"
)


def fingerprint(networks: Mapping[str, Network]) -> dict[str, dict[str, int]]:
    """Return the CRC-32 of each trainable weight's bytes, by network and Block name."""
    for network in networks.values():
        network.refresh()
    return {
        key: {block.name: zlib.crc32(content(block.view)) for block in network.trainable()}
        for key, network in networks.items()
    }


def read_list(given: HookList, key: str) -> list[Mapping[str, Any]]:
    """Return a list of hooks, penalties or layers, given as such or as a YAML file."""
    rows = read_yaml(Path(given)) if isinstance(given, str | Path) else given
    if not isinstance(rows, Sequence) or not all(isinstance(h, Mapping) for h in rows):
        raise ConfigError(
            f"{key} = {given!r}: allowed is a list of mappings, each with a method, or the path of "
            "a YAML file that holds such a list"
        )
    for number, row in enumerate(rows):
        method_of(f"{key}[{number}]", row, key)
    return list(rows)


def hooks_text(configs: Sequence[Mapping[str, Any]]) -> str:
    """Return a hook list as JSON, equal for equal lists however they were written."""
    return json.dumps([dict(config) for config in configs], sort_keys=True, default=str)


def check_start(fresh: bool, state: Mapping[str, Any]) -> None:
    """Raise ConfigError unless the hooks begin where the trainer does."""
    done = {u: n for u, n in state["hooks"]["clock"].items() if n} if state else {}
    if fresh and done:
        raise ConfigError(
            f"training starts at 0, the hooks are at {done}: make a new HookCallback for a new "
            "run, or let the trainer go on from where they are"
        )
    if not fresh and not state:
        raise ConfigError(
            "training goes on from a point that the hooks have no state of: load what was saved "
            "beside it (θ0 and what has fired), see the adapter's how-to"
        )


def check_match(
    state: Mapping[str, Any],
    networks: Mapping[str, Network],
    configs: Sequence[Mapping[str, Any]],
    seed: int,
    again: bool = False,
) -> None:
    """Raise ConfigError unless a state is of these weights, this list of hooks and this seed.

    `again` says that it is the state of hooks of this process, when they last let go.
    """
    if state["configs"] != (text := hooks_text(configs)):
        raise ConfigError(
            f"the hooks' state was saved with the hook list {state['configs']}, this one is "
            f"{text}: go on with the same list, or start a new run with another"
        )
    if state["seed"] != seed:
        raise ConfigError(
            f"the hooks' state was saved with seed = {state['seed']}, this is {seed}: pass "
            f"seed={state['seed']}"
        )
    for key, now in fingerprint(networks).items():
        known = state["weights"].get(key, {})
        both = now.keys() & known.keys()  # not what was frozen then, or is now
        differing = [n for n, crc in now.items() if not both or known.get(n, crc) != crc]
        if differing:
            block = next(b for b in networks[key].blocks if b.name == differing[0])
            those = "of the hooks' last training" if again else "that the state was saved beside"
            raise ConfigError(
                f"{networks[key].qualified(block)}: {len(differing)} of {len(now)} weights differ "
                f"from those {those}: the hooks' state is of another run, model or moment; "
                f"{_REMEDY_AGAIN if again else _REMEDY}"
            )


def cut_lines(path: Path, length: int | None, what: str = "receipts") -> None:
    """Cut a file of lines back to the `length` that a state counts; None for a file that begins.

    Raises:
        ConfigError: if a new run would append to another one's.
        DamagedFile: if lines were lost.
    """
    size = path.stat().st_size if path.exists() else 0
    if length is None and size > 0:
        raise ConfigError(
            f"{what} = '{path}' has lines of another run: delete it or name another file; to go "
            "on with that run, load its state first"
        )
    length = length or 0
    if size < length:
        raise DamagedFile(
            f"{path} has {size} bytes, the saved state counts {length}: lines were lost"
        )
    if size > length:
        os.truncate(path, length)
