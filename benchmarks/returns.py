"""SAC and PPO beside Stable-Baselines3, with equal hyper-parameters.

    python -m benchmarks.returns run OUT --side sb3 --env Pendulum-v1 --seeds 1 2 3 4 5
    python -m benchmarks.returns run OUT --side ours --env Pendulum-v1 --seeds 1 2 3 4 5
    python -m benchmarks.returns run OUT --side ours --env CartPole-v1 --kind ppo --seeds 1 2 3
    python -m benchmarks.returns summary OUT
    python -m benchmarks.returns picture OUT FILE.png

The side ours-bf16 is SAC of ours with bf16 autocast in the networks.

A run of SAC takes 20 000 env_steps, one of PPO 100 000, with one thread. Its score is the mean
return of 20 episodes of the final policy, mean or likeliest actions. The summary has the IQM over
seeds with 95% intervals. The picture has the returns of PPO's training episodes: the mean over
seeds and two standard errors.
"""

import argparse
import itertools
import json
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

SIDES = ("sb3", "ours", "ours-bf16")
STEPS = {"sac": 20_000, "ppo": 100_000}
EPISODES = 20
CONFIGS = {
    ("sac", "Pendulum-v1"): "sac/pendulum",
    ("sac", "Hopper-v5"): "sac/hopper",
    ("ppo", "CartPole-v1"): "ppo/cartpole",
    ("ppo", "Hopper-v5"): "ppo/hopper",
}


Scores = tuple[list[float], list[list[float]]]  # returns at the end; (env_steps, return) pairs


def run_sb3(kind: str, env_id: str, seed: int) -> Scores:
    if kind == "sac":
        return sb3_sac(env_id, seed), []
    return sb3_ppo(CONFIGS[kind, env_id], seed)


def sb3_ppo(name: str, seed: int) -> Scores:
    """Return the scores of Stable-Baselines3's PPO with a config of ours."""
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.vec_env import VecNormalize

    from benchmarks.peers import of_rollouts
    from rlplast.run.config_file import read_config

    torch.set_num_threads(1)
    config: Any = read_config(name)
    env_id, lr, own = config.env.id.removeprefix("gym/"), config.optimizer.lr, config.agent
    env: Any = make_vec_env(env_id, config.env.num_envs, seed=seed)
    test: Any = make_vec_env(env_id, 1, seed=10_000 + seed)
    if own.normalize_obs:
        env = VecNormalize(env, gamma=own.gamma)
        test = VecNormalize(test, training=False, norm_reward=False)
    options: dict[str, Any] = of_rollouts(config) | {"learning_rate": lambda left: lr * left}
    policy = {"net_arch": list(own.hidden)} if own.hidden else None
    model = PPO(
        "MlpPolicy",
        env,
        seed=seed,
        device="cpu",
        policy_kwargs=policy,
        batch_size=own.batch_size,
        **options,
    )
    curve: list[list[float]] = []

    class Ends(BaseCallback):
        def _on_step(self) -> bool:
            ended = [info["episode"]["r"] for info in self.locals["infos"] if "episode" in info]
            curve.extend([float(self.num_timesteps), float(r)] for r in ended)
            return True

    model.learn(STEPS["ppo"], Ends())
    if own.normalize_obs:
        test.obs_rms = env.obs_rms
    returns, _ = evaluate_policy(
        model, test, EPISODES, deterministic=True, return_episode_rewards=True
    )
    return [float(r) for r in np.asarray(returns)], curve


def sb3_sac(env_id: str, seed: int) -> list[float]:
    import gymnasium
    import torch
    from stable_baselines3 import SAC
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.monitor import Monitor

    torch.set_num_threads(1)
    model = SAC("MlpPolicy", gymnasium.make(env_id), seed=seed, device="cpu")
    model.learn(STEPS["sac"])
    test = Monitor(gymnasium.make(env_id))
    test.reset(seed=10_000 + seed)
    returns, _ = evaluate_policy(
        model, test, EPISODES, deterministic=True, return_episode_rewards=True
    )
    return [float(r) for r in np.asarray(returns)]


