"""Shipped configs, in what tests/study/test_paper_studies.py leaves out."""

from pathlib import Path

from rlplast.run.config_file import read_config
from rlplast.supervised.config import SupervisedConfig
from rlplast.training.config import read_yaml

HOOKS = Path(__file__).parents[2] / "configs" / "supervised" / "hooks"
FIRE = ("fire_cifar10_resnet18", "fire_cifar100_vit", "fire_tiny_imagenet_vgg16")
SWR = ("mnist_mlp", "cifar10_cnn", "cifar100_cnn", "cifar100_cnn_bn", "tiny_imagenet_vgg16")


def config(name: str) -> SupervisedConfig:
    found = read_config(f"supervised/{name}")
    assert isinstance(found, SupervisedConfig)
    return found


def test_classifiers_are_evaluated_after_each_epoch_or_at_each_tasks_end() -> None:
    for name in (*FIRE, *(f"swr_{pair}" for pair in SWR)):
        assert config(name).evaluate.every == "1 epochs", name
    for name, tasks in {
        "random_labels": 30,
        "permuted_pixels": 400,
        "changing_regression": 20,
    }.items():
        epochs = config(name).stream.epochs_of_phases()
        assert len(epochs) == tasks and len(set(epochs)) == 1, name
        assert config(name).evaluate.every == f"{epochs[0]} epochs", name


def test_resets_of_classifiers_return_to_the_stored_weights() -> None:
    for name in ("full_reset", "head_reset"):
        (row,) = read_yaml(HOOKS / f"{name}.yaml")
        assert row["params"]["init"] == "stored"
