"""Evaluation on full episodes with true scores."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from rlplast import envs
from rlplast.agents.overestimation import ValueErrors, Values
from rlplast.core.errors import RlplastError
from rlplast.training.signals import stop_if_asked

__all__ = ["Evaluation", "environment_errors", "evaluate_policy"]


@dataclass(frozen=True)
class Evaluation:
    """Scores of full episodes."""

    returns: np.ndarray  # unclipped and undiscounted
    lengths: np.ndarray  # in env_steps
    success_return: float | None = None  # from which an episode is a success, where defined
    successes: np.ndarray | None = None  # as episodes say themselves; NaN where one does not
    values: Mapping[str, float] = field(default_factory=dict)  # how they differ from returns

    def scores(self) -> dict[str, float]:
        """Return mean, median and deviation of returns, mean length, share of successes.

        Errors of values come last, if they were measured.
        """
        values = {
            "return_mean": float(self.returns.mean()),
            "return_median": float(np.median(self.returns)),
            "return_std": float(self.returns.std(ddof=1)) if len(self.returns) > 1 else 0.0,
            "length_mean": float(self.lengths.mean()),
            "episodes": float(len(self.returns)),
        }
        if len(self.judged()):
            values["success_rate"] = float(self.judged().mean())
        return values | dict(self.values)

    def judged(self) -> np.ndarray:
        """Return the successes, (episodes,), of the episodes of which they are known."""
        if self.success_return is not None:
            return self.returns >= self.success_return
        found = np.empty(0) if self.successes is None else self.successes
        return found[~np.isnan(found)]


@contextmanager
def environment_errors(when: str) -> Iterator[None]:
    """Turn what an environment complains about into an error that ends the run in order.

    Raises:
        RlplastError: if an environment failed or broke its contract, a worker died, or a reward or
            observation is not finite.
    """
    try:
        yield
    except (envs.NotFinite, envs.EnvFailed, envs.WorkerDied, ValueError) as error:
        text = " ".join(str(error).split())
        raise RlplastError(f"{text}, {when}; the last checkpoint is kept") from error


def evaluate_policy(
    make: Callable[[list[np.random.Generator]], envs.VectorEnv | envs.TaskVector],
    num_envs: int,
    act: Callable[[np.ndarray], np.ndarray],
    episodes: int,
    rng: Callable[[int], np.random.Generator],
    on_frame: Callable[[np.ndarray], None] | None = None,
    steps: int | None = None,
    values: Values | None = None,
) -> Evaluation:
    """Play full episodes in fresh environments.

    Each environment plays its own fixed share of the episodes: counting whichever end first would
    favour short ones. With `steps` they play on together until so many env_steps are done, as many
    papers evaluate.

    Args:
        make: makes an environment of each generator.
        num_envs: how many are stepped together, at most.
        act: actions for stacked observations (num_envs, ...).
        episodes: how many, at least 1.
        rng: generator of the i-th environment.
        on_frame: called with each picture of the first environment's share, for videos; where an
            episode ends, that is the first of the next.
        steps: instead of `episodes`, the env_steps of all environments within which episodes
            count; if none ends in time, the first that ends.
        values: Q-values to be compared with returns.

    Raises:
        RlplastError: as `environment_errors` says.
        EvaluationStopped: once a signal asked the run to stop.
    """
    n = num_envs if steps is not None else min(episodes, num_envs)
    with environment_errors("as an evaluation began"):
        env = make([rng(i) for i in range(n)])
    spec = env.spec
    stack = envs.FrameStack(n, spec)
    errors = None if values is None else ValueErrors(n, values)
    # Fixed shares, since whichever episode ends first is a short one.
    quota = np.array([episodes // n + (i < episodes % n) for i in range(n)])
    played: list[list[tuple[float, int, float]]] = [[] for _ in range(n)]  # return, length, success
    taken = 0

    def is_over() -> bool:
        if steps is not None:
            return taken >= steps and any(played)
        return not any(map(counts, range(n)))

    def counts(i: int) -> bool:
        return steps is not None or len(played[i]) < quota[i]

    try:
        with environment_errors("in an evaluation"):
            stack.push(env.reset(), True)
        while not is_over():
            stop_if_asked()
            actions = act(stack.obs())
            with environment_errors("in an evaluation"):
                step = env.step(actions)
            taken += n
            ended = step.terminated | step.truncated
            if errors is not None:
                errors.add(stack, actions, step, [counts(i) for i in range(n)])
            stack.push(step.obs, ended)
            if on_frame is not None and counts(0):
                with environment_errors("in an evaluation"):
                    picture = env.render()
                on_frame(picture)
            for i in map(int, np.flatnonzero(ended)):
                if counts(i):
                    episode = step.episode_return[i], step.episode_length[i], step.success[i]
                    played[i].append(episode)
    finally:
        env.close()
    return_, length, success = map(np.array, zip(*chain(*played), strict=True))
    errors_of_values = {} if errors is None else errors.scores()
    return Evaluation(return_, length, spec.success_return, success, errors_of_values)
