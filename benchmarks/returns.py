"""SAC with MLPs and Stable-Baselines3's hyper-parameters, beside Stable-Baselines3 itself.

    python -m benchmarks.returns run OUT --side sb3 --env Pendulum-v1 --seeds 1 2 3 4 5
    python -m benchmarks.returns run OUT --side ours --env Pendulum-v1 --seeds 1 2 3 4 5
    python -m benchmarks.returns summary OUT

The side ours-bf16 is ours with bf16 autocast in the networks.

A run takes 20 000 env_steps with one thread. Its score is the mean return of 20 episodes of the
final policy, mean actions. The summary has the IQM over seeds with 95% intervals.
"""

import argparse
import itertools
import json
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np

SIDES = ("sb3", "ours", "ours-bf16")
STEPS = 20_000
EPISODES = 20


def run_sb3(env_id: str, seed: int) -> list[float]:
    import gymnasium
    import torch
    from stable_baselines3 import SAC
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.monitor import Monitor

    torch.set_num_threads(1)
    model = SAC("MlpPolicy", gymnasium.make(env_id), seed=seed, device="cpu")
    model.learn(STEPS)
    test = Monitor(gymnasium.make(env_id))
    test.reset(seed=10_000 + seed)
    returns, _ = evaluate_policy(
        model, test, EPISODES, deterministic=True, return_episode_rewards=True
    )
    return [float(r) for r in np.asarray(returns)]


def run_ours(env_id: str, seed: int, precision: str = "fp32") -> list[float]:
    import rlplast

    config = {"Pendulum-v1": "sac/pendulum", "Hopper-v5": "sac/hopper"}[env_id]
    overrides = {
        "seed": seed,
        "total": f"{STEPS} env_steps",
        "evaluate__every": None,
        "metrics__every": None,
        "checkpoint__every": "100%",
        "log__to": [],
        "agent__precision": precision,
    }
    with tempfile.TemporaryDirectory() as folder:
        run = rlplast.train(config, Path(folder) / "run", **overrides)
        return [float(r) for r in run.agent().play(0, EPISODES).returns]


def summary(out: Path) -> None:
    from rlplast.report.statistics import stratified_interval

    rows = [json.loads(path.read_text()) for path in sorted(out.glob("*.jsonl"))]
    for env_id, side in itertools.product(sorted({row["env"] for row in rows}), SIDES):
        own = [r for r in rows if (r["env"], r["side"]) == (env_id, side)]
        if len(own) < 2:
            continue
        iqm = stratified_interval([np.array([np.mean(r["returns"]) for r in own])])
        seconds = np.mean([r["seconds"] for r in own])
        print(
            f"{env_id:14} {side:9} seeds {len(own):2}  IQM {iqm.value:8.1f}  95% "
            f"[{iqm.low:.1f}, {iqm.high:.1f}]  {seconds:.0f} s a run"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run")
    run.add_argument("out", type=Path)
    run.add_argument("--side", choices=SIDES, required=True)
    run.add_argument("--env", required=True)
    run.add_argument("--seeds", type=int, nargs="+", required=True)
    commands.add_parser("summary").add_argument("out", type=Path)
    args = parser.parse_args()
    if args.command == "summary":
        summary(args.out)
        return
    args.out.mkdir(parents=True, exist_ok=True)
    play = {"sb3": run_sb3, "ours": run_ours, "ours-bf16": partial(run_ours, precision="bf16")}
    for seed in args.seeds:
        started = time.perf_counter()
        returns = play[args.side](args.env, seed)
        seconds = time.perf_counter() - started
        row = {"side": args.side, "env": args.env, "seed": seed, "returns": returns}
        file = args.out / f"{args.side}-{args.env}-{seed}.jsonl"
        file.write_text(json.dumps(row | {"seconds": seconds}) + "\n")
        print(args.side, args.env, seed, round(float(np.mean(returns)), 1), f"{seconds:.0f} s")


if __name__ == "__main__":
    main()
