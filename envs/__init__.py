"""Environments with exact state, made by id.

Ids start with `atari/`, `minatar/`, `gym/` (classic control, MuJoCo, and what the user registered
with Gymnasium), `dmc/` or `humanoid_bench/`.

- `make`, `make_vector`, `spec`, `list_envs`: environments by id.
- `Env`, `EnvSpec`, `VectorEnv`, `VectorStep`: what they return.
- `UnknownEnv`, `MissingPackage`, `NotFinite`, `WorkerDied`: what they raise.

Needs numpy; each family imports its own package only when one of its environments is built.
"""

from envs.base import Env, EnvSpec, MissingPackage, NotFinite, UnknownEnv
from envs.registry import list_envs, make, make_vector, spec
from envs.vector import VectorEnv, VectorStep
from envs.workers import WorkerDied

__all__ = [
    "Env",
    "EnvSpec",
    "MissingPackage",
    "NotFinite",
    "UnknownEnv",
    "VectorEnv",
    "VectorStep",
    "WorkerDied",
    "list_envs",
    "make",
    "make_vector",
    "spec",
]
