"""Updates of DQN and SAC and their losses, eager and compiled, in fp32 and bf16."""

import copy
import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from rlplast.agents import agent as agents
from rlplast.agents import compiled
from rlplast.agents.compiled import LEAST_UPDATES
from rlplast.core.errors import ConfigError
from rlplast.core.method.penalties import Penalties
from rlplast.run.config_file import dump_config, read_config
from rlplast.training.config import parse_yaml
from tests.agents.toy_control import sac, use_slide
from tests.agents.toy_env import advanced, dqn, everything, same
from tests.agents.tracing import trace_alone
from tests.core.method.spies import spy
from tests.marks import slow

AGENTS = ["compile"] * 3
SIMBA = {"network": "simba"}
MLP = {"network": "mlp", "log_std": "clamp", "log_std_min": -20.0, "normalize_obs": False}
CARTPOLE, BREAKOUT = {"env": "gym/CartPole-v1"}, {"env": "minatar/breakout", "double": True}
LOSSES = {"q": "td_loss", "actor": "actor_loss", "critic": "critic_loss"}


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return what builds an agent that has done some updates."""

    def build(updates: int, **options: Any) -> Any:
        if "env" in options:
            return advanced(dqn(2, **options), updates)
        use_slide(monkeypatch)
        return advanced(sac(**options), updates)

    return build


def batch_of(agent: Any) -> Any:
    if hasattr(agent, "rollout"):
        return agent._batch()
    (batch,) = agent._drawn(1)
    return agent._batch(batch) if hasattr(agent, "_batch") else batch


def gradients(agent: Any, network: str, loss: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(agent.networks[network].module.parameters())))


@pytest.mark.parametrize(
    ("network", "options"),
    [
        slow("q", CARTPOLE),
        ("critic", SIMBA),
        slow("actor", MLP),
    ],
)
def test_loss_and_gradients_agree_eager_and_compiled(
    network: str, options: dict[str, Any], agent: Callable[..., Any]
):
    made = agent(4, **options)
    eager = getattr(made, LOSSES[network])
    compiled = torch.compile(eager, backend="aot_eager", dynamic=False, fullgraph=True)
    for updates in (4, 9):  # weights and statistics change, and hooks edit
        advanced(made, updates)
        with torch.no_grad():
            for handle in made.networks.values():
                for follower in handle.followers.values():
                    follower.module.get_parameter("head.weight").mul_(updates / 8)
        batch = batch_of(made)
        loss, other, _ = eager(batch)
        expected = gradients(made, network, loss)
        loss_compiled, other_compiled, _ = compiled(batch)
        torch.testing.assert_close(loss_compiled, loss)
        torch.testing.assert_close(other_compiled, other)
        torch.testing.assert_close(gradients(made, network, loss_compiled), expected)


@pytest.fixture
def aot_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `torch.compile` trace, and run what it traced as it is."""
    trace_alone(monkeypatch)


LIFECYCLE = {"layers": [{"method": "lifecycle", "params": {"life": [3, 6], "recovery": [1, 3]}}]}


@pytest.mark.usefixtures("aot_eager")
@pytest.mark.parametrize(
    "options",
    [
        slow(CARTPOLE | {"clip_norm": 0.1}),
        slow(BREAKOUT | {"name": "adamw", "weight_decay": 0.1}),
        slow(SIMBA),
        slow(MLP | {"clip_norm": 0.5} | LIFECYCLE),
    ],
)
def test_an_update_compiles_as_a_whole_and_does_what_eager_code_does(
    options: dict[str, Any], agent: Callable[..., Any]
):
    eager, compiled = (agent(9, accelerate=how, **options) for how in ("off", "compile"))
    assert compiled._whole
    expected, found = everything(eager), everything(compiled)
    expected.pop("rest"), found.pop("rest")
    torch.testing.assert_close(found, expected, rtol=2e-4, atol=2e-6)
    torch.testing.assert_close(compiled.sums, eager.sums, rtol=1e-4, atol=1e-5)


# Those that change after updates, and one that changes shapes; the others are compiled alone in
# tests/methods/test_layers.py.
LAYERS = {"lifecycle": SIMBA, "normalize_project": MLP, "rigl": SIMBA, "scheduled_drop": MLP}
LAYERS |= {"crelu": MLP}


