"""Classifiers and GPTs on the command line: what they print, and what a user may get wrong."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.commands import Outcome, command
from tests.supervised_runs import small_supervised

GPT: dict[str, Any] = {
    "kind": "gpt",
    "device": "cpu",
    "model": {"layers": 1, "heads": 1, "width": 8, "context": 16, "vocab_size": 256},
    "corpora": {"stdlib": "embedded/stdlib"},
    "phases": [{"updates": 3, "mixture": {"stdlib": 1}}],
    "batch_size": 2,
    "evaluate": {"batches": 1},
    "log": {"to": []},
}


def train(folder: Path, config: dict[str, Any]) -> Outcome:
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(config))
    return command("train", path, "--out", folder / "run")


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("classifier")
    done = train(folder, small_supervised())
    assert done.code == 0, done.err
    return folder / "run", done.out


def test_a_classifier_is_evaluated_measured_and_drawn(classifier):
    run, out = classifier
    assert "evaluation after 40 updates: accuracy 0." in out
    found = command("evaluate", run)
    assert found.code == 0
    assert out.split("accuracy ")[1].split(",")[0] in found.out and "ece" in found.out
    for option in (["--episodes", 3], ["--video", "x.gif"]):
        refused = command("evaluate", run, *option)
        assert refused.code == 2 and "kind supervised plays no episodes" in refused.err
    assert "nothing to resume" in command("resume", run).err
    weights = sorted((run / "checkpoints").iterdir(), key=lambda p: int(p.name.split("-")[1]))
    assert command("evaluate", run, "--checkpoint", weights[0].name).out != found.out
    refused = command("evaluate", run, "--checkpoint", "step-7777")
    assert (refused.code, "checkpoint = 'step-7777' is not in" in refused.err) == (2, True)
    assert "has no best checkpoint" in command("evaluate", run, "--checkpoint", "best").err
    measured = command("measure", weights[-1] / "tensors.safetensors")
    assert measured.code == 0
    assert "weight" in measured.out and ":exp_avg" not in measured.out


def test_a_gpt_is_evaluated_and_starts_none_with_another_number_of_heads(tmp_path):
    done = train(tmp_path, GPT)
    assert done.code == 0, done.err
    assert "evaluation after 3 updates: stdlib/loss 5." in done.out
    assert "stdlib/loss" in command("evaluate", tmp_path / "run").out
    (tmp_path / "second").mkdir()
    model, start = GPT["model"] | {"heads": 2}, {"run": str(tmp_path / "run")}
    refused = train(tmp_path / "second", GPT | {"model": model, "start": start})
    assert refused.code == 2
    assert "has model.heads = 1: allowed is the same, not 2" in refused.err


def test_a_gpt_is_not_resumed_on_another_corpus(tmp_path):
    text = tmp_path / "text.txt"
    for words in ("one two three four ", "five six seven eight "):
        text.write_text(words * 50)
        if (tmp_path / "corpus").exists():
            shutil.rmtree(tmp_path / "corpus")
        assert command("tokens", text, "--out", tmp_path / "corpus").code == 0
        if not (tmp_path / "run").exists():
            corpora = {"stdlib": str(tmp_path / "corpus")}
            assert train(tmp_path, GPT | {"corpora": corpora, "total": "2 updates"}).code == 0
    refused = command("resume", tmp_path / "run", "--total", "3 updates")
    assert refused.code == 2
    assert "corpora.stdlib: the data are not those" in refused.err