def run_ours(kind: str, env_id: str, seed: int, precision: str = "fp32") -> Scores:
    import rlplast

    config = CONFIGS[kind, env_id]
    overrides = {
        "seed": seed,
        "total": f"{STEPS[kind]} env_steps",
        "evaluate__every": None,
        "metrics__every": None,
        "checkpoint__every": "100%",
        "log__to": [],
    }
    if precision != "fp32":
        overrides["agent__precision"] = precision
    with tempfile.TemporaryDirectory() as folder:
        run = rlplast.train(config, Path(folder) / "run", **overrides)
        rows = [row for row in run.lines() if row.get("train/return") is not None]
        curve = [[float(row["env_steps"]), row["train/return"]] for row in rows]
        return [float(r) for r in run.agent().play(0, EPISODES).returns], curve


def summary(out: Path) -> None:
    from rlplast.report.estimators import stratified_interval

    rows = [json.loads(path.read_text()) for path in sorted(out.glob("*.jsonl"))]
    tasks = sorted({(row["kind"], row["env"]) for row in rows})
    for (kind, env_id), side in itertools.product(tasks, SIDES):
        own = [r for r in rows if (r["kind"], r["env"], r["side"]) == (kind, env_id, side)]
        if len(own) < 2:
            continue
        iqm = stratified_interval([np.array([np.mean(r["returns"]) for r in own])])
        seconds = np.mean([r["seconds"] for r in own])
        print(
            f"{kind} {env_id:14} {side:9} seeds {len(own):2}  IQM {iqm.value:8.1f}  95% "
            f"[{iqm.low:.1f}, {iqm.high:.1f}]  {seconds:.0f} s a run"
        )


def picture(out: Path, file: Path) -> None:
    """Draw the returns of training episodes, in 25 parts of the run."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = [json.loads(path.read_text()) for path in sorted(out.glob("*ppo*.jsonl"))]
    envs = sorted({row["env"] for row in rows})
    figure, axes = pyplot.subplots(1, len(envs), figsize=(9, 3), squeeze=False)
    edges = np.linspace(0, STEPS["ppo"], 26)
    for axis, env_id in zip(axes[0], envs, strict=True):
        for side, colour in (("sb3", "#888888"), ("ours", "#0072b2")):
            curves = [np.array(r["curve"]) for r in rows if (r["env"], r["side"]) == (env_id, side)]
            means = np.array([_binned(curve, edges) for curve in curves])
            mean, error = np.nanmean(means, 0), 2 * np.nanstd(means, 0, ddof=1) / len(means) ** 0.5
            middles = (edges[1:] + edges[:-1]) / 2000
            name = "Stable-Baselines3" if side == "sb3" else "rlplast"
            axis.plot(middles, mean, color=colour, label=f"{name}, {len(means)} seeds")
            axis.fill_between(middles, mean - error, mean + error, color=colour, alpha=0.2, lw=0)
        axis.set(title=env_id, xlabel="thousand env_steps", ylabel="return of training episodes")
        axis.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(file, dpi=150)


def _binned(curve: np.ndarray, edges: np.ndarray) -> list[float]:
    parts = np.digitize(curve[:, 0], edges[1:-1], right=True)
    own = (curve[parts == i, 1] for i in range(len(edges) - 1))
    return [float(values.mean()) if len(values) else float("nan") for values in own]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run")
    run.add_argument("out", type=Path)
    run.add_argument("--side", choices=SIDES, required=True)
    run.add_argument("--env", required=True)
    run.add_argument("--kind", choices=list(STEPS), default="sac")
    run.add_argument("--seeds", type=int, nargs="+", required=True)
    commands.add_parser("summary").add_argument("out", type=Path)
    drawn = commands.add_parser("picture")
    drawn.add_argument("out", type=Path)
    drawn.add_argument("file", type=Path)
    args = parser.parse_args()
    if args.command == "picture":
        picture(args.out, args.file)
        return
    if args.command == "summary":
        summary(args.out)
        return
    args.out.mkdir(parents=True, exist_ok=True)
    play = {"sb3": run_sb3, "ours": run_ours, "ours-bf16": partial(run_ours, precision="bf16")}
    for seed in args.seeds:
        started = time.perf_counter()
        returns, curve = play[args.side](args.kind, args.env, seed)
        seconds = time.perf_counter() - started
        row = {"side": args.side, "kind": args.kind, "env": args.env, "seed": seed}
        row |= {"returns": returns, "curve": curve}
        file = args.out / f"{args.side}-{args.kind}-{args.env}-{seed}.jsonl"
        file.write_text(json.dumps(row | {"seconds": seconds}) + "\n")
        print(args.side, args.env, seed, round(float(np.mean(returns)), 1), f"{seconds:.0f} s")


if __name__ == "__main__":
    main()
