"""Classifiers and GPTs on the command line: what they print, and what a user may get wrong."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.commands import Outcome, command
from tests.supervised.published import write_cifar, write_mnist
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


def test_a_classifiers_end_is_told_and_drawn(classifier):
    run, out = classifier
    assert "evaluation after 40 updates: accuracy 0." in out
    assert (run / "plot.png").stat().st_size > 10_000


def test_evaluate_prints_the_scores_on_data_held_out(classifier):
    run, out = classifier
    accuracy = out.split("accuracy ")[1].split(",")[0]
    found = command("evaluate", run)
    assert found.code == 0
    assert accuracy in found.out
    assert "ece" in found.out


def test_a_classifier_plays_no_episodes(classifier):
    for option in (["--episodes", 3], ["--video", "x.gif"]):
        refused = command("evaluate", classifier[0], *option)
        assert refused.code == 2
        assert "kind supervised plays no episodes" in refused.err


def test_resume_of_a_run_that_is_done_says_so(classifier):
    assert "nothing to resume" in command("resume", classifier[0]).err


def test_a_gpt_is_trained_and_evaluated(tmp_path):
    done = train(tmp_path, GPT)
    assert done.code == 0, done.err
    assert "evaluation after 3 updates: stdlib/loss 5." in done.out
    assert "stdlib/loss" in command("evaluate", tmp_path / "run").out


def test_metrics_of_a_checkpoint_are_measured(classifier):
    weights = max((classifier[0] / "checkpoints").glob("step-*/tensors.safetensors"))
    found = command("measure", weights)
    assert found.code == 0
    assert "weight" in found.out and ":exp_avg" not in found.out


# Bad input.


def no_folder(folder: Path) -> dict[str, Any]:
    return {"name": "cifar10", "folder": str(folder / "nowhere")}


def truncated(folder: Path) -> dict[str, Any]:
    write_cifar(folder / "data", "cifar10")
    (file,) = (folder / "data").rglob("data_batch_2.bin")
    file.write_bytes(file.read_bytes()[:-5])
    return {"name": "cifar10", "folder": str(folder / "data")}


def wrong_shape(folder: Path) -> dict[str, Any]:
    write_mnist(folder / "data")
    (file,) = (folder / "data").rglob("train-labels*")
    (images,) = (folder / "data").rglob("train-images*")
    file.write_bytes(images.read_bytes())
    return {"name": "mnist", "folder": str(folder / "data")}


@pytest.mark.parametrize(
    ("make", "code", "words"),
    [
        (no_folder, 2, ["data.folder", "nowhere"]),
        (truncated, 1, ["data_batch_2.bin"]),
        (wrong_shape, 1, ["train-labels"]),
    ],
)
def test_a_folder_of_data_that_is_missing_truncated_or_wrong_is_named(tmp_path, make, code, words):
    refused = train(tmp_path, small_supervised(data=make(tmp_path)))
    assert refused.code == code
    assert all(word in refused.err for word in words), refused.err
    assert not (tmp_path / "run").exists()


CLASSIFIER = small_supervised()
RULES = [
    (CLASSIFIER, {"env": {"id": "x"}}, "for kind: dqn"),
    (CLASSIFIER, {"model": {"name": "mlp", "patch": 4}}, "mlp does not read it"),
    (CLASSIFIER, {"hooks": [{"method": "fire", "at": "50%", "networks": ["q"]}]}, "'q': allow"),
    (CLASSIFIER, {"stream": {"name": "class_incremental", "phases": 3, "epochs": 1}}, "phases"),
    (GPT, {"corpora": {"stdlib": "nowhere"}}, "nowhere"),
    (GPT, {"model": GPT["model"] | {"context": 10**7}}, "context"),
    (GPT, {"model": GPT["model"] | {"vocab_size": 100}}, "vocab"),
    (GPT, {"precision": "fp16"}, "fp16 needs CUDA"),
    (GPT, {"hooks": [{"method": "swr", "every": "1 updates"}]}, "tied"),
    (GPT, {"total": "4 updates"}, "at most all phases"),
]


def test_what_does_not_fit_together_is_named(tmp_path):
    for config, changes, word in RULES:
        refused = train(tmp_path, config | changes)
        assert refused.code == 2 and word in refused.err, (changes, refused.err)
        assert not (tmp_path / "run").exists()


def test_a_checkpoint_is_evaluated_by_its_name(classifier):
    run = classifier[0]
    first = min((run / "checkpoints").iterdir(), key=lambda path: int(path.name.split("-")[1]))
    assert command("evaluate", run, "--checkpoint", first.name).out != command("evaluate", run).out
    refused = command("evaluate", run, "--checkpoint", "step-7777")
    assert refused.code == 2
    assert "checkpoint = 'step-7777' is not in" in refused.err
    assert "has no best checkpoint" in command("evaluate", run, "--checkpoint", "best").err


def test_hook_lists_are_shipped_by_name(tmp_path):
    done = command(
        *("train", "supervised/digits_warm_start", "--hooks", "supervised/hooks/shrink_perturb"),
        *("--stream.epochs", "[1, 1]", "--log.to", "[]", "--out", tmp_path / "run"),
    )
    assert done.code == 0, done.err
    assert "shrink_perturb" in (tmp_path / "run" / "receipts.jsonl").read_text()


def test_a_start_with_another_number_of_heads_is_refused(tmp_path):
    first = train(tmp_path, GPT | {"model": GPT["model"] | {"heads": 2}})
    assert first.code == 0, first.err
    path = tmp_path / "second.yaml"
    start = {"run": str(tmp_path / "run")}
    path.write_text(yaml.safe_dump(GPT | {"model": GPT["model"] | {"heads": 4}, "start": start}))
    refused = command("train", path, "--out", tmp_path / "second")
    assert refused.code == 2
    assert "has model.heads = 2: allowed is the same, not 4" in refused.err


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
