"""From a config to a run: what `rlplast train`, `resume`, `evaluate` and Python share."""

import dataclasses
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from rlplast.core.clock import Clock, Time
from rlplast.core.device import choose_device, device_info
from rlplast.core.errors import ConfigError, DamagedFile
from rlplast.core.fast import linear
from rlplast.core.method.hooks import Hooks
from rlplast.core.network.edits import Assign, write
from rlplast.core.rng import preserve_global_rng
from rlplast.metrics.probe import RunMetrics
from rlplast.run.build import build
from rlplast.run.config_file import dump_config, read_config
from rlplast.run.episodes import play
from rlplast.run.imports import import_again
from rlplast.run.info import (
    device_words,
    first_info,
    restart_info,
    resume_info,
    resume_words,
    resumed_info,
    run_ids,
    status,
    versions,
)
from rlplast.run.loggers.logger import check_loggers, logged
from rlplast.run.read import check_is_run, read_info, read_lines
from rlplast.run.read import status as written_status
from rlplast.training import checkpoint, distributed
from rlplast.training.best import find_checkpoint
from rlplast.training.branch import branch_run
from rlplast.training.config import RunConfig
from rlplast.training.kinds import get_kind
from rlplast.training.loop import Loop
from rlplast.training.run_folder import LINES, near, numbered, write_text

__all__ = ["Run", "branch", "load", "read_config", "resume", "train"]


@contextmanager
def _loop(
    config: RunConfig,
    path: Path,
    info: Mapping[str, Any],
    observer: Callable[[Loop], None] | None,
    until: tuple[Time, ...],
) -> Iterator[Loop]:
    """Yield the loop of a config in a run's folder; both are closed after the block."""
    check_loggers(config)
    trainable, hooks = build(config)
    with closing(trainable):
        try:
            folder = distributed.open_folder(path)
        except OSError as error:
            raise ConfigError(f"{near(path)} cannot be written: {error}") from error
        with closing(folder):
            yield Loop(
                trainable=trainable,
                hooks=hooks,
                total=config.total_time(),
                folder=folder,
                intervals=config.intervals(),
                measure=RunMetrics(config.metrics.names, config.metrics.batch_size, hooks.hooks),
                observer=observer or (lambda loop: None),
                until=until,
                runs=run_ids(info),
            )


