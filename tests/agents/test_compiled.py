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
from rlplast.core.network.record import Recorder
from rlplast.run.config_file import dump_config, read_config
from rlplast.training.config import parse_yaml
from tests.agents.test_blocks import LIFE
from tests.agents.test_simba_v2 import simba_v2
from tests.agents.toy_control import sac, use_slide
from tests.agents.toy_env import advanced, dqn, everything, ppo, same, trace_alone
from tests.core.method.spies import spy

SIMBA = {"network": "simba"}
MLP = {"network": "mlp", "log_std": "clamp", "log_std_min": -20.0, "normalize_obs": False}
CARTPOLE, BREAKOUT = {"env": "gym/CartPole-v1"}, {"env": "minatar/breakout", "double": True}
LOSSES = {"q": "td_loss", "actor": "actor_loss", "critic": "critic_loss"}


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    def build(updates: int, **options: Any) -> Any:
        if "env" in options:
            return advanced(dqn(2, **options), updates)
        use_slide(monkeypatch)
        return advanced(sac(**options), updates)

    return build


def batch_of(agent: Any) -> Any:
    (batch,) = agent._drawn(1)
    return agent._batch(batch)


def gradients(agent: Any, network: str, loss: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(agent.networks[network].module.parameters())))


@pytest.fixture
def aot_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    trace_alone(monkeypatch)


TIGHT, LOOSE = {"rtol": 2e-4, "atol": 2e-6}, {"rtol": 1e-3, "atol": 2e-5}  # moments amplify
WHOLE: dict[str, tuple[Any, dict[str, Any], dict[str, float]]] = {
    "dqn, pictures": (dqn, BREAKOUT | {"name": "adamw", "weight_decay": 0.1}, TIGHT),
    "mlp": (sac, MLP | {"clip_norm": 0.5}, TIGHT),
    "sac, own": (sac, {"network": "tests.agents.own_sac_nets:mlp"}, TIGHT),
    "simba_v2": (simba_v2, {"lr": 1e-3}, LOOSE),  # and bins
    "ppo, shared": (ppo, {"shared_trunk": True}, LOOSE),
    # Its layers change after updates; others are compiled alone in tests/methods/test_layers.py.
    "lifecycle": (sac, SIMBA | {"layers": [LIFE]}, LOOSE),
}


def trained(name: str, how: str, reads: bool = False) -> tuple[Any, list[dict[str, Any]]]:
    """Return an agent after some updates, and the activations that were recorded in each."""
    make, options, _ = WHOLE[name]
    made, found = make(num_envs=2, accelerate=how, **options), []
    named = made.networks.items() if reads else ()
    made.recorders = {n: Recorder(net, on=False) for n, net in named if net.units().points()}
    made.after_update = lambda clock, activations: found.append(activations)
    return advanced(made, 24 if make is ppo else 9), found


@pytest.mark.slow
@pytest.mark.usefixtures("aot_eager")
@pytest.mark.parametrize("name", WHOLE)
def test_whole_updates_do_what_eager_code_does(name: str, monkeypatch: pytest.MonkeyPatch):
    _, options, tolerance = WHOLE[name]
    if "env" not in options:
        use_slide(monkeypatch)
    (eager, _), (compiled, seen) = (trained(name, how) for how in ("off", "compile"))
    assert compiled._whole and not any(seen[0].values())
    expected, found = everything(eager), everything(compiled)
    expected.pop("rest"), found.pop("rest")
    torch.testing.assert_close(found, expected, **tolerance)
    torch.testing.assert_close(compiled.sums, eager.sums, rtol=1e-3, atol=1e-4)
    if name in ("sac, own", "ppo, shared"):  # activations that are read change no bit
        (_, expected), (read, found) = (
            trained(name, how, reads=True) for how in ("off", "compile")
        )
        assert same(everything(read), everything(compiled))
        assert all(found[0].get(network) for network in read.recorders)
        torch.testing.assert_close(found[:2], expected[:2], **tolerance)


