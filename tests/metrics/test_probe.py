"""Metrics of whole networks, measured in a run of every kind."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from rlplast.core.errors import ConfigError
from rlplast.core.method.once import apply
from rlplast.core.network.network import Network
from rlplast.core.registry import rows
from rlplast.metrics import output_probe, readiness
from rlplast.metrics.balance import balancedness, lipschitz_bound, pairwise_balance
from rlplast.metrics.curvature import (
    IN_A_RUN,
    hessian_max_eigenvalue,
    hessian_spectral_norm,
    hessian_spectrum,
)
from rlplast.metrics.density import activation_histogram, hessian_density
from rlplast.metrics.features import saturation_percentile
from rlplast.metrics.probe import OF_CHAINS, OF_CURVATURE, check_names, measure_run
from rlplast.metrics.sketch import weight_sketch
from rlplast.metrics.units import grama_share
from rlplast.run import api
from rlplast.run.build import build_trainable
from rlplast.run.config_file import read_config
from rlplast.training import checkpoint
from tests.agents.toy_env import same
from tests.every_kind import small_run
from tests.gpt.runs import MODEL, write_corpora
from tests.marks import slow_but
from tests.methods.unit_nets import normal
from tests.models import build
from tests.naive import regrama as naive
from tests.runs import TINY, final, lines

# Runs of few updates and parameters, one of them of each kind; the critics of SAC are stacked.
SMALL: dict[str, dict[str, Any]] = {
    "dqn": {"total": "60 env_steps"},
    "sac": {"total": "60 env_steps", "agent": {"critic_width": 4, "actor_width": 4}},
    "sac mlp": {"total": "60 env_steps", "agent": {"network": "mlp", "critic_width": 4}},
    "supervised": {"model": {"name": "mlp", "hidden": [4, 3]}},
    "supervised batchnorm": {"model": {"name": "cnn_bn", "width": 4}},  # statistics could move
    "gpt": {"model": MODEL | {"layers": 1, "width": 4, "dropout": 0.1}},
}
CRITICS = ["critic/[0]", "critic/[1]"]
CHAINS = {"dqn": ["q"], "sac mlp": CRITICS, "supervised": ["model"]}
CHAINS |= {"sac": [], "supervised batchnorm": [], "gpt": []}  # norms, branches
PATHS = {"dqn": ["q"], "sac": ["actor", *CRITICS], "sac mlp": ["actor", *CRITICS], "gpt": ["gpt"]}
PATHS |= {"supervised": ["model"], "supervised batchnorm": ["model"]}


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return write_corpora(tmp_path_factory.mktemp("corpora"))


@pytest.fixture
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make what trains copies, and the spectrum of a DQN's 132 179 parameters, cheap."""
    monkeypatch.setitem(IN_A_RUN, "probes", 1)
    monkeypatch.setitem(IN_A_RUN, "steps", 4)
    monkeypatch.setattr(output_probe, "TARGETS", 2)
    monkeypatch.setattr(output_probe, "STEPS", 3)
    monkeypatch.setattr(output_probe, "SAMPLES", 4)
    monkeypatch.setattr(readiness, "BATCHES", 3)


def config(of: str, corpora: dict[str, str], **changes: Any) -> dict[str, Any]:
    kind, own = of.split()[0], SMALL[of]
    plain = small_run(kind, corpora)
    agent = {"agent": plain["agent"] | own["agent"]} if "agent" in own else {}
    return plain | own | agent | changes


def trained(config: dict[str, Any], folder: Path) -> Any:
    kept: list[Any] = []
    api.train(config, folder, observer=lambda loop: kept.append(loop.trainable))
    return kept[-1]


def left(folder: Path) -> dict[str, Any]:
    """Return what a run left but for its lines, and for what metrics themselves remember."""
    found = final(folder)
    tensors, _ = checkpoint.load(checkpoint.newest(folder / "checkpoints")[0])
    own = {n: t for n, t in tensors.items() if not n.startswith("state/measured/")}
    state = {key: value for key, value in found["state.json"].items() if key != "measured"}
    parts = ("metrics", "tensors.safetensors", "state.json")
    rest = {key: value for key, value in found.items() if key not in parts}
    return rest | own | {"state": state}


def measurable() -> Iterator[str]:
    for info in rows("metrics"):
        try:
            check_names([info.name])
        except ConfigError:
            continue
        yield info.name


