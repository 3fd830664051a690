"""Shipped configs say what the papers' codes do."""

from pathlib import Path

import pytest

from rlplast.optimizers.config import lr_at
from rlplast.run.config_file import read_config
from rlplast.supervised.config import SupervisedConfig
from rlplast.training.config import read_yaml

HOOKS = Path(__file__).parents[2] / "configs" / "supervised" / "hooks"


def config(name: str) -> SupervisedConfig:
    found = read_config(f"supervised/{name}")
    assert isinstance(found, SupervisedConfig)
    return found


def test_fires_classifiers_warm_up_and_are_evaluated_as_in_its_code() -> None:
    for name, model, scope in (
        ("fire_cifar10_resnet18", "resnet18", "resnet"),
        ("fire_cifar100_vit", "vit_tiny_fire", "vit"),
        ("fire_tiny_imagenet_vgg16", "vgg16", "vgg"),
    ):
        found = config(name)
        rates = [lr_at(found.optimizer, epoch, 100) for epoch in range(12)]
        assert rates == pytest.approx([1e-3 * min(1.0, (e + 1) / 10) for e in range(12)])
        assert lr_at(found.optimizer, 99, 1000) == pytest.approx(1e-3)
        assert found.evaluate.every == "1 epochs"
        assert found.model.name == model
        assert [hook["scope"] for hook in found.hooks] == [scope]


def test_swrs_classifiers_are_evaluated_after_each_epoch_and_resets_return_to_the_start() -> None:
    for name in "mnist_mlp cifar10_cnn cifar100_cnn cifar100_cnn_bn tiny_imagenet_vgg16".split():
        assert config(f"swr_{name}").evaluate.every == "1 epochs", name
    for name in ("full_reset", "head_reset"):
        (row,) = read_yaml(HOOKS / f"{name}.yaml")
        assert row["params"]["init"] == "stored"


def test_settings_that_lose_plasticity_are_evaluated_at_each_tasks_end() -> None:
    for name, tasks in (
        ("random_labels", 30),
        ("permuted_pixels", 400),
        ("changing_regression", 20),
    ):
        found = config(name)
        epochs = found.stream.epochs_of_phases()
        assert len(epochs) == tasks and len(set(epochs)) == 1, name
        assert found.evaluate.every == f"{epochs[0]} epochs", name
