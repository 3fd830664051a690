"""Checkpoints: everything a run needs to go on, complete or absent.

A checkpoint is written beside its final place, fsynced, sealed with a manifest of sizes and
checksums (``COMPLETE``), and renamed. Tensors go to safetensors, the rest to JSON; nothing is ever
unpickled. Files that never change again (initial weights, rows of a replay) are written once; the
next checkpoints are hard-linked to them.
"""

import json
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from rlplast.core.errors import DamagedFile, RlplastError, shortened
from rlplast.training.files import fsync, link, whole
from rlplast.training.manifest import FORMAT, KINDS, SENTINEL, check, check_seal, manifest
from rlplast.training.network_tensors import (
    INITIAL,
    aliases,
    first_not_finite,
    load_network_tensors,
    network_tensors,
)

__all__ = [
    "SENTINEL",
    "Snapshot",
    "aliases",
    "check",
    "check_run",
    "check_seal",
    "complete",
    "first_not_finite",
    "fitting",
    "load",
    "load_network_tensors",
    "network_tensors",
    "newest",
    "prune",
    "save",
    "snapshot",
    "unseal_newer",
    "write",
]

TENSORS, INITIALS, STATE = "tensors.safetensors", "initial.safetensors", "state.json"


def _copy(tensor: Tensor) -> Tensor:
    """Return a contiguous copy on the CPU."""
    return tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)