@dataclasses.dataclass(repr=False)
class Run:
    """A run on disk: look at it, or use what it trained.

    Attributes:
        path: its folder.
        config: its config.
        checkpoint: which checkpoint `agent` loads: newest, best or its name.
        report: called with a message for each damaged checkpoint that `agent` skips.
    """

    path: Path
    config: RunConfig
    checkpoint: str = "newest"
    report: Callable[[str], object] = warnings.warn
    _trainable: Any = None
    _native: Any = None

    def __repr__(self) -> str:
        """Return the run's folder, kind and status; `config` has all its keys."""
        return f"<Run {near(self.path)}: {self.config.kind}, {written_status(self.path)}>"

    @property
    def info(self) -> dict[str, Any]:
        """What run.json says: command, versions, status and so on; empty if there is none.

        Raises:
            DamagedFile: if it is no valid JSON.
        """
        return read_info(self.path)

    def lines(self, name: str = "metrics") -> list[dict[str, Any]]:
        """Return the whole rows of ``metrics.jsonl`` or ``receipts.jsonl``.

        Raises:
            DamagedFile: if a line but the last is no JSON object.
        """
        return read_lines(self.path / f"{name}.jsonl")

    def agent(self) -> Any:
        """Return the Trainable with the weights that the run's evaluations use; built once."""
        if self._trainable is None:
            trainable, hooks = self._opened(self.config, data=False)
            write([Assign(block, value) for block, value in hooks.evaluation().items()])
            self._trainable = trainable
        return self._trainable

    def trainer(self, config: RunConfig | None = None) -> Any:
        """Return a new Trainable as the checkpoint's training left it, with its data.

        `config` may differ from the run's in what is measured only.
        """
        return self._opened(self.config if config is None else config, data=True)[0]

    def _opened(self, config: RunConfig, data: bool) -> tuple[Any, Hooks]:
        with preserve_global_rng():  # opening a run reseeds nothing of the caller's
            path = find_checkpoint(self.path, self.checkpoint, "checkpoint", self.report)
            tensors, state = checkpoint.load(path)
            checkpoint.check_run(path, run_ids(self.info))
            with ExitStack() as cleanup, checkpoint.fitting(path):
                with _naming_version(self.info):
                    trainable, hooks = build(_here(config.to_resume()))
                cleanup.callback(trainable.close)
                trainable.go_to(Clock.saved(state["clock"]))
                for network in trainable.networks.values():
                    checkpoint.load_network_tensors(network, tensors)
                # Acting may need more than weights: statistics that observations pass through.
                trainable.load_state_dict(state["trainable"])
                if data:
                    trainable.load_files(path)
                hooks.load_state_dict(state["hooks"])
                cleanup.pop_all()  # it fits: it stays
            return trainable, hooks

    def act(self, obs: Any) -> Any:
        """Return the greedy action for an observation, or those for several.

        Both are in the form of the environment itself, as `gymnasium.make` or the suite makes it:
        an entry of its observation space, such as a dict, and an action within its own bounds.
        Where the agent sees stacked frames, or in a sequence of tasks, both are as ``agent().act``
        has them: (batch, …) with the shape that networks see, and vectors in [−1, 1].

        Args:
            obs: an observation; or several, in a list, or with a batch axis first.

        Raises:
            ConfigError: if what was trained is no agent, or for what is no observation.
        """
        agent = self.agent()
        if not hasattr(agent, "act"):
            raise ConfigError(
                f"{self.path} is a run of kind {self.config.kind}, which has no actions: its "
                "networks are in load(run).agent().networks"
            )
        if self._native is None:
            from rlplast.run.native import NativeEnv  # it imports environments

            self._native = NativeEnv(*agent.tasks.of(0))
        if agent.tasks.sequence.each is not None or not self._native.is_there:
            return agent.act(obs)
        return self._native.act(agent.act, obs)

    def evaluate(
        self, episodes: int | None = None, video: str | Path | None = None
    ) -> dict[str, float]:
        """Return scores of what was trained: of an agent's full episodes, else on data held out.

        Args:
            episodes: how many an agent plays, unclipped; default: 10.
            video: a .gif of the first environment's play, to be written.

        Returns:
            What evaluations log during training, without ``eval/``. Of five episodes or more also
            95% intervals of the mean return, ``return_low`` and ``return_high``, unless all returns
            are equal, and of the share of successes, ``success_low`` and ``success_high``:
            Student's, of shares (also returns that are all 0 or 1) Wilson's.

        Raises:
            ConfigError: for a number of episodes or a video that is not allowed, or either of them
                where what was trained is no agent.
            DamagedFile: if the checkpoint is damaged.
        """
        kind = self.config.kind
        with preserve_global_rng():
            if hasattr(get_kind(kind).trainable_class(), "play"):
                picture = None if video is None else Path(video)
                return play(self.agent, episodes, picture)
            for option, value in (("episodes", episodes), ("video", video)):
                if value is not None:
                    raise ConfigError(f"--{option}: a run of kind {kind} plays no episodes")
            return self.agent().evaluate(0, self.config.evaluate.episodes)

    def close(self) -> None:
        """End what `agent` has started, such as environments in processes of their own."""
        for opened in (self._trainable, self._native):
            if opened is not None:
                opened.close()


def train(
    config: Any,
    out: str | Path | None = None,
    *,
    observer: Callable[[Loop], None] | None = None,
    report: Callable[[str], None] = lambda text: None,
    until: tuple[Time, ...] = (),
    study: Mapping[str, Any] | None = None,
    **overrides: Any,
) -> Run:
    """Run a config to its end, or to `until` as `Loop` says; see `rlplast.train`.

    `study` is what run.json says of the study that the run is a cell of. `report` is called if the
    run cannot be resumed exactly.

    Raises:
        ConfigError: for a bad config, or a folder that is not empty.
        Interrupted: after a signal, with a checkpoint saved.
        RlplastError: if a logger of ``log.to`` cannot be started, or training fails.
    """
    if not isinstance(config, RunConfig):
        keys = {key.replace("__", "."): value for key, value in overrides.items()}
        config = read_config(config, keys)
    config = config.resolved()
    path = (Path(out) if out is not None else _new_folder(config)).absolute()
    if distributed.rank() == 0:
        _check_new(path)
    info = first_info(config, study)
    with _loop(config, path, info, observer, until) as loop:
        info |= resume_info(loop.trainable, info)
        _report_start(loop, info, report)
        if distributed.rank() == 0:
            _check_new(path)  # once more, now that it is locked
            write_text(path / "config.yaml", dump_config(config))
        with status(path, info), logged(loop.folder, config, info):
            loop.run()
    return Run(path, config)


