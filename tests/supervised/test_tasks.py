"""Tasks: what they make of the data, and that they depend on seed and number alone."""

from typing import Any

import pytest
import torch

from rlplast.core.rng import derive_seed
from rlplast.run import api
from rlplast.run.build import build
from tests.refused import check_refused
from tests.runs import final
from tests.supervised.test_trainer import killed, steps
from tests.supervised_runs import small_supervised

LABELS: dict[str, Any] = {"name": "random_labels", "phases": 3, "epochs": 2, "images": 60}
PIXELS: dict[str, Any] = {"name": "permuted_pixels", "phases": 3, "epochs": 1, "images": 60}
BITS: dict[str, Any] = {"name": "flipped_bits", "phases": 3, "epochs": 1}
BATCHES = {"random_labels": 6, "permuted_pixels": 3, "flipped_bits": 4}  # of 20 or 25 in a phase
every_stream = pytest.mark.parametrize("stream", [LABELS, PIXELS, BITS], ids=lambda s: s["name"])


def changes(stream: dict[str, Any]) -> dict[str, Any]:
    """A run of three tasks, with hooks at each."""
    own: dict[str, Any] = {
        "stream": stream,
        "batch_size": 20,
        "augment": [],
        "hooks": [{"method": "full_reset", "on": "phase_start", "params": {"init": "fresh"}}],
        "optimizer": {"name": "adam", "lr": 3e-3},
        "checkpoint": {"every": "1 updates", "keep": 40},
    }
    if stream["name"] == "flipped_bits":
        own |= {"data": {"name": "bit_flipping", "examples": 100}, "batch_size": 25}
        own |= {"label_smoothing": 0.0}
    return own


def trainable(stream: dict[str, Any], /, **more: Any) -> Any:
    return build(api.read_config(small_supervised(**changes(stream) | more)))[0]


def at_phase(trainer: Any, number: int) -> Any:
    """The trainer, as if it had begun with this phase."""
    trainer.clock = trainer.clock.advance(phase=number)
    return trainer


def labels(number: int) -> torch.Tensor:
    """The labels of a task of `LABELS`, drawn one by one."""
    generator = torch.Generator().manual_seed(derive_seed(3, "data", "labels", number))
    return torch.tensor([int(torch.randint(10, (), generator=generator)) for _ in range(60)])


def test_a_task_of_random_labels_has_the_images_and_other_labels():
    trainer = trainable(LABELS)
    images = trainer.stream[0].train
    for number in range(3):
        task = at_phase(trainable(LABELS), number).task
        assert task.train.x.equal(trainer.data.train.x)
        assert task.train.y[images].equal(labels(number))
        assert task.test.y.equal(task.train.y)
    assert trainer.data.train.y.equal(trainable(PIXELS).data.train.y)  # those of the data stay


def test_evaluation_under_random_labels_is_on_the_task_itself():
    trainer = trainable(LABELS)
    steps(trainer, 6)
    images = trainer.stream[0].train
    right = trainer.predict(trainer.data.train.x[images]).argmax(1) == labels(0)
    assert trainer.evaluate(0, 1)["accuracy"] == pytest.approx(float(right.double().mean()))


def test_a_permutation_moves_every_pixel_alike_in_all_images():
    trainer, other = (at_phase(trainable(PIXELS), number) for number in (2, 1))
    assert not trainer.task.train.x.equal(other.task.train.x)
    generator = torch.Generator().manual_seed(derive_seed(3, "data", "pixels", 2))
    order = torch.randperm(64, generator=generator).tolist()
    for shown, raw in (
        (trainer.task.train, trainer.data.train),
        (trainer.task.test, trainer.data.test),
    ):
        assert shown.y.equal(raw.y) and shown.x.shape == raw.x.shape
        for image in (0, 41):
            before = raw.x[image].flatten().tolist()
            assert shown.x[image].flatten().tolist() == [before[p] for p in order]


@every_stream
def test_online_scores_are_those_of_predictions_before_each_update(stream: dict[str, Any]):
    trainer = trainable(stream, hooks=[], penalties=[])
    per_phase, name = BATCHES[stream["name"]], stream["name"]
    key = "online_loss" if name == "flipped_bits" else "online_accuracy"
    for _ in range(2):
        trainer.metrics()
        found = []
        for _ in range(per_phase):
            x, y = next(trainer._parts(trainer._chosen(trainer.here()), 1))
            with torch.no_grad():
                outputs = trainer.model(x)
            found.append(
                (outputs - y).square().mean()
                if name == "flipped_bits"
                else (outputs.argmax(1) == y).double().mean()
            )
            trainer.step()
        expected = float(torch.stack(found).double().mean())
        assert trainer.evaluate(0, 1)[key] == pytest.approx(expected, rel=1e-5)
        trainer.step()  # the next task
    assert key not in trainer.evaluate(0, 1)  # of which nothing was predicted yet


def test_a_run_killed_at_a_switch_and_resumed_equals_the_uninterrupted(tmp_path: Any):
    config = small_supervised(**changes(BITS))
    api.train(config, tmp_path / "through")
    killed(config, tmp_path / "run", BATCHES["flipped_bits"] - 1, 1, 1, 1)
    assert final(tmp_path / "run") == final(tmp_path / "through")


@every_stream
def test_a_task_is_the_same_whatever_came_before_it(stream: dict[str, Any]):
    walked, direct = trainable(stream), at_phase(trainable(stream), 2)
    steps(walked, 2 * (BATCHES[stream["name"]] + 1))
    assert walked.clock.phase == 2
    for own, other in (
        (walked.task.train, direct.task.train),
        (walked.task.test, direct.task.test),
    ):
        assert own.x.equal(other.x) and own.y.equal(other.y)
    longer = trainable(stream | {"phases": 9})
    assert at_phase(longer, 2).task.train.y.equal(direct.task.train.y)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"data": {"name": "digits"}}, "'flipped_bits' with data.name = 'digits'"),
    ({"label_smoothing": 0.1}, "label_smoothing = 0.1: data.name = 'bit_flipping'"),
    ({"augment": ["crop"]}, "augment = ['crop']: data.name = 'bit_flipping'"),
    ({"data": {"name": "bit_flipping", "validation": 0.1}}, "data.validation = 0.1"),
    ({"data": {"name": "bit_flipping", "folder": "x"}}, "data.folder = 'x'"),
    ({"checkpoint": {"best": "accuracy"}}, "checkpoint.best = 'accuracy'"),
    ({"stream": LABELS}, "'random_labels' with data.name = 'bit_flipping'"),
    ({"stream": {"name": "class_incremental"}}, "'class_incremental' with data.name = 'bit_flip"),
    ({"data": {"name": "digits", "examples": 9}, "stream": PIXELS}, "data.examples = 9: digits"),
    ({"data": {"name": "digits", "corrupted": "c"}, "stream": PIXELS}, "data.corrupted = 'c'"),
]


def test_data_that_do_not_fit_a_stream_are_refused():
    check_refused(lambda more: trainable(BITS, **more), REFUSED)
