"""The agent learns: short seeded runs, far above what random play scores."""

import numpy as np
import pytest

from agents.dqn_config import DQNAgentConfig, DQNConfig, EnvConfig
from tests.agents.toy_env import DQN
