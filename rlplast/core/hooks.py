"""Hooks: all interventions of a run; fires those that are due and returns receipts.

- `Hooks`: parses a config's hook list, and is told where the run is.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor

from rlplast.core import distributed
from rlplast.core.clock import UNITS, Clock, Time
from rlplast.core.condition import Measured
from rlplast.core.edits import Receipt, check_policy
from rlplast.core.errors import ConfigError, DamagedFile, did_you_mean
from rlplast.core.hook import Hook
from rlplast.core.intervention import Intervention
from rlplast.core.layer import has_ticks, tick
from rlplast.core.network import Network
from rlplast.core.registry import build, get, rows
from rlplast.core.schedule import KEYS, Schedule
from rlplast.core.scope import scope

__all__ = ["Hooks", "hook_identity"]

HOOK_KEYS = ("method", *KEYS, "networks", "scope", "optimizer", "followers", "params")


class Hooks:
    """All hooks of a run.

    Args:
        configs: the config's hook list; each a mapping with the keys of `HOOK_KEYS`.
        networks: the run's networks by name.
        total: the run's length, such as ``"200k env_steps"``; percentages refer to it.
        seed: the run's seed; each firing draws from a stream of its own.
        units: units the run's clock counts; a schedule in another one is refused.
        horizon: the clock at the run's end, 0 where it is not known in advance.
        measured: what the run measures; conditions on anything else are refused. None if that
            is not known, as in a hand-written loop.

    Raises:
        ConfigError: for unknown keys, methods, networks or parameters, and for schedules
            that could never fire.
    """

    def __init__(
        self,
        configs: Iterable[Mapping[str, Any]],
        networks: Mapping[str, Network] | Network,
        total: Time | str,
        seed: int = 0,
        units: Iterable[str] | None = None,
        horizon: Clock | None = None,
        measured: Measured | None = None,
    ) -> None:
        if isinstance(networks, Network):
            networks = {networks.name: networks}
        if not isinstance(networks, Mapping):
            raise ConfigError(
                f"networks is a {type(networks).__name__}: allowed is a rlplast.Network (made from "
                "the module and its optimizer), or a mapping of them by name"
            )
        self.seed = seed
        self.total = Time.parse(total, "total")
        self.horizon = horizon or Clock(**{self.total.unit: int(self.total.value)})
        self.ends = [(unit, end) for unit, end in asdict(self.horizon).items() if end > 0]
        self.clock: Clock | None = None
        self.counted: set[str] = set()  # units that `step` was told
        self.hooks: list[Hook] = []
        self.ticking = [network for network in networks.values() if has_ticks(network)]
        seen: dict[str, int] = {}
        for i, config in enumerate(configs):
            label = f"hooks[{i}]"
            if not isinstance(config, Mapping):
                raise ConfigError(f"{label} = {config!r}: allowed is a mapping with a method")
            schedule = _schedule(label, config, self.total, units, self.horizon)
            if schedule.when is not None and measured is not None:
                schedule.when.check(measured, networks, f"{label} ({config['method']}).when")
            hook = _parse(label, config, networks, schedule, seen)
            self.hooks.append(hook)
        self.conditional = [h for h in self.hooks if h.schedule.when is not None]
        plain = [h for h in self.hooks if h.schedule.when is None]
        self.scheduled = [h for h in plain if not h.schedule.every_update]
        self.every_update = [h for h in self.hooks if h.schedule.every_update]

    def fire(self, previous: Clock | None, clock: Clock) -> list[Receipt]:
        """Fire the hooks due after `previous` and at or before `clock`, in list order.

        Nothing is due at the very end of a run, just as ``at: 100%`` is refused: a reset
        there could only spoil what the run leaves behind.
        """
        receipts: list[Receipt] = []
        if not self.scheduled:
            return receipts
        before, now = previous and self._before_end(previous), self._before_end(clock)
        for hook in self.scheduled:
            crossings = hook.schedule.crossings(before, now)
            if crossings:
                receipts += hook.fire(clock, crossings, self.seed)
        return receipts

    def observe(self, values: Mapping[str, float], clock: Clock | None = None) -> list[Receipt]:
        """Tell the hooks what has just been measured; fire those whose condition holds, in order.

        Each value is looked at here once, and never again. Conditions that read values not given
        rest. Nothing fires at the very end of a run.

        Args:
            values: by key of metrics.jsonl, such as ``train/loss``; a condition on a plasticity
                metric reads ``metric/<name>/<network>``. Equal in all processes that train one
                network.
            clock: when it was measured; default: where `step` was last.
        """
        clock = clock or self.clock or Clock()
        if self._before_end(clock) != clock:
            return []
        return [r for hook in self.conditional for r in hook.observe(values, clock, self.seed)]

    def reads(self) -> list[str]:
        """Return the keys that conditions read, in the order of their names."""
        pairs = [(h.schedule.when, n.name) for h in self.conditional for n in h.networks]
        return sorted({condition.key(name) for condition, name in pairs if condition is not None})

    def shared(self, values: Mapping[str, float]) -> Mapping[str, float]:
        """Return, of all that was measured at one moment, what conditions read in every process.

        Rank 0 alone measures plasticity metrics. All ranks call this together.

        Raises:
            ConfigError: if a value that a condition reads is not there and its like is.
        """
        for i, hook in enumerate(self.hooks):
            if hook.schedule.when is not None:
                key = f"hooks[{i}] ({hook.method.name}).when"
                hook.schedule.when.check_found(values, [n.name for n in hook.networks], key)
        if distributed.world() == 1:
            return values
        keys = self.reads()
        mine = torch.tensor([values.get(key, math.nan) for key in keys], dtype=torch.float64)
        return dict(zip(keys, distributed.gather(mine)[0].tolist(), strict=True))

    def held_back(self, state: Mapping[str, Any], clock: Clock) -> Clock | None:
        """Return up to where a run that ended at `clock` has fired, if this one goes on.

        Args:
            state: what `state_dict` returned at the end of the shorter run.
            clock: the clock there.
        """
        passed = {u: end - 1 for u, end in state.get("ends", {}).items() if clock[u] >= end}
        fired = replace(clock, **passed)
        return fired if self._before_end(clock) != self._before_end(fired) else None

    def _before_end(self, clock: Clock) -> Clock:
        passed = {unit: end - 1 for unit, end in self.ends if clock[unit] >= end}
        return replace(clock, **passed) if passed else clock

    def after_update(self, clock: Clock) -> None:
        """Tick living layers, then fire the every-update hooks; `clock` counts the update."""
        for network in self.ticking:
            tick(network)
        for hook in self.every_update:
            if hook.schedule.crossings(clock.advance(updates=-1), clock):
                hook.after_update(clock, self.seed)

    def flush(self, clock: Clock | None = None) -> list[Receipt]:
        """Return the summary receipts of every-update hooks since the last flush.

        Args:
            clock: the clock they carry; default: where `step` was last.
        """
        clock = clock or self.clock or Clock()
        return [r for hook in self.every_update for r in hook.flush(clock)]

    def step(self, **counts: int) -> list[Receipt]:
        """Tell the hooks where a hand-written loop is; fire what has become due.

        Args:
            **counts: the loop's counters by unit: how many are done, so ``updates=1`` after
                the first optimizer step. A unit once given keeps its value when left out.

        Returns:
            The receipts of scheduled firings; `flush` has those of every-update ones.

        Raises:
            ConfigError: if a counter goes back, or a unit that a schedule reads was never given.
        """
        previous = self.clock
        before = asdict(previous) if previous else {}
        for unit, count in counts.items():
            if unit not in UNITS:
                raise ConfigError(f"step({unit}={count}): {did_you_mean(unit, UNITS)}")
            if count < before.get(unit, 0):
                raise ConfigError(
                    f"step({unit}={count}) goes back from {before[unit]}: counters only grow"
                )
        self.counted |= set(counts)
        needed = {unit for hook in self.hooks for unit in hook.schedule.units()}
        needed |= {"updates"} if self.ticking else set()
        if needed - self.counted:
            raise ConfigError(
                f"step({', '.join(counts)}) lacks {', '.join(sorted(needed - self.counted))}, "
                "which a hook's schedule or a layer's tick reads: it could never happen"
            )
        self.clock = Clock(**{**before, **counts})
        for update in range(before.get("updates", 0) + 1, self.clock.updates + 1):
            self.after_update(replace(self.clock, updates=update))
        return self.fire(previous, self.clock)

    def next_due(self, clock: Clock) -> tuple[str, Time] | None:
        """Return the method and time of the scheduled hook that is due next."""
        times = [(h.method.name, h.schedule.next_due(clock)) for h in self.scheduled]
        end = self.horizon
        ahead = [(n, t) for n, t in times if t and not 0 < end[t.unit] <= t.value]
        return min(ahead, key=lambda nt: nt[1].value - clock[nt[1].unit]) if ahead else None

    def state_dict(self) -> dict[str, Any]:
        """Return methods' state, the sums not yet flushed, and where `step` was."""
        state: dict[str, Any] = {h.key: {"states": h.states, "sums": h.sums} for h in self.hooks}
        for hook in self.conditional:
            state[hook.key]["fired"] = {
                name: {"number": number, "clock": asdict(clock)}
                for name, (number, clock) in hook.fired.items()
            }
        clock = None if self.clock is None else asdict(self.clock)
        return state | {"clock": clock, "ends": dict(self.ends)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Copy what `state_dict` returned into the tensors allocated at construction.

        A hook that the saved run did not have (the arm of a study) keeps what `setup` gave it.
        """
        self.clock = None if state["clock"] is None else Clock(**state["clock"])
        self.counted = {u for u, n in asdict(self.clock).items() if n} if self.clock else set()
        for hook in self.hooks:
            if hook.key not in state:
                continue
            saved = state[hook.key]
            _check_alike(hook, saved["states"])
            for name, tensors in hook.states.items():
                for key, tensor in tensors.items():
                    tensor.copy_(saved["states"][name][key])
            for name, sums in hook.sums.items():
                sums.copy_(saved["sums"][name])
            hook.fired = {
                name: (fired["number"], Clock(**fired["clock"]))
                for name, fired in saved.get("fired", {}).items()
            }


def _check_alike(hook: Hook, saved: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Check that a saved state is of a hook like this one, before anything is copied.

    Raises:
        DamagedFile: if networks, names or shapes differ.
    """
    ours, theirs = (
        {name: {key: list(t.shape) for key, t in ts.items()} for name, ts in states.items()}
        for states in (hook.states, saved)
    )
    if ours != theirs:
        raise DamagedFile(
            f"the saved state of hook {hook.key!r} has {theirs}, this one needs "
            f"{ours}: it is of another hook list"
        )


def hook_identity(config: Mapping[str, Any], schedule: Schedule) -> str:
    """Return what names a hook's random streams and its state in checkpoints.

    It says when the hook fires, not its place in the list: another row beside it moves no draw.
    Of several hooks with one identity the later ones are numbered.

    Args:
        config: an entry of a hook list.
        schedule: its schedule.
    """
    texts = {k: config[k] for k in KEYS if config.get(k) is not None}
    texts |= {} if schedule.when is None else {"when": schedule.when}  # however it was written
    return " ".join([config["method"], *(f"{k}={text}" for k, text in texts.items())])


def _schedule(
    key: str,
    config: Mapping[str, Any],
    total: Time,
    units: Iterable[str] | None,
    horizon: Clock | None,
) -> Schedule:
    for name in config:
        if name not in HOOK_KEYS:
            raise ConfigError(f"{key} has an unknown key {name!r}: {did_you_mean(name, HOOK_KEYS)}")
    if "method" not in config:
        raise ConfigError(f"{key} has no 'method': name one, see `rlplast list interventions`")
    for family, one in (("layers", "layer"), ("penalties", "penalty")):
        if config["method"] in [info.name for info in rows(family)]:
            raise ConfigError(
                f"{key}.method = {config['method']!r} is a {one}: list it under `{family}:`, where "
                "it needs no schedule"
            )
    key = f"{key} ({config['method']})"
    get("interventions", config["method"])
    schedule = Schedule.parse({k: config.get(k) for k in KEYS}, total, key, horizon)
    counted = set(units) if units is not None else schedule.units()
    for unit in schedule.units() - counted:
        raise ConfigError(f"{key} counts {unit}: this run counts {', '.join(sorted(counted))}")
    return schedule


def _parse(
    key: str,
    config: Mapping[str, Any],
    networks: Mapping[str, Network],
    schedule: Schedule,
    seen: dict[str, int],
) -> Hook:
    name = config["method"]
    label = f"{key} ({name})"
    params = config.get("params")
    params = {} if params is None else params
    if not isinstance(params, Mapping):
        raise ConfigError(f"{label}.params = {params!r}: allowed is a mapping")
    method: Intervention = build("interventions", name, params)
    chosen = config.get("networks", list(networks))
    listed = isinstance(chosen, list | tuple) and len(chosen) > 0
    if not listed or len(set(map(str, chosen))) < len(chosen):
        names = list(networks)
        raise ConfigError(f"{label}.networks = {chosen!r}: allowed is a list of {names}, each once")
    for network in chosen:
        if network not in list(networks):
            near = did_you_mean(str(network), networks)
            for owner in networks.values():
                if network in list(owner.followers):
                    near += f"; {network!r} follows {owner.name!r} as the key `followers` says"
                    break
            raise ConfigError(f"{label}.networks: {network!r}: {near}")
    every = schedule.every_update
    optimizer, followers = ("keep", "leave") if every else method.policies
    optimizer = config.get("optimizer") or optimizer
    followers = config.get("followers") or followers
    check_policy(optimizer, followers, label)
    if every and (optimizer, followers) != ("keep", "leave"):
        raise ConfigError(
            f"{label} fires at every update: allowed are optimizer 'keep' and followers 'leave', "
            f"not {optimizer!r} and {followers!r}"
        )
    identity = hook_identity(config, schedule)
    seen[identity] = seen.get(identity, 0) + 1
    return Hook(
        method=method,
        schedule=schedule,
        networks=tuple(networks[n] for n in chosen),
        scope=scope(config.get("scope") or "all", f"{label}.scope"),
        optimizer=optimizer,
        followers=followers,
        key=identity if seen[identity] == 1 else f"{identity} #{seen[identity]}",
        skips="networks" not in config,
    )