@pytest.mark.parametrize("of", slow_but(["sac mlp"], SMALL))
@pytest.mark.usefixtures("few_steps")
def test_every_metric_of_a_run_is_measured_and_none_moves_the_training(
    of: str, corpora: dict[str, str], tmp_path: Path
) -> None:
    names = list(measurable())
    metrics = {"every": "50%", "names": names, "batch_size": 8}
    trainable = trained(config(of, corpora, metrics=metrics), tmp_path / "with")
    api.train(config(of, corpora, metrics={"every": None}), tmp_path / "without")
    measuring, plain = left(tmp_path / "with"), left(tmp_path / "without")
    assert measuring.keys() == plain.keys()
    for name in plain:  # weights, optimizers, streams, replay, receipts
        assert same(measuring[name], plain[name]), name
    measured = lines(tmp_path / "with", "metrics")
    last = [row for row in measured if any(k.startswith("metric/") for k in row)][-1]
    found = {key.removeprefix("metric/") for key in last if key.startswith("metric/")}
    assert {f"{n}/{key}" for n in OF_CURVATURE[:2] for key in trainable.networks} <= found
    assert {key for key in found if key.startswith(OF_CHAINS[:2])} == {
        *(f"lipschitz_bound/{key}" for key in PATHS[of]),
        *(f"balancedness/{key}" for key in CHAINS[of]),
    }
    # Of lifecycle layers, of inputs that are numbers, of cbp.
    elsewhere = {"awake_fraction", "lipschitz_estimate", "unit_age"}
    elsewhere |= set() if CHAINS[of] else set(OF_CHAINS[1:])
    assert set(names) - {key.split("/")[0] for key in found} <= elsewhere


def begun(of: str) -> Any:
    """Return a trainer after a few updates."""
    made = build_trainable(read_config(config(of, {}, hooks=[])))
    while made.clock.updates < 3:
        made.step()
    return made


def test_the_chain_of_each_stacked_critic_is_that_of_its_own_weights() -> None:
    trainable = begun("sac mlp")
    found = measure_run(trainable, OF_CHAINS, 8, 0)
    start = trainable.networks["critic"].initial
    layers = [trainable.critic.get_submodule(path) for path in ("fc1", "head")]
    for member in range(2):
        weights = [layer.weight.detach()[member] for layer in layers]
        biases = [layer.bias.detach()[member] for layer in layers]
        own = f"critic/[{member}]"
        assert found[f"metric/lipschitz_bound/{own}"] == float(lipschitz_bound(weights))
        assert found[f"metric/balancedness/{own}"] == float(balancedness(weights, biases))
        first, last = (f"[{member}].{path}.weight" for path in ("fc1", "head"))
        balance = float(pairwise_balance(*weights, start[first], start[last]))
        assert found[f"metric/pairwise_balance/critic/{first}"] == balance


def test_grama_share_counts_the_units_of_all_members_whose_weights_get_no_gradient() -> None:
    module, x = build("stacked"), normal(16, 5)
    with torch.no_grad():
        module.get_parameter("fc1.bias")[1, :3] = -100  # silent
        module.get_parameter("fc2.weight")[0, :, 4] = 0  # read by nobody
    network = Network("critic", module)
    trained: Any = SimpleNamespace(
        networks={"critic": network},
        sample=lambda size, number: x,
        activations=lambda network, batch: {},
        loss=lambda network, batch: module(batch).square().mean(),
    )
    found = measure_run(trained, ["grama_share"], 16, 0)["metric/grama_share/critic"]
    assert all(p.grad is None for p in module.parameters())
    module(x).square().mean().backward()
    gradients = [module.get_parameter(f"{name}.weight").grad for name in ("fc1", "fc2")]
    masks = [naive.inactive(g[i], 0.01) for i in range(2) for g in gradients if g is not None]
    assert masks[0][4] and all(masks[2][:3])
    assert found == pytest.approx(sum(map(sum, masks)) / sum(map(len, masks)))
    gradient = torch.tensor([[1.0], [float("nan")], [0.0]])
    assert grama_share({"fc1": gradient}).isnan()
    assert float(grama_share({"fc1": gradient[::2], "fc2": torch.zeros(2, 3)})) == 0.75


def test_unit_age_is_in_a_run_that_lists_cbp(tmp_path: Path) -> None:
    cbp = {"method": "cbp", "every": "1 updates", "params": {"maturity": 1000}}
    changes = {"hooks": [cbp], "metrics": {"every": "100%", "names": ["unit_age"]}}
    changes |= {"total": "60 env_steps", "evaluate": {"every": None}}
    run = api.train(TINY | changes, tmp_path / "run")
    row = [line for line in run.lines() if "metric/unit_age/q" in line][-1]
    found = {key.removeprefix("metric/unit_age/q"): row[key] for key in row if "unit_age" in key}
    assert found == {"": row["updates"], "/min": row["updates"], "/immature": 1}


