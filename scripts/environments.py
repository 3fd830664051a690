"""Which environments train, at which level they are resumed, and how fast they step.

    python scripts/environments.py            # those below whose packages are installed
    python scripts/environments.py gym/FrozenLake-v1 gym/module:Id-v0

A row per environment: its spaces as the agent sees them, how a run on it goes on after an
interruption (`rlplast.envs.levels`) with the reason, the seconds that the trial took, and steps per
second of one environment with random actions, episodes and resets included.
"""

import sys
import time
import warnings
from typing import Any

import numpy as np

from rlplast import envs

IMAGE = {"keys": ["image"]}
FOUND: dict[str, dict[str, Any]] = {
    "gym/FrozenLake-v1": {},
    "gym/FrozenLake8x8-v1": {},
    "gym/Taxi-v4": {},
    "gym/Blackjack-v1": {},
    "gym/CliffWalking-v1": {},
    "gym/CliffWalkingSlippery-v1": {},
    "gym/CartPole-v0": {},
    "gym/LunarLander-v3": {},
    "gym/LunarLanderContinuous-v3": {},
    "gym/BipedalWalker-v3": {},
    "gym/BipedalWalkerHardcore-v3": {},
    "gym/CarRacing-v3": {},
    "gym/minigrid:MiniGrid-Empty-5x5-v0": IMAGE,
    "gym/minigrid:MiniGrid-DoorKey-5x5-v0": IMAGE,
    "gym/minigrid:MiniGrid-FourRooms-v0": IMAGE,
    "gym/minigrid:MiniGrid-Dynamic-Obstacles-6x6-v0": IMAGE,
    "gym/minigrid:MiniGrid-LavaCrossingS9N1-v0": IMAGE,
    "gym/minigrid:BabyAI-GoToRedBall-v0": IMAGE,
    "gym/minigrid:MiniGrid-KeyCorridorS3R1-v0": IMAGE,
    "gym/minigrid:MiniGrid-MultiRoom-N2-S4-v0": IMAGE,
    "gym/minigrid:BabyAI-GoToLocal-v0": IMAGE,
    "gym/ale_py:ALE/Pong-v5": {},
    "gym/ale_py:ALE/Breakout-v5": {"kwargs": {"obs_type": "ram"}},
    "gym/highway_env:highway-v0": {},
    "gym/highway_env:parking-v0": {},
    "gym/highway_env:merge-v1": {},
    "gym/highway_env:roundabout-v0": {},
    "gym/highway_env:racetrack-v0": {},
    "gym/highway_env:intersection-v0": {},
    "gym/flappy_bird_gymnasium:FlappyBird-v0": {},
    "gym/popgym:popgym-MineSweeperEasy-v0": {},
    "gym/popgym:popgym-BattleshipEasy-v0": {},
    "gym/popgym:popgym-HigherLowerEasy-v0": {},
    "gym/popgym:popgym-NoisyPositionOnlyPendulumEasy-v0": {},
    "gym/popgym:popgym-LabyrinthEscapeEasy-v0": {},
    "gym/memory_gym:MortarMayhem-Grid-v0": {},
    "gym/memory_gym:MysteryPath-Grid-v0": {},
    "gym/memory_gym:SearingSpotlights-v0": {},
    "gym/gymnasium_2048:gymnasium_2048/TwentyFortyEight-v0": {},
    "gym/gymnasium_cartpole_swingup:CartPoleSwingUp-v0": {},
    "gym/gymnasium_search_race:gymnasium_search_race/SearchRaceDiscrete-v3": {},
    "gym/gymnasium_search_race:gymnasium_search_race/MadPodRacing-v2": {},
    "gym/gymnasium_snake_game:Snake-v1": {},
    "gym/tetris_gymnasium.envs.tetris:tetris_gymnasium/Tetris": {},
    "gym/gym_simplegrid:SimpleGrid-8x8-v0": {},
    "gym/gym_sailing:SailboatDiscrete-v0": {},
    "gym/gym_sailing:Motorboat-v0": {},
    "gym/gym_anytrading:forex-v0": {},
    "gym/gym_pusht:gym_pusht/PushT-v0": {},  # with pymunk < 7
    "gym/myosuite:myoElbowPose1D6MRandom-v0": {},
    "gym/myosuite:myoFingerReachFixed-v0": {},
    "gym/gymnasium_robotics:PointMaze_UMaze-v3": {},
    "gym/gymnasium_robotics:AdroitHandDoor-v1": {},
    "gym/gymnasium_robotics:AdroitHandPen-v1": {},
    "gym/gymnasium_robotics:FrankaKitchen-v1": {},
    # With mujoco 3.3.7; in gymnasium.make both fail with 3.17.
    "gym/gymnasium_robotics:FetchReach-v4": {},
    "gym/gymnasium_robotics:HandReach-v3": {},
    "gym/metaworld:Meta-World/MT1": {"kwargs": {"env_name": "reach-v3"}},
    "dmc/cheetah-run": {},
    "minatar/breakout": {},
    "atari/Pong": {},
}
SECONDS = 2.0  # of stepping


def main(ids: list[str]) -> None:
    """Print the table."""
    warnings.simplefilter("ignore")
    print("| environment | level | sees | acts | tried in | env_steps/s | why no better |")
    print("|---|---|---|---|---|---|---|")
    for env_id in ids or FOUND:
        options = FOUND.get(env_id, {})
        try:
            spec = envs.spec(env_id, **options)
            began = time.perf_counter()
            level = envs.find_resume(env_id, **options)
            tried = time.perf_counter() - began
            per_second = rate(env_id, options)
        except Exception as error:  # whatever an environment raises
            print(f"| `{env_id}` | fails | | | | | {error!r} |", flush=True)
            continue
        shape = "×".join(map(str, spec.obs_shape))
        acts = (
            f"{spec.num_actions} actions" if spec.num_actions else f"vectors of {spec.action_dim}"
        )
        print(
            f"| `{env_id}` | {level.name} | {shape} {spec.obs_dtype} | {acts} | {tried:.1f} s "
            f"| {per_second:,.0f} | {level.reason} |",
            flush=True,
        )


def rate(env_id: str, options: dict[str, Any]) -> float:
    """Return env_steps per second."""
    rng = np.random.default_rng(0)
    env = envs.make(env_id, np.random.default_rng(1), **options)
    env.reset()
    count, began = 0, time.perf_counter()
    while time.perf_counter() < began + SECONDS:
        if env.spec.num_actions is None:
            action = rng.uniform(-1, 1, env.spec.action_dim).astype(np.float32)
        else:
            action = int(rng.integers(env.spec.num_actions))
        *_, terminated, truncated = env.step(action)
        if terminated or truncated:
            env.reset()
        count += 1
    env.close()
    return count / (time.perf_counter() - began)


if __name__ == "__main__":
    main(sys.argv[1:])
