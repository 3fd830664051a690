"""Toys that the id of every environment stands for, and what builds agents that play them."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.agents.toy_control import sac, use_slide
from tests.agents.toy_env import dqn, use_wheel


@pytest.fixture
def wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    use_wheel(monkeypatch)


@pytest.fixture
def slide(monkeypatch: pytest.MonkeyPatch) -> None:
    use_slide(monkeypatch)


@pytest.fixture(params=["discrete", "continuous"])
def toy(request: pytest.FixtureRequest) -> str:
    request.getfixturevalue({"discrete": "wheel", "continuous": "slide"}[request.param])
    return request.param


@pytest.fixture(params=["dqn", "sac"])
def make(request: pytest.FixtureRequest) -> Callable[..., Any]:
    request.getfixturevalue({"dqn": "wheel", "sac": "slide"}[request.param])
    return {"dqn": dqn, "sac": sac}[request.param]
