"""The device of a run: decided when it starts, recorded, and kept by a resume unless told."""

import json
from pathlib import Path
from typing import Any

import pytest

from rlplast.core.errors import ConfigError
from rlplast.run import api
from rlplast.run.config_file import read_config
from tests.runs import TINY

GPU = {"type": "cuda", "name": "NVIDIA H100", "driver": "580.1", "cuda": "13.0", "cudnn": 91000}


def info(run: Path) -> dict[str, Any]:
    return json.loads((run / "run.json").read_text())


def began_on_a_gpu(run: Path, **agent: str) -> None:
    config = (run / "config.yaml").read_text().replace("device: cpu", "device: cuda")
    for key, value in agent.items():
        config = config.replace(f"  {key}: 'off'", f"  {key}: {value}")
    (run / "config.yaml").write_text(config)
    (run / "run.json").write_text(json.dumps(info(run) | {"devices": [GPU]}))


def test_a_resume_without_the_gpu_of_a_run_is_refused(killed: Path) -> None:
    began_on_a_gpu(killed)
    with pytest.raises(ConfigError, match=rf"sees 0 CUDA devices.* resume {killed} --device cpu"):
        api.resume(killed)


def test_a_run_of_a_gpu_is_evaluated_elsewhere_and_moves_if_told_so(killed: Path) -> None:
    assert read_config(killed / "config.yaml", {}).device == "cpu"  # decided when it started
    assert info(killed)["devices"] == [{"type": "cpu"}]
    began_on_a_gpu(killed, accelerate="graph")
    assert api.load(killed).evaluate(episodes=1)["episodes"] == 1  # where there is none
    assert read_config(killed / "config.yaml", {}).agent.accelerate == "graph"
    messages: list[str] = []
    moved: Any = api.resume(killed, report=messages.append, device="cpu").config
    assert any(f"{killed} goes on on cpu, it was on NVIDIA H100" in said for said in messages)
    assert info(killed)["devices"] == [GPU, {"type": "cpu"}]
    kept: Any = read_config(killed / "config.yaml", {})
    assert kept.device == moved.device == "cpu"
    assert kept.agent.accelerate == moved.agent.accelerate == "off"  # a CPU has no graphs


def test_what_goes_on_from_a_run_keeps_its_device() -> None:
    parent = read_config(TINY, {"device": "cuda:1"})
    assert read_config(TINY, {"device": "auto"}).resolved(parent).device == "cuda:1"
    assert read_config(TINY, {"device": "cpu"}).resolved(parent).device == "cpu"
