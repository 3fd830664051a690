"""Hooks with a condition, in a hand-written loop."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

import rlplast
from rlplast.core.clock import Clock
from rlplast.core.errors import ConfigError
from rlplast.core.method.hooks import Hooks
from rlplast.core.network.network import Network
from rlplast.core.rng import torch_stream

RESET = {"method": "full_reset"}
LOSS = {"metric": "train/loss", "above": 1}


def network_of(name: str = "net") -> Network:
    module = nn.Linear(3, 2)
    return Network(name, module, torch.optim.SGD(module.parameters(), lr=0.1))


def fired_at(hook: dict[str, Any], losses: dict[int, float], total: int = 100) -> list[int]:
    """Return the updates at which a hook fires if these losses are measured there."""
    hooks = Hooks([RESET | hook], network_of(), f"{total} updates")
    found = []
    for update in range(1, total + 1):
        assert hooks.step(updates=update) == []
        if update in losses:
            found += hooks.observe({"train/loss": losses[update]})
    return [r.clock.updates for r in found]


def test_cooldown_rests_from_firing_to_firing() -> None:
    always = dict.fromkeys(range(3, 100, 3), 2.0)
    assert fired_at({"when": LOSS | {"cooldown": "25%"}}, always) == [3, 30, 57, 84]
    some = always | {u: 0.0 for u in (30, 33)}  # it does not fire there: nothing rests from then
    assert fired_at({"when": LOSS | {"cooldown": "25%"}}, some) == [3, 36, 63, 90]
    assert fired_at({"when": LOSS | {"cooldown": "100%"}}, always) == [3]


def test_from_until_and_the_end_of_the_run_bound_the_firings() -> None:
    always = dict.fromkeys(range(5, 101, 5), 2.0)
    assert fired_at({"when": LOSS, "from": "20%", "until": "30%"}, always) == [20, 25, 30]
    assert fired_at({"when": LOSS, "from": "90%"}, always) == [90, 95]
    hooks = Hooks([RESET | {"when": LOSS}], network_of(), "100 updates")
    [receipt] = hooks.observe({"train/loss": 2.0}, Clock(updates=1))
    assert (receipt.crossings, receipt.clock) == (1, Clock(updates=1))
    assert hooks.observe({"eval/loss": 2.0}, Clock(updates=2)) == []  # the value fired once
    assert hooks.step(updates=3) == hooks.observe({"train/loss": 2.0}, Clock(updates=101)) == []


def test_bare_name_fires_on_the_networks_whose_own_value_holds() -> None:
    networks = {name: network_of(name) for name in ("actor", "critic")}
    when = {"metric": "dormant_ratio", "above": 0.5, "cooldown": "10 updates"}
    hooks = Hooks([RESET | {"when": when}], networks, "100 updates")

    def observe(update: int, actor: float, critic: float) -> list[str]:
        values = {"metric/dormant_ratio/actor": actor, "metric/dormant_ratio/critic": critic}
        return [r.network for r in hooks.observe(values, Clock(updates=update))]

    assert observe(5, 0.1, 0.6) == ["critic"]
    assert observe(10, 0.6, 0.6) == ["actor"]  # the critic rests by itself
    assert observe(15, 0.6, 0.6) == ["critic"]
    assert observe(20, 0.6, 0.6) == ["actor"]
    assert observe(40, 0.6, 0.6) == ["actor", "critic"]
    assert observe(60, 0.5, 0.5) == []


def test_key_of_one_network_fires_on_all_networks_of_the_hook() -> None:
    networks = {name: network_of(name) for name in ("actor", "critic", "other")}
    when = {"metric": "metric/dormant_ratio/actor", "above": 0.5}
    hooks = Hooks([RESET | {"when": when, "networks": ["critic", "other"]}], networks, "9 updates")
    values = {"metric/dormant_ratio/actor": 0.6, "metric/dormant_ratio/critic": 0.0}
    assert [r.network for r in hooks.observe(values, Clock(updates=1))] == ["critic", "other"]


def draws(hook: dict[str, Any], seed: int, updates: list[int]) -> list[torch.Tensor]:
    network, found = network_of(), []
    hooks = Hooks([RESET | hook], network, "100 updates", seed)
    for update in updates:
        assert hooks.observe({"train/loss": 2.0}, Clock(updates=update))
        found.append(network.blocks[0].view.clone())
    return found


def test_firings_draw_from_a_stream_named_by_their_number() -> None:
    early, late = draws({"when": LOSS}, 4, [1, 2, 3]), draws({"when": LOSS}, 4, [10, 40, 90])
    assert all(torch.equal(a, b) for a, b in zip(early, late, strict=True))
    assert not torch.equal(early[0], early[1])
    assert not torch.equal(early[0], draws({"when": LOSS}, 5, [1])[0])
    network = network_of()
    for number, drawn in enumerate(early, 1):
        key = "full_reset when={metric: train/loss, above: 1.0}"
        generator = torch_stream(4, "hook", key, "net", number)
        assert torch.equal(drawn, network.fresh(network.blocks[0], generator))


def test_a_networks_draws_do_not_depend_on_firings_of_another() -> None:
    when = {"when": {"metric": "dormant_ratio", "above": 0}}

    def critic(*names: str) -> torch.Tensor:
        networks = {name: network_of(name) for name in names}
        hooks = Hooks([RESET | when], networks, "100 updates", seed=1)
        if "actor" in names:
            hooks.observe({"metric/dormant_ratio/actor": 1.0}, Clock(updates=1))
        hooks.observe({"metric/dormant_ratio/critic": 1.0}, Clock(updates=2))
        return networks["critic"].blocks[0].view.clone()

    assert torch.equal(critic("critic"), critic("actor", "critic"))


def test_state_has_the_number_and_the_clock_of_the_last_firing() -> None:
    hook = RESET | {"when": LOSS | {"cooldown": "20 updates"}}

    def run(restarts: tuple[int, ...]) -> tuple[list[int], torch.Tensor]:
        network, fired = network_of(), []
        hooks = Hooks([hook], network, "100 updates", seed=2)
        for update in range(1, 100, 7):
            if update in restarts:
                saved = copy.deepcopy(hooks.state_dict())
                hooks = Hooks([hook], network, "100 updates", seed=2)
                hooks.load_state_dict(saved)
            fired += hooks.observe({"train/loss": 2.0}, Clock(updates=update))
        return [r.clock.updates for r in fired], network.blocks[0].view.clone()

    whole, weights = run(())
    assert whole == [1, 22, 43, 64, 85]
    for restarts in ((8,), (22,), (29, 36), tuple(range(100))):
        again, same = run(restarts)
        assert again == whole
        assert torch.equal(weights, same)


def test_units_of_cooldown_from_and_until_have_to_be_counted() -> None:
    cool = RESET | {"when": LOSS | {"cooldown": "3 epochs"}}
    with pytest.raises(ConfigError, match=r"hooks\[0\].*epochs"):
        Hooks([cool], network_of(), "100 updates", units=("updates",))
    hooks = Hooks([cool], network_of(), "100 updates")
    with pytest.raises(ConfigError, match="epochs"):
        hooks.step(updates=1)


def test_messages_count_the_rows_of_the_config_alone() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    rlplast.replace_layers(module)  # its ticks are hooks too, and come first
    network = Network("net", module, torch.optim.SGD(module.parameters(), lr=0.1))
    hook = {"method": "fire", "when": {"metric": "eval/acuracy", "above": 1}}
    hooks = Hooks([{"method": "fire", "at": "50%"}, hook], network, "10 updates")
    with pytest.raises(ConfigError, match=r"^hooks\[1\] \(fire\)\.when\.metric = 'eval/acuracy'"):
        hooks.check_found({"eval/accuracy": 1.0})
