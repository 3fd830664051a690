"""Draw what was published about resets of SAC: where they pay, and where they only cost.

    python scripts/published_resets.py docs/images/published_resets.png

It reads configs/study/replay_ratio/dmc_curves.csv, whose sources and licences are in the .md file
beside it.
"""

import csv
import math
import sys
from pathlib import Path

CURVES = Path(__file__).parents[1] / "configs/study/replay_ratio/dmc_curves.csv"
END = 500_000  # env_steps

# Task → label of a curve → source, replay ratio, env_steps between two resets (0: none).
PANELS = {
    "quadruped-run": {
        "32 updates per env_step": ("nikishin2022", "32", "0"),
        "32, reset each 200k": ("nikishin2022", "32", "200000"),
        "16, reset each 160k": ("doro2023", "16", "160000"),
        "128, reset each 20k": ("doro2023", "128", "20000"),
    },
    "hopper-hop": {
        "32 updates per env_step": ("nikishin2022", "32", "0"),
        "32, reset each 200k": ("nikishin2022", "32", "200000"),
        "16, reset each 160k": ("doro2023", "16", "160000"),
        "128, reset each 20k": ("doro2023", "128", "20000"),
    },
    "cheetah-run": {
        "1 update per env_step": ("nikishin2022", "1", "0"),
        "1, reset each 200k": ("nikishin2022", "1", "200000"),
    },
    "finger-turn_hard": {
        "1 update per env_step": ("nikishin2022", "1", "0"),
        "1, reset each 200k": ("nikishin2022", "1", "200000"),
    },
}
COLOURS = {
    "32 updates per env_step": "#7f7f7f",
    "32, reset each 200k": "#1f77b4",
    "16, reset each 160k": "#2ca02c",
    "128, reset each 20k": "#9467bd",
    "1 update per env_step": "#555555",
    "1, reset each 200k": "#d62728",
}


def points() -> list[dict[str, object]]:
    """Return a row per panel, curve and moment: the mean, and two standard errors around it."""
    with CURVES.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    found: list[dict[str, object]] = []
    for task, curves in PANELS.items():
        for label, (source, ratio, every) in curves.items():
            setting = (task, source, ratio, every)
            for row in rows:
                own = (row["task"], row["source"], row["replay_ratio"])
                if (*own, row["reset_every_env_steps"]) != setting or int(row["env_steps"]) > END:
                    continue
                mean = float(row["return_mean"])
                half = 2 * float(row["return_sd"]) / math.sqrt(int(row["seeds"]))
                found.append(
                    {
                        "task": task,
                        "agent": label,
                        "env_steps": int(row["env_steps"]),
                        "return": mean,
                        "low": mean - half,
                        "high": mean + half,
                    }
                )
    return found


def main(path: str) -> None:
    """Draw the panels into a file."""
    import altair as alt

    rows = points()
    colour = alt.Color(
        "agent:N",
        sort=list(COLOURS),
        scale=alt.Scale(domain=list(COLOURS), range=list(COLOURS.values())),
    )
    panels = []
    for task in PANELS:
        own = alt.Chart(alt.Data(values=[row for row in rows if row["task"] == task]))
        x = alt.X("env_steps:Q", axis=alt.Axis(format="~s", tickCount=5))
        scale = alt.Scale(domain=[0, 1000])
        y, low = (alt.Y(f"{name}:Q", scale=scale, title="return") for name in ("return", "low"))
        band = own.mark_area(opacity=0.2).encode(x=x, y=low, y2="high:Q", color=colour)
        line = own.mark_line().encode(x=x, y=y, color=colour)
        panels.append((band + line).properties(width=260, height=180, title=task))
    grid = alt.concat(*panels, columns=2).configure_legend(
        orient="bottom", title=None, columns=3, symbolOpacity=1, symbolType="square"
    )
    grid.save(path, scale_factor=2)


if __name__ == "__main__":
    main(sys.argv[1])
