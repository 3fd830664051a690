"""RigL against its slow twin: how many weights, which move, what stays 0."""

import math
from itertools import cycle, product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rlplast
from rlplast.agents.networks import ARCHITECTURES, QNetwork
from rlplast.methods.rigl import erk
from tests.methods.unit_nets import NETS, Trained
from tests.models import build
from tests.naive import rigl as naive

SHORT: dict[str, Any] = {"sparsity": 0.5, "every": 3, "until": 12, "alpha": 0.6}


def made(net: str, optimizer: str = "adam", **params: Any) -> Trained:
    rule = SHORT | params
    return Trained(net, optimizer, install=lambda m: rlplast.replace_layers(m, "rigl", **rule))


def masks_of(hooks: rlplast.Hooks) -> dict[str, Tensor]:
    return hooks.hooks[0].states["net"]


def weights_of(net: str) -> dict[str, tuple[int, ...]]:
    """Shapes of the linear and conv weights, of each member, by the names of Blocks."""
    found: dict[str, tuple[int, ...]] = {}
    for name, p in NETS[net].module().named_parameters():
        if net == "stacked":
            members = {f"[{member}].{name}": tuple(p.shape[1:]) for member in range(2)}
            found |= members if name.endswith("weight") else {}
        elif p.ndim > 1:
            found[name] = tuple(p.shape)
    return found


def view(trained: Trained, name: str, tensors: dict[str, Tensor] | None = None) -> Tensor:
    member, _, path = name.rpartition("].")
    whole = (trained.state() if tensors is None else tensors)[path]
    return whole[int(member[1:])] if member else whole


def test_densities_of_the_nature_cnn_are_the_published_ones() -> None:
    q = QNetwork(ARCHITECTURES["nature"], (4, 84, 84), 6)
    shapes = [tuple(p.shape) for p in q.parameters() if p.ndim > 1]
    sizes = [math.prod(shape) for shape in shapes]
    counts = erk(shapes, 0.9)
    found = [n / size for n, size in zip(counts, sizes, strict=True)]
    assert found == pytest.approx([0.7331, 0.8665, 0.8472, 0.9045, 0], abs=1e-4)
    assert sum(counts) / sum(sizes) == pytest.approx(0.9, abs=1e-5)


def test_densities_are_those_of_bisection() -> None:
    for net, sparsity in product(NETS, (0.0, 0.1, 0.5, 0.8, 0.95)):
        shapes = [(10 * a, 10 * b, *kernel) for a, b, *kernel in weights_of(net).values()]
        expected = naive.densities(shapes, sparsity)
        for n, density, shape in zip(erk(shapes, sparsity), expected, shapes, strict=True):
            wanted = (1 - density) * math.prod(shape)
            assert abs(n - wanted) <= 2 + 0.01 * wanted, (net, sparsity)  # in whole numbers


def test_uniform_leaves_the_first_layer_dense() -> None:
    for net in NETS:
        masks = masks_of(made(net, distribution="uniform").ticking())
        names = weights_of(net)
        first = next(iter(names)).rpartition("].")[2]
        assert masks.keys() == {n for n in names if n.rpartition("].")[2] != first}
        for name, mask in masks.items():
            assert int((~mask).sum()) == math.prod(names[name]) // 2, (net, name)


def test_initial_masks_follow_the_initial_weights_and_not_their_size() -> None:
    def mask(seed: int) -> tuple[Tensor, Tensor]:
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 100))
        rlplast.replace_layers(net, "rigl", sparsity=0.5)
        network = rlplast.Network("net", net, torch.optim.SGD(net.parameters(), lr=0.1))
        found = rlplast.Hooks([], network, "9 updates").hooks[0].states["net"]["0.weight"]
        return found, net.get_parameter("0.weight").detach()

    (one, weight), (two, _), (again, _) = mask(0), mask(1), mask(0)
    assert torch.equal(one, again)
    assert (one == two).double().mean().item() == pytest.approx(0.5, abs=0.03)
    size = weight.abs()
    assert size[one].mean().item() == pytest.approx(size[~one].mean().item(), rel=0.05)
    rows = one.double().mean(1)
    assert rows.std().item() == pytest.approx(0.05, rel=0.25)  # √(¼/100)


@pytest.mark.parametrize(
    ("net", "optimizer"), [*zip(NETS, cycle(["adam", "sgd_momentum"]), strict=False)]
)
def test_masks_move_as_the_twins_and_weights_and_moments_are_zero_outside(
    net: str, optimizer: str
) -> None:
    trained = made(net, optimizer)
    hooks = trained.ticking()
    masks, moved_at = masks_of(hooks), []
    counts = {name: int(mask.sum()) for name, mask in masks.items()}
    for update in range(1, 16):
        trained.update()
        before = {name: mask.clone() for name, mask in masks.items()}
        state, moments = trained.state(), trained.moments()
        grads = {n: p.grad for n, p in trained.module.named_parameters() if p.grad is not None}
        hooks.step(updates=update)
        for name, mask in masks.items():
            old = view(trained, name, state)
            expected = before[name].flatten().tolist()
            if update % 3 == 0 and update < 12:
                n = int(counts[name] * naive.share(update, 12, 0.6) + 1e-9)
                gradient = view(trained, name, grads)
                expected = naive.move(
                    expected, old.flatten().tolist(), gradient.flatten().tolist(), n
                )
            assert mask.flatten().tolist() == expected, (update, name)
            assert int(mask.sum()) == counts[name]
            stays = mask & before[name]
            assert torch.equal(view(trained, name), torch.where(stays, old, 0.0))
            path = name.rpartition("].")[2]
            for slot, value in trained.moments()[path].items():
                if value.ndim:
                    now = view(trained, name, {path: value})
                    was = view(trained, name, {path: moments[path][slot]})
                    assert torch.equal(now, torch.where(stays, was, 0.0))
            if not torch.equal(mask, before[name]):
                moved_at.append(update)
        sparse = {name.rpartition("].")[2] for name in masks}
        for name, tensor in trained.state().items():
            assert name in sparse or torch.equal(tensor, state[name]), name
    assert set(moved_at) == {3, 6, 9}


def test_tied_weights_and_embeddings_stay_dense() -> None:
    module = build("tied")
    paths = rlplast.replace_layers(module, "rigl", sparsity=0.5)
    network = rlplast.Network("net", module, torch.optim.Adam(module.parameters()))
    masks = rlplast.Hooks([], network, "9 updates").hooks[0].states["net"]
    assert list(masks) == [f"{path}.weight" for path in paths] == ["fc.weight"]
