"""A DQN with a config key of its own."""

from dataclasses import dataclass, field

from rlplast.agents.dqn import DQN
from rlplast.agents.dqn_config import DQNConfig
from rlplast.agents.off_policy_config import EnvConfig


@dataclass
class ToyConfig(DQNConfig):
    """A DQN that halves what it reports."""

    kind: str = "toy_agent"
    env: EnvConfig = field(default_factory=lambda: EnvConfig("toy/walk"))
    halved: bool = False


class ToyAgent(DQN):
    """A DQN whose evaluations may be halved."""

    def evaluate(self, number, episodes):
        scores = super().evaluate(number, episodes)
        return {k: v / 2 for k, v in scores.items()} if self.config.halved else scores