@pytest.mark.slow
@pytest.mark.usefixtures("aot_eager")
def test_a_falling_learning_rate_compiles_nothing_anew(agent: Callable[..., Any]):
    options = CARTPOLE | {"network": "mlp_small", "schedule": "linear", "lr": 0.01}
    with torch._dynamo.config.patch(recompile_limit=2):
        eager, *compiled = (
            agent(5, accelerate=how, **options) for how in ("off", *["compile"] * 3)
        )
    for made in compiled:
        assert made.updaters["q"].lr == eager.updaters["q"].lr < 0.01
        torch.testing.assert_close(
            made.online.state_dict(), eager.online.state_dict(), rtol=1e-4, atol=1e-6
        )


@pytest.mark.usefixtures("aot_eager")
def test_compiling_is_announced_and_reads_state_loaded_later(agent: Callable[..., Any]):
    options = CARTPOLE | {"network": "mlp_small", "accelerate": "compile"}
    made = agent(0, **options)
    while not made.owes():
        assert not made.about_to_compile
        made.step()
    assert made.about_to_compile
    advanced(made, 3)
    assert not made.about_to_compile
    assert made.metrics()["time/compile"] > 0
    (optimizer,) = made.networks["q"].optimizers
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))  # new tensors
    advanced(made, 6)
    assert "time/compile" not in made.metrics()
    other = agent(6, **options)
    other.metrics()
    assert same(everything(made), everything(other))


@pytest.mark.usefixtures("aot_eager")
def test_no_compiler_is_an_error(monkeypatch: pytest.MonkeyPatch, agent: Callable[..., Any]):
    trace_alone(monkeypatch, no_compiler)
    with pytest.raises(ConfigError, match=r"no g\+\+"):
        agent(1, accelerate="compile", **CARTPOLE)


def no_compiler(graph: Any, inputs: Any, **options: Any) -> Any:
    raise RuntimeError("no g++")


def resolved(config: str, keys: dict[str, Any]) -> str:
    found: Any = read_config(config, keys).resolved()
    return found.agent.accelerate


LONG = {"total": "900k env_steps", "device": "cpu"}
ON_A_GPU = {"device": "cuda"}


@pytest.mark.parametrize("config", ["dqn/minatar_breakout", "sac/pendulum"])
def test_auto_is_what_pays_for_a_run_on_its_device(config: str, monkeypatch: pytest.MonkeyPatch):
    for choice, keys in (
        ("compile", {}),
        ("compile", {"optimizer.name": "adamw"}),
        ("compile", {"hooks": [{"method": "persistent", "at": "50%"}]}),
        ("compile", {"total": f"{LEAST_UPDATES} updates"}),
        ("off", {"total": f"{LEAST_UPDATES - 1} updates"}),
        ("off", {"replay_ratio": 0.01}),
        ("off", {"optimizer.name": "sgd"}),
        ("off", {"penalties": [{"method": "l2"}]}),
        ("compile", {"layers": [{"method": "layer_norm"}]}),
        ("off", {"layers": [{"method": "rigl"}]}),
        ("graph", ON_A_GPU),
        ("graph", ON_A_GPU | {"total": "30k env_steps"}),
        ("graph", ON_A_GPU | {"optimizer.name": "rmsprop", "penalties": [{"method": "l2"}]}),
        ("off", ON_A_GPU | {"optimizer.name": "trac"}),
        ("off", {"agent.accelerate": "off"}),
        ("compile", {"total": "30k env_steps", "agent.accelerate": "compile"}),
    ):
        assert resolved(config, LONG | keys) == choice, keys
    # What was chosen holds for a longer total and for runs that go on from it.
    first = read_config(config, {"total": "6k env_steps", "device": "cpu"}).resolved()
    again = read_config(parse_yaml(dump_config(first)), {"total": "900k env_steps"})
    branch: Any = read_config(config, LONG).resolved(first)
    assert first.agent.accelerate == again.agent.accelerate == branch.agent.accelerate == "off"
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert resolved(config, LONG) == "off"


