"""Environments by id.

Installed packages may bring more, by entry points of the group ``rlplast.envs``, which are imported
when an id is asked for that is not known without them, and for the list.
"""

import dataclasses
import difflib
from collections.abc import Callable, Mapping, Sequence
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
from rlplast.envs.base import Env, EnvSpec, Simulator, UnknownEnv
from rlplast.envs.levels import LEVELS, Level, find_level
from rlplast.envs.options import Family, Option, count, resolve_options
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
# Of an id that is not from here: where from, and the name of what makes it.
_FROM: dict[str, tuple[str, tuple[str, str]]] = {}


def register(
    spec: EnvSpec,
    make: Callable[..., Simulator],
    *,
    summary: str,
    source: str,
    options: Mapping[str, Option] | None = None,
) -> None:
    """Add an environment, in a module that `--import` or an entry point names.

    It has the option ``max_episode_steps`` too, by default that of its description.

    Args:
        spec: its description; the id is family/name.
        make: builds the simulator from a generator, with `options` as keywords. It runs in worker
            processes, so it must be a class or a function of a module.
        summary: a line about it.
        source: the paper or package that it comes from.
        options: what a config may choose, by name.

    Raises:
        ValueError: for an id that is taken, or one without a slash.
    """
    env_id, place = spec.id, (make.__module__, getattr(make, "__qualname__", repr(make)))
    origin, taken_by = _FROM.get(env_id, ("rlplast", None))
    if env_id in _FAMILY_OF and taken_by != place:  # else a module imported twice
        raise ValueError(f"env id '{env_id}' is taken, by {origin}: choose another")
    if "/" not in env_id:
        raise ValueError(f"env id '{env_id}' has no family: allowed is 'family/name'")
    limit = count(spec.max_episode_steps, none_means="no limit")
    all_options = {"max_episode_steps": limit, **(options or {})}
    _FAMILY_OF[env_id] = Family(
        ids={env_id: summary},
        source=source,
        options=lambda env_id: all_options,
        spec=partial(_spec_of_others, spec),
        make=partial(_make_of_others, make),
    )
    _FROM[env_id] = plugins.origin(make.__module__), place


def _spec_of_others(spec: EnvSpec, env_id: str, options: dict[str, Any]) -> EnvSpec:
    return dataclasses.replace(spec, max_episode_steps=options["max_episode_steps"])


def _make_of_others(
    make: Callable[..., Simulator], env_id: str, rng: np.random.Generator, options: dict[str, Any]
) -> Simulator:
    return make(rng, **{k: v for k, v in options.items() if k != "max_episode_steps"})


def _resolve(env_id: str, given: dict[str, Any]) -> tuple[Family, dict[str, Any]]:
    family = _FAMILY_OF.get(env_id) or custom.family(env_id)
    if family is None and plugins.load(plugins.ENVS):
        family = _FAMILY_OF.get(env_id) or custom.family(env_id)
    if family is None:
        raise UnknownEnv(f"env id '{env_id}' is unknown: {_hint(env_id)}")
    return family, resolve_options(env_id, given, family.options(env_id))


def _hint(env_id: str) -> str:
    own = "an environment of your own is gym/<its id in Gymnasium's registry>, once the module "
    own += "that registers it is imported"
    if env_id.startswith(custom.PREFIX):
        near = custom.nearest(env_id)
        return f"did you mean '{near}'? Else {own}" if near else own
    if near := difflib.get_close_matches(env_id, _FAMILY_OF, 1):
        return f"did you mean '{near[0]}'?"
    families = sorted({known.split("/")[0] + "/" for known in _FAMILY_OF})
    return f"ids start with {', '.join(families)}; {own}"


def spec(env_id: str, **options: Any) -> EnvSpec:
    """Describe an environment; one of Gymnasium's registry is built for it and closed again.

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
    return _maker(family, env_id, resolved)(rng)


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
        ValueError: for a bad worker count or a generator used twice too.
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
    if env_id in _FAMILY_OF:
        return Level(LEVELS[0])
    return find_level(_maker(family, env_id, resolved, workers), workers > 0, timeout)


def _maker(
    family: Family, env_id: str, options: dict[str, Any], workers: int = 0
) -> Callable[[np.random.Generator], Env]:
    """Return what builds an environment from a generator, in workers too if there are any."""
    make_env = partial(_build, family.spec, family.make, env_id, options)
    if workers:
        check_portable(env_id, make_env)
    return make_env


def _build(
    describe: Callable[[str, dict[str, Any]], EnvSpec],
    make: Callable[[str, np.random.Generator, dict[str, Any]], Simulator | Env],
    env_id: str,
    options: dict[str, Any],
    rng: np.random.Generator,
) -> Env:
    made = make(env_id, rng, options)
    return made if isinstance(made, Env) else Env(describe(env_id, options), made, rng)


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
                known[env_id] = (custom.family(env_id), owner)
    for env_id, family in _FAMILY_OF.items():
        known[env_id] = (family, _FROM.get(env_id, ("rlplast",))[0])
    return [
        {
            "name": env_id,
            "family": "envs",
            "summary": family.ids[env_id],
            "params": {
                name: {"default": option.default, "range": option.range}
                for name, option in family.options(env_id).items()
            },
            "source": family.source,
            "from": origin,
        }
        for env_id, (family, origin) in sorted(known.items())
    ]
