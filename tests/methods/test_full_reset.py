"""Full reset: fresh draws follow each layer's law, stored ones are the start bit for bit."""

import pytest
import torch
from torch import Tensor, nn

import rlplast
from tests.methods.nets import Mlp, changed, randomise, snapshot


def normed() -> nn.Module:
    norms = [nn.BatchNorm2d(4), nn.GroupNorm(2, 4), nn.LayerNorm(4)]
    return nn.Sequential(nn.Conv2d(2, 4, 3), *norms, nn.Linear(4, 3))


def test_every_tensor_is_reset_and_the_target_is_a_copy_running_statistics_included() -> None:
    model, target, plain = (randomise(normed(), seed) for seed in (1, 2, 3))
    model.register_buffer("seen", torch.tensor([1.0, 2.0]))
    network = rlplast.Network("q", model)
    stored = snapshot(model)
    for init in ("stored", "fresh"):
        randomise(model, 4)
        model.get_buffer("seen").fill_(8)
        rlplast.full_reset(network, init=init)
        drawn = {f"{layer}.{role}" for layer in (0, 4) for role in ("weight", "bias")}
        norms = {n for n in snapshot(plain) if n not in drawn}
        if init == "stored":
            assert not changed(stored, model)
        else:  # norms and statistics start over, other buffers return
            assert {
                n
                for n, t in snapshot(normed()).items()
                if not torch.equal(t, model.state_dict()[n])
            } == drawn
            assert norms <= changed(stored, model)
        assert model.get_buffer("seen").tolist() == [1, 2]
    before = snapshot(plain)
    receipt = rlplast.full_reset(plain, target=target)
    assert changed(before, plain) == set(before)
    assert receipt.entries_touched == sum(tensor.numel() for tensor in before.values())
    assert not changed(snapshot(plain), target)
    with pytest.raises(rlplast.ConfigError, match="initial="):
        rlplast.full_reset(plain, init="stored")


def test_a_frozen_part_keeps_its_statistics_with_and_without_parameters_beside_them() -> None:
    def part() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, affine=False), nn.BatchNorm1d(4))

    model = nn.Sequential(part().requires_grad_(False), part())
    model(torch.randn(8, 4))
    before = snapshot(model)
    rlplast.full_reset(model)
    assert changed(before, model) == {name for name in before if name.startswith("1.")} - {
        "1.2.weight",  # which is 1 and 0 still
        "1.2.bias",
    }


def test_a_tensor_without_a_known_law_is_named_and_nothing_is_written() -> None:
    model = randomise(Mlp(), 1)
    model.register_parameter("position", nn.Parameter(torch.ones(3)))
    before = snapshot(model)
    with pytest.raises(rlplast.ConfigError, match="position"):
        rlplast.full_reset(model)
    assert not changed(before, model)
    start = snapshot(randomise(model, 2))
    randomise(model, 3)
    rlplast.full_reset(model, init="stored", initial=start)
    assert not changed(start, model)


class Branches(nn.Module):
    """A LoRA as peft names it, a ReZero branch, and a norm that begins closed; outputs are W·x."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.lora_A = nn.Linear(6, 6, bias=False), nn.Linear(6, 2, bias=False)
        self.lora_B = nn.ModuleDict({"default": nn.Linear(2, 6, bias=False)})
        self.gate, self.inner = nn.Parameter(torch.zeros(())), nn.Linear(6, 6)
        self.norm = nn.LayerNorm(6)
        for zero in (self.lora_B["default"].weight, self.norm.weight, self.inner.bias):
            nn.init.zeros_(zero)

    def forward(self, x: Tensor) -> Tensor:
        lora = self.lora_B["default"](self.lora_A(x))
        return self.base(x) + lora + self.gate * self.inner(x) + self.norm(x)


ZERO = {"lora_B.default.weight", "gate", "norm.weight", "inner.bias", "norm.bias"}


def test_what_is_zero_at_the_start_begins_at_zero_again() -> None:
    model = Branches()
    drawn = snapshot(model).keys() - ZERO
    network = rlplast.Network("q", model)
    trained = snapshot(randomise(model, 1))
    rlplast.full_reset(network)
    assert all(not model.get_parameter(name).any() for name in ZERO)
    assert changed(trained, model) == ZERO | drawn
    x = torch.randn(5, 6)
    torch.testing.assert_close(model(x), model.base(x))
    model = Branches()
    before = snapshot(model)
    rlplast.full_reset(model)  # whose weights are all that is known
    assert changed(before, model) == drawn
    rlplast.shrink_perturb(model, coef=0.5, init="fresh")
    assert all(not model.get_parameter(name).any() for name in ZERO)


class OwnStart(nn.Linear):
    def reset_parameters(self) -> None:
        nn.init.orthogonal_(self.weight)


def test_a_start_that_is_not_torchs_is_refused_by_name_and_may_be_given() -> None:
    trained = Branches()
    with torch.no_grad():
        trained.lora_B["default"].weight.fill_(0.1)
    for model, name in ((trained, "lora_B.default.weight"), (OwnStart(3, 3, bias=False), "weight")):
        before = snapshot(model)
        with pytest.raises(rlplast.ConfigError, match=rf"^{name} "):
            rlplast.full_reset(model)
        assert not changed(before, model)
    network = rlplast.Network("q", model, init=lambda block, generator: torch.eye(3))
    rlplast.full_reset(network)
    assert torch.equal(model.get_parameter("weight"), torch.eye(3))
