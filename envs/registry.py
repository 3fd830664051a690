"""Environments by id.

- `make`, `make_vector`: build one environment, or several in lockstep.
- `spec`: describe one without building it.
- `list_envs`: a row for every id.
"""

import difflib
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from envs import atari, classic, custom, dmc, humanoid_bench, minatar, mujoco
from envs.base import Env, EnvSpec, UnknownEnv
from envs.options import Family, resolve_options
from envs.vector import VectorEnv

__all__ = ["list_envs", "make", "make_vector", "spec"]

_FAMILY_OF: dict[str, Family] = {
    env_id: family
    for family in (
        atari.FAMILY,
        minatar.FAMILY,
        classic.FAMILY,
        mujoco.FAMILY,
        dmc.FAMILY,
        humanoid_bench.FAMILY,
    )
    for env_id in family.ids
}


def _resolve(env_id: str, given: dict[str, Any]) -> tuple[Family, dict[str, Any]]:
    family = _FAMILY_OF.get(env_id)
    if family is None and custom.registration(env_id) is not None:
        family = custom.FAMILY
    if family is None:
        raise UnknownEnv(f"env id '{env_id}' is unknown: {_hint(env_id)}")
    return family, resolve_options(env_id, given, family.options(env_id))


def _hint(env_id: str) -> str:
    """Say what may have been meant by an unknown id."""
    own = custom.PREFIX
    # Any two short names of Gymnasium's with a version are alike, so these need a nearer match.
    cutoff = 0.8 if env_id.startswith(own) else 0.6
    near = difflib.get_close_matches(env_id, [*_FAMILY_OF, *custom.own_ids()], 1, cutoff)
    hints = [f"did you mean '{near[0]}'?"] if near else []
    if not near and not env_id.startswith(own):
        families = sorted({known.split("/")[0] + "/" for known in _FAMILY_OF})
        hints.append(f"ids start with {', '.join(families)};")
    if not near or env_id.startswith(own):
        hints.append(
            f"{'Else an' if near else 'an'} environment of your own is {own}<its id in "
            "Gymnasium's registry>, once the module that registers it is imported"
        )
    return " ".join(hints)


def spec(env_id: str, **options: Any) -> EnvSpec:
    """Describe an environment; needs no package of its family.

    An environment of the user's own is built for it and closed again.

    Raises:
        UnknownEnv: for an unknown id.
        ValueError: for an unknown option or a value out of its range.
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
    env_id: str, rngs: Sequence[np.random.Generator], workers: int = 0, **options: Any
) -> VectorEnv:
    """Build one environment per generator, stepped together.

    Args:
        env_id: the id of all of them.
        rngs: a generator of its own for each; the environments keep them.
        workers: processes that the environments are split over; 0 for this process. Trajectories
            do not depend on it.
        options: as for `make`.

    Raises:
        UnknownEnv: for an unknown id.
        ValueError: for a bad option, worker count or list of generators.
        MissingPackage: when the family's package is not installed.
    """
    registration = None if env_id in _FAMILY_OF else custom.registration(env_id)
    if registration is not None and workers:
        custom.check_portable(registration)
    make_env = partial(_make_here, registration, env_id, options)
    return VectorEnv(spec(env_id, **options), make_env, rngs, workers)


def _make_here(
    registration: Any, env_id: str, options: dict[str, Any], rng: np.random.Generator
) -> Env:
    """Build an environment, perhaps in a worker where the user's module was not imported."""
    if registration is not None:
        custom.register_again(registration)
    return make(env_id, rng, **options)


def list_envs() -> list[dict[str, Any]]:
    """Return a row for every id, whether or not its package is installed.

    Environments of the user's own are not among them.

    Rows are `{"name", "family", "summary", "params", "source"}`, where `params` maps each option
    to its `default` and `range`.
    """
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
        }
        for env_id, family in sorted(_FAMILY_OF.items())
    ]
