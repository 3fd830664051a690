"""What `--plan` says of time and disk, beside closed forms; and that it needs no data."""

import sys
from types import SimpleNamespace

import pytest
import torch
import yaml
from torch import nn

from rlplast.cli.tables import duration, size
from rlplast.core.clock import Time
from rlplast.run.build import build
from rlplast.run.config_file import read_config
from rlplast.run.cost import cost_of
from rlplast.run.length import updates_at
from rlplast.run.roofline import Machine, Traced
from rlplast.study.plan import PlannedRun, cost, plan
from tests.agents.pictures import SIDE
from tests.cli.commands import command

MACHINE = Machine(matmul=1e9, conv=1e9, bandwidth=1e12, overhead=0.0)
CLASSIFIER = {
    "kind": "supervised",
    "data": {"name": "mnist", "folder": "nowhere"},
    "model": {"name": "mlp", "hidden": [100]},
    "stream": {"name": "warm_start", "fraction": 0.1, "epochs": [10, 2]},
    "batch_size": 100,
}


def test_the_work_of_a_linear_layer_is_its_products():
    layer, x = nn.Linear(30, 20), torch.rand(7, 30)
    with Traced(MACHINE) as traced:
        layer(x).sum().backward()
    assert traced.flops == 2 * (2 * 7 * 30 * 20)  # forward, and the gradient of the weight
    assert traced.seconds == pytest.approx(traced.flops / 1e9, rel=0.05)


def test_updates_of_a_stream_follow_from_the_size_of_its_set():
    config = read_config(CLASSIFIER)
    assert updates_at(config, Time(1, "phase")) == 10 * 60
    assert updates_at(config, Time(11, "epochs")) == 10 * 60 + 600
    assert updates_at(config, config.total_time()) == 10 * 60 + 2 * 600


def test_a_shared_phase_counts_by_its_updates():
    hooks = [[], [{"method": "full_reset", "on": "phase_start"}]]
    configs = [read_config(CLASSIFIER | {"hooks": rows}) for rows in hooks]
    cells = plan([PlannedRun("", 1, str(i), config) for i, config in enumerate(configs)])
    assert cost(cells) == (pytest.approx(1 / 3 + 2 * 2 / 3), 2)  # of 1800 updates it has 600


def test_arithmetic_and_disk_of_a_classifier():
    found = cost_of(read_config(CLASSIFIER | {"checkpoint": {"every": "10%", "keep": 3}}), MACHINE)
    assert found is not None
    weights = 784 * 100 + 100 * 10
    count = weights + 110
    assert found.flops == 100 * (2 * 3 * weights - 2 * 784 * 100)  # images need no gradient
    assert found.checkpoint == 4 * 3 * count  # weights and two moments
    assert (found.checkpoints, found.rows) == (3, 0)


def test_an_evaluation_with_corrupted_images_takes_as_much_longer_as_there_are_more_of_them():
    data = {"name": "cifar10", "folder": "nowhere"}
    plain, more = (
        cost_of(read_config(CLASSIFIER | {"data": data | own}), MACHINE)
        for own in ({}, {"corrupted": "nowhere"})
    )
    assert plain is not None and more is not None
    assert more.evaluation == pytest.approx(76 * plain.evaluation)  # 15 corruptions, 5 severities


def test_a_model_that_reads_numbers_as_it_is_built_is_counted_without_its_weights(monkeypatch):
    def create_model(name: str, *, pretrained: bool, in_chans: int, num_classes: int) -> nn.Module:
        assert not pretrained
        rates = [rate.item() for rate in torch.linspace(0, 0.5, 2, device="cpu")]  # as timm does
        layers = [nn.Flatten(), nn.Linear(in_chans * 784, 100), *map(nn.Dropout, rates)]
        return nn.Sequential(*layers, nn.Linear(100, num_classes))

    monkeypatch.setitem(sys.modules, "timm", SimpleNamespace(create_model=create_model))
    model = {"name": "timm", "timm": "small", "pretrained": True}
    found = cost_of(read_config(CLASSIFIER | {"model": model}), MACHINE)
    assert found is not None
    weights = 784 * 100 + 100 * 10
    assert found.flops == 100 * (2 * 3 * weights - 2 * 784 * 100)  # as of our own network


