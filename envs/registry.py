"""Environments by id.

Installed packages may bring more, by entry points of the group ``rlplast.envs``, which are imported
when an id is asked for that is not known without them, and for the list.
"""

import difflib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from rlplast import plugins
from rlplast.envs import (
    atari,
    classic,
    custom,
    dmc,
    humanoid_bench,
    minatar,
    mujoco,
    nine_rooms,
    toy,
)
from rlplast.envs.base import Env, EnvSpec, UnknownEnv
from rlplast.envs.levels import LEVELS, Level, find_level
from rlplast.envs.options import Family, resolve_options
from rlplast.envs.vector import VectorEnv
from rlplast.envs.workers import TIMEOUT, check_portable

__all__ = ["find_resume", "list_envs", "make", "make_vector", "register", "spec"]

_FAMILY_OF: dict[str, Family] = {
    env_id: family
    for family in (
        atari.FAMILY,
        minatar.FAMILY,
        classic.FAMILY,
        mujoco.FAMILY,
        dmc.FAMILY,
        humanoid_bench.FAMILY,
        toy.FAMILY,
        nine_rooms.FAMILY,
    )
    for env_id in family.ids
}
_FROM: dict[str, str] = {}  # where an id comes from, if not from here


def register(family: Family) -> None:
    """Add environments, in a module that `--import` or an entry point names.

    Its `make` runs in worker processes, so it must be a function of a module.

    Raises:
        ValueError: for an id that is taken, or one without a slash.
    """
    where = _place(family.make)
    for env_id in family.ids:
        if _place(_FAMILY_OF.get(env_id, family).make) != where:  # else a module imported twice
            raise ValueError(
                f"env id '{env_id}' is taken, by {_FROM.get(env_id, 'rlplast')}: choose another"
            )
        if "/" not in env_id:
            raise ValueError(f"env id '{env_id}' has no family: allowed is 'family/name'")
    _FAMILY_OF.update(dict.fromkeys(family.ids, family))
    _FROM.update(dict.fromkeys(family.ids, plugins.origin(where[0])))


def _place(function: Any) -> tuple[str, str]:
    return function.__module__, getattr(function, "__qualname__", repr(function))


def _family(env_id: str) -> Family | None:
    if env_id in _FAMILY_OF or custom.registration(env_id) is None:
        return _FAMILY_OF.get(env_id)
    return custom.FAMILY


def _resolve(env_id: str, given: dict[str, Any]) -> tuple[Family, dict[str, Any]]:
    family = _family(env_id)
    if family is None and plugins.load(plugins.ENVS):
        family = _family(env_id)
    if family is None:
        raise UnknownEnv(f"env id '{env_id}' is unknown: {_hint(env_id)}")
    return family, resolve_options(env_id, given, family.options(env_id))


def _hint(env_id: str) -> str:
    prefix = custom.PREFIX
    if env_id.startswith(prefix) and (newest := custom.other_version(env_id)):
        return f"did you mean '{newest}'?"
    # Any two short names of Gymnasium's with a version are alike, so these need a nearer match.
    cutoff = 0.8 if env_id.startswith(prefix) else 0.6
    near = difflib.get_close_matches(env_id, [*_FAMILY_OF, *custom.own_ids()], 1, cutoff)
    hints = [f"did you mean '{near[0]}'?"] if near else []
    if not near and not env_id.startswith(prefix):
        families = sorted({known.split("/")[0] + "/" for known in _FAMILY_OF})
        hints.append(f"ids start with {', '.join(families)};")
    if not near or env_id.startswith(prefix):
        hints.append(
            f"{'Else an' if near else 'an'} environment of your own is {prefix}<its id in "
            "Gymnasium's registry>, once the module that registers it is imported"
        )
    return " ".join(hints)


def spec(env_id: str, **options: Any) -> EnvSpec:
    """Describe an environment; one of the user's own is built for it and closed again.

    Raises as `make` does.
    """
    family, resolved = _resolve(env_id, options)
    return family.spec(env_id, resolved)


def make(env_id: str, rng: np.random.Generator, **options: Any) -> Env:
    """Build one environment that draws everything from `rng`, which it keeps.

    Raises:
        UnknownEnv: for an unknown id.
        ValueError: for an unknown option or a value out of its range.
        MissingPackage: when the family's package is not installed.
    """
    family, resolved = _resolve(env_id, options)
    return family.make(env_id, rng, resolved)


def make_vector(
    env_id: str,
    rngs: Sequence[np.random.Generator],
    workers: int = 0,
    timeout: float = TIMEOUT,
    **options: Any,
) -> VectorEnv:
    """Build one environment per generator, stepped together.

    Args:
        env_id: the id of all of them.
        rngs: a generator of its own for each; the environments keep them.
        workers: processes that the environments are split over; 0 for this process. Trajectories
            do not depend on it.
        timeout: seconds that a process may take to answer.
        options: as for `make`, and so are errors.

    Raises:
        ValueError: for a bad worker count or list of generators too.
    """
    family, resolved = _resolve(env_id, options)
    make_env = _maker(family, env_id, resolved, workers)
    return VectorEnv(family.spec(env_id, resolved), make_env, rngs, workers, timeout)


def find_resume(env_id: str, workers: int = 0, timeout: float = TIMEOUT, **options: Any) -> Level:
    """Return how a run on an environment goes on after an interruption.

    One of the user's own is tried out (`find_level`, which raises if the trial cannot go on), with
    `workers` in a worker process; others are exact. The rest is as for `make_vector`.
    """
    family, resolved = _resolve(env_id, options)
    if family is not custom.FAMILY:
        return Level(LEVELS[0])
    return find_level(_maker(family, env_id, resolved, workers), workers > 0, timeout)


def _maker(
    family: Family, env_id: str, options: dict[str, Any], workers: int
) -> Callable[[np.random.Generator], Env]:
    """Return what builds an environment from a generator, in workers too if there are any."""
    record = custom.record_of(env_id) if family is custom.FAMILY else None
    if workers:
        remedy = "register it with an entry point 'module:Class'"
        if record is None:
            remedy = "let its family's make be a function of a module"
        check_portable(env_id, (record, family.make), remedy)
    return partial(_make_here, record, family.make, env_id, options)


def _make_here(
    record: Any | None,
    build: Callable[[str, np.random.Generator, dict[str, Any]], Env],
    env_id: str,
    options: dict[str, Any],
    rng: np.random.Generator,
) -> Env:
    """Build an environment, perhaps in a worker where the user's module was not imported."""
    if record is not None:
        custom.register_again(record)
    return build(env_id, rng, options)


def list_envs() -> list[dict[str, Any]]:
    """Return a row for every id, whether or not its package is installed.

    Of the ids in Gymnasium's registry, those of plug-ins are among them. Rows are `{"name",
    "family", "summary", "params", "source", "from"}`; `params` maps each option to its `default`
    and `range`, and `from` says whose the environment is.
    """
    known = {}
    if plugins.load(plugins.ENVS):
        for env_id in custom.own_ids():
            if owner := plugins.owner(custom.module_of(env_id)):
                known[env_id] = (custom.FAMILY, owner)
    known |= {env_id: (f, _FROM.get(env_id, "rlplast")) for env_id, f in _FAMILY_OF.items()}
    return [
        {
            "name": env_id,
            "family": "envs",
            "summary": family.summary(env_id),
            "params": {
                name: {"default": option.default, "range": option.range}
                for name, option in family.options(env_id).items()
            },
            "source": family.source,
            "from": origin,
        }
        for env_id, (family, origin) in sorted(known.items())
    ]
