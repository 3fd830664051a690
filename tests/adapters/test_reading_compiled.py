"""Methods that read activations of compiled models: units and records are the raw module's."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from rlplast.adapters.sb3 import HookCallback
from rlplast.adapters.sb3_networks import find_networks
from rlplast.core.errors import ConfigError
from tests.adapters.hosts import (
    NEVER,
    QUIET_LIGHTNING,
    REDO,
    RELU,
    Fit,
    begun,
    books,
    hook_callback,
    net,
    same,
    sb3_model,
)

pytestmark = [
    *QUIET_LIGHTNING,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:The .grad attribute"),  # torch.compile asks for it
]

BACKEND = "aot_eager"
# Resets at update 12 what is silent on the probe, and at every update it reads.
LIST = [NEVER, {"method": "redo", "at": "12 updates", "params": REDO["params"]}]


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def in_trainer(host: str) -> Callable[..., Any]:
    def run(folder: Path, compiled: bool) -> tuple[Any, nn.Module]:
        module, callback = net(), hook_callback(host, LIST)
        options = {"torch_compile": True, "torch_compile_backend": BACKEND}
        fit = Fit(host, folder, module, callback, **(options if host == "hf" and compiled else {}))
        if host == "lightning" and compiled:
            fit.module = torch.compile(fit.module, backend=BACKEND)
        fit.train()
        return callback, module

    return run


def in_sac(folder: Path, compiled: bool) -> tuple[Any, nn.Module]:
    model, callback = sb3_model("SAC", policy_kwargs=RELU), HookCallback(LIST)
    if compiled:
        model.critic.compile(backend=BACKEND)
    model.learn(40, callback=callback)
    assert find_networks(model)["critic"].units().groups
    return callback, model.policy


RUNS = {"hf": in_trainer("hf"), "lightning": in_trainer("lightning"), "sac": in_sac}


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_compiled_model_is_read_like_the_raw_one(run: Callable[..., Any], tmp_path: Path):
    eager, module = run(tmp_path, False)
    compiled, raw = run(tmp_path, True)
    assert same(dict(module.state_dict()), dict(raw.state_dict()))
    assert same(books(eager.driver), books(compiled.driver))
    assert [r.sfe for r in eager.receipts] == [r.sfe for r in compiled.receipts]
    assert any(r.method == "redo" for r in compiled.receipts)


def test_model_that_was_compiled_without_hooks_is_named_with_what_to_do():
    module = net()
    optimizer = torch.optim.Adam(module.parameters())
    compiled: Any = torch.compile(module, backend=BACKEND)

    def update() -> None:
        optimizer.zero_grad()
        compiled(torch.ones(2, 64)).sum().backward()
        optimizer.step()

    update()
    driver = begun([NEVER], compiled, optimizer)
    with pytest.raises(ConfigError, match=r"call torch\.compiler\.reset"):
        update()
    torch.compiler.reset()
    update()
    driver.detach()
    other = begun([NEVER], compiled, optimizer)  # hooks of its own on a compiled module
    update()
    assert books(other)["0/util/0"].any()