@pytest.mark.usefixtures("aot_eager")
@pytest.mark.parametrize(("method", "trunk"), [slow(*row) for row in LAYERS.items()])
def test_layers_of_methods_in_critics_do_in_compiled_updates_what_they_do_in_eager_ones(
    method: str, trunk: dict[str, Any], agent: Callable[..., Any]
):
    layers = [{"method": method, "networks": ["critic"]}]
    expected, found = (
        everything(agent(6, accelerate=how, layers=layers, **trunk)) for how in ("off", "compile")
    )
    expected.pop("rest"), found.pop("rest")
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
@pytest.mark.usefixtures("aot_eager")
def test_a_learning_rate_that_falls_compiles_nothing_anew_for_any_number_of_agents(
    agent: Callable[..., Any],
):
    options = CARTPOLE | {"network": "mlp_small", "schedule": "linear", "lr": 0.01}
    with torch._dynamo.config.patch(recompile_limit=2):
        eager, *compiled = (agent(5, accelerate=how, **options) for how in ("off", *AGENTS))
    for made in compiled:
        assert made.updaters["q"].lr == eager.updaters["q"].lr < 0.01
        torch.testing.assert_close(
            made.online.state_dict(), eager.online.state_dict(), rtol=1e-4, atol=1e-6
        )


@pytest.mark.usefixtures("aot_eager")
def test_compiling_is_announced_and_its_seconds_are_logged_once(agent: Callable[..., Any]):
    made = agent(0, accelerate="compile", **CARTPOLE)
    while not made.owes():
        assert not made.about_to_compile
        made.step()
    assert made.about_to_compile
    advanced(made, 1)
    assert not made.about_to_compile
    assert made.metrics()["time/compile"] > 0
    advanced(made, 2)
    assert "time/compile" not in made.metrics()


@pytest.mark.usefixtures("aot_eager")
def test_state_loaded_later_is_what_compiled_updates_go_on_from(agent: Callable[..., Any]):
    options = CARTPOLE | {"network": "mlp_small", "accelerate": "compile"}
    made = agent(3, **options)
    (optimizer,) = made.networks["q"].optimizers
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))  # new tensors
    advanced(made, 6)
    assert same(everything(made), everything(agent(6, **options)))


@pytest.mark.usefixtures("aot_eager")
def test_an_update_that_does_not_compile_is_an_error_with_a_remedy(
    monkeypatch: pytest.MonkeyPatch, agent: Callable[..., Any]
):
    trace_alone(monkeypatch, no_compiler)
    with pytest.raises(
        ConfigError, match=r"'compile': the update cannot .*no g\+\+.*set it to off"
    ):
        agent(1, accelerate="compile", **CARTPOLE)


def no_compiler(graph: Any, inputs: Any, **options: Any) -> Any:
    raise RuntimeError("no g++")


def resolved(config: str, keys: dict[str, Any]) -> str:
    found: Any = read_config(config, keys).resolved()
    return found.agent.accelerate


LONG = {"total": "900k env_steps", "device": "cpu"}


@pytest.mark.parametrize(
    ("keys", "choice"),
    [
        ({}, "compile"),
        ({"optimizer.name": "adamw"}, "compile"),
        ({"hooks": [{"method": "fire", "at": "50%"}]}, "compile"),
        ({"total": f"{LEAST_UPDATES} updates"}, "compile"),
        ({"total": f"{LEAST_UPDATES - 1} updates"}, "off"),
        ({"replay_ratio": 0.01}, "off"),
        ({"optimizer.name": "sgd"}, "off"),
        ({"penalties": [{"method": "l2"}]}, "off"),
        ({"layers": [{"method": "layer_norm"}]}, "compile"),
        ({"layers": [{"method": "rigl"}]}, "off"),
        ({"hooks": [{"method": "persistent", "at": "50%"}]}, "compile"),
        ({"device": "cuda"}, "graph"),
        ({"device": "cuda", "total": "30k env_steps"}, "graph"),
        ({"device": "cuda", "optimizer.name": "rmsprop", "penalties": [{"method": "l2"}]}, "graph"),
        ({"device": "cuda", "optimizer.name": "trac"}, "off"),
        ({"agent.accelerate": "off"}, "off"),
        ({"total": "30k env_steps", "agent.accelerate": "compile"}, "compile"),
    ],
)
@pytest.mark.parametrize("config", ["dqn/minatar_breakout", "sac/pendulum"])
def test_auto_is_what_pays_for_a_run_on_its_device(config: str, keys: dict[str, Any], choice: str):
    assert resolved(config, LONG | keys) == choice


