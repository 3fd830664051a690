"""Invariant 9: every intervention on bad inputs is correct, or names the parameter."""

import copy
from collections.abc import Callable
from itertools import cycle

import pytest
import torch
from torch import Tensor, nn
from torch.optim import NAdam

import rlplast
from rlplast.core.errors import BadWeights, UnsupportedOptimizer
from rlplast.core.method.hooks import Hooks
from rlplast.core.network.network import Network
from tests.cases import CASES, Tape, about, fire, install, method_of, ready
from tests.models import FORMS, OPTIMIZERS, assert_same, build, subject

READING_MOMENTS = [m for m in CASES if "moments" in method_of(m).reads]


def weights(module: nn.Module) -> dict[str, Tensor]:
    return {name: t.detach().clone() for name, t in module.state_dict().items()}


def assert_finite(module: nn.Module) -> None:
    assert all(t.isfinite().all() for t in module.state_dict().values())


@pytest.mark.parametrize(("method", "form"), [*zip(CASES, cycle(OPTIMIZERS), strict=False)])
def test_bad_inputs(method: str, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    empty_optimizer_state_stays_empty_and_training_goes_on(method, form)
    an_unknown_optimizer_is_refused_before_the_first_write_or_its_state_kept(method)
    a_zero_matrix_gives_finite_weights_or_is_named(method)
    dead_rows_and_columns_give_finite_weights(method)
    matrices_of_one_row_or_column_work(method)
    for bad in (float("nan"), float("inf")):
        weights_that_are_not_finite_are_named_or_replaced(method, bad)
    meta_tensors_are_named(method)
    for family in ("conv", "stacked"):
        with monkeypatch.context() as patched:
            bf16_is_computed_in_fp32_and_rounded_once(method, family, patched)
    if not CASES[method].refuses_inside:
        inside_an_update_bf16_is_refused(method)


# Optimizers: empty state, every form, unknown ones.


def empty_optimizer_state_stays_empty_and_training_goes_on(method: str, form: str) -> None:
    made = ready(method, "mlp", (OPTIMIZERS | FORMS)[form], updates=0)
    fire(method, made.network, optimizer_policy="network")
    assert not any(p in made.optimizer.state for p in made.module.parameters())
    before = weights(made.module)
    made.update(2)
    assert any(not torch.equal(before[n], t) for n, t in made.module.state_dict().items())


@pytest.mark.parametrize("form", OPTIMIZERS | FORMS)
def test_state_of_every_optimizer_is_zeroed_in_place(form: str) -> None:
    for policy in ("touched", "parameter", "network"):
        made = subject("mlp", (OPTIMIZERS | FORMS)[form])
        addresses = {name: t.data_ptr() for name, t in made.state().items()}
        rlplast.apply("full_reset", made.network, optimizer_policy=policy)
        for name, tensor in made.state().items():
            assert tensor.data_ptr() == addresses[name]
            entry = name.partition(":")[2]
            if entry == "step":
                assert float(tensor) == (3 if policy == "touched" else 0), policy
            elif entry:
                assert tensor.abs().max() == 0, (policy, name)
        made.update(2)
        assert all(p.isfinite().all() for p in made.module.parameters())
    if form in FORMS:
        for method in ("full_reset", *READING_MOMENTS):
            with about(method):
                empty_optimizer_state_stays_empty_and_training_goes_on(method, form)


def an_unknown_optimizer_is_refused_before_the_first_write_or_its_state_kept(method: str) -> None:
    made = ready(method, "mlp", lambda params: NAdam(params, lr=1e-2))
    before = made.snapshot()
    keeps = method in READING_MOMENTS
    for policy in ("touched", "parameter", "network", *(["keep"] if keeps else [])):
        with pytest.raises(UnsupportedOptimizer, match="NAdam"):
            fire(method, made.network, optimizer_policy=policy)
        assert_same(before, made.snapshot())
    if not keeps:
        receipt = fire(method, made.network, optimizer_policy="keep")
        assert (receipt.sfe > 0) is not CASES[method].follows
        after = made.snapshot()
        assert all(torch.equal(before[n], after[n]) for n in before if ":" in n)


# Weights: zero, dead rows, 1 × n, not finite.


def spoil(method: str, change: Callable[[Tensor], object]) -> tuple[nn.Module, Network]:
    """Return an MLP whose second layer's weight was changed."""
    made = ready(method, "mlp")
    with torch.no_grad():
        change(made.module.get_parameter("2.weight"))
    return made.module, made.network


def a_zero_matrix_gives_finite_weights_or_is_named(method: str) -> None:
    module, network = spoil(method, lambda w: w.zero_())
    before = weights(module)
    if CASES[method].refuses_zero:
        with pytest.raises(BadWeights, match=r"net\.2\.weight"):
            fire(method, network)
        assert_same(before, weights(module))
    else:
        fire(method, network)
        assert_finite(module)


def dead_rows_and_columns_give_finite_weights(method: str) -> None:
    def kill(weight: Tensor) -> None:
        weight[1:4] = 0
        weight[:, 2] = 0

    module, network = spoil(method, kill)
    receipt = fire(method, network)
    assert_finite(module)
    assert receipt.sfe >= 0


def matrices_of_one_row_or_column_work(method: str) -> None:
    torch.random.default_generator.manual_seed(0)
    for d_out, d_in in ((1, 5), (5, 1), (1, 1)):
        module = nn.Sequential(nn.Linear(3, d_in), nn.ReLU(), nn.Linear(d_in, d_out))
        install(method, module)
        fire(method, Network("net", module))
        assert_finite(module)


def weights_that_are_not_finite_are_named_or_replaced(method: str, bad: float) -> None:
    module, network = spoil(method, lambda w: w[0, 0].fill_(bad))
    before = weights(module)
    try:
        receipt = fire(method, network)
    except BadWeights as error:
        assert not CASES[method].cures_nan
        assert "net.2.weight" in str(error)
        assert_equal_with_nan(before, weights(module))
        return
    assert receipt.row()["norm_before"] is None  # JSON has no NaN
    if CASES[method].cures_nan:
        assert_finite(module)
    else:  # the method left that layer alone
        assert_equal_with_nan({"2.weight": before["2.weight"]}, weights(module))


def assert_equal_with_nan(left: dict[str, Tensor], right: dict[str, Tensor]) -> None:
    for name, tensor in left.items():
        torch.testing.assert_close(tensor, right[name], rtol=0, atol=0, equal_nan=True)


def meta_tensors_are_named(method: str) -> None:
    with torch.device("meta"):
        module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    with pytest.raises(BadWeights, match=r"\d\.weight .*meta"):
        install(method, module)
        rlplast.apply(method, module, initial={})


# Low precision.


def low_precision_twins(method: str, family: str) -> tuple[nn.Module, Network, nn.Module, Network]:
    """Return a bf16 model and its float32 twin, equal in value, and away from their θ0."""
    low = build(family).to(torch.bfloat16)
    install(method, low)
    initial = {n: t.clone() for n, t in low.state_dict().items()}
    with torch.no_grad():
        for i, param in enumerate(low.parameters()):
            noise = torch.randn(param.shape, generator=torch.Generator().manual_seed(i))
            param.add_(0.3 * noise.to(param))
    wide = copy.deepcopy(low).float()
    return (
        low,
        Network("net", low, initial=initial),
        wide,
        Network("net", wide, initial={n: t.float() for n, t in initial.items()}),
    )


def bf16_is_computed_in_fp32_and_rounded_once(
    method: str, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    low, low_network, wide, wide_network = low_precision_twins(method, family)
    tape = Tape(monkeypatch)
    fire(method, wide_network)
    tape.rewind()  # from equal readings of data
    fire(method, low_network)
    found = dict(low.state_dict())
    rounded = {n: t.to(found[n].dtype) for n, t in wide.state_dict().items()}
    assert_same(rounded, found)


def inside_an_update_bf16_is_refused(method: str) -> None:
    made = subject("mlp", dtype=torch.bfloat16)
    config = {"method": method, "every": "1 updates", "params": CASES[method].params}
    with pytest.raises(BadWeights, match=r"net\.0\.weight .*float32"):
        Hooks([config], made.network, "10 updates")