def test_a_run_says_which_metrics_it_cannot_measure() -> None:
    small = small_run("supervised", {}, hooks=[], layers=[{"method": "crelu"}])
    trainable = build_trainable(read_config(small))
    names = ["dormant_ratio", "weight_norm", "srank", "unit_age"]
    with pytest.warns(UserWarning, match="dormant_ratio, srank cannot be measured"):
        found = measure_run(trainable, names, 8, 0)
    assert {name.split("/")[1] for name in found} == {"weight_norm"}


def test_what_adds_up_over_weights_has_a_total_of_the_network() -> None:
    module = nn.Sequential(nn.Conv2d(4, 8, 3, groups=2), nn.Flatten(), nn.Linear(8, 3))
    network = Network("net", module)
    trainable: Any = SimpleNamespace(networks={"net": network}, sample=lambda size, number: None)
    start = measure_run(trainable, ["dfi_scaled"], 1, 0)
    fire = apply("fire", network, polynomial="exact")
    assert start["metric/dfi_scaled/net"] == pytest.approx(fire.dfi_before)
    names = ["dfi", "dfi_scaled", "sfe", "sfe_normalized", "stable_rank"]
    found = measure_run(trainable, [*names, "weight_norm", "weight_difference"], 1, 0)
    after = [module.get_parameter(f"{i}.weight").detach().double() for i in (0, 2)]
    before = [network.initial[name].double() for name in ("0.weight", "2.weight")]
    slices = [*after[0].flatten(2).unbind(-1), after[1]]
    gaps = [(w @ w.T - torch.eye(len(w))).square().sum() for w in slices]
    moved = sum((w - w0).square().sum() for w, w0 in zip(after, before, strict=True))
    assert found["metric/dfi/net"] == pytest.approx(float(sum(gaps)))
    assert found["metric/dfi_scaled/net"] == pytest.approx(fire.dfi_after, abs=1e-9)
    assert found["metric/sfe/net"] == pytest.approx(float(moved))
    assert found["metric/weight_difference/net"] == pytest.approx(float(moved) ** 0.5)
    norm = torch.nn.utils.parameters_to_vector(module.parameters()).norm()
    assert found["metric/weight_norm/net"] == pytest.approx(norm.item())
    squares = sum(w0.square().sum() for w0 in before)
    assert found["metric/sfe_normalized/net"] == pytest.approx(float(moved / squares))
    assert "metric/stable_rank/net" not in found  # ranks have none


@pytest.mark.usefixtures("few_steps")
def test_a_run_logs_every_number_of_a_sketch_a_density_a_spectrum_and_each_layer() -> None:
    names = ["weight_sketch", "activation_histogram", "saturation_percentile", *OF_CURVATURE]
    trainable = begun("supervised")
    found = measure_run(trainable, names, 8, 0)
    network, batch = trainable.networks["model"], trainable.sample(8, 0)
    weights = [p.detach() for p in network.module.parameters()]
    sketch = weight_sketch(weights, [network.initial[b.name] for b in network.trainable()])
    assert sketch.abs().sum() > 0
    taps = trainable.activations("model", batch)
    loss, own = trainable.loss("model", batch), list(network.module.parameters())
    expected: dict[str, Any] = {
        "weight_sketch": dict(enumerate(sketch)),
        "activation_histogram": activation_histogram(taps).logged(),
        "hessian_density": hessian_density(loss, own, **IN_A_RUN).logged(),
        "hessian_spectrum": hessian_spectrum(loss, own, **IN_A_RUN).summary(),
        "saturation_percentile": {n: saturation_percentile({n: t}) for n, t in taps.items()},
    }
    rows = {f"{n}/model/{k}": float(v) for n, parts in expected.items() for k, v in parts.items()}
    for metric in (hessian_max_eigenvalue, hessian_spectral_norm):
        rows[f"{metric.__name__}/model"] = float(metric(loss, own))
    rows["saturation_percentile/model"] = float(saturation_percentile(taps))
    assert len(taps) == 2
    assert found == pytest.approx({f"metric/{n}": v for n, v in rows.items()}, rel=1e-6, abs=1e-9)
