"""Schedules: when a hook, an evaluation or a checkpoint is due, as a function of the clock.

They have no counter, so a resume has nothing to restore. With ``every: 100 updates``, `count` is 2
at update 250, and `crossings` from there to update 450 is 2: one firing, which knows that it stands
for two due points. A condition (`when`) has no due points: `Hooks.observe` checks it.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rlplast.core.clock import Clock, Time
from rlplast.core.errors import ConfigError, check_choice, check_known
from rlplast.core.method.condition import Condition

__all__ = ["KEYS", "Schedule", "hook_identity", "next_due", "unique"]

RULES = ("at", "every", "on", "when")
KEYS = (*RULES, "first", "from", "until")
EVENTS = ("phase_start",)


@dataclass(frozen=True)
class Schedule:
    """When something is due; exactly one of `at`, `every`, `on`, `when` is set.

    Attributes:
        at: points in time, ascending.
        every: a period; due at its multiples, or at `first` and each period after it.
        on: an event, ``phase_start``.
        when: a condition on a measured value.
        first: first due point of `every`; None for one period, which is the most.
        start: first clock at which `every`, `on` or `when` may be due (config key ``from``).
        until: last clock at which they may be due.
    """

    at: tuple[Time, ...] = ()
    every: Time | None = None
    on: str | None = None
    when: Condition | None = None
    first: Time | None = None
    start: Time | None = None
    until: Time | None = None

    @classmethod
    def parse(
        cls,
        config: Mapping[str, Any],
        total: Time,
        key: str = "schedule",
        horizon: Clock | None = None,
    ) -> "Schedule":
        """Read a schedule's keys from a config; None counts as absent, percentages are of `total`.

        Args:
            config: a mapping with the keys of `KEYS`.
            total: the run's length.
            key: what error messages call the schedule.
            horizon: the clock at the run's end, 0 where it is not known; default: the total alone.

        Raises:
            ConfigError: for an unknown key, a missing or double rule, a point at or past the end, a
                period of zero, or one that is never due.

        Examples:
            >>> s = Schedule.parse({"at": ["25%", "50%"]}, Time(1000, "updates"))
            >>> s.crossings(Clock(updates=200), Clock(updates=600))
            2
        """
        given = {k: v for k, v in config.items() if v is not None}
        check_known(key, given, KEYS)
        rules = [k for k in RULES if k in given]
        if len(rules) != 1:
            raise ConfigError(
                f"{key} has {' and '.join(rules) or 'no rule'}: exactly one of {', '.join(RULES)} "
                "is needed"
            )

        def time(name: str, value: Any) -> Time:
            return Time.parse(value, f"{key}.{name}").resolve(total)

        points = given.get("at", [])
        points = points if isinstance(points, list | tuple) else [points]
        schedule = cls(
            at=tuple(sorted((time("at", p) for p in points), key=lambda t: (t.unit, t.value))),
            every=time("every", given["every"]) if "every" in given else None,
            on=given.get("on"),
            when=Condition.parse(given["when"], total, f"{key}.when") if "when" in given else None,
            first=time("first", given["first"]) if "first" in given else None,
            start=time("from", given["from"]) if "from" in given else None,
            until=time("until", given["until"]) if "until" in given else None,
        )
        schedule._check(horizon or Clock(**{total.unit: int(total.value)}), key)
        return schedule

    def _check(self, horizon: Clock, key: str) -> None:
        if self.on is not None:
            check_choice(f"{key}.on", self.on, EVENTS)
        if self.every is not None and self.every.value < 1:
            unit = self.every.unit
            raise ConfigError(f"{key}.every = {self.every}: allowed is at least 1 {unit}")
        if not (self.at or self.every or self.on or self.when):
            raise ConfigError(f"{key}.at has no point: allowed is at least one, such as '50%'")
        if self.at and (self.start or self.until):
            raise ConfigError(f"{key}: from and until go with every, on or when, not with at")
        points = [("at", t) for t in self.at] + [("from", self.start)] * (self.start is not None)
        for name, time in points:
            if time is not None and 0 < horizon[time.unit] <= time.value:
                raise ConfigError(
                    f"{key}.{name} = {time} is at or past the end of the run "
                    f"({horizon[time.unit]} {time.unit}): it would change nothing; allowed is less"
                )
        self._check_first(key)
        every = self.every
        cooldown = self.when and self.when.cooldown
        if cooldown is not None and 0 < horizon[cooldown.unit] < cooldown.value:
            raise ConfigError(
                f"{key}.when.cooldown = {cooldown} is longer than the run "
                f"({horizon[cooldown.unit]} {cooldown.unit}): allowed is at most that, for one "
                "firing in all"
            )
        if self.on is not None and horizon.phase == 1:
            raise ConfigError(
                f"{key}.on = {self.on!r} would never be due: no phase starts later in this run, "
                "which has one or ends in its first; raise total, shorten the phases (as "
                "stream.epochs), or leave the hook out"
            )
        start, until = self.start, self.until
        if start and until and start.unit == until.unit and until.value < start.value:
            raise ConfigError(f"{key}: until = {until} comes before from = {start}")
        if every is not None and horizon[every.unit] > 0 and self.count(horizon) == 0:
            raise ConfigError(
                f"{key}.every = {every} has no due point between from = {start} and until = "
                f"{until}, in a run of {horizon[every.unit]} {every.unit}: it would never be due"
            )

    def _check_first(self, key: str) -> None:
        every, first = self.every, self.first
        if first is None:
            return
        if every is None or first.unit != every.unit or not 1 <= first.value <= every.value:
            rule = next(rule for rule in RULES if getattr(self, rule))
            raise ConfigError(
                f"{key}.first = {first} with {rule} = {getattr(self, rule)}: allowed is a time "
                "from 1 to every, in its unit; to start later, use from"
            )

    def count(self, clock: Clock | None) -> int:
        """Return how many due points lie at or before `clock`; None is the time before the run."""
        if clock is None or self.when is not None:
            return 0
        if self.at:
            return sum(clock[t.unit] >= t.value for t in self.at)
        unit = self._period()[1]
        now, before = clock[unit], 0
        if self.start is not None and self.start.unit == unit:
            before = self._due_by(int(self.start.value) - 1)
        if self.until is not None and self.until.unit == unit:
            now = min(now, int(self.until.value))
        return max(0, self._due_by(now) - before)

    def _due_by(self, now: int) -> int:
        """Return how many due points of the period lie at or before a count."""
        period = self._period()[0]
        return max(0, (now + period - self._first()) // period)

    def _first(self) -> int:
        """Return the first due point of the period."""
        return self._period()[0] if self.first is None else int(self.first.value)

    def crossings(self, previous: Clock | None, clock: Clock) -> int:
        """Return how many due points lie after `previous` and at or before `clock`.

        There are none if `is_open` is false at `clock`.
        """
        return (self.count(clock) - self.count(previous)) if self.is_open(clock) else 0

    def is_open(self, clock: Clock) -> bool:
        """Whether `clock` lies between `from` and `until`."""
        # An `until` in the period's unit is left to `count`: a step that jumps past it must still
        # fire what was due before it.
        until = self.until
        counted = self.when is None and until is not None and until.unit == self._period()[1]
        before = until is None or counted or clock[until.unit] <= until.value
        return self.has_begun(clock) and before

    def has_begun(self, clock: Clock) -> bool:
        """Whether `clock` has reached `from`."""
        return self.start is None or clock[self.start.unit] >= self.start.value

    def is_due_inside(self, clock: Clock) -> bool:
        """Whether this is due inside the update that brings the run to `clock`."""
        return self.crossings(clock.advance(updates=-1), clock) > 0

    def _period(self) -> tuple[int, str]:
        return (1, "phase") if self.every is None else (int(self.every.value), self.every.unit)

    @property
    def every_update(self) -> bool:
        """Whether this is due after each single update, as part of the update itself."""
        return self.every is not None and self.every == Time(1, "updates")

    def next_due(self, clock: Clock) -> Time | None:
        """Return the next due point after `clock`, or None."""
        ahead = [t for t in self.at if clock[t.unit] < t.value]
        if ahead:
            return ahead[0]
        if self.every is None and self.on is None:
            return None
        period, unit = self._period()
        past = clock[unit]
        if self.start is not None and self.start.unit == unit:
            past = max(past, int(self.start.value) - 1)
        following = self._first() + self._due_by(past) * period
        if self.until is not None and self.until.unit == unit and following > self.until.value:
            return None
        return Time(following, unit)

    def next_update(self, clock: Clock) -> int | None:
        """Return the number of the next update after which this may be due, or None."""
        points = [int(t.value) for t in self.at if t.unit == "updates" and t.value > clock.updates]
        due = None if self.at else self.next_due(clock)
        if due is not None and due.unit == "updates":
            points.append(int(due.value))
        return min(points, default=None)

    def ahead(self, clock: Clock, end: Clock) -> Time | None:
        """Return the next due point before the end of the run, or None; ends of 0 are not known."""
        due, start = self.next_due(clock), self.start
        if due is None or 0 < end[due.unit] <= due.value:
            return None
        shut = start is not None and start.unit != due.unit and clock[start.unit] < start.value
        return start if shut else due

    def earliest(self) -> list[Time]:
        """Return the times, one per unit, up to which a run with this schedule equals one without.

        ``at: 50%`` fires after the step that reaches 50%: both runs share that step. What is due at
        every update fires inside an update: its time is one update earlier.

        Examples:
            >>> total = Time(1000, "updates")
            >>> Schedule.parse({"at": ["50%", "25%", "3 epochs"]}, total).earliest()
            [Time(value=3, unit='epochs'), Time(value=250, unit='updates')]
        """
        if self.at:
            first: dict[str, Time] = {}
            for time in self.at:  # ascending
                first.setdefault(time.unit, time)
            return list(first.values())
        start = self.start if self.start is not None and self.start.value > 0 else None
        if self.when is not None:
            return [start or Time(0, "updates")]
        period, unit = self._period()
        if start is None or start.unit == unit:
            before = self._due_by(int(start.value) - 1) if start else 0
            value = self._first() + before * period
            return [Time(value - 1 if self.every_update else value, unit)]
        if self.every_update and start.unit == "epochs":
            return [Time(start.value - 1, "epochs")]
        if self.every_update and start.unit == "tokens":  # an update counts many at once
            return [Time(0, "updates")]
        return [start]

    def check_units(self, counted: Iterable[str], key: str) -> None:
        """Refuse units that a run does not count."""
        counted = set(counted)
        for unit in self.units() - counted:
            raise ConfigError(f"{key} counts {unit}: this run counts {', '.join(sorted(counted))}")

    def units(self) -> set[str]:
        """Return the units that this schedule reads."""
        times = (*self.at, self.every, self.start, self.until, self.when and self.when.cooldown)
        return {t.unit for t in times if t is not None} | ({"phase"} if self.on else set())


def next_due(
    schedules: Iterable[tuple[str, Schedule]],
    now: Clock,
    end: Clock,
    lengths: Callable[[], Mapping[str, float]] | None = None,
) -> tuple[str, Time] | None:
    """Return the name and time of what is due next, of schedules that are not due at every update.

    Times in different units are compared by their share of `end`, or of what `lengths` returns,
    which knows more; unknown ends are 0, and their units come last.
    """
    plain = [(name, schedule) for name, schedule in schedules if not schedule.every_update]
    ahead = [(name, time) for name, s in plain if (time := s.ahead(now, end)) is not None]
    several = len({time.unit for _, time in ahead}) > 1
    ends = lengths() if several and lengths is not None else asdict(end)

    def share(row: tuple[str, Time]) -> tuple[float, float]:
        time = row[1]
        last = ends.get(time.unit, 0)
        return (time.value / last if last else math.inf), time.value

    return min(ahead, key=share, default=None)


def hook_identity(config: Mapping[str, Any], schedule: Schedule) -> str:
    """Return the name of a hook's random streams and state: method and schedule, not its place."""
    texts = {k: config[k] for k in KEYS if config.get(k) is not None}
    texts |= {} if schedule.when is None else {"when": schedule.when}  # however it was written
    return " ".join([config["method"], *(f"{k}={text}" for k, text in texts.items())])


def unique(identity: str, seen: Iterable[str]) -> str:
    """Return the key of a hook: its identity, with a number if some before it have the same."""
    alike = sum(key == identity or key.startswith(f"{identity} #") for key in seen)
    return f"{identity} #{alike + 1}" if alike else identity
