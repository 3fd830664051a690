"""What methods cost: milliseconds per firing, and their share of an update.

Updates with and without a method alternate on one agent, so that whatever else the machine does
falls on both.
"""

import statistics
from functools import partial
from typing import Any

from bench_tools import Row, alternate, built, medians, row

from rlplast.core.clock import Clock
from rlplast.core.method.hooks import Hooks
from rlplast.run.timing import inside

INSIDE: dict[str, dict[str, Any]] = {  # at every update
    "swr": {"coef": 1e-3},
    "cbp": {"replacement_rate": 1e-4, "maturity": 100},
    "snr": {"tau_max": 20_000},
}
SCHEDULED: dict[str, dict[str, Any]] = {
    "fire": {},
    "shrink_perturb": {},
    "redo": {"threshold": 0.1},
    "dash": {"batches": 4, "batch": 64},
}
AGENTS: dict[str, tuple[str, str, dict[str, Any]]] = {  # config, network, overrides
    "Nature CNN": ("dqn/asterix", "q", {"agent__buffer_size": 20_000, "agent__initial_steps": 400}),
    "SimBa critic": (
        "sac/pendulum",
        "critic",
        {
            "agent__network": "simba",
            "agent__critic_width": 512,
            "agent__actor_width": 128,
            "agent__actor_blocks": 1,
            "agent__initial_steps": 300,
        },
    ),
}
INSTALLED = {
    "normalize_project": {"layers": [{"method": "normalize_project"}]},
    "plasticity_injection": {"hooks": [{"method": "plasticity_injection", "at": "50%"}]},
}


def agent(config: str, threads: int, overrides: dict[str, Any]) -> Any:
    """Return an agent on the CPU with some transitions in its replay."""
    fixed = {"total": "400k env_steps", "agent__accelerate": "off"}
    trainable, _ = built(config, threads=threads, **fixed, **overrides)
    goal = overrides["agent__initial_steps"] + trainable.config.env.num_envs
    while trainable.clock.env_steps < goal:
        trainable._environment_step()
    return trainable


def bench_methods(threads: int, rounds: int) -> list[Row]:
    """Milliseconds per firing and share of an update, on the two networks agents use most."""
    rows: list[Row] = []
    for label, (config, network, overrides) in AGENTS.items():
        trainable = agent(config, threads, overrides)
        for name, params in INSIDE.items():
            rows += _inside(f"{name}, {label}", trainable, network, name, params, rounds)
        update = statistics.median(alternate({"u": trainable.update}, 10 * rounds)["u"])
        for name, params in SCHEDULED.items():
            hook = [{"method": name, "at": "50%", "networks": [network], "params": params}]
            hooks = Hooks(hook, trainable.networks, "400k env_steps", source=trainable)
            fire = hooks.hooks[-1].fire
            times = alternate({"f": lambda f=fire: f(Clock(env_steps=200_000), 1, 0)}, rounds)["f"]
            seconds = statistics.median(times)
            rows += [
                row(f"{name}, {label}: a firing", 1e3 * seconds, "ms", times),
                row(f"{name}, {label}: a firing", seconds / update, "updates"),
            ]
        for name, lists in INSTALLED.items():
            chosen = {k: [r | {"networks": [network]} for r in v] for k, v in lists.items()}
            other = agent(config, threads, overrides | chosen)
            rows += _ratio(f"{name}, {label}", trainable.update, other.update, rounds)
    return rows


def _inside(
    label: str, trainable: Any, network: str, name: str, params: dict[str, Any], rounds: int
) -> list[Row]:
    config = [{"method": name, "every": "1 updates", "networks": [network], "params": params}]
    hooks = Hooks(config, trainable.networks, "400k env_steps", units=trainable.units)

    sides = {name: partial(run, 1) for name, run in inside(trainable, hooks).items()}
    found = _ratio(label, sides["without"], sides["with"], rounds)
    sides["without"]()
    return found


def _ratio(label: str, without: Any, with_method: Any, rounds: int) -> list[Row]:
    sides = {"without": without, "with": with_method}
    seconds = alternate(sides, 20 * rounds, 5)
    pairs = zip(seconds["with"], seconds["without"], strict=True)
    added = statistics.median(a - b for a, b in pairs)
    median = medians(seconds)
    return [
        row(f"{label}: update without", 1e3 * median["without"], "ms", seconds["without"]),
        row(f"{label}: adds per update", 1e3 * added, "ms"),
        row(f"{label}: update with, over without", median["with"] / median["without"], "x"),
    ]
