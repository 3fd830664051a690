"""What methods read besides weights: where it comes from, and that reading moves nothing."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rlplast
from rlplast.core.clock import Clock
from rlplast.core.errors import ConfigError
from rlplast.core.method.context import Context
from rlplast.core.method.hooks import Hooks
from rlplast.core.network.network import Network
from rlplast.core.rng import preserve_global_rng
from tests.core.method.spies import spy
from tests.core.toy import Toy
from tests.models import assert_same, build, loss_of, subject

AT = {"at": "50%"}


EVERY = {"every": "1 updates"}


pytestmark = pytest.mark.usefixtures("own_methods")


def inputs(size: int, generator: torch.Generator) -> Tensor:
    return torch.randn(size, 5, generator=generator)


def activations_of(module: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """Return the activations of the family mlp, by hand."""
    with torch.no_grad():
        first = module.get_submodule("0")(x).relu()
        return {"0": first, "2": module.get_submodule("2")(first).relu()}


def same(left: Any, right: Any) -> bool:
    return left.keys() == right.keys() and all(torch.equal(t, right[n]) for n, t in left.items())


def hooks_of(name: str, networks: Any, schedule: dict[str, Any] = AT, **options: Any) -> Hooks:
    return Hooks([{"method": name, **schedule}], networks, "10 updates", **options)


def fired(name: str, networks: Any, schedule: dict[str, Any] = AT, **options: Any) -> None:
    """Drive one scheduled hook over some updates without training."""
    hooks = hooks_of(name, networks, schedule, **options)
    for update in range(1, 10):
        hooks.step(updates=update)


def test_activations_of_a_scheduled_firing_are_those_of_its_probe() -> None:
    drawn: list[Tensor] = []

    def probe(size: int, generator: torch.Generator) -> Tensor:
        drawn.append(inputs(size, generator))
        return drawn[-1]

    made = subject("mlp")
    name, seen = spy(lambda context: (context.activations, context.activations), "activations")
    fired(name, made.network, probe=probe)
    [(first, again)] = seen
    assert first is again and len(drawn) == 1  # drawn and computed once, however often it is read
    assert drawn[0].shape == (5, 5)
    assert same(first, activations_of(made.module, drawn[0]))
    assert not any(t.requires_grad for t in first.values())
    fired(name, made.network, probe=made.x)  # a probe may be a batch
    assert same(seen[1][0], activations_of(made.module, made.x))
    fired(name, made.network, AT | {"params": {"probe": 7}}, probe=inputs)
    assert seen[2][0]["0"].shape == (7, 6)
    idle, _ = spy(lambda context: None, "activations", "gradients", "batches")
    both, _ = spy(lambda c: (c.gradients, c.activations), "activations", "gradients")
    for reader in (idle, both):
        fired(reader, made.network, probe=probe, loss=lambda x: made.module(x).sum())
    assert len(drawn) == 2  # nothing is computed that is not read, and one batch serves both
    networks = {n: Network(n, build("mlp")) for n in ("a", "b")}
    probes = {"a": torch.ones(2, 5), "b": torch.zeros(3, 5)}
    fired(name, networks, probe=probes)
    assert [found["0"].shape[0] for found, _ in seen[3:]] == [2, 3]
    with pytest.raises(ConfigError, match="'b'"):
        fired(name, networks, probe={"a": torch.ones(2, 5)})


def test_batches_are_of_the_firings_stream_and_a_probe_moves_the_global_one_not() -> None:
    look = lambda c: {"batches": [[b[""] for b in c.batches(2, size=4)] for _ in range(2)]}  # noqa: E731
    network, (name, seen) = subject("mlp").network, spy(look, "batches")
    fired(name, network, probe=inputs)
    (first, second), again = seen[0]["batches"]
    assert first.shape == (4, 5) and not torch.equal(first, second)
    assert all(map(torch.equal, (first, second), again))
    reader, _ = spy(lambda context: context.activations, "activations")
    with preserve_global_rng():
        before = torch.get_rng_state()
        for method in (name, reader):
            fired(method, network, probe=lambda size, generator: torch.randn(size, 5))
            assert torch.equal(torch.get_rng_state(), before), method
    assert len(seen) == 2


def test_models_of_several_arguments_get_them_all() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.head = nn.Linear(3, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor, scale: Tensor) -> Tensor:
            return self.head(self.a(x).tanh()) * scale

    module, x, scale = Two(), torch.ones(2, 3), torch.tensor(2.0)
    name, seen = spy(
        lambda context: (context.activations, context.gradients), "activations", "gradients"
    )
    batches: list[tuple[Any, Any]] = [
        ((x, scale), lambda given: module(*given).sum()),
        ({"x": x, "scale": scale}, lambda given: module(**given).sum()),
    ]
    for batch, loss in batches:
        fired(name, Network("net", module), probe=batch, loss=loss)
        found, gradients = seen[-1]
        assert torch.equal(found["a"], module.a(x).tanh())
        assert torch.equal(gradients["head.bias"], torch.full((2,), 4.0))


def test_each_firing_draws_its_probe_from_a_stream_of_its_own() -> None:
    name, seen = spy(lambda context: context.activations["0"], "activations")

    def probes(seed: int, network: str = "net") -> set[tuple[float, ...]]:
        seen.clear()
        made = Network(network, subject("mlp").module)
        fired(name, made, {"every": "3 updates"}, seed=seed, probe=inputs)
        return {tuple(t.flatten().tolist()) for t in seen}

    first = probes(0)
    assert len(first | probes(1) | probes(0, "other")) == 9
    assert probes(0) == first


def test_gradients_are_those_of_the_loss_on_the_probe_and_leave_no_trace() -> None:
    made = subject("conv_batchnorm")

    def loss(batch: Tensor) -> Tensor:
        return made.module(batch).square().mean()

    name, seen = spy(lambda context: (context.gradients, context.gradients), "gradients")
    before, held = made.snapshot(), [p.grad for p in made.module.parameters()]
    fired(name, made.network, probe=made.x, loss=loss)
    [(first, again)] = seen
    assert first is again
    twin = copy.deepcopy(made.module).eval()
    loss_in_eval = twin(made.x).square().mean()
    parameters = dict(twin.named_parameters())
    expected = torch.autograd.grad(loss_in_eval, list(parameters.values()))
    assert same(first, dict(zip(parameters, expected, strict=True)))
    assert_same(before, made.snapshot())  # running statistics too
    assert all(p.grad is g for p, g in zip(made.module.parameters(), held, strict=True))
    assert all(m.training for m in made.module.modules())


def test_gradients_come_once_per_tie_and_of_what_trains() -> None:
    name, seen = spy(lambda context: context.gradients, "gradients")
    tied = subject("tied")
    fired(name, tied.network, probe=tied.x, loss=lambda x: loss_of(tied.module, x, tied.y))
    assert seen[0].keys() == {"embed.weight", "fc.weight", "fc.bias"}
    frozen = subject("mlp")
    frozen.module.get_submodule("0").requires_grad_(False)
    bias = frozen.module.get_parameter("2.bias")

    def loss(x: Tensor) -> Tensor:
        return frozen.module(x)[:, :0].sum() + bias.sum()

    fired(name, frozen.network, probe=frozen.x, loss=loss)
    assert seen[1]["2.bias"].tolist() == [1.0] * 6
    assert not any(n.startswith("0.") for n in seen[1])


def test_gradients_on_a_batch_in_training_mode_move_no_statistics_and_no_stream() -> None:
    module = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 2))
    network = Network("net", module, torch.optim.SGD(module.parameters(), lr=0.1))

    def look(context: Context) -> Any:
        [batch] = context.batches(1, size=8)
        return {mode: context.gradients_on(batch, train=mode) for mode in (True, False)}

    name, seen = spy(look, "batches")
    before = {n: t.clone() for n, t in module.state_dict().items()}
    with preserve_global_rng():
        torch.manual_seed(3)
        state = torch.get_rng_state()
        fired(name, network, probe=inputs, loss=lambda x: module(x).square().sum())
        assert torch.equal(torch.get_rng_state(), state)
    assert_same(before, dict(module.state_dict()))
    assert all(m.training for m in module.modules())
    training, evaluating = seen[0][True], seen[0][False]
    assert training.keys() == evaluating.keys() == dict(module.named_parameters()).keys()
    assert not torch.equal(training["3.weight"], evaluating["3.weight"])


def test_activations_inside_an_update_are_those_it_was_given() -> None:
    made = subject("mlp")
    name, seen = spy(lambda context: (context.activations, context.inside), "activations")
    hooks = hooks_of(name, made.network, EVERY)
    assert hooks.recorded() == {"net"}
    for update in (1, 2):
        made.optimizer.zero_grad()
        expected = activations_of(made.module, made.x)
        with rlplast.record(made.network) as found:
            loss = loss_of(made.module, made.x, made.y)
        loss.backward()
        made.optimizer.step()
        hooks.step(updates=update, activations=found)
        activations, inside = seen[-1]
        assert inside and same(activations, expected)
    assert len(seen) == 2
    networks = {n: Network(n, build("mlp")) for n in ("a", "b")}
    given = {n: activations_of(w.module, made.x) for n, w in networks.items()}
    hooks = hooks_of(name, networks, EVERY)
    hooks.step(updates=1, activations=given)
    hooks.step(updates=2, activations=given | {"b": {}})  # b made no update this time
    assert [found is given[n] for n, (found, _) in zip("aba", seen[2:], strict=True)] == [True] * 3


def test_gradients_inside_an_update_are_the_ones_it_used() -> None:
    made = subject("stacked")
    name, seen = spy(lambda context: context.gradients, "gradients")
    hooks = hooks_of(name, made.network, EVERY)
    assert hooks.recorded() == frozenset()
    made.update()
    hooks.step(updates=1)
    for block in made.network.trainable():
        assert block.param.grad is not None
        assert torch.equal(seen[0][block.name], block.like(block.param.grad))
    left, *others = made.network.trainable()
    left.param.grad = None
    hooks.step(updates=2)
    assert left.name not in seen[1] and others[-1].name in seen[1]
    made.optimizer.zero_grad(set_to_none=True)
    with pytest.raises(ConfigError, match="before zero_grad"):
        hooks.step(updates=3)
    assert hooks.clock == Clock(updates=2) and len(seen) == 2


class Empty(Toy):
    def sample(self, size: int, number: int) -> Any:
        return None


def test_what_a_reader_lacks_or_did_not_declare_is_named() -> None:
    network = subject("mlp").network
    for what in ("activations", "gradients", "batches"):
        name, _ = spy(lambda context: None, what)
        with pytest.raises(ConfigError, match=rf"{what}: pass probe="):
            hooks_of(name, network)
        hooks_of(name, network, probe=inputs, loss=torch.sum)
        if what == "batches":
            with pytest.raises(ConfigError, match="batches"):  # not inside every update
                hooks_of(name, network, EVERY, probe=inputs)
        if what == "gradients":
            for loss in (None, {"other": torch.sum}):
                with pytest.raises(ConfigError, match=r"'net'.*loss="):
                    hooks_of(name, network, probe=inputs, loss=loss)
    made = subject("mlp")
    name, _ = spy(lambda context: context.gradients, "gradients")
    losses: list[Any] = [lambda y: 0.5, lambda y: y.sum(1), lambda y: y.detach().sum()]
    for loss in losses:
        with pytest.raises(ConfigError, match=rf"\({name}\), network 'net'"):
            fired(name, made.network, probe=made.x, loss=lambda x, loss=loss: loss(made.module(x)))
    endless, _ = spy(lambda context: list(context.batches()), "batches")
    with pytest.raises(ConfigError, match="batches = None"):
        fired(endless, network, probe=inputs)
    with pytest.raises(ConfigError, match="'activation'"):
        spy(lambda context: None, "activation")
    looks: dict[str, Any] = {
        "activations": lambda context: context.activations,
        "gradients": lambda context: context.gradients,
        "moments": lambda context: context.moments(context.blocks[0]),
        "batches": lambda context: context.batches(1),
    }
    for what, look in looks.items():
        name, _ = spy(look)
        for schedule in (AT, EVERY):
            with pytest.raises(ConfigError, match=f"reads '{what}'"):
                fired(name, network, schedule, probe=inputs)
    name, _ = spy(lambda context: context.activations, "activations")
    fine = torch.ones(3, 6)
    for given, says in (
        (None, "pass activations="),
        (5, "int"),
        ({"net": [1]}, "'net' have list for 0"),
        ({"0": fine}, "NoneType for 2"),
        ({"0": torch.ones(3, 7), "2": fine}, r"\(3, 7\) for 0"),
    ):
        with pytest.raises(ConfigError, match=says):
            hooks_of(name, network, EVERY).step(updates=1, activations=given)
    toy = Empty()
    with pytest.raises(ConfigError, match=rf"\({name}\) reads a probe batch and there are no data"):
        fired(name, toy.networks, source=toy)


def test_a_context_says_where_the_run_is_and_draws_the_same_again() -> None:
    def look(context: Context) -> Any:
        draws = [torch.rand(3, generator=context.stream()) for _ in range(2)]
        assert torch.equal(*draws)
        return context.clock, context.due_count, context.seed, context.inside, draws[0]

    name, seen = spy(look)
    hooks = hooks_of(name, subject("mlp").network, {"every": "2 updates"})
    for update in (1, 2, 7):
        hooks.step(updates=update)
    assert [s[:2] for s in seen] == [(Clock(updates=2), 1), (Clock(updates=7), 2)]
    assert seen[0][2] == seen[1][2] != 0
    assert not seen[0][3]
    assert not torch.equal(seen[0][4], seen[1][4])
