"""Penalties inside the updates of DQN and SAC: gradients, what is logged, exact resumption."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rlplast.agents.dqn import DQN
from rlplast.agents.dqn_config import DQNConfig
from rlplast.agents.off_policy_config import EnvConfig
from rlplast.agents.sac import SAC
from rlplast.agents.sac_config import SACAgentConfig, SACConfig
from rlplast.core.errors import BadWeights, ConfigError, NothingToEdit
from rlplast.core.method.penalties import Penalties
from rlplast.core.network.network import Network
from rlplast.methods import c_chain
from rlplast.optimizers.config import OptimizerConfig
from rlplast.training.trainable import Trainable
from tests.agents.toy_control import use_slide
from tests.agents.toy_env import advanced, configs, use_wheel
from tests.every_kind import KINDS, small_run
from tests.gpt.runs import write_corpora
from tests.marks import slow_but
from tests.methods.driven import Driven, run_of, trained
from tests.methods.penalty_cases import CASES, TWINS, row
from tests.models import assert_same, build, data
from tests.runs import check_resumes

CPU = torch.device("cpu")
SAC_AGENT = {"actor_width": 8, "critic_width": 12, "critic_blocks": 1, "batch_size": 8}
Rows = list[dict[str, Any]]


def gradients(agent: Trainable, network: str) -> dict[str, Tensor]:
    found = agent.networks[network].module.named_parameters()
    return {n: torch.zeros_like(p) if p.grad is None else p.grad.clone() for n, p in found}


def make(kind: str, rows: Rows, monkeypatch: pytest.MonkeyPatch, **agent: Any) -> Any:
    options: dict[str, Any] = {"seed": 3, "total": "400 env_steps", "penalties": rows}
    if kind == "dqn":
        use_wheel(monkeypatch)
        options |= {"env": EnvConfig("gym/CartPole-v1", 1), **configs(**agent)}
    else:
        use_slide(monkeypatch)
        agent = SAC_AGENT | {"buffer_size": 400, "initial_steps": 24} | agent
        options |= {"env": EnvConfig("gym/Hopper-v5", 1), "agent": SACAgentConfig(**agent)}
        options["optimizer"] = OptimizerConfig(name="adamw", lr=1e-3, weight_decay=0.01)
    config: Any = (DQNConfig if kind == "dqn" else SACConfig)(**options)
    config.check()
    return (DQN if kind == "dqn" else SAC)(config, CPU)


@pytest.mark.parametrize(
    ("method", "kind", "network"),
    [
        ("l2", "sac", "temperature"),
        ("l2_init", "sac", "actor"),
        ("parseval", "sac", "critic"),
        ("spectral", "dqn", "q"),
    ],
)
def test_update_adds_the_gradient_of_the_term(
    method: str, kind: str, network: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [row(method, networks=[network])]
    plain, penalised = (advanced(make(kind, [], monkeypatch), 3) for _ in range(2))
    while not penalised.owes():
        plain.step()
        penalised.step()
    penalised.penalties = Penalties(rows, penalised.networks)
    twin = copy.deepcopy(penalised.networks[network].module).double()
    start = copy.deepcopy(twin)
    initial = penalised.networks[network].initial
    with torch.no_grad():
        for block in penalised.networks[network].blocks:
            own = start.get_parameter(f"{block.path}.{block.spec.tensor}".removeprefix("."))
            block.like(own).copy_(initial[block.name])
    expected = TWINS[method](twin, start, **CASES[method].params)
    expected.backward()
    plain.step()
    penalised.step()
    assert penalised.clock.updates == 4
    without, with_term = gradients(plain, network), gradients(penalised, network)
    for name, param in twin.named_parameters():
        own = torch.zeros_like(param) if param.grad is None else param.grad
        difference = (with_term[name] - without[name]).double()
        torch.testing.assert_close(difference, own, rtol=1e-3, atol=2e-5, msg=name)
    logged = penalised.metrics()
    assert logged["train/penalty"] * 4 == pytest.approx(float(expected.detach()), rel=1e-5)
    unpenalised = plain.metrics()
    assert "train/penalty" not in unpenalised
    # The task's loss alone; the critics' one reads the new actor and the new temperature.
    assert logged.get("train/loss_actor") == unpenalised.get("train/loss_actor")
    same = network in ("q", "critic")
    assert (logged["train/loss"] == unpenalised["train/loss"]) == same


@pytest.mark.parametrize("kind", ["dqn", "sac"])
def test_loss_for_probes_is_the_task_alone(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = advanced(make(kind, [row(method) for method in CASES], monkeypatch), 4)
    batch = agent.sample(8, 0)
    losses = {name: agent.loss(name, batch).detach() for name in agent.networks}
    agent.penalties = Penalties([], agent.networks)
    for name, loss in losses.items():
        assert torch.equal(loss, agent.loss(name, batch))


def test_gradient_clipping_sees_the_penalty(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = make("dqn", [row("l2", params={"coef": 100.0})], monkeypatch, clip_norm=0.5)
    advanced(agent, 1)
    norms = [p.grad.norm() for p in agent.online.parameters()]
    assert float(torch.stack(norms).norm()) == pytest.approx(0.5, rel=1e-3)


def test_temperatures_have_weights_if_they_are_learnt_and_no_outputs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    agent = make("sac", [row("l2")], monkeypatch, learn_temperature=False)
    assert agent.penalties.of("temperature") is None
    assert agent.penalties.of("actor") is not None
    agent = make("sac", [], monkeypatch)
    for method in ("c_chain", "infer", "l2_er", "sigreg"):
        with pytest.raises(NothingToEdit, match="'temperature'"):
            Penalties([row(method, networks=["temperature"])], agent.networks, agent)


ALL = [row(method) | {"params": dict(CASES[method].params) | {"coef": 1e-3}} for method in CASES]
ALL.append(row("spectral") | {"from": "40%", "until": "70%"})  # it plans too


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return write_corpora(tmp_path_factory.mktemp("corpora"))


@pytest.mark.parametrize("kind", slow_but(["ppo"], ["ppo", "sac", "gpt"]))
def test_all_penalties_in_one_run_resume(
    kind: str, corpora: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(c_chain, "FIXED", 3)  # then its strength follows the losses
    monkeypatch.setattr(c_chain, "WINDOW", 5)
    config = small_run(kind, corpora, evaluate={"every": None}, penalties=ALL)
    expected = check_resumes(config, tmp_path)
    logged = [line["train/penalty"] for line in expected["metrics"] if "train/penalty" in line]
    assert len(logged) > 2
    assert all(value > 0 for value in logged)


# Of a hand-written loop; each hook fires at update 4 and its term goes on.
BY_HAND: dict[str, Any] = {
    "c_chain": {"penalty": row("c_chain")},
    "distill": {"hook": {"method": "distill", "at": "4 updates", "params": {"updates": 9}}},
    "pfo": {"hook": {"method": "pfo", "at": "4 updates"}},
    "persistent": {
        "hook": {"method": "persistent", "at": "4 updates", "params": {"layers": "one"}}
    },
}


@pytest.mark.parametrize("method", BY_HAND)
def test_terms_of_a_hand_written_loop_resume(method: str) -> None:
    x, y = data("conv_batchnorm")

    def probe(size: int, generator: torch.Generator) -> Tensor:
        return torch.randn(size, *x.shape[1:], generator=generator)

    whole, first = (Driven("conv_batchnorm", probe, **BY_HAND[method]) for _ in range(2))
    for update in range(8):
        if update == 6:
            saved = copy.deepcopy(
                [part.state_dict() for part in (first.module, first.hooks, first.penalties)]
            )
            first = Driven("conv_batchnorm", probe, **BY_HAND[method])
            parts: Any = (first.module, first.hooks, first.penalties)
            for part, state in zip(parts, saved, strict=True):
                part.load_state_dict(state)
            first.updates = 6
        for made in (whole, first):
            made.module.zero_grad()
            loss = nn.functional.mse_loss(made.module(x), y)
            made.penalties.add("net", loss).backward()
            made.network.optimizers[0].step()
            made.step()
    assert_same(dict(whole.module.state_dict()), dict(first.module.state_dict()))
    assert torch.equal(whole.term(), first.term()) and float(whole.term().detach()) > 0


@pytest.mark.parametrize("kind", slow_but(["sac", "gpt"], KINDS))
def test_terms_that_read_data_read_batches_of_their_own_and_move_no_stream(
    kind: str, corpora: dict[str, str]
) -> None:
    plain = trained(run_of(kind, corpora, "c_chain"))[0]
    for method in ("c_chain", "infer", "l2_er", "sigreg"):
        zero = {"coef": 0.0} | ({"rank_coef": 0.0} if method == "l2_er" else {})
        with_term, seen, networks = trained(run_of(kind, corpora, method, batch=3, **zero))
        assert all(torch.equal(a, b) for a, b in zip(with_term, plain, strict=True)), method
        assert networks == (2 if kind in ("sac", "ppo") else 1)  # a temperature has no outputs
        assert len(seen) == len({number for _, _, number in seen}) == 4 * networks, method
        assert {(count, size) for count, size, _ in seen} == {(1, 3)}, method


def test_terms_that_read_data_say_what_they_need() -> None:
    x = data("mlp")[0]
    conv = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Conv2d(2, 1, 3))
    norm = nn.Sequential(nn.BatchNorm1d(3))
    for method in ("c_chain", "infer", "l2_er", "sigreg"):
        cases: list[tuple[nn.Module, dict[str, Any], Any, type[Exception], str]] = [
            (build("mlp"), {"layers": ["0"]}, x, ConfigError, method),
            (build("mlp"), {}, None, ConfigError, "probe="),
            (build("mlp").bfloat16(), {}, x, BadWeights, r"net\.0\.weight"),
        ]
        if method != "c_chain":
            cases.append((norm, {}, x, ConfigError, "head"))
        if method in ("infer", "l2_er"):
            cases.append((conv, {}, x, ConfigError, "2 .*Conv2d"))
        for module, keys, probe, error, match in cases:
            with pytest.raises(error, match=match):
                Penalties([{"method": method} | keys], {"net": Network("net", module)}, probe=probe)
    with pytest.raises(ConfigError, match="batch = 1"):
        rows = [{"method": "l2_er", "params": {"batch": 1}}]
        Penalties(rows, {"net": Network("net", build("mlp"))}, probe=x)
