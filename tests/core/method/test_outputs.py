"""What networks say of a batch, as every kind of trainer tells it."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rlplast.core.errors import ConfigError
from rlplast.core.method.readings import OwnSource
from rlplast.core.network.network import Network
from rlplast.core.network.record import WithWeights
from rlplast.run.build import build_trainable
from rlplast.run.config_file import read_config
from tests.every_kind import KINDS, small_run
from tests.gpt.runs import write_corpora
from tests.models import build, data


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return write_corpora(tmp_path_factory.mktemp("corpora"))


def everything(made: Any) -> list[Tensor]:
    return [t.clone() for n in made.networks.values() for t in n.module.state_dict().values()]


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_are_what_the_module_or_another_says_and_nothing_moves(
    kind: str, corpora: dict[str, str]
) -> None:
    made: Any = build_trainable(read_config(small_run(kind, corpora, hooks=[])))
    while made.clock.updates < 2:
        made.step()
    batch = made.sample(5, 1)
    if kind == "sac":
        obs, action = batch.transitions.obs, batch.transitions.action
        obs = made.statistics.normalise(obs)
        critic = torch.stack(list(made.critic(obs, action)), dim=1)
        expected = {"actor": made.actor(obs)[0], "critic": critic}
        assert made.outputs("temperature", batch) is None
    elif kind == "dqn":
        expected = {"q": made.online(batch.obs)}
    elif kind == "ppo":
        expected = {"actor": made.actor(batch.obs), "critic": made.critic(batch.obs)}
    elif kind == "supervised":
        expected = {"model": made.predict(batch.x)}
    else:
        expected = {"gpt": made.gpt(batch[:, :-1])[:, -1]}
    for name, values in expected.items():
        found = made.outputs(name, batch)
        assert found.shape == values.shape and len(found) == 5
        torch.testing.assert_close(found, values)
        network = made.networks[name]
        assert torch.autograd.grad(found.square().sum(), [network.blocks[0].param])
        other = copy.deepcopy(network.module)
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.add_(0.1)
        network.module.train(True)
        before, random = everything(made), torch.get_rng_state()
        changed = made.outputs(name, batch, other)
        named = {n: p.detach() for n, p in other.named_parameters()}
        again = made.outputs(name, batch, WithWeights(network.module, named))
        torch.testing.assert_close(again, changed)
        assert not torch.allclose(found, changed)
        assert all(map(torch.equal, before, everything(made)))
        assert torch.equal(random, torch.get_rng_state())
        assert all(module.training for module in network.module.modules())


def test_a_tied_tensor_is_given_once() -> None:
    module, (x, _) = build("tied"), data("tied")
    other = copy.deepcopy(module)
    with torch.no_grad():
        other.embed.weight.mul_(2)  # type: ignore[operator, union-attr]
    given = {n: p.detach() for n, p in other.named_parameters()}
    assert list(given) == ["embed.weight", "fc.weight", "fc.bias"]
    torch.testing.assert_close(WithWeights(module, given)(x), other(x))


class Speaks(nn.Module):
    """A model that returns something."""

    def __init__(self, wrap: Any) -> None:
        super().__init__()
        self.fc, self.drop, self.wrap = nn.Linear(3, 2), nn.Dropout(0.5), wrap

    def forward(self, x: Tensor) -> Any:
        return self.wrap(self.drop(self.fc(x)))


def test_own_loops_give_what_the_model_returns_in_evaluation_mode() -> None:
    for wrap in (lambda y: y, lambda y: {"loss": 0, "logits": y}, lambda y: (y, y)):
        module = Speaks(wrap)
        own = OwnSource({"net": Network("net", module)}, lambda size, g: torch.ones(size, 3))
        batch = own.sample(4, 0)
        if isinstance(wrap(0), tuple):
            with pytest.raises(ConfigError, match="'net'"):
                own.outputs("net", batch)
            continue
        torch.testing.assert_close(own.outputs("net", batch), module.fc(torch.ones(4, 3)))
        assert module.drop.training
