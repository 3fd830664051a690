from collections import deque

import numpy as np
import pytest

from rlplast.envs import EnvSpec, FrameStack


@pytest.mark.parametrize("repeat_first", [False, True])
@pytest.mark.parametrize("depth", [1, 2, 4])
def test_frame_stack_equals_a_deque_per_environment(depth: int, repeat_first: bool) -> None:
    rng = np.random.default_rng(depth)
    spec = EnvSpec("toy/frames", (2, 2), "uint8", depth, 2, 1, None, repeat_first=repeat_first)
    stack = FrameStack(3, spec)
    naive = [deque(np.zeros((depth, 2, 2), "uint8"), maxlen=depth) for _ in range(3)]
    for step in range(40):
        frames = rng.integers(256, size=(3, 2, 2), dtype=np.uint8)
        first = rng.random(3) < 0.2 if step else np.ones(3, bool)
        before, after = stack.obs().copy(), stack.after(frames)
        going_on = np.stack(
            [np.stack([*list(own)[1:], f]) for own, f in zip(naive, frames, strict=True)]
        )
        assert np.array_equal(after, going_on if depth > 1 else going_on[:, 0])
        assert np.array_equal(stack.obs(), before)
        stack.push(frames, first if step else True)
        for frame, begins, own in zip(frames, first, naive, strict=True):
            if begins:
                own.extend([frame if repeat_first else np.zeros((2, 2), "uint8")] * depth)
            own.append(frame)
        expected = np.stack([np.stack(own) for own in naive])
        assert np.array_equal(stack.obs(), expected if depth > 1 else expected[:, 0])