def _report_start(loop: Loop, info: Mapping[str, Any], report: Callable[[str], None]) -> None:
    """Say what is to be known of a run before it begins, such as if an interruption changes it."""
    if info.get("environment", {}).get("resume", "exact") != "exact":
        report(f"after an interruption: {resume_words(info)}")
    for note in loop.trainable.notes:
        report(note)
    blocks = (block for network in loop.trainable.networks.values() for block in network.blocks)
    missing = linear.build()
    if missing and any(block.param.is_cpu for block in blocks):
        report(f"linear layers compute by PyTorch's own product, which may be slower: {missing}")


def _check_new(path: Path) -> None:
    """Check that a run's folder is none yet."""
    if path.exists() and not (path.is_dir() and all(map(_is_nothing, path.iterdir()))):
        if (path / "run.json").exists():
            remedy = f"`rlplast resume {near(path)}` continues it"
        elif all((path / name).is_file() for name in ("config.yaml", *LINES)):
            remedy = f"a run was stopped as it began, and `rlplast resume {near(path)}` starts it"
        else:
            remedy = "choose another --out (`rlplast resume` continues a run's folder)"
        raise ConfigError(f"--out {near(path)} is not empty: {remedy}")


def _is_nothing(path: Path) -> bool:
    """Say whether a file is what a run leaves that was killed before it had a config."""
    if path.name in LINES:
        return path.is_file() and path.stat().st_size == 0
    return path.name in (".lock", ".config.yaml.tmp")


def _new_folder(config: Any) -> Path:
    name = config.env.id.replace("/", "-") if hasattr(config, "env") else config.kind
    stamp = time.strftime("%Y%m%d-%H%M%S")
    path = Path("runs") / f"{name}-seed{config.seed}-{stamp}"
    return numbered(path.with_name(f"{path.name}-")) if path.exists() else path


def resume(
    run: str | Path,
    total: str | None = None,
    *,
    observer: Callable[[Loop], None] | None = None,
    report: Callable[[str], None] = lambda text: None,
    until: tuple[Time, ...] = (),
    device: str | None = None,
) -> Run:
    """Continue a run from its newest undamaged checkpoint.

    Percentages keep referring to the old total. `observer` is called after every step, `report`
    with messages, such as of a damaged checkpoint passed over; `until` is where to stop early, as
    `Loop` says.

    Raises:
        ConfigError: if it is no run's folder, the new total is no longer one, or the run's device
            is not there.
        DamagedFile: if no checkpoint is usable.
    """
    opened = load(run)
    path, info = opened.path, opened.info
    config = opened.config if device is None else opened.config.moved(device)
    config = config.resolved()
    done = info.get("status") == "done"
    if total is not None:
        config = _extended(config, total, done)
    elif done:
        report(f"{near(path)} is done: nothing to resume (a longer run: --total)")
        return opened
    _report_changes(config, path, info, report)
    begun = _has_checkpoint(path)  # else it starts where it did, be it from another run
    with ExitStack() as stack:
        with _naming_version(info):
            own = config.to_resume() if begun else config
            loop = stack.enter_context(_loop(own, path, info, observer, until))
        info = info or first_info(config)
        info |= resume_info(loop.trainable, info)
        _report_start(loop, info, report)
        with _naming_version(info):
            _continue(loop, report)
        if restarted := restart_info(info, loop.trainable):
            info |= restarted
            report(f"new episodes begin: {restarted['new_episodes'][-1]['reason']}")
        stack.enter_context(status(path, info | resumed_info(info, config)))
        if (total is not None or device is not None) and distributed.rank() == 0:
            write_text(path / "config.yaml", dump_config(config))
        with logged(loop.folder, config, info):
            loop.run()
    return Run(path, config)


def _here(config: RunConfig) -> RunConfig:
    """Return a config that computes on this machine, if its own device is not here."""
    try:
        choose_device(config.device)
    except ConfigError:
        return config.moved("auto")
    return config