def test_auto_compiles_nothing_without_a_compiler(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert resolved("sac/pendulum", LONG) == "off"


def test_what_auto_chose_holds_for_a_longer_total_and_for_runs_that_go_on_from_it():
    first = read_config("sac/pendulum", {"total": "6k env_steps"}).resolved()
    again = read_config(parse_yaml(dump_config(first)), {"total": "900k env_steps"})
    branch: Any = read_config("sac/pendulum", LONG).resolved(first)
    assert first.agent.accelerate == again.agent.accelerate == branch.agent.accelerate == "off"


@pytest.mark.usefixtures("own_methods")
def test_on_a_gpu_what_a_user_wrote_runs_eagerly_after_a_prefix_of_graphs_too(
    monkeypatch: pytest.MonkeyPatch,
):
    name, _ = spy(lambda context: None)
    own = {"hooks": [{"method": name, "every": "1 updates", "from": "50%"}]}
    prefix, arm = (read_config("sac/pendulum", {"device": "cuda"} | keys) for keys in ({}, own))
    found: list[Any] = [arm.resolved(), prefix.resolved(), arm.resolved(prefix.resolved())]
    assert [config.agent.accelerate for config in found] == ["off", "graph", "off"]
    monkeypatch.setattr(compiled, "get_kind", lambda kind: SimpleNamespace(origin="a package"))
    assert resolved("sac/pendulum", {"device": "cuda"}) == "off"


def test_a_config_says_auto_until_its_run_starts():
    assert read_config("sac/pendulum", LONG).agent.accelerate == "auto"


@pytest.mark.usefixtures("aot_eager")
@pytest.mark.parametrize("why", ["a penalty", "an optimizer", "gradients read", "torch"])
def test_what_cannot_be_compiled_keeps_the_update_eager(
    why: str, agent: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
):
    if why == "torch":
        monkeypatch.setattr(agents, "compiles_updates", lambda: False)
    options = {"name": "sgd"} if why == "an optimizer" else {}
    made = agent(0, accelerate="compile", **CARTPOLE, **options)
    made.gradients_read = why == "gradients read"
    if why == "a penalty":
        config = dataclasses.replace(made.config, penalties=[{"method": "l2"}])
        made.penalties = Penalties(config.penalties, made.networks)
    advanced(made, 2)
    assert not made._whole


LARGE = {"batch_size": 256, "actor_width": 256, "critic_width": 256}
WIDE = {"batch_size": 64, "actor_width": 32, "critic_width": 32}


@pytest.mark.parametrize(
    ("network", "options", "cosine", "length"),
    [
        ("q", CARTPOLE | {"double": True}, 0.99, 0.05),
        ("q", BREAKOUT, 0.99, 0.05),
        ("actor", SIMBA | WIDE, 0.95, 0.15),
        ("critic", SIMBA | WIDE, 0.95, 0.15),
        ("actor", MLP | WIDE, 0.95, 0.15),
        ("critic", MLP | WIDE, 0.95, 0.15),
    ],
)
def test_bf16_losses_and_gradients_are_near_those_of_fp32(
    network: str,
    options: dict[str, Any],
    cosine: float,
    length: float,
    agent: Callable[..., Any],
):
    made = agent(5, **options)
    batch, loss_of = batch_of(made), getattr(made, LOSSES[network])
    loss, other, _ = loss_of(batch)
    expected = torch.cat([g.flatten() for g in gradients(made, network, loss)])
    own = dataclasses.replace(made.config.agent, precision="bf16")
    made.config = dataclasses.replace(made.config, agent=own)
    if network == "q":
        made.target.bfloat16()
    low, other_low, _ = loss_of(batch)
    found = torch.cat([g.flatten() for g in gradients(made, network, low)])
    assert (low.dtype, other_low.dtype, found.dtype) == (torch.float32,) * 3
    assert not same(low, loss)
    torch.testing.assert_close(low, loss, rtol=0.05, atol=0.05)
    torch.testing.assert_close(other_low, other, rtol=0.05, atol=0.05)
    assert torch.cosine_similarity(found, expected, dim=0) > cosine
    assert found.norm() == pytest.approx(float(expected.norm()), rel=length)


@pytest.mark.parametrize("options", [BREAKOUT, SIMBA, MLP], ids=["dqn", "simba", "mlp"])
def test_bf16_trains_with_fp32_weights_and_finite_sums(
    options: dict[str, Any], agent: Callable[..., Any]
):
    made = agent(12, precision="bf16", **options)
    state = everything(made)
    for name in made.networks:
        assert {t.dtype for t in state[name].values()} == {torch.float32}
        assert all(t.isfinite().all() for t in state[name].values())
    if "critic" in state:
        assert {t.dtype for t in state["target"].values()} == {torch.float32}
    assert made.sums.isfinite().all()
    assert len(made.play(0, 1).returns) == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")  # torch's own import
@pytest.mark.parametrize(
    ("options", "tolerance"),
    [
        (CARTPOLE | {"precision": "bf16"}, {"atol": 0.02, "rtol": 0.1}),
        (MLP | LARGE, {"atol": 1e-4, "rtol": 1e-3}),
    ],
    ids=["dqn bf16", "sac by oneDNN"],
)
def test_inductor_trains_like_eager(
    options: dict[str, Any],
    tolerance: dict[str, float],
    agent: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
):
    eager, compiled = (agent(20, accelerate=how, **options) for how in ("off", "compile"))
    assert eager.clock == compiled.clock
    for name, network in compiled.networks.items():
        mine, theirs = (list(n.module.parameters()) for n in (network, eager.networks[name]))
        torch.testing.assert_close(mine, theirs, **tolerance)
