"""Plans are checked whole and at once; what is written is exactly what they say."""

import itertools

import pytest
import torch
from torch import nn

from rlplast.core.errors import BadWeights, ConfigError
from rlplast.core.network.edits import Assign, Edit, Scale, check, write
from rlplast.core.network.network import Network
from tests.firing import apply, linear
from tests.models import assert_same, subject


def test_plan_that_does_not_fit_is_refused_and_nothing_written() -> None:
    module, network, block = linear()
    ones, few = torch.ones(2, 3), torch.ones(2, dtype=torch.bool)
    bad_plans: list[tuple[list[Edit], str]] = [
        ([Assign(block, torch.ones(3, 2))], r"net\.weight: value \(3, 2\).*\(2, 3\)"),
        ([Assign(block, ones, few)], r"net\.weight.*mask \(2,\)"),
        ([Scale(block, torch.ones(1))], r"net\.weight: value \(1,\)"),
        ([Assign(block, ones), Assign(block, ones)], r"net\.weight twice"),
        ([Assign(torch.zeros(2), torch.ones(3))], "state tensor of net"),
        ([Assign(linear()[2], ones)], "weight .*'net'"),
    ]
    before = [p.detach().clone() for p in module.parameters()]
    for edits, message in bad_plans:
        good: list[Edit] = [Scale(network.blocks[1], torch.tensor(2.0))]
        with pytest.raises(ConfigError, match=message):
            apply(network, good + edits, method="toy")
        assert all(torch.equal(b, p) for b, p in zip(before, module.parameters(), strict=True))


def test_non_finite_value_outside_the_mask_does_not_matter() -> None:
    module, network, block = linear()
    value = torch.full((2, 3), float("nan"))
    value[0, 0] = 1.5
    mask = torch.zeros(2, 3, dtype=torch.bool)
    with pytest.raises(BadWeights, match=r"net\.weight"):
        apply(network, [Assign(block, value, ~mask)], method="toy")
    mask[0, 0] = True
    apply(network, [Assign(block, value, mask)], method="toy")
    assert float(module.weight.detach()[0, 0]) == 1.5
    assert module.weight.isfinite().all()


def test_what_leads_out_of_the_tensors_type_is_refused() -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        module = nn.Linear(3, 2, bias=False).to(dtype)
        with torch.no_grad():
            module.weight.fill_(torch.finfo(dtype).max / 4)
        network = Network("net", module)
        block, before = network.blocks[0], module.weight.detach().clone()
        edits: list[Edit] = [Scale(block, torch.tensor(5.0))]
        if dtype == torch.float16:
            edits.append(Assign(block, torch.full((2, 3), 1e6)))
        for edit in edits:
            with pytest.raises(BadWeights, match=r"net\.weight"):
                apply(network, [edit], method="toy")
            assert torch.equal(module.weight, before)
        apply(network, [Scale(block, torch.tensor(3.0))], method="toy")
        assert module.weight.isfinite().all()


def test_every_network_is_checked_and_each_tensor_named_that_would_go_wrong() -> None:
    networks = [linear()[1], Network("other", linear()[0])]
    nan, inf = torch.tensor(float("nan")), torch.full((2,), float("inf"))
    plans: list[tuple[Network, list[Edit]]] = [
        (networks[0], [Scale(networks[0].blocks[0], nan), Scale(networks[0].blocks[1], nan.abs())]),
        (networks[1], [Assign(networks[1].blocks[1], inf)]),
    ]
    with pytest.raises(BadWeights, match=r"net\.weight, net\.bias, other\.bias"):
        check(plans)
    with pytest.raises(BadWeights, match=r"for other\.bias; nothing"):
        check([(networks[0], []), plans[1]])
    check([])
    check([(networks[0], []), (networks[1], [])])


def test_rows_and_columns_are_written_as_a_mask_of_the_whole_would_be() -> None:
    generator = torch.Generator().manual_seed(0)
    rows, value = torch.tensor([1, 4]), torch.randn(6, 5, generator=generator)
    some, whole = torch.rand(6, 5, generator=generator) < 0.5, torch.ones(6, 5).bool()
    for dim, keep in itertools.product((0, 1), (some, whole)):
        chosen = torch.zeros(6, 5, dtype=torch.bool).index_fill(dim, rows, True) & keep
        (one, two), receipts = [subject("mlp") for _ in range(2)], []
        part = value.index_select(dim, rows)
        mask = keep.index_select(dim, rows) if keep is some else None
        plans = (
            Assign(one.network.blocks[0], part, mask, rows=rows, dim=dim),
            Assign(two.network.blocks[0], value, chosen),
        )
        for made, edit in zip((one, two), plans, strict=True):
            receipts.append(apply(made.network, [edit], method="toy", optimizer="touched"))
        assert_same(one.snapshot(), two.snapshot())
        assert receipts[0].entries_touched == receipts[1].entries_touched == int(chosen.sum())
        assert receipts[0].sfe == pytest.approx(receipts[1].sfe)


def test_bad_rows_are_refused() -> None:
    made = subject("mlp", updates=0)
    block = made.network.blocks[0]
    for rows, size, mask, message in (
        ([6], 1, None, r"rows \[6\].*0 to 5.*net\.0"),
        ([-1], 1, None, r"rows \[-1\]"),
        ([4, 1, 4], 3, None, r"rows \[4, 1, 4\]"),
        ([1.0], 1, None, "int64"),
        ([1], 1, torch.ones(6, 5, dtype=torch.bool), r"mask \(6, 5\)"),
        ([0, 1], 1, None, r"\(2, 5\)"),
    ):
        edit = Assign(block, torch.zeros(size, 5), mask, rows=torch.tensor(rows))
        with pytest.raises(ConfigError, match=message):
            check([(made.network, [edit])])
    check([(made.network, [Assign(block, torch.zeros(2, 5), rows=torch.tensor([5, 0]))])])


def test_scale_computes_in_at_least_fp32_and_rounds_once() -> None:
    types = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
    module = nn.Sequential(*(nn.Linear(40, 30).to(dtype) for dtype in types))
    before, factor = [p.detach().clone() for p in module.parameters()], torch.tensor(0.997)
    write([Scale(b, factor) for b in Network("net", module).blocks])
    for old, new in zip(before, module.parameters(), strict=True):
        wide = old if old.dtype == torch.float64 else old.float()
        assert torch.equal(new.detach(), (wide * factor.to(wide)).to(old.dtype))