def _split(tree: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """Put tensors and arrays of a nested state into `tensors`; return what JSON can hold."""
    if isinstance(tree, Tensor | np.ndarray):
        plain = np.ascontiguousarray(tree) if isinstance(tree, np.ndarray) else tree
        # A 0-d array loses its shape in ascontiguousarray; numpy and torch kinds differ on load.
        tensors[path] = torch.as_tensor(plain).reshape(tree.shape)
        return {"__tensor__": path, "numpy": isinstance(tree, np.ndarray)}
    if isinstance(tree, Mapping):
        return {str(k): _split(v, f"{path}/{k}", tensors) for k, v in tree.items()}
    if isinstance(tree, list | tuple):
        return [_split(v, f"{path}/{i}", tensors) for i, v in enumerate(tree)]
    if isinstance(tree, np.generic):
        return tree.item()
    return tree


def _join(tree: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(tree, dict):
        if "__tensor__" in tree:
            tensor = tensors[tree["__tensor__"]]
            return tensor.numpy().copy() if tree["numpy"] else tensor
        return {k: _join(v, tensors) for k, v in tree.items()}
    return [_join(v, tensors) for v in tree] if isinstance(tree, list) else tree


@dataclass(frozen=True)
class Snapshot:
    """A moment of a run, ready to be written: copies of tensors, and what JSON holds of the rest.

    ``initial`` is empty if initial weights are among the files to be hard-linked, ``shared``.
    ``write_files`` writes further files (a replay). The rest is as of `snapshot`.
    """

    folder: Path
    position: tuple[int, ...]
    tensors: Mapping[str, Tensor]
    initial: Mapping[str, Tensor]
    state: Any
    write_files: Callable[[Path], object]
    shared: tuple[Path, ...]
    previous: Path | None
    run: str | None


def snapshot(
    folder: Path,
    position: tuple[int, ...],
    tensors: Mapping[str, Tensor],
    state: Mapping[str, Any],
    write_files: Callable[[Path], object] = lambda folder: None,
    previous: Path | None = None,
    run: str | None = None,
) -> Snapshot:
    """Copy all that training will change, so that `write` may run meanwhile.

    Args:
        folder: final folder; its parent is created, and what is there already replaced.
        position: how far the run is; orders checkpoints.
        tensors: by name, on any device. Those whose names end with `INITIAL` never change: they go
            to a file of their own, shared with `previous`.
        state: nested mappings and lists of tensors, arrays and JSON values.
        write_files: writes further files into a folder.
        previous: an undamaged checkpoint of this run that files may be hard links to.
        run: id of the run, which the checkpoint carries.
    """
    shared = () if previous is None else _whole(previous, INITIALS)
    flat: dict[str, Tensor] = {}
    rest = _split(state, "state", flat)
    flat |= tensors
    copies = {n: _copy(t) for n, t in flat.items() if not (shared and n.endswith(INITIAL))}
    initial = {n: copies.pop(n) for n in tuple(copies) if n.endswith(INITIAL)}
    return Snapshot(folder, position, copies, initial, rest, write_files, shared, previous, run)


def write(taken: Snapshot) -> None:
    """Write a snapshot; it appears under its name whole or, with RlplastError, not at all."""
    folder = taken.folder
    try:
        with whole(folder) as temporary:
            temporary.mkdir(parents=True)
            taken.write_files(temporary)
            safetensors.torch.save_file(dict(taken.tensors), temporary / TENSORS)
            if taken.initial:
                safetensors.torch.save_file(dict(taken.initial), temporary / INITIALS)
            for path in taken.shared:
                link(path, temporary / path.name)
            (temporary / STATE).write_text(json.dumps(taken.state))
            seal = {
                "format": FORMAT,
                "position": list(taken.position),
                "run": taken.run,
                "files": manifest(temporary, taken.previous),
            }
            sentinel = temporary / SENTINEL
            sentinel.write_text(json.dumps(seal))
            for path in (sentinel, *(p for p in temporary.rglob("*") if p.is_dir()), temporary):
                fsync(path)
            _delete(folder)
        fsync(folder.parent)
    except (OSError, SafetensorError, KeyError) as error:
        problem = str(error).replace(f".{folder.name}.tmp", folder.name)
        raise RlplastError(
            f"checkpoint {folder} could not be written ({problem}); earlier checkpoints are "
            "intact: free space or fix permissions, then `rlplast resume`, or the study's command "
            "again"
        ) from error


def _whole(folder: Path, name: str) -> tuple[Path, ...]:
    """Return a file of a sealed checkpoint, unless its length has changed."""
    with suppress(DamagedFile, OSError):
        written = check_seal(folder)["files"].get(name)
        if written is not None and (folder / name).stat().st_size == written[0]:
            return (folder / name,)
    return ()


def save(
    folder: Path, position: tuple[int, ...], tensors: Mapping[str, Tensor], state: Mapping[str, Any]
) -> None:
    """Write one checkpoint at once; see `snapshot` and `write`."""
    write(snapshot(folder, position, tensors, state))


def _delete(folder: Path) -> None:
    # Unseal first: a deletion cut short must not leave something that looks complete.
    with suppress(OSError):
        (folder / SENTINEL).unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)


def load(folder: Path) -> tuple[dict[str, Tensor], Any]:
    """Return the tensors and the nested state of a checkpoint, checked."""
    check(folder)
    try:
        tensors = safetensors.torch.load_file(folder / TENSORS)
        if (folder / INITIALS).is_file():  # only networks have initial weights
            tensors |= safetensors.torch.load_file(folder / INITIALS)
        state = json.loads((folder / STATE).read_text())
        return tensors, _join(state, tensors)
    except (OSError, SafetensorError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise DamagedFile(f"{folder} could not be read: {error}") from error


def check_run(folder: Path, runs: Collection[str]) -> None:
    """Check that a checkpoint is of one of these runs (ids, if known), else raise DamagedFile."""
    run = check_seal(folder)["run"]
    if run is not None and runs and run not in runs:
        raise DamagedFile(
            f"{folder} is a checkpoint of another run, {run}: this one is {next(iter(runs))}; move "
            "it back to where it came from"
        )


# What loading a state of another shape may raise.
_MISFITS = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


@contextmanager
def fitting(path: Path) -> Iterator[None]:
    """Raise DamagedFile where a checkpoint's state does not fit what this block loads from it."""
    try:
        yield
    except RlplastError:
        raise
    except _MISFITS as error:
        raise DamagedFile(
            f"{path} does not fit this run ({shortened(error)}): it was altered, or is of another "
            "version; use an older checkpoint"
        ) from error


def complete(root: Path) -> list[Path]:
    """Return the sealed checkpoints in `root`, newest first."""
    found = {}
    for path in _folders(root):
        with suppress(DamagedFile):
            found[path] = check_seal(path)["position"]
    return sorted(found, key=lambda path: found[path], reverse=True)


def _folders(root: Path, form: str = "{}-*") -> list[Path]:
    return [path for kind in KINDS for path in root.glob(form.format(kind))]


def _count(path: Path) -> int:
    """Return the count that a checkpoint's name begins with; 0 if it has none."""
    digits = path.name.split("-")[1]
    return int(digits) if digits.isdecimal() else 0


def newest(root: Path) -> tuple[Path, list[str]]:
    """Return the newest undamaged checkpoint and what was wrong with newer ones.

    Raises:
        DamagedFile: if there is none, with the reasons.
    """
    sealed = complete(root)
    problems = {}
    for path in (*sorted(set(_folders(root)) - set(sealed)), *sealed):
        try:
            check(path)
        except DamagedFile as error:
            problems[path] = str(error)
        else:  # an older one without a seal was being deleted
            newer = [p for p in problems if p in sealed or _count(p) >= _count(path)]
            return path, [problems[p] for p in newer]
    more = f"; and {len(problems) - 2} more" if len(problems) > 2 else ""
    short = [problem.replace(f"{root}/", "") for problem in list(problems.values())[:2]]
    reasons = "; ".join(short) + more or "the folder has none"
    raise DamagedFile(f"no usable checkpoint in {root}: {reasons}")


def unseal_newer(root: Path, path: Path) -> None:
    """Unseal the checkpoints after `path`, which count lines that a resume from `path` cuts off."""
    for other in complete(root):
        if other == path:
            return
        (other / SENTINEL).unlink(missing_ok=True)


def prune(root: Path, keep: int, best: str | None = None) -> None:
    """Delete all but the newest `keep` due checkpoints, and the one called `best`.

    A ``branch`` checkpoint, where a run stopped early, stays while it is the newest.
    """
    sealed = complete(root)
    kept = [path for path in sealed if path.name.startswith("step-")][:keep]
    kept += [path for path in sealed[:1] if path.name.startswith("branch-")]
    for path in _folders(root) + _folders(root, ".{}-*.tmp"):
        if path not in kept and path.name != best:
            _delete(path)
