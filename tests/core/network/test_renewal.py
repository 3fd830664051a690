"""What became of a module since its Network was made: edited where it is now, or refused."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

import rlplast
from rlplast.core.errors import BadWeights, ConfigError, NothingToEdit
from rlplast.core.network.network import Network

FIRE = {"method": "fire", "params": {"polynomial": "exact"}}


def net(seed: int = 0) -> Any:  # an nn.Sequential
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def hooked(module: nn.Module, *rows: Any, **options: Any) -> tuple[Network, rlplast.Hooks]:
    trained = [p for p in module.parameters() if p.requires_grad]
    network = Network("n", module, torch.optim.Adam(trained))
    return network, rlplast.Hooks(rows or [FIRE | {"at": "50%"}], network, "10 updates", **options)


def spread(weight: Tensor) -> float:
    """Return by how much the singular values differ; 0 once FIRE has edited a weight."""
    values = torch.linalg.svdvals(weight.detach().double())
    return float(values.max() - values.min())


def assign(module: nn.Module) -> None:
    module.load_state_dict({k: v.clone() for k, v in module.state_dict().items()}, assign=True)


def to_vector(module: nn.Module) -> None:
    vector = nn.utils.parameters_to_vector(module.parameters())
    nn.utils.vector_to_parameters(vector, module.parameters())


def cut(module: Any) -> None:
    module[2].weight.data = module[2].weight.data[:2]


EDITED: dict[str, Callable[[Any], object]] = {
    "to": lambda m: m.to(torch.float64),
    "to_vector": to_vector,
    "module": lambda m: m.__setitem__(1, nn.Tanh()),
}


REFUSED: list[tuple[str, Callable[[Any], object]]] = [  # what is named, after what
    (r"n\.0\.weight", assign),
    (r"n\.2\.weight", lambda m: m.__setitem__(2, nn.Linear(8, 3))),
    (r"n\.2\.weight .*\(3, 8\) .*\(4, 8\)", lambda m: m.__setitem__(2, nn.Linear(8, 4))),
    (r"n\.2\.weight .*\(3, 8\) .*\(2, 8\)", cut),
    (r"n\.3\.weight", lambda m: m.append(nn.Linear(3, 3))),
    (r"n\.2\.weight", lambda m: m.__delitem__(2)),
    (r"n\.0 is param", lambda m: prune.l1_unstructured(m[0], "weight", 0.5)),
    (r"n\.0 is param", lambda m: parametrizations.weight_norm(m[0])),
]


CALLS: list[Callable[[Network, rlplast.Hooks], object]] = [
    lambda network, hooks: hooks.step(updates=5),
    lambda network, hooks: hooks.penalty(),
    lambda network, hooks: hooks.measure(),
    lambda network, hooks: hooks.evaluation(),
    lambda network, hooks: rlplast.fire(network),
]


def test_a_module_that_changed_is_edited_where_it_is() -> None:
    for change, act in EDITED.items():
        module = net()
        _, hooks = hooked(module)
        act(module)
        [receipt] = hooks.step(updates=5)
        assert spread(module[0].weight) < 1e-5, change
        whole = torch.cat([p.detach().double().flatten() for p in module.parameters()])
        assert receipt.norm_after == pytest.approx(float(whole.norm()))
        assert receipt.norm_before != receipt.norm_after


def test_layers_that_are_others_are_refused_by_name() -> None:
    options: dict[str, Any] = {"penalties": [{"method": "l2"}], "metrics": ["weight_norm"]}
    inside = {"method": "weight_clip", "every": "1 updates"}
    calls = itertools.cycle([(CALLS[0], inside), *((call,) for call in CALLS)])
    for (named, change), _ in itertools.product(REFUSED, range(2)):
        call, *rows = next(calls)
        module = net()
        network, hooks = hooked(module, *rows, **options)
        change(module)
        before = [p.detach().clone() for p in module.parameters()]
        with pytest.raises(ConfigError, match=named):
            call(network, hooks)
        assert all(map(torch.equal, before, module.parameters()))


def test_other_parameters_are_edited_once_the_optimizer_or_a_target_holds_them() -> None:
    module = net()
    network, hooks = hooked(module)
    assign(module)
    network.optimizers[0].param_groups[0]["params"] = list(module.parameters())
    hooks.step(updates=5)
    assert spread(module[0].weight) < 1e-5
    for policy in ("copy", "same_edit"):
        module, target = net(), net(1)
        network = Network("n", module, torch.optim.Adam(module.parameters()), target)
        hooks = rlplast.Hooks([FIRE | {"at": "50%", "followers": policy}], network, "10 updates")
        assign(target)
        hooks.step(updates=5)
        assert spread(target[0].weight) < 1e-5
        assert torch.equal(target[0].weight, module[0].weight) is (policy == "copy")


def test_a_small_change_at_every_update_is_refused_once_weights_are_in_low_precision() -> None:
    module = net()
    _, hooks = hooked(module, {"method": "weight_clip", "every": "1 updates"})
    hooks.step(updates=1)
    module.bfloat16()
    with pytest.raises(BadWeights, match=r"n\.0\.weight"):
        hooks.step(updates=2)


def freeze(part: nn.Module, frozen: bool = True) -> None:
    part.requires_grad_(not frozen)


def thaw(network: Network, part: nn.Module) -> None:
    freeze(part, False)
    network.optimizers[0].add_param_group({"params": list(part.parameters())})


def test_layers_that_thaw_train_and_are_penalised_averaged_and_measured() -> None:
    module = net()
    freeze(module[0])
    rows = [
        {"method": "hare_tortoise", "every": "4 updates", "params": {"momentum": 0.5}},
        {"method": "swr", "every": "1 updates"},
        {"method": "redo", "at": "9 updates", "params": {"threshold": 1.0}},
    ]
    network, hooks = hooked(
        module,
        *rows,
        penalties=[{"method": "l2", "params": {"coef": 2.0}}, {"method": "spectral"}],
        metrics=["weight_norm"],
        probe=torch.randn(16, 6, generator=torch.Generator().manual_seed(0)),
    )
    hooks.step(updates=1)
    assert "metric/weight_norm/n/0.weight" not in hooks.measure()
    assert set(hooks.evaluation()) == {b for b in network.blocks if b.path == "2"}
    thaw(network, module[0])
    assert hooks.measure()["metric/weight_norm/n/0.weight"] == pytest.approx(
        float(module[0].weight.detach().norm())
    )
    hooks.penalty().backward()
    assert module[0].weight.grad is not None
    assert set(hooks.evaluation()) == set(network.blocks)
    with torch.no_grad():
        module[0].weight.mul_(2)
    hooks.step(updates=2)
    [tortoise] = [h for h in hooks.hooks if h.method.name == "hare_tortoise"]
    assert tortoise.states["n"]["slow/0.weight"].shape == (8, 6)
    [receipt] = [r for r in hooks.step(updates=9) if r.method == "redo"]
    assert receipt.units is not None and receipt.units["0"] > 0


def test_layers_that_freeze_are_left_alone_with_their_buffers() -> None:
    module = net()
    _, hooks = hooked(module, {"method": "full_reset", "every": "2 updates"})
    with torch.no_grad():
        module[0].weight.mul_(2)
    freeze(module[0])
    before = module[0].weight.clone()
    [receipt] = hooks.step(updates=2)
    assert torch.equal(module[0].weight, before)
    assert receipt.entries_touched == 8 * 3 + 3
    norm = nn.BatchNorm1d(3)
    model = nn.Sequential(norm, nn.Linear(3, 2))
    model(torch.randn(8, 3))
    statistics = norm.running_var.clone()
    for frozen, expected in ((True, statistics), (False, torch.ones(3))):
        freeze(norm, frozen)
        rlplast.full_reset(model)
        assert torch.equal(norm.running_var, expected)


def test_a_thawed_layer_that_no_optimizer_holds_is_refused() -> None:
    module = net()
    freeze(module[0])
    _, hooks = hooked(module)
    freeze(module[0], False)
    with pytest.raises(ConfigError, match=r"n\.0\.weight"):
        hooks.step(updates=5)


@pytest.mark.parametrize("named", [{"networks": ["n"]}, {"layers": ["0"]}, {}])
def test_a_hook_waits_for_layers_to_thaw(named: dict[str, Any]) -> None:
    module, head = net(), nn.Linear(3, 3)
    freeze(module)
    networks = {
        "n": Network("n", module, torch.optim.Adam([torch.zeros(1, requires_grad=True)])),
        "head": Network("head", head, torch.optim.Adam(head.parameters())),
    }
    if "layers" in named:
        named = named | {"networks": ["n"]}
    hooks = rlplast.Hooks([FIRE | {"every": "3 updates"} | named], networks, "10 updates")
    if named:
        with pytest.raises(NothingToEdit):
            hooks.step(updates=3)
    else:
        assert [r.network for r in hooks.step(updates=3)] == ["head"]
    thaw(networks["n"], module)
    found = [r.network for r in hooks.step(updates=6)]
    assert found == (["n"] if named else ["n", "head"])
    assert spread(module[0].weight) < 1e-5
    assert (spread(module[2].weight) < 1e-5) is ("layers" not in named)


def test_state_saved_with_thawed_layers_is_loaded_where_they_are_frozen_still() -> None:
    def made() -> tuple[Any, Network, rlplast.Hooks]:
        module = net()
        freeze(module[0])
        row = {"method": "hare_tortoise", "every": "9 updates", "params": {"momentum": 0.5}}
        return module, *hooked(module, row)

    module, network, hooks = made()
    thaw(network, module[0])
    with torch.no_grad():
        module[0].weight.mul_(3)
    hooks.step(updates=2)
    later, other, again = made()
    again.load_state_dict(hooks.state_dict())
    thaw(other, later[0])
    again.refresh()
    left, right = (h.hooks[0].states["n"] for h in (hooks, again))
    assert left.keys() == right.keys()
    assert all(torch.equal(left[k], right[k]) for k in left)