def test_an_agent_stores_single_frames_and_learns_after_its_random_steps():
    config = read_config("dqn/asterix")
    found = cost_of(config, MACHINE)
    assert found is not None
    assert (found.updates, found.env_steps) == (2_480_000, 2_500_000)
    assert found.rows == 1_000_000 and 84 * 84 < found.row < 84 * 84 + 40


def test_an_agent_has_the_layers_and_updates_of_its_config():
    config = read_config("dqn/frozen_lake", {"total": "100 episodes"})
    found = cost_of(config, MACHINE)
    assert found is not None
    count = (4 * 256 + 256) + (256 * 64 + 64) + (64 * 4 + 4)
    assert found.checkpoint == 4 * (3 * count + count)  # weights, two moments, and the target
    assert (found.env_steps, found.updates) == (200, 16 * (200 - 32))  # at most 2 in a crossing
    ratios = {"replay_ratio": [{"value": 1}, {"from": "150 env_steps", "value": 3}]}
    config = read_config("dqn/frozen_lake", {"total": "200 env_steps", **ratios})
    assert updates_at(config, Time(160, "env_steps")) == 150 - 32 + 3 * 10
    assert updates_at(config, config.total_time()) == 150 - 32 + 3 * 50
    sac = read_config("sac/dmc_mlp", {"agent.hidden": [40, 30, 20], "env.id": "gym/Pendulum-v1"})
    found = cost_of(sac, MACHINE)
    assert found is not None
    actor = (3 * 40 + 40) + (40 * 30 + 30) + (30 * 20 + 20) + 2 * (20 + 1)
    critics = 2 * ((4 * 40 + 40) + (40 * 30 + 30) + (30 * 20 + 20) + (20 + 1))
    assert found.checkpoint == 4 * (3 * (actor + critics) + critics)


@pytest.mark.parametrize(
    "agent",
    [
        {"network": "drq", "convs": [[4, 3, 2], [8, 3, 1]], "random_shift": 4},
        {"network": "tests.agents.own_sac_nets:pictures"},
    ],
    ids=["drq", "own"],
)
def test_what_reads_pictures_is_counted_with_its_weights_and_stored_pictures(agent):
    env = {"id": "gym/tests/Spot-v0", "num_envs": 1}
    keys = {"kind": "sac", "total": "6k env_steps", "env": env, "agent": agent | {"critics": 3}}
    config = read_config(keys | {"optimizer": {"name": "adam"}})
    found = cost_of(config, MACHINE)
    trained, _ = build(config)
    networks = [trained.networks[name].module for name in ("actor", "critic")]
    count = sum(p.numel() for network in networks for p in network.parameters())
    trained.close()
    assert found is not None
    assert found.initial == 4 * count
    assert found.rows == 6000
    assert 3 * SIDE * SIDE < found.row < 3 * SIDE * SIDE + 40


def test_plan_needs_no_data_and_says_what_is_missing(tmp_path):
    path = tmp_path / "study.yaml"
    arms = {"none": {"hooks": []}, "fire": {"hooks": [{"method": "fire", "on": "phase_start"}]}}
    path.write_text(yaml.safe_dump({"base": CLASSIFIER, "arms": arms}))
    outcome = command("study", path, "--plan", "--out", tmp_path / "out")
    assert outcome.code == 0, outcome.err
    assert "prefix to 1 phase  " in outcome.out
    assert "estimate: " in outcome.out and "basis: " in outcome.out
    assert "not there yet: nowhere (data.folder)" in outcome.out
    assert not (tmp_path / "out").exists()


def test_times_and_sizes_in_words():
    assert [duration(s) for s in (42, 600, 7200, 1e6)] == ["42 s", "10 min", "2.0 h", "11.6 days"]
    assert [size(n) for n in (999, 2.5e6, 7.1e9)] == ["1 kB", "2 MB", "7.1 GB"]
