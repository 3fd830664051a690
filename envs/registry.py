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

from envs import atari, classic, minatar
from envs.base import Env, EnvSpec, UnknownEnv
from envs.options import Family, resolve_options
from envs.vector import VectorEnv

__all__ = ["list_envs", "make", "make_vector", "spec"]

_FAMILY_OF: dict[str, Family] = {
    env_id: family
    for family in (atari.FAMILY, minatar.FAMILY, classic.FAMILY)
    for env_id in family.ids
}


def _resolve(env_id: str, given: dict[str, Any]) -> tuple[Family, dict[str, Any]]:
    if env_id not in _FAMILY_OF:
        near = difflib.get_close_matches(env_id, _FAMILY_OF, n=1)
        families = sorted({known.split("/")[0] + "/" for known in _FAMILY_OF})
        hint = f"did you mean '{near[0]}'?" if near else f"ids start with {', '.join(families)}"
        raise UnknownEnv(f"env id '{env_id}' is unknown: {hint}")
    family = _FAMILY_OF[env_id]
    return family, resolve_options(env_id, given, family.options(env_id))


def spec(env_id: str, **options: Any) -> EnvSpec:
    """Describe an environment; needs no package of its family.

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
    return VectorEnv(spec(env_id, **options), partial(make, env_id, **options), rngs, workers)


def list_envs() -> list[dict[str, Any]]:
    """Return a row for every id, whether or not its package is installed.

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
