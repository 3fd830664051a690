"""What all MuJoCo environments need: their exact state as arrays, and silence.

The state that MuJoCo itself names (`mj_getState`) is not enough: rewards and observations read
derived arrays as the last step left them, such as `cfrc_ext`, and recomputing them gives other
values. So all arrays of mjData's own buffer are kept. Contacts and constraints lie in its arena,
which each step fills anew before it reads it; they are not part of the state.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from rlplast.envs.base import State

__all__ = ["MjDataState", "multiply", "quiet"]

# Numbers beside the buffer that a step reads before it writes them; older versions lack some.
# What they leave out are sizes, pointers, timers and high-water marks.
_SCALARS = (
    "time flg_energypos flg_energyvel flg_rnepost flg_subtreevel "
    "nbody_awake nparent_awake ntree_awake nv_awake"
).split()


class MjDataState:
    """The state of one `mujoco.MjData`, which must stay the same object.

    Raises:
        ValueError: when the model has plugins, whose state MuJoCo does not show.
    """

    def __init__(self, data: Any) -> None:
        if data.nplugin:
            raise ValueError("a MuJoCo model with plugins has no state that can be saved")
        self._data = data
        self._arrays = _buffer_arrays(data)
        layout = ",".join(f"{name}:{a.dtype}:{a.shape}" for name, a in self._arrays.items())
        self._layout = hashlib.sha256(layout.encode()).hexdigest()[:16]
        self._scalars = [name for name in _SCALARS if hasattr(data, name)]
        # One array per type, since a checkpoint with some 70 of them per environment is slow.
        self._by_dtype: dict[str, list[np.ndarray]] = {}
        for array in self._arrays.values():
            self._by_dtype.setdefault(str(array.dtype), []).append(array)

    def read(self) -> State:
        """Return the state as a copy: about 20 kB for Ant, 30 kB for Humanoid."""
        warnings = [[warning.lastinfo, warning.number] for warning in self._data.warning]
        return {
            "layout": self._layout,
            "arrays": {
                dtype: np.concatenate([array.reshape(-1) for array in arrays])
                for dtype, arrays in self._by_dtype.items()
            },
            "scalars": {name: getattr(self._data, name) for name in self._scalars},
            "warnings": np.array(warnings),
        }

    def write(self, state: State) -> None:
        """Continue where `state` was read.

        Raises:
            ValueError: when it is of another model or of a MuJoCo with other arrays.
        """
        if state["layout"] != self._layout:
            raise ValueError(
                "the state holds other MuJoCo arrays than this model: it is of another model, or "
                "was taken with another version of mujoco, which has to be installed to go on"
            )
        for dtype, arrays in self._by_dtype.items():
            ends = np.cumsum([array.size for array in arrays])
            for array, part in zip(
                arrays, np.split(state["arrays"][dtype], ends[:-1]), strict=True
            ):
                array[...] = part.reshape(array.shape)
        for name, value in state["scalars"].items():
            setattr(self._data, name, value)
        for warning, (lastinfo, number) in zip(self._data.warning, state["warnings"], strict=True):
            warning.lastinfo, warning.number = int(lastinfo), int(number)


def multiply(model: Any, gravity: float, friction: float) -> None:
    """Multiply the gravity of a `mujoco.MjModel` and the sliding friction of all its contacts."""
    model.opt.gravity[:] *= gravity
    model.geom_friction[:, 0] *= friction
    model.pair_friction[:, :2] *= friction


@contextmanager
def quiet(mujoco: Any) -> Iterator[None]:
    """Drop MuJoCo's remarks on the tasks' own models, which are printed and written to a file.

    A package that takes over its warnings, as dm_control does, has to be imported before.
    """
    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda message: None)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(before)


def _buffer_arrays(data: Any) -> dict[str, np.ndarray]:
    """Return the arrays that live in mjData's own buffer, by name, and `energy` beside it."""
    # The buffer starts with `qpos`, and its arrays keep their addresses as long as `data` lives;
    # those of the arena change their sizes with every step, so they are told apart by address.
    start = data.qpos.__array_interface__["data"][0]
    arrays = {}
    for name in dir(data):
        value = None if name.startswith("_") else getattr(data, name)
        if isinstance(value, np.ndarray) and value.size:
            address = value.__array_interface__["data"][0]
            if start <= address < start + data.nbuffer:
                arrays[name] = value
    return {**arrays, "energy": data.energy}