@pytest.mark.usefixtures("own_methods")
def test_on_a_gpu_what_a_user_wrote_runs_eagerly(monkeypatch: pytest.MonkeyPatch):
    name, _ = spy(lambda context: None)
    own = {"hooks": [{"method": name, "every": "1 updates", "from": "50%"}]}
    prefix, arm = (read_config("sac/pendulum", ON_A_GPU | keys) for keys in ({}, own))
    found: list[Any] = [arm.resolved(), prefix.resolved(), arm.resolved(prefix.resolved())]
    assert [config.agent.accelerate for config in found] == ["off", "graph", "off"]
    monkeypatch.setattr(compiled, "get_kind", lambda kind: SimpleNamespace(origin="a package"))
    assert resolved("sac/pendulum", ON_A_GPU) == "off"


@pytest.mark.usefixtures("aot_eager")
def test_what_does_not_compile_stays_eager(
    agent: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
):
    for why in ("a penalty", "an optimizer", "gradients read", "torch"):
        if why == "torch":
            monkeypatch.setattr(agents, "compiles_updates", lambda: False)
        options = {"name": "sgd"} if why == "an optimizer" else {}
        made = agent(0, accelerate="compile", **CARTPOLE, **options)
        made.gradients_read = why == "gradients read"
        if why == "a penalty":
            made.penalties = Penalties([{"method": "l2"}], made.networks)
        advanced(made, 2)
        assert not made._whole, why


WIDE = {"batch_size": 64, "actor_width": 32, "critic_width": 32}


@pytest.mark.parametrize(
    ("networks", "options", "cosine", "length"),
    [(["q"], BREAKOUT, 0.99, 0.05), (["actor", "critic"], SIMBA | WIDE, 0.95, 0.15)],
    ids=["breakout", "simba"],
)
def test_bf16_losses_and_gradients_are_near_those_of_fp32_and_train_its_weights(
    networks: list[str],
    options: dict[str, Any],
    cosine: float,
    length: float,
    agent: Callable[..., Any],
):
    made = agent(5, **options)
    batch, found = batch_of(made), {}
    own = dataclasses.replace(made.config.agent, precision="bf16")
    for config in (made.config, dataclasses.replace(made.config, agent=own)):
        made.config = config
        if "q" in networks and config.agent.precision == "bf16":
            made.target.bfloat16()
        for network in networks:
            loss, other, _ = getattr(made, LOSSES[network])(batch)
            gradient = torch.cat([g.flatten() for g in gradients(made, network, loss)])
            found.setdefault(network, []).append((loss, other, gradient))
    for (loss, other, expected), low in found.values():
        assert {value.dtype for value in low} == {torch.float32}
        assert not same(low[0], loss)
        torch.testing.assert_close(low[:2], (loss, other), rtol=0.05, atol=0.05)
        assert torch.cosine_similarity(low[2], expected, dim=0) > cosine
        assert low[2].norm() == pytest.approx(float(expected.norm()), rel=length)
    made = agent(12, precision="bf16", **options)
    state = everything(made)
    for name in (*made.networks, *(["target"] if "critic" in state else [])):
        assert {t.dtype for t in state[name].values()} == {torch.float32}
        assert all(t.isfinite().all() for t in state[name].values())
    assert made.sums.isfinite().all()
    assert len(made.play(0, 1).returns) == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")  # torch's own import
def test_inductor_trains_like_eager(agent: Callable[..., Any]):
    large = {"batch_size": 256, "actor_width": 256, "critic_width": 256}  # by oneDNN
    eager, compiled = (agent(9, accelerate=how, **MLP, **large) for how in ("off", "compile"))
    assert eager.clock == compiled.clock
    for name, network in compiled.networks.items():
        mine, theirs = (list(n.module.parameters()) for n in (network, eager.networks[name]))
        torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-3)