def _report_changes(
    config: RunConfig, path: Path, info: Mapping[str, Any], report: Callable[[str], None]
) -> None:
    """Say if a run goes on on another device, or with other threads or another seed."""
    before = (info.get("devices") or [None])[-1]
    try:
        device = device_info(choose_device(config.device))
    except ConfigError as error:
        if before is not None and before["type"] == "cpu":
            raise
        raise ConfigError(
            f"{error}. `rlplast resume {near(path)} --device cpu` moves the run to another "
            "device, where numbers round otherwise"
        ) from error
    if before is not None and device != before:
        report(
            f"{near(path)} goes on on {device_words(device)}, it was on {device_words(before)}: "
            "numbers may round otherwise, so it is not the uninterrupted run bit for bit"
        )
    for key, now, why in (
        ("threads", config.threads, "numbers round otherwise with another count"),
        ("seed", config.seed, "later draws are those of another run"),
    ):
        first = info.get(key, now)
        if first != now:
            report(
                f"{near(path)} began with {key} = {first}, its config.yaml says {now}: {why}, so "
                "it is not the uninterrupted run bit for bit"
            )


def branch(
    run: str | Path,
    out: str | Path,
    config: RunConfig,
    until: tuple[Time, ...] = (),
    study: Mapping[str, Any] | None = None,
) -> Run:
    """Make a run that goes on, by `resume`, from where another one stopped.

    `run` was ended by `until`, or before any of it; up to there `config` agrees with its own.
    `study` is
    what run.json says of the study that the new run is a cell of.

    Raises:
        ConfigError: if `out` is not empty.
        DamagedFile: if what `run` left is damaged.
    """
    _check_new(Path(out))
    config = config.resolved(read_config(Path(run) / "config.yaml"))
    parent = Run(Path(run), config).info
    info = first_info(config, study)
    if "environment" in parent:  # how it goes on after an interruption was decided there
        info["environment"] = parent["environment"]
    branch_run(Path(run), Path(out), dump_config(config), info, run_ids(parent), until)
    return Run(Path(out), config)


@contextmanager
def _naming_version(info: Mapping[str, Any]) -> Iterator[None]:
    """Let an error say which version began a run, if it is another one."""
    now = versions().get("rlplast", "a checkout that is not installed")
    began = info.get("versions", {}).get("rlplast", now)
    try:
        yield
    except (ConfigError, DamagedFile) as error:
        if began == now:
            raise
        kind = ConfigError if isinstance(error, ConfigError) else DamagedFile
        raise kind(
            f"{error}; the run was begun with rlplast {began}, this is {now}: go on with {began}"
        ) from error


def _has_checkpoint(path: Path) -> bool:
    """Say whether a run's folder has a checkpoint, damaged ones included."""
    return any((path / "checkpoints").glob("[sb]*-*"))  # step-N, best-N, branch-N


def _continue(loop: Loop, report: Callable[[str], None]) -> None:
    """Load the newest undamaged checkpoint; a run killed before its first one starts anew."""
    folder = loop.folder
    if not _has_checkpoint(folder.path):
        report(f"{near(folder.path)} has no checkpoint yet: starting from the beginning")
        for kept in folder.set_aside():
            report(f"what it had written before is kept in {near(kept)}")
        return
    found = find_checkpoint(folder.path, "newest", "checkpoint", report)
    loop.load(found)
    report(f"resuming {near(folder.path)} from {found.name}")


def _extended(config: RunConfig, total: str, done: bool) -> RunConfig:
    old, new = config.total_time(), Time.parse(total, "--total")
    if new.unit != old.unit:
        raise ConfigError(f"--total {total}: allowed is the unit of the run, {old.unit}")
    if new == old and not done:
        return config  # the same command once more, after an interruption
    if new.value <= old.value:
        raise ConfigError(f"--total {total}: allowed is more than the run's total, {old}")
    reference = config.percentages_of or config.total
    return dataclasses.replace(config, total=total, percentages_of=reference)


def load(
    run: str | Path, checkpoint: str = "newest", report: Callable[[str], object] = warnings.warn
) -> Run:
    """Open a run's folder; modules that ``rlplast --import`` named are imported again.

    `checkpoint` is newest, best or a name such as ``step-800``; `report` is called with a message
    for each newer one that is damaged and passed over.

    Raises:
        ConfigError: if it is none, a module that it was begun with is not there, or another version
            began it, whose config this one does not read.
    """
    check_is_run(Path(run))
    path = Path(run).absolute()  # the current folder may change while it runs
    info = read_info(path)
    import_again(info, near(path))
    with _naming_version(info):
        config = read_config(path / "config.yaml")
    return Run(path, config, checkpoint, report)
