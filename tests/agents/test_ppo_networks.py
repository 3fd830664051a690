import pytest
import torch

from rlplast.agents.networks import ARCHITECTURES
from rlplast.agents.ppo_config import PPOAgentConfig, PPOConfig
from rlplast.agents.ppo_networks import PolicyNetwork, ValueNetwork, policy_architecture
from rlplast.core.network.network import Network


def test_the_trunk_follows_from_the_observations():
    for keys, shape, name, activation in (
        ({}, (4,), "mlp_small", "tanh"),
        ({"network": "mlp", "activation": "elu"}, (4,), "mlp", "elu"),
        ({}, (4, 10, 10), "minatar", "relu"),
        ({}, (4, 84, 84), "nature", "relu"),
        ({"activation": "tanh"}, (4, 10, 10), "minatar", "tanh"),
    ):
        found, own = policy_architecture(PPOAgentConfig(**keys), shape), ARCHITECTURES[name]
        assert (found.convs, found.hidden) == (own.convs, own.hidden)
        assert (found.activation, found.output) == (activation, "linear")


def test_networks_of_pictures_give_logits_and_a_value():
    arch = policy_architecture(PPOAgentConfig(), (4, 10, 10))
    pictures = torch.randint(2, (5, 4, 10, 10), dtype=torch.uint8)
    policy = PolicyNetwork(arch, (4, 10, 10), 6)
    assert policy(pictures).shape == (5, 6) and policy.log_std is None
    assert ValueNetwork(arch, (4, 10, 10))(pictures).shape == (5, 1)


def test_log_sigma_is_a_block_of_its_own_whose_fresh_value_is_the_first():
    arch = policy_architecture(PPOAgentConfig(hidden=[8]), (4,))
    policy = PolicyNetwork(arch, (4,), 3, log_std=-1.5)
    network = Network("actor", policy)
    network.initialise(torch.Generator().manual_seed(0))
    (block,) = (b for b in network.blocks if b.name == "log_std")
    assert block.trainable
    assert block.view.tolist() == [-1.5] * 3
    assert network.fresh(block, torch.Generator().manual_seed(1)).tolist() == [-1.5] * 3
    assert [u.name for u in network.units().groups] == ["fc1"]


@pytest.mark.parametrize("updates", [1, 11, 12, 13, 60])
def test_env_steps_of_updates_are_the_fewest_that_owe_them(updates: int):
    config = PPOConfig(agent=PPOAgentConfig(rollout_steps=16, batch_size=32, epochs=3))
    assert config.updates_per_rollout == 12
    env_steps = config.env_steps_of(updates)
    assert config.updates_at(env_steps) >= updates > config.updates_at(env_steps - 1)
