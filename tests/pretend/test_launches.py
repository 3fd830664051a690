"""How much an update launches: no more than a number written here, so that it cannot grow unseen.

A launch is an operator, roughly a kernel of CUDA's; a foreach or fused operator is one. On a GPU
the updates of small networks take about as long as their launches.
"""

from typing import Any

import pytest

from rlplast.run.config_file import read_config
from rlplast.run.timing import ready, updates
from tests.pretend.device import Counts, counted

pytestmark = pytest.mark.pretended

COUNTED = 4  # updates

CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "dqn nature": (
        "dqn/asterix",
        {"env.num_envs": 4, "agent.buffer_size": 3000, "agent.batch_size": 4},
    ),
    "sac mlp": ("sac/pendulum", {}),
    "sac simba": ("sac/pendulum", {"agent.network": "simba"}),
}
HOOKS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "swr": {"hooks": [{"method": "swr", "every": "1 updates", "params": {"coef": 1e-3}}]},
    "cbp": {"hooks": [{"method": "cbp", "every": "1 updates"}]},
    "lifecycle": {"layers": [{"method": "lifecycle", "params": {"life": [4, 9]}}]},
}
# Of one update. Lower a number when less is launched; raise one only on purpose.
MOST = {
    "dqn nature": {"nothing": 75, "swr": 124, "cbp": 780, "lifecycle": 235},
    "sac mlp": {"nothing": 161, "swr": 260, "cbp": 1241, "lifecycle": 335},
    "sac simba": {"nothing": 270, "swr": 405, "cbp": 1315, "lifecycle": 444},
}


def launches(of: str, keys: dict[str, Any]) -> Counts:
    """Return what some updates launch."""
    name, own = CONFIGS[of]
    own = own | {"device": "cuda", "threads": 1, "hooks": [], "layers": []}
    agent, _ = ready(read_config(name, own | keys), "off")
    try:
        run = updates(agent)
        run(2)  # which allocate state
        with counted() as seen:
            for _ in range(COUNTED):
                agent.update()
        return seen
    finally:
        agent.close()


@pytest.mark.parametrize("hooks", HOOKS)
@pytest.mark.parametrize("of", CONFIGS)
def test_updates_launch_no_more_than_they_did(of: str, hooks: str) -> None:
    seen = launches(of, HOOKS[hooks])
    assert seen.waits == {}
    assert seen.copies <= COUNTED * (5 if of == "dqn nature" else 6)
    assert seen.launched <= COUNTED * MOST[of][hooks], seen.launches
