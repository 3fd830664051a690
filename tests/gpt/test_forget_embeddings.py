"""Active forgetting, the shipped list of hooks: embeddings start anew and the body trains on."""

from typing import Any

import pytest
import torch
from torch import Tensor

from rlplast.core.network.network import Network
from rlplast.core.network.optim_state import optimizer_tensors
from rlplast.run import api
from rlplast.run.build import build
from rlplast.run.config_file import read_config
from tests.gpt.runs import plain

EVERY = 4


def config_of(corpora: dict[str, str]) -> dict[str, Any]:
    """A small run with the shipped list, which fires sooner."""
    own = plain(corpora) | {"metrics": {"every": None}, "evaluate": {"every": None}}
    (row,) = read_config(own, {"hooks": "gpt/hooks/forget_embeddings"}).hooks
    assert (row["method"], row["every"], row["layers"]) == ("full_reset", "1000 updates", ["wte"])
    return own | {"hooks": [dict(row) | {"every": f"{EVERY} updates"}]}


def state(network: Network) -> dict[str, Tensor]:
    tensors = {f"gpt.{b.name}": b.view.clone() for b in network.blocks}
    moments = {name: t.clone() for name, t in optimizer_tensors(network).items()}
    return tensors | moments


def test_a_firing_renews_embedding_and_tied_head_and_nothing_else(corpora: dict[str, str]) -> None:
    trainer, hooks = build(api.read_config(config_of(corpora)))
    network = trainer.networks["gpt"]
    module: Any = network.module
    fired, previous = [], trainer.clock
    for _ in range(2 * EVERY + 1):
        trainer.step()
        before = state(network)
        receipts = hooks.fire(previous, trainer.clock)
        previous, after = trainer.clock, state(network)
        changed = {name for name in before if not torch.equal(before[name], after[name])}
        if not receipts:
            assert not changed
            continue
        fired.append(trainer.clock.updates)
        assert changed == {n for n in before if n.partition(":")[0] == "gpt.wte.weight"}
        assert not any(after[n].any() for n in changed if ":" in n)  # moments and step count
        assert after["gpt.wte.weight"].std().item() == pytest.approx(0.02, rel=0.3)
        assert module.lm_head.weight is module.wte.weight
    assert fired == [EVERY, 2 * EVERY]
