"""Hooks in a loop of TorchRL: a DQN with ReDo, a reset at half time, a penalty and a metric.

Run it with ``python docs/examples/torchrl_dqn.py``; it takes a few seconds.
"""

import copy

import torch
from tensordict.nn import TensorDictSequential
from torch import nn
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import GymEnv
from torchrl.modules import EGreedyModule, QValueActor
from torchrl.objectives import DQNLoss, SoftUpdate

import rlplast

torch.manual_seed(1)
env = GymEnv("CartPole-v1")
net = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
actor = QValueActor(net, in_keys=["observation"], spec=env.action_spec)
policy = TensorDictSequential(actor, EGreedyModule(env.action_spec, eps_init=0.2, eps_end=0.2))
collector = Collector(
    env, policy, frames_per_batch=16, total_frames=800, auto_register_policy_transforms=True
)
replay = TensorDictReplayBuffer(storage=LazyTensorStorage(5000), batch_size=32)
loss_module = DQNLoss(actor, action_space=env.action_spec, delay_value=True)
target_updater = SoftUpdate(loss_module, eps=0.995)
optimizer = torch.optim.Adam(loss_module.parameters(), lr=1e-3)

# Ten lines of rlplast.
shadow = copy.deepcopy(actor)  # a module over the target weights, which the loss module holds
loss_module.target_value_network_params.to_module(shadow)
target = shadow.module[0].module
network = rlplast.Network("q", net, optimizer, followers={"target": target})
hooks = rlplast.Hooks(
    [{"method": "redo", "every": "20 updates"}, {"method": "full_reset", "at": "50%"}],
    network,
    total="50 updates",
    probe=lambda size, g: replay[torch.randint(len(replay), (size,), generator=g)]["observation"],
    penalties=[{"method": "l2_init", "params": {"coef": 1e-3}}],
    metrics=["dormant_ratio"],
)

for update, data in enumerate(collector, 1):
    replay.extend(data)
    loss = loss_module(replay.sample())["loss"] + hooks.penalty()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    for receipt in hooks.step(updates=update):
        print(receipt.method, receipt.clock.updates, receipt.units, receipt.followers)
    target_updater.step()
print(hooks.measure()["metric/dormant_ratio/q"])
collector.shutdown()

held = loss_module.target_value_network_params.flatten_keys(".").values()
assert {p.data_ptr() for p in target.parameters()} == {p.data_ptr() for p in held}
