"""Plans are checked whole and at once; what is written is exactly what they say."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rlplast.core.errors import BadWeights, ConfigError
from rlplast.core.network.blocks import Block
from rlplast.core.network.edits import Assign, Edit, Scale, check, write
from rlplast.core.network.network import Network
from tests.firing import apply, linear
from tests.models import assert_same, subject
from tests.syncs import host_reads

# Plans are checked before the first write.


def bad_plans(block: Block) -> dict[str, tuple[list[Edit], str]]:
    ones = torch.ones(2, 3)
    return {
        "shape": (
            [Assign(block, torch.ones(3, 2))],
            r"plan for net\.weight: value \(3, 2\).*\(2, 3\)",
        ),
        "mask_shape": (
            [Assign(block, ones, torch.ones(2, dtype=torch.bool))],
            r"plan for net\.weight.*mask \(2,\)",
        ),
        "factor_shape": ([Scale(block, torch.ones(1))], r"plan for net\.weight: value \(1,\)"),
        "twice": ([Assign(block, ones), Assign(block, ones)], r"plan writes net\.weight twice"),
        "state": ([Assign(torch.zeros(2), torch.ones(3))], r"plan for a state tensor of net"),
        "foreign": ([Assign(linear()[2], ones)], r"weight is no Block of network 'net'"),
    }


@pytest.mark.parametrize("which", list(bad_plans(linear()[2])))
def test_plan_that_does_not_fit_is_refused_and_nothing_written(which: str) -> None:
    module, network, block = linear()
    before = [p.detach().clone() for p in module.parameters()]
    edits, message = bad_plans(block)[which]
    good: list[Edit] = [Scale(network.blocks[1], torch.tensor(2.0))]
    with pytest.raises(ConfigError, match=message):
        apply(network, good + edits, method="toy")
    assert all(torch.equal(b, p) for b, p in zip(before, module.parameters(), strict=True))


def test_non_finite_value_outside_the_mask_does_not_matter() -> None:
    module, network, block = linear()
    value = torch.full((2, 3), float("nan"))
    value[0, 0] = 1.5
    mask = torch.zeros(2, 3, dtype=torch.bool)
    with pytest.raises(BadWeights, match=r"non-finite values for net\.weight; nothing was"):
        apply(network, [Assign(block, value, ~mask)], method="toy")
    mask[0, 0] = True
    apply(network, [Assign(block, value, mask)], method="toy")
    assert float(module.weight.detach()[0, 0]) == 1.5
    assert module.weight.isfinite().all()


def test_a_value_too_large_for_the_tensors_type_is_refused() -> None:
    module = nn.Linear(3, 2, bias=False).half()
    network = Network("net", module)
    before = module.weight.detach().clone()
    with pytest.raises(BadWeights, match=r"net\.weight"):
        apply(network, [Assign(network.blocks[0], torch.full((2, 3), 1e6))], method="toy")
    assert torch.equal(module.weight, before)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_factor_that_leads_out_of_the_tensors_type_is_refused(dtype: torch.dtype) -> None:
    module = nn.Linear(3, 2, bias=False).to(dtype)
    with torch.no_grad():
        module.weight.fill_(torch.finfo(dtype).max / 4)
    network = Network("net", module)
    before = module.weight.detach().clone()
    with pytest.raises(BadWeights, match=r"net\.weight"):
        apply(network, [Scale(network.blocks[0], torch.tensor(5.0))], method="toy")
    assert torch.equal(module.weight, before)
    apply(network, [Scale(network.blocks[0], torch.tensor(3.0))], method="toy")
    assert module.weight.isfinite().all()


def test_every_network_is_checked_and_each_tensor_named_that_would_go_wrong() -> None:
    networks = [linear()[1], Network("other", linear()[0])]
    nan, inf = torch.tensor(float("nan")), torch.full((2,), float("inf"))
    plans: list[tuple[Network, list[Edit]]] = [
        (networks[0], [Scale(networks[0].blocks[0], nan), Scale(networks[0].blocks[1], nan.abs())]),
        (networks[1], [Assign(networks[1].blocks[1], inf)]),
    ]
    every = r"non-finite values for net\.weight, net\.bias, other\.bias; nothing was written"
    with pytest.raises(BadWeights, match=every):
        check(plans)
    with pytest.raises(BadWeights, match=r"for other\.bias; nothing"):
        check([(networks[0], []), plans[1]])
    check([])
    check([(networks[0], []), (networks[1], [])])


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("masked", [False, True])
def test_rows_and_columns_are_written_as_a_mask_of_the_whole_would_be(
    dim: int, masked: bool
) -> None:
    generator = torch.Generator().manual_seed(0)
    rows, value = torch.tensor([1, 4]), torch.randn(6, 5, generator=generator)
    keep = torch.rand(6, 5, generator=generator) < 0.5 if masked else torch.ones(6, 5).bool()
    chosen = torch.zeros(6, 5, dtype=torch.bool).index_fill(dim, rows, True) & keep
    (one, two), receipts = [subject("mlp", updates=3) for _ in range(2)], []
    part = value.index_select(dim, rows)
    mask = keep.index_select(dim, rows) if masked else None
    plans = (
        Assign(one.network.blocks[0], part, mask, rows=rows, dim=dim),
        Assign(two.network.blocks[0], value, chosen),
    )
    for made, edit in zip((one, two), plans, strict=True):
        receipts.append(apply(made.network, [edit], method="toy", optimizer="touched"))
    assert_same(one.snapshot(), two.snapshot())
    assert receipts[0].entries_touched == receipts[1].entries_touched == int(chosen.sum())
    assert receipts[0].sfe == pytest.approx(receipts[1].sfe)


BAD_ROWS: dict[str, tuple[Tensor, Tensor | None, str]] = {
    "outside": (torch.tensor([6]), None, r"rows \[6\]: allowed is each of 0 to 5 once, of net\.0"),
    "negative": (torch.tensor([-1]), None, r"rows \[-1\]"),
    "twice": (torch.tensor([1, 1]), None, r"rows \[1, 1\]"),
    "unsorted": (torch.tensor([4, 1, 4]), None, r"rows \[4, 1, 4\]"),
    "type": (torch.tensor([1.0]), None, "one-dimensional int64"),
    "mask_too": (torch.tensor([1]), torch.ones(6, 5, dtype=torch.bool), r"mask \(6, 5\); needed"),
}


@pytest.mark.parametrize("which", BAD_ROWS)
def test_bad_rows_are_refused(which: str) -> None:
    rows, mask, message = BAD_ROWS[which]
    made = subject("mlp", updates=0)
    block = made.network.blocks[0]
    edit = Assign(block, torch.zeros(len(rows), 5), mask, rows=rows)
    with pytest.raises(ConfigError, match=message):
        check([(made.network, [edit])])
    with pytest.raises(ConfigError, match=r"needed is \(2, 5\)"):
        check([(made.network, [Assign(block, torch.zeros(1, 5), rows=torch.tensor([0, 1]))])])
    check([(made.network, [Assign(block, torch.zeros(2, 5), rows=torch.tensor([5, 0]))])])


# The device is waited for once.


def test_reads_of_a_device_are_counted() -> None:
    reads: list[tuple[Callable[[Tensor], Any], str]] = [
        (float, "_local_scalar_dense"),
        (bool, "_local_scalar_dense"),
        (Tensor.item, "_local_scalar_dense"),
        (Tensor.tolist, "tolist"),
        (lambda t: t[t > 0], "index"),
        (lambda t: t.nonzero(), "nonzero"),
        (lambda t: torch.equal(t, t), "equal"),
    ]
    for read, name in reads:
        with host_reads() as found:
            read(torch.ones(1))
        assert found == [name]


@pytest.mark.parametrize("networks", [1, 3])
@pytest.mark.parametrize("edits", [1, 7])
def test_a_check_waits_for_the_device_once_however_much_there_is(networks: int, edits: int) -> None:
    plans = []
    for _ in range(networks):
        network = subject("conv_batchnorm", updates=0).network
        blocks = network.select(lambda b: b.view.ndim > 0)[:edits]
        forms: list[Edit] = []
        for i, block in enumerate(blocks):
            rows = torch.tensor([1, 0])
            forms.append(
                [
                    Assign(block, block.view + 1),
                    Scale(block, torch.tensor(0.5)),
                    Assign(block, block.view, block.view > 0),
                    Assign(block, block.view[rows], rows=rows),
                    Assign(torch.zeros(3), torch.ones(3)),
                ][i % 5]
            )
        assert len(forms) == edits
        plans.append((network, forms))
    with host_reads() as found:
        check(plans)
    assert found == ["tolist"]
    with host_reads() as found:
        for _, forms in plans:
            write(forms)
    assert found == []


# Writing.


def test_write_scales_before_it_assigns_and_reaches_state_tensors() -> None:
    _, _, block = linear()
    state = torch.zeros(3)
    weight = block.view.clone()
    write([Scale(block, torch.tensor(2.0)), Assign(state, torch.arange(3.0))])
    assert torch.equal(block.view, weight * 2)
    assert torch.equal(state, torch.arange(3.0))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_scale_computes_in_at_least_fp32_and_rounds_once(dtype: torch.dtype) -> None:
    module = nn.Linear(40, 30).to(dtype)
    network = Network("net", module)
    weight = module.weight.detach().clone()
    factor = torch.tensor(0.997)
    write([Scale(b, factor) for b in network.blocks])
    wide = weight if dtype == torch.float64 else weight.float()
    assert torch.equal(module.weight.detach(), (wide * factor.to(wide)).to(dtype))


def test_scale_of_mixed_dtypes_scales_each() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double())
    network = Network("net", module)
    before = [p.detach().clone() for p in module.parameters()]
    write([Scale(b, torch.tensor(0.5)) for b in network.blocks])
    for old, new in zip(before, module.parameters(), strict=True):
        assert torch.equal(new.detach(), old * 0.5)
