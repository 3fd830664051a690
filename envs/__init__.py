"""Environments with exact state, made by id.

Ids start with `atari/`, `minatar/`, `gym/` (classic control, MuJoCo, and what the user registered
with Gymnasium), `dmc/`, `humanoid_bench/`, `toy/`, or as a registered family's do. Most
families import their package only when one of their environments is built.
"""

from rlplast.envs.base import (
    Env,
    EnvFailed,
    EnvSpec,
    MissingPackage,
    NotFinite,
    Simulator,
    UnknownEnv,
)
from rlplast.envs.frame_stack import FrameStack
from rlplast.envs.joined import TaskVector, join_specs
from rlplast.envs.levels import LEVELS, Level
from rlplast.envs.registry import find_resume, list_envs, make, make_vector, register, spec
from rlplast.envs.shifts import NO_SHIFT, SHIFTS, Shift, draw_shift
from rlplast.envs.vector import VectorEnv, VectorStep
from rlplast.envs.workers import WorkerDied

__all__ = [
    "LEVELS",
    "NO_SHIFT",
    "SHIFTS",
    "Env",
    "EnvFailed",
    "EnvSpec",
    "FrameStack",
    "Level",
    "MissingPackage",
    "NotFinite",
    "Shift",
    "Simulator",
    "TaskVector",
    "UnknownEnv",
    "VectorEnv",
    "VectorStep",
    "WorkerDied",
    "draw_shift",
    "find_resume",
    "join_specs",
    "list_envs",
    "make",
    "make_vector",
    "register",
    "spec",
]
