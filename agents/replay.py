"""Replay memory of single frames: stacks and n-step returns are built when sampling.

Rows are counted from the first one ever written (`row`); `row % rows_per_env` is where a row lies.
The newest row of each ring is the *head*: an observation on which no action has been taken yet.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from rlplast.agents import replay_files
from rlplast.agents.device_frames import DeviceFrames
from rlplast.agents.sampling import SampleWeightDecay
from rlplast.core.batches import batch_slices
from rlplast.core.device import on_device
from rlplast.core.errors import ConfigError
from rlplast.core.fast import mapped_memory
from rlplast.envs.base import EnvSpec

__all__ = ["Batch", "EmptyReplay", "Replay"]

# What a row holds besides its frame and its action. `discount` is 0 where the episode
# terminated, else 1; `age` is how many earlier frames of its episode a stack ending here may
# use; `sampleable` is false for the head and for the final observation of a truncated episode.
_RECORD = [("reward", "<f4"), ("discount", "<f4"), ("age", "u1"), ("sampleable", "?")]

_TRIES = 8  # draws at once in place of one that cannot be sampled


class Batch(NamedTuple):
    """B transitions for one update; stacks have the oldest frame first.

    `obs_next` is k <= n steps after `obs`: at a truncation the final one of the episode. Where
    `discount` is 0 by termination it means nothing.
    """

    obs: torch.Tensor  # [B, *stacked_shape], see `rlplast.envs.base.EnvSpec`
    action: torch.Tensor  # [B], int64; continuous ones [B, action_dim], float32
    reward: torch.Tensor  # [B], float32: sum of gamma^i * reward_i over the k steps
    discount: torch.Tensor  # [B], float32: gamma^k, or 0 where the episode terminated
    obs_next: torch.Tensor  # shaped like `obs`


class EmptyReplay(ConfigError):
    """There is no transition to sample yet."""


class _Windows(NamedTuple):
    valid: npt.NDArray[np.bool_]
    steps: npt.NDArray[np.int64]
    reward: npt.NDArray[np.float64]
    discount: npt.NDArray[np.float64]


class Replay:
    """N-step replay that stores each frame once.

    Args:
        capacity: rows in all, at least `num_envs * (n_step + frame_stack)`. A transition takes one
            row, a truncation one more for the final observation.
        num_envs: environments; each has a ring of `capacity // num_envs` rows.
        spec: what observations and actions are; of at most 256 frames in a stack.
        n_step: longest number of steps between `obs` and `obs_next`, at least 1.
        gamma: discount per step, in [0, 1].
        batch_size: transitions in the batch of `sample`.
        rng: the stream `sample` draws from, a PCG64; its child draws again what cannot be sampled.
        device: where batches live.
        segment_rows: rows per file on disk, at most.
        sampling: how often `sample` draws which transition; None for all alike. A transition's age
            is that of its row: a truncation, which takes one more, counts as a step.
        frames_on_device: whether `device`, a GPU, has the frames too; batches are the same.

    Raises:
        ConfigError: for too many frames in a stack.
    """

    def __init__(
        self,
        capacity: int,
        num_envs: int,
        spec: EnvSpec,
        n_step: int,
        gamma: float,
        batch_size: int,
        rng: np.random.Generator,
        device: torch.device | str = "cpu",
        segment_rows: int = 4096,
        sampling: SampleWeightDecay | None = None,
        frames_on_device: bool = False,
    ) -> None:
        if spec.frame_stack > 256:  # which `age` could not count
            raise ConfigError(f"frame_stack = {spec.frame_stack}: allowed is [1, 256]")
        self._num_envs, self._rows = num_envs, capacity // num_envs
        self._spec, self._segment_rows, self._sampling = spec, segment_rows, sampling
        self._rng, self._again = rng, rng.spawn(1)[0]
        shape = (num_envs * self._rows, *spec.obs_shape)
        self._frames = mapped_memory.zeros(shape, np.dtype(spec.obs_dtype))
        self._action_shape = () if spec.action_dim is None else (spec.action_dim,)
        action = ("action", "<f4" if self._action_shape else "<i4", self._action_shape)
        self._records = mapped_memory.zeros(shape[:1], np.dtype([action, *_RECORD]))
        self._blank = np.zeros((), self._records.dtype)
        self._saving: replay_files.Saving | None = None
        self._written = np.zeros(num_envs, np.int64)
        self._cleared = np.zeros(num_envs, np.int64)  # rows written before the last `clear`
        self.look_ahead(n_step, gamma)
        # Frame j of a stack is so many rows back.
        self._back = np.arange(spec.frame_stack - 1, -1, -1)
        self._device = torch.device(device)
        on_gpu = self._device.type == "cuda"
        self._host = self._new_batch(batch_size, pinned=on_gpu)
        self._batches = [_to(self._host, self._device)]  # what `sample_block` returns
        self._copied = torch.cuda.Event() if on_gpu else None
        self._device_frames = DeviceFrames(self._frames, self._device) if frames_on_device else None

    def look_ahead(self, n_step: int, gamma: float) -> None:
        """Sample n-step returns of another n, at most the longest, and γ from now on."""
        self._n_step, self._gammas = n_step, np.power(float(gamma), np.arange(n_step + 1))

    @property
    def notes(self) -> tuple[str, ...]:
        """What a run says of it as it begins."""
        if self._device_frames is None:
            return ()
        return (f"replay: {self._frames.nbytes / 2**30:.3g} GiB of {self._device}'s memory",)

    @property
    def nbytes(self) -> int:
        """Bytes the full memory takes."""
        return self._frames.nbytes + self._records.nbytes

    @property
    def batch_nbytes(self) -> int:
        """Bytes that a batch of `sample` takes."""
        return sum(tensor.nbytes for tensor in self._batches[0])

    @property
    def size(self) -> int:
        """Number of transitions that can be sampled now; looks at all rows."""
        return len(self._all()[0])

    def clear(self) -> None:
        """Forget all transitions; `start` has to follow."""
        self._cleared[:] = self._written

    def start(self, obs: npt.NDArray[Any]) -> None:
        """Open an episode in every environment at `obs`, `[num_envs, *obs_shape]`.

        Running episodes are closed as truncated at their last observation.
        """
        self._write(np.arange(self._num_envs), obs, np.zeros(self._num_envs, np.uint8))

    def add(
        self,
        action: npt.NDArray[Any],
        reward: npt.NDArray[Any],
        terminated: npt.NDArray[Any],
        truncated: npt.NDArray[Any],
        obs_next: npt.NDArray[Any],
        obs_final: npt.NDArray[Any],
    ) -> None:
        """Store one transition of every environment; `start` came before.

        Args:
            action: taken on the newest observation, `[num_envs]` or `[num_envs, action_dim]`.
            reward: `[num_envs]`.
            terminated: `[num_envs]`, bool; wins where both flags are set.
            truncated: `[num_envs]`, bool.
            obs_next: what the next action will be taken on, `[num_envs, *obs_shape]`: where an
                episode ended, the first observation of the next one.
            obs_final: last observation of each ended episode; read only where truncated.
        """
        envs = np.arange(self._num_envs)
        now = self._at(envs, self._written - 1)
        self._records["action"][now] = action
        self._records["reward"][now] = reward
        self._records["discount"][now] = ~terminated
        self._records["sampleable"][now] = True
        age = np.minimum(self._records["age"][now].astype(np.int64) + 1, self._spec.frame_stack - 1)
        cut = np.flatnonzero(truncated & ~terminated)
        self._write(cut, obs_final[cut], age[cut])
        self._write(envs, obs_next, np.where(terminated | truncated, 0, age))

    def sample(self) -> Batch:
        """Draw `batch_size` transitions with replacement, into the same tensors always.

        Raises:
            EmptyReplay: if there is nothing to sample yet.
        """
        return self.sample_block(1)[0]

    def sample_block(self, count: int) -> list[Batch]:
        """Return what so many calls of `sample` would draw, on a CPU; elsewhere one alone.

        Their tensors are those of the last block.
        """
        size = len(self._batches[0].action)
        if self._copied is not None:
            self._copied.synchronize()  # the last copy reads what is filled now
        if len(self._batches) < count:
            self._host = self._new_batch(count * size)
            parts = zip(*(part.split(size) for part in self._host), strict=True)
            self._batches = [Batch(*part) for part in parts]
        whole = Batch(*(part[: count * size] for part in self._host))
        drawn = self._draw(count, size, self._rng, self._again, self._sampling)
        self._gather(whole, *drawn, self._device_frames)
        if self._device.type != "cpu":
            self._copy()
        return self._batches[:count]

    def _copy(self) -> None:
        for name, source in self._host._asdict().items():
            if self._device_frames is None or not name.startswith("obs"):
                target: torch.Tensor = getattr(self._batches[0], name)
                target.copy_(source, non_blocking=self._copied is not None)
        if self._copied is not None:
            self._copied.record(torch.cuda.current_stream(self._device))

    def sample_from(self, count: int, rng: np.random.Generator) -> Batch:
        """Draw `count` transitions uniformly from another stream, as probes do."""
        batch = self._new_batch(count)
        self._gather(batch, *self._draw(1, count, rng, rng))
        return _to(batch, self._device)

    def batches(self, count: int | None, size: int, rng: np.random.Generator) -> Iterator[Batch]:
        """Yield `count` draws of `size` transitions, or every transition once, in random order."""
        if count is not None:
            for _ in range(count):
                yield self.sample_from(size, rng)
            return
        self._refuse_if_empty()
        env, row = self._all()
        order = rng.permutation(len(env))
        for part in batch_slices(len(order), size):
            chosen = env[order[part]], row[order[part]]
            batch = self._new_batch(len(chosen[0]))
            self._gather(batch, *chosen, self._windows(*chosen))
            yield _to(batch, self._device)

    def actions(self) -> npt.NDArray[Any]:
        """Return the actions of all transitions that can be sampled."""
        return self._records["action"][self._records["sampleable"]]

    def state_dict(self) -> dict[str, Any]:
        """Return what `load` needs besides a folder: plain values for JSON."""
        head = self._at(np.arange(self._num_envs), self._written - 1)
        return {
            "layout": self._layout(),
            "rows_written": self._written.tolist(),
            "rows_cleared": self._cleared.tolist(),
            "head_age": self._records["age"][head].tolist(),
            "rng": [rng.bit_generator.state for rng in (self._rng, self._again)],
        }

    def begin_save(self, previous: Path | None = None) -> replay_files.Saving:
        """Return what writes the memory as it is now into a new or empty folder, when called.

        That may be done once, in another thread while rows are added; `add` waits before it
        overwrites a row that is still to be read. Files of the earlier save `previous` are
        hard-linked, and only rows added since are written.
        """
        self._saving = replay_files.Saving(self._rings(), previous, self._segment_rows)
        return self._saving

    def load(self, folder: Path, state: dict[str, Any], new_draws: bool = False) -> None:
        """Restore memory and stream, so that sampling goes on as if never interrupted.

        Files are mapped into memory where that is possible, so they must not change. With
        `new_draws` the streams stay as they are, new. After an error the content is undefined.

        Raises:
            ConfigError: if the saved memory has another layout than this one.
            DamagedFile: if rows are missing, or a file is short or of another shape.
        """
        for key, value in self._layout().items():
            saved = state["layout"].get(key)
            if saved != value:
                raise ConfigError(
                    f"replay {key} = {value}: the saved replay has {saved}; "
                    "resume with the configuration it was saved with"
                )
        self._written[:] = state["rows_written"]
        self._cleared[:] = state.get("rows_cleared", 0)
        self._records[:] = self._blank
        replay_files.load(folder, self._rings())
        if self._device_frames is not None:
            self._device_frames.load()
        head = self._at(np.arange(self._num_envs), self._written - 1)
        self._records[head] = self._blank
        self._records["age"][head] = state["head_age"]
        if not new_draws:
            for rng, saved in zip((self._rng, self._again), state["rng"], strict=True):
                rng.bit_generator.state = saved

    def _rings(self) -> replay_files.Rings:
        arrays = {"frames": self._frames, "records": self._records}
        return replay_files.Rings(arrays, self._rows, self._written.tolist())

    def _layout(self) -> dict[str, Any]:
        return {
            "num_envs": self._num_envs,
            "rows_per_env": self._rows,
            "obs_shape": list(self._spec.obs_shape),
            "obs_dtype": self._frames.dtype.str,
            "frame_stack": self._spec.frame_stack,
            "action_dim": self._spec.action_dim,
            "bit_generator": type(self._rng.bit_generator).__name__,
        }

    def _at(self, env: npt.NDArray[Any], row: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        return env * self._rows + row % self._rows

    def _oldest(self) -> npt.NDArray[np.int64]:
        return np.maximum(self._written - self._rows, self._cleared)

    def _write(
        self, envs: npt.NDArray[np.int64], frames: npt.NDArray[Any], age: npt.NDArray[Any]
    ) -> None:
        """Append a row that cannot be sampled (yet) to the rings of `envs`."""
        if self._saving is not None and self._saving.active:
            self._saving.wait(envs, self._written[envs] - self._rows)
        at = self._at(envs, self._written[envs])
        self._frames[at] = frames
        self._records[at] = self._blank
        self._records["age"][at] = age
        self._written[envs] += 1
        if self._device_frames is not None:
            self._device_frames.write(at)

    def _windows(self, env: npt.NDArray[np.int64], row: npt.NDArray[np.int64]) -> _Windows:
        """Look at the n rows from each `row` on: what they add up to, and whether they may."""
        head = self._written[env] - 1
        rows = row[:, None] + np.arange(self._n_step)
        records = np.take(self._records, self._at(env[:, None], rows), mode="clip")
        goes_on = records["discount"] != 0
        inside = records["sampleable"]  # false for the head, so no window passes it
        inside[:, 1:] &= goes_on[:, :-1]
        inside = np.logical_and.accumulate(inside, axis=1)
        steps = inside.sum(axis=1)
        terminated = (inside & ~goes_on).any(axis=1)
        # A window may be short where its episode ended, not where it ran into the head.
        complete = (steps == self._n_step) | terminated | (row + steps < head)
        whole_stack = row - records["age"][:, 0] >= self._oldest()[env]
        reward = np.where(inside, records["reward"], 0) * self._gammas[:-1]
        discount = np.where(terminated, 0, self._gammas[steps])
        valid = (steps > 0) & complete & whole_stack
        return _Windows(valid, steps, reward.sum(axis=1), discount)

    def _all(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return where all transitions begin."""
        oldest = self._oldest()
        lengths = np.maximum(self._written - 1 - oldest, 0)
        env = np.repeat(np.arange(self._num_envs), lengths)
        row = np.concatenate([np.arange(o, o + n) for o, n in zip(oldest, lengths, strict=True)])
        good = self._windows(env, row).valid
        return env[good], row[good]

    def _draw(
        self,
        batches: int,
        size: int,
        rng: np.random.Generator,
        again: np.random.Generator,
        sampling: SampleWeightDecay | None = None,
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], _Windows]:
        """Draw where the transitions of some batches begin; `again` redraws what cannot be used."""
        env, row = self._candidates(batches * size, rng, sampling)
        windows = self._windows(env, row)
        bad = np.flatnonzero(~windows.valid)
        if not len(bad):
            return env, row, windows
        if len(bad) == len(env):  # `size` is dear, so it is asked only when in doubt
            self._refuse_if_empty()
        state = again.bit_generator.state
        if len(self._draw_again(env, row, bad, again, sampling)):  # seldom: one batch at a time
            again.bit_generator.state = state
            for left in np.split(bad, np.searchsorted(bad, np.arange(size, len(env), size))):
                while len(left):
                    left = self._draw_again(env, row, left, again, sampling)
        for whole, part in zip(windows, self._windows(env[bad], row[bad]), strict=True):
            whole[bad] = part
        return env, row, windows

    def _draw_again(
        self,
        env: npt.NDArray[np.int64],
        row: npt.NDArray[np.int64],
        which: npt.NDArray[np.intp],
        rng: np.random.Generator,
        sampling: SampleWeightDecay | None,
    ) -> npt.NDArray[np.intp]:
        """Replace some draws by the first valid one of a few; return those that got none."""
        envs, rows = self._candidates(len(which) * _TRIES, rng, sampling)
        valid = self._windows(envs, rows).valid.reshape(-1, _TRIES)
        chosen = np.arange(len(which)) * _TRIES + valid.argmax(1)
        env[which], row[which] = envs[chosen], rows[chosen]
        return which[~valid.any(1)]

    def _gather(
        self,
        batch: Batch,
        env: npt.NDArray[np.int64],
        row: npt.NDArray[np.int64],
        windows: _Windows,
        device_frames: DeviceFrames | None = None,
    ) -> None:
        """Copy transitions into `batch`; observations of a device into the tensors of `sample`."""
        batch.action.numpy()[:] = self._records["action"][self._at(env, row)]
        batch.reward.numpy()[:] = windows.reward
        batch.discount.numpy()[:] = windows.discount
        for name, last in (("obs", row), ("obs_next", row + windows.steps)):
            rows, blank = self._stack(env, last)
            if device_frames is not None:
                device_frames.stack(rows, blank, getattr(self._batches[0], name))
                continue
            stacks = getattr(batch, name).numpy().reshape(*rows.shape, *self._spec.obs_shape)
            # mode="clip" because numpy buffers `out` in the default mode; no index needs clipping.
            np.take(self._frames, rows, axis=0, out=stacks, mode="clip")
            if blank is not None:
                stacks[blank] = 0

    def _refuse_if_empty(self) -> None:
        if self.size == 0:
            raise EmptyReplay(
                f"replay has no transition to sample after {int(self._written.sum())} rows "
                f"(n_step {self._n_step}, {self._num_envs} environments): add more first"
            )

    def _candidates(
        self, count: int, rng: np.random.Generator, sampling: SampleWeightDecay | None
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Draw environments and rows over all rows behind the heads, uniformly or by `sampling`."""
        lengths = self._written - 1 - self._oldest()
        ends = np.cumsum(lengths)
        if ends[-1] <= 0:
            self._refuse_if_empty()
        if sampling is not None:
            totals = sampling.totals(lengths, self._num_envs)
            sums = np.cumsum(totals)
            point = rng.random(count) * sums[-1]
            env = np.searchsorted(sums, point, side="right")
            point -= (sums - totals)[env]
            back = sampling.rows_at(point, lengths[env], self._num_envs)
            return env, (self._written - 2)[env] - back
        drawn = rng.integers(ends[-1], size=count)
        env = np.searchsorted(ends, drawn, side="right")
        return env, (self._written - 1)[env] - (ends[env] - drawn)

    def _stack(
        self, env: npt.NDArray[np.int64], row: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_] | None]:
        """Return where frames of stacks that end at `row` lie, `[B, frame_stack]`; which are 0."""
        if self._spec.frame_stack == 1:
            return self._at(env, row)[:, None], None
        age = self._records["age"][self._at(env, row)][:, None]
        rows = self._at(env[:, None], row[:, None] - np.minimum(self._back, age))
        blank = self._back > age
        return rows, blank if blank.any() and not self._spec.repeat_first else None

    def _new_batch(self, count: int, pinned: bool = False) -> Batch:
        obs = self._spec.stacked_shape, torch.from_numpy(self._frames[:0]).dtype
        action = self._action_shape, torch.float32 if self._action_shape else torch.int64
        number = (), torch.float32
        parts = (obs, action, number, number, obs)
        zeros = partial(torch.zeros, pin_memory=pinned)
        return Batch(*(zeros((count, *shape), dtype=dtype) for shape, dtype in parts))


def _to(batch: Batch, device: torch.device) -> Batch:
    return Batch(*(on_device(tensor, device) for tensor in batch))
