"""What all agents share: environments, evaluation, what an update consists of, checkpoints."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from rlplast import envs
from rlplast.agents.agent_config import AgentConfig
from rlplast.agents.compiled import CompiledUpdate, compiles_updates
from rlplast.agents.evaluation import Evaluation, evaluate_policy
from rlplast.agents.overestimation import Values
from rlplast.agents.sequence import TaskSequence
from rlplast.agents.tasks import Tasks
from rlplast.core.device import on_device
from rlplast.core.errors import ConfigError, Diverged
from rlplast.core.network.edits import Assign, write
from rlplast.core.network.optim_state import allocate, zero_all
from rlplast.core.rng import numpy_stream, torch_stream
from rlplast.training.trainable import Learnt, Trainable

__all__ = ["MOST", "Agent"]

MOST = 64  # updates of a block; a signal waits for its end


class Agent(Trainable):
    """An agent with its environments; a `Trainable` but for networks, losses and its data.

    Raises:
        ConfigError: if it cannot choose the actions of the environment.
    """

    discrete: bool | None = None  # the actions that it can choose; None for both kinds
    saved = ("streams", "experience", *Trainable.saved[1:])

    experience: Any  # Environments of the agent's own kind

    def __init__(self, config: AgentConfig, device: torch.device) -> None:
        self.tasks = tasks = Tasks(config.env, config.seed)
        self.spec: envs.EnvSpec = tasks.spec
        self._check_actions(config.kind)
        if config.evaluate.every is not None:
            self._check_constant("evaluate.every")
        super().__init__(config, device)
        clip = getattr(config.agent, "clip_rewards", False)  # learns from the sign of rewards
        self.clip_rewards = self.spec.clip_rewards if clip is None else clip
        self.updates_planned = config.updates_planned()
        self._batch_norms: list[nn.Module] | None = None  # of the modules that act
        self._whole: dict[str, Callable[..., Any]] = {}  # compiled updates
        self._compile_seconds: float | None = None  # not yet logged

    def _check_actions(self, kind: str) -> None:
        spec, discrete = self.spec, self.spec.action_dim is None
        if self.discrete in (None, discrete):
            return
        kinds = ("continuous", "sac"), ("discrete", "dqn")
        (_, other), (needed, _) = kinds[discrete], kinds[not discrete]
        raise ConfigError(
            f"env {spec.id!r} has {spec.num_actions or spec.action_dim} {kinds[discrete][0]} "
            f"actions: kind: {kind} needs {needed} ones; use kind: {other} or ppo"
        )

    def _check_constant(self, what: str) -> None:
        """Refuse to evaluate in an environment that changes."""
        if self.spec.changes:
            raise ConfigError(
                f"{what}: env '{self.spec.id}' changes as its episodes pass, and an evaluation "
                "would begin where it was at first; read train/return (evaluate.every: null)"
            )

    # One step: a vector environment step, one update, or the start of a phase.

    def step(self) -> None:
        """Do an update if one is owed, else start a phase if one is over, else step all envs.

        The start of a phase treats networks alone, so that hooks that fire there still find data in
        the replay. The new task begins with the next environment step.
        """
        if self.owes():
            self.update()
        elif self.phase_over():
            self.clock = self.clock.advance(phase=1)
            self._renew()
        else:
            if self.experience.phase != self.clock.phase:
                self._enter_task()
            self._environment_step()

    def phase_over(self) -> bool:
        """Whether all env_steps of a phase are done; the next one starts once no update is owed."""
        return self.sequence.is_over(self.clock.phase, self.clock.env_steps)

    @property
    def sequence(self) -> TaskSequence:
        """Which task comes when."""
        return self.tasks.sequence

    @torch.no_grad()
    def _renew(self) -> None:
        """Treat optimizers and targets as the switch says."""
        switch, phase = self.sequence.switch, self.clock.phase
        for network in self.networks.values():
            if switch.optimizer == "renew" and network.optimizers:
                zero_all(network)
            if switch.target == "copy":
                write([Assign(theirs, mine.view) for mine, theirs in network.followed()])
            elif switch.target == "renew":
                drawn = torch_stream(self.streams.seed, "switch", phase, network.name)
                pairs = network.followed()
                write([Assign(theirs, network.fresh(mine, drawn)) for mine, theirs in pairs])

    def _enter_task(self) -> None:
        self.experience.switch(self.clock.phase)

    @abstractmethod
    def _environment_step(self) -> None:
        """Act, store what happens, and advance the clock."""

    @abstractmethod
    def learn(self, batch: Any) -> Learnt:
        """Update all networks once; eager, or compiled as a whole.

        Returns:
            What is added to `sums`, (len(means),), and recorded activations by network.
        """

    # What an update consists of.

    def _set_lr(self) -> None:
        """Set learning rates by the updates done in this phase, and how many it has."""
        done, end, phase = self.clock.updates, self.updates_planned, self.clock.phase
        if self.sequence.each is not None:
            starts = (self.sequence.start(p) for p in (phase, phase + 1))
            first, last = map(self.config.updates_at, starts)
            done, end = done - first, last - first
        for updater in self.updaters.values():
            updater.set_lr(done, end)

    def update(self, count: int = 1) -> None:
        """Update all networks, on so many batches."""
        learns: dict[str, Callable[[Any], Any]] = {}  # of parts that were learnt in this block
        for drawn in self._drawn(count):
            part, batch = self._part(), self._batch(drawn)
            learn = learns.get(part.__name__) or self._learns(part)
            self._update(learn, batch)
            learns[part.__name__] = getattr(learn, "again", learn)

    def _update(self, learn: Callable[[Any], Learnt], batch: Any) -> None:
        """Update once on what one update reads, and count it."""
        self._set_lr()
        after = self.clock.advance(updates=1)
        self.make_update(after, lambda _: learn(batch), name=learn.__name__)

    @abstractmethod
    def _drawn(self, count: int) -> Iterator[Any]:
        """Yield the batches of the next updates, and count each once it has been learnt from."""

    def _part(self) -> Callable[[Any], Learnt]:
        """Return the kind of update that comes next."""
        return self.learn

    def _batch(self, batch: Any) -> Any:
        """Return what an update on a batch reads."""
        return batch

    def minimise(self, network: str, loss: Tensor) -> None:
        """Update a network once along the gradient of its loss and of its penalties."""
        self.updaters[network].minimise(self.penalised(network, loss))

    def _learns(self, learn: Callable[..., Any]) -> Callable[..., Any]:
        """Return an update, compiled as a whole if possible; else only its losses are compiled."""
        if not self._compiles_whole():
            return learn
        name = learn.__name__
        if name not in self._whole:
            for network in self.networks.values():
                allocate(network)
            self._whole[name] = CompiledUpdate(learn, self.device, self._compiled_in)
        return self._whole[name]

    def _compiles_whole(self) -> bool:
        asked = self.settings.accelerate == "compile" and compiles_updates()
        outside = self.gradients_read or self.penalties.terms
        return asked and not outside and all(u.config.compiles for u in self.updaters.values())

    def _compiled_in(self, seconds: float) -> None:
        self._compile_seconds = seconds + (self._compile_seconds or 0.0)

    @property
    def about_to_compile(self) -> bool:
        """Whether the next step compiles the update, which takes seconds."""
        return self._to_compile and self.owes()

    # What the loop asks for.

    def evaluate(self, number: int, episodes: int) -> dict[str, float]:
        """Return scores of unclipped full episodes, or of as many as `evaluate.steps` allows.

        Of a sequence these are of the current task, with mean returns of it or of all seen tasks.
        """
        steps = self.config.evaluate.steps
        scores = self.play(number, episodes, steps=steps).scores()
        sequence, phase = self.sequence, self.clock.phase
        if sequence.each is None:
            return scores
        now, names = sequence.tasks[phase], sequence.names
        end = self.config.env_steps_total(self.config.total_time())
        ended = (self.clock.env_steps >= end or self.phase_over()) and not self.owes()
        seen = ended or self.config.evaluate.tasks == "seen"
        for task in sequence.seen(phase) if seen else [now]:
            mean = scores["return_mean"]
            if task != now:
                mean = float(self.play(number, episodes, steps=steps, task=task).returns.mean())
            scores[f"{names[task]}/return_mean"] = mean
        return scores

    def play(
        self,
        number: int,
        episodes: int,
        on_frame: Callable[[np.ndarray], None] | None = None,
        steps: int | None = None,
        task: int | None = None,
    ) -> Evaluation:
        """Play full episodes as in an evaluation; see `evaluate_policy`.

        Streams are those of evaluation `number`; `task` is None for that of this phase.

        Raises:
            ConfigError: in an environment that changes.
        """
        self._check_constant("evaluation")
        now = self.sequence.tasks[self.clock.phase]
        task = now if task is None else task
        of_task = () if task == now else ("task", task)
        stream = partial(numpy_stream, self.config.seed, "evaluation", number, *of_task)
        rng = stream("policy")
        learned = self.experience.learned().get(task)

        def make(rngs: list[np.random.Generator]) -> envs.VectorEnv | envs.TaskVector:
            env = self.tasks.make(task, rngs)
            if learned:  # normalise as in training
                env.take_over(learned, freeze=True)
            return env

        with self.reading(copies=False):
            return evaluate_policy(
                make,
                self.config.env.num_envs,
                lambda obs: self._act_in_evaluation(obs, rng),
                episodes,
                stream,
                on_frame,
                steps,
                self._values(),
            )

    def _values(self) -> Values | None:
        """Return the Q-values that evaluations compare with returns; None for no comparison."""
        return None

    @contextmanager
    def _acting_mode(self) -> Iterator[None]:
        """Let batch norms of users' networks act by their running statistics, not by a batch's."""
        if self._batch_norms is None:
            modules = [network.module for network in self.networks.values()]
            parts = [part for module in modules for part in module.modules()]
            self._batch_norms = [m for m in parts if isinstance(m, _BatchNorm)]
        train = [norm for norm in self._batch_norms if norm.training]
        for norm in train:
            norm.training = False
        try:
            yield
        finally:
            for norm in train:
                norm.training = True

    @torch.no_grad()
    def _computed(self, compute: Callable[..., Tensor], *inputs: np.ndarray) -> np.ndarray:
        """Return what acting computes of arrays of the host; as a graph, if updates are graphs.

        Raises:
            Diverged: if it is not finite.
        """
        sent = [on_device(array, self.device) for array in inputs]
        with self._acting_mode():
            if self._graphs is None:
                computed = compute(*sent).cpu().numpy()
            else:
                [first, *_] = self.networks.values()
                key = (compute.__name__, first.module.training)
                computed = self._graphs(key, compute, *sent).cpu().numpy()
        return self._finite(computed)

    def _finite(self, actions: np.ndarray) -> np.ndarray:
        if not np.isfinite(actions).all():
            raise Diverged(
                f"the policy's actions are not finite at {self.clock}: training diverged; the last "
                "checkpoint is kept (lower optimizer.lr, or look at receipts.jsonl for a hook just "
                "before)"
            )
        return actions

    def _act_in_evaluation(self, obs: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return self._act_greedily(obs)

    def metrics(self) -> dict[str, float]:
        """Return means since the last call: losses without penalties, returns of episodes."""
        values = self.experience.episode_metrics()
        if self._compile_seconds is not None:
            values["time/compile"], self._compile_seconds = self._compile_seconds, None
        return values | super().metrics()

    def act(self, obs: np.ndarray) -> np.ndarray:
        """Return greedy actions for observations (batch, ...), stacked as in training.

        Raises:
            ConfigError: if the observations have another shape.
        """
        expected = self.experience.obs()
        obs = np.asarray(obs)
        if obs.shape[1:] != expected.shape[1:] or obs.ndim != expected.ndim:
            sizes = ", ".join(map(str, expected.shape[1:]))
            raise ConfigError(f"obs has shape {obs.shape}: allowed is (batch, {sizes})")
        with self.reading(copies=False):
            return self._act_greedily(obs)

    @abstractmethod
    def _act_greedily(self, obs: np.ndarray) -> np.ndarray: ...

    def _as_stored(self, obs: np.ndarray) -> np.ndarray:
        """Return observations in the type that environments give them in."""
        if self.spec.obs_dtype == "uint8" and obs.dtype != np.uint8:
            raise ConfigError(
                f"observations are {obs.dtype}: allowed are pictures in bytes, as env "
                f"{self.spec.id!r} gives them"
            )
        return obs.astype(self.spec.obs_dtype, copy=False)

    def load_files(self, folder: Path) -> None:
        """Read what `save_files` wrote, and begin new episodes where open ones cannot go on."""
        self.experience.load_files(folder)

    def decide_resume(self, known: Mapping[str, Any]) -> dict[str, Any]:
        """Find how the run goes on after an interruption; see `Tasks.decide`."""
        return self.tasks.decide(known)

    @property
    def restart_reason(self) -> str:
        """Why new episodes began at a resume, though open ones were to go on; empty if not."""
        return self.experience.env.restart_reason

    def close(self) -> None:
        """Close the environments and their processes."""
        self.experience.close()
