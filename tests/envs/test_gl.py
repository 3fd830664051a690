import ctypes.util
import os
import subprocess
import sys
from importlib import util

import pytest

pytestmark = [
    pytest.mark.skipif(ctypes.util.find_library("EGL") is None, reason="needs libEGL"),
    pytest.mark.skipif(util.find_spec("triton") is None, reason="needs Triton"),
]

CODE = """
import numpy, torch
from rlplast import envs
env = envs.make("{env_id}", numpy.random.default_rng(0))
env.reset()
env.render()
import triton
print("loaded")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env_id", "backend"),
    [
        ("dmc/cartpole-balance", None),
        ("gym/Reacher-v5", "egl"),
        ("gym/gymnasium:Pusher-v5", None),
    ],
)
def test_what_compiles_may_be_loaded_after_a_picture(env_id: str, backend: str | None) -> None:
    pytest.importorskip("dm_control")
    kept = {k: v for k, v in os.environ.items() if k not in ("MUJOCO_GL", "DISPLAY")}
    done = subprocess.run(
        [sys.executable, "-c", CODE.format(env_id=env_id)],
        env=kept | ({"MUJOCO_GL": backend} if backend else {}),
        capture_output=True,
        text=True,
    )
    assert done.stdout == "loaded\n", (done.returncode, done.stderr)
