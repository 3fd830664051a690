"""Regression: generated and read examples, and a run that learns from them."""

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlplast.core.errors import DamagedFile
from rlplast.run import api
from rlplast.supervised.data import DataConfig
from rlplast.supervised.regression import ThresholdNet, bit_flipping, curve, load_regression
from tests.naive.threshold_net import threshold_output
from tests.refused import check_refused
from tests.supervised.test_trainer import PLAIN
from tests.supervised_runs import small_supervised


@pytest.mark.parametrize("seed", [0, 7])
def test_targets_are_those_of_a_threshold_network_in_plain_python(seed: int):
    net = ThresholdNet.drawn(seed)
    assert net.incoming.shape == (100, 21) and net.outgoing.shape == (101,)
    assert set(net.incoming.flatten().tolist()) == set(net.outgoing.tolist()) == {-1, 1}
    train, test = bit_flipping(seed, 3, 50, "all")
    for examples in (train, test):
        for bits, target in zip(
            examples.x[:, 0, 0].int().tolist(), examples.y.tolist(), strict=True
        ):
            twin = threshold_output(net.incoming.tolist(), net.outgoing.tolist(), bits)
            assert target == [twin]


def test_a_task_keeps_its_first_bits_and_is_tested_on_all_it_may_have():
    train, test = bit_flipping(1, 2, 400, "all")
    assert train.x.shape == (400, 1, 1, 20) and train.y.shape == (400, 1)
    slow = train.x[0, 0, 0, :15]
    assert (train.x[:, 0, 0, :15] == slow).all() and (test.x[:, 0, 0, :15] == slow).all()
    ends = [tuple(map(int, row)) for row in test.x[:, 0, 0, 15:].tolist()]
    assert sorted(ends) == sorted(itertools.product((0, 1), repeat=5))
    assert {tuple(row) for row in train.x[:, 0, 0, 15:].int().tolist()} == set(ends)
    fast = [bit_flipping(3, task, 50, "one")[0].x[:, 0, 0, 15:] for task in (0, 1)]
    assert not fast[0].equal(fast[1])  # drawn anew


def test_one_bit_flips_or_all_are_redrawn():
    def slow_bits(flip: str) -> np.ndarray:
        tasks = [bit_flipping(1, number, 1, flip)[0].x[0, 0, 0, :15] for number in range(40)]
        return np.stack(tasks)

    one, redrawn = slow_bits("one"), slow_bits("all")
    assert (np.abs(np.diff(one, axis=0)).sum(1) == 1).all()
    mean = np.abs(np.diff(redrawn, axis=0)).sum(1).mean()
    assert (redrawn[0] == one[0]).all()
    assert 6.3 < mean < 8.7  # 7.5 expected, 0.3 standard deviation


def test_a_curve_is_learned_at_points_and_tested_between_them():
    train, test = curve(7)
    assert train.x.flatten().tolist() == [-3, -2, -1, 0, 1, 2, 3]
    assert test.x.flatten().tolist() == [-2.5, -1.5, -0.5, 0.5, 1.5, 2.5]
    for own in (train, test):
        ys = [3 * math.sin(3 * x) + x for x in own.x.flatten().tolist()]
        assert own.y.flatten().tolist() == pytest.approx(ys, abs=1e-6)


@pytest.mark.parametrize("kind", ["npz", "csv"])
def test_a_table_is_split_the_same_way_for_every_seed(kind: str, tmp_path: Path):
    x, y = np.arange(40.0).reshape(20, 2), np.arange(20.0) / 8
    path = tmp_path / f"table.{kind}"
    if kind == "npz":
        np.savez(path, x=x, y=y)
    else:
        path.write_text("".join(f"{a}, {b}, {c}\n" for (a, b), c in zip(x, y, strict=True)))
    found = [load_regression(DataConfig("table", file=str(path)), seed) for seed in (1, 2)]
    data = found[0]
    assert data.input_shape == (1, 1, 2) and data.num_classes == 1
    assert (len(data.train), len(data.test)) == (15, 5)
    rows = {
        (*own.x[i, 0, 0].tolist(), *own.y[i].tolist())
        for own in (data.train, data.test)
        for i in range(len(own))
    }
    assert rows == {(*a, b) for a, b in zip(x.tolist(), y.tolist(), strict=True)}
    assert data.test.x.equal(found[1].test.x)


def test_tables_that_are_damaged_or_too_small_and_keys_that_do_not_fit_are_named(tmp_path: Path):
    np.savez(tmp_path / "lacks.npz", x=np.ones((3, 2)))
    np.savez(tmp_path / "object.npz", x=np.array([{}, {}]), y=np.ones(2))
    np.savez(tmp_path / "shapes.npz", x=np.ones((3, 2)), y=np.ones(2))
    np.savez(tmp_path / "nan.npz", x=np.ones((3, 2)), y=np.array([1, np.nan, 2]))
    texts = {
        "text.npz": ("no zip", "holds no arrays x and y"),
        "words.csv": ("a,b\n1,2\n", "expected are rows of equally many numbers"),
        "ragged.csv": ("1,2\n3\n", "expected are rows of equally many numbers"),
        "narrow.csv": ("1\n2\n", "x has shape (2, 0)"),
        "empty.csv": ("", "x has shape (1, 0)"),
        "one.csv": ("1,2\n", "data.test = 0.25 holds 0 of the 1 rows"),
    }
    for name, (text, _) in texts.items():
        (tmp_path / name).write_text(text)
    says = {name: words for name, (_, words) in texts.items()} | {
        "lacks.npz": "holds no arrays x and y",
        "object.npz": "holds no arrays x and y",
        "shapes.npz": "x has shape (3, 2) and y (2, 1)",
        "nan.npz": "no finite number",
    }
    small = [({"name": "table", "file": str(tmp_path / "one.csv")}, says.pop("one.csv"))]
    tables = [({"name": "table", "file": str(tmp_path / n)}, says[n]) for n in says]
    keys: list[tuple[dict[str, Any], str]] = [
        ({"name": "table"}, "data.file is not set"),
        ({"name": "table", "file": "x.xlsx"}, "data.file = 'x.xlsx'"),
        ({"name": "table", "file": "none.csv"}, "data.file = 'none.csv'"),
        ({"name": "curve", "examples": 1}, "data.examples = 1"),
    ]
    read = lambda keys: load_regression(DataConfig(**keys), 0)  # noqa: E731
    check_refused(read, tables, DamagedFile)
    check_refused(read, keys + small)


def test_a_linear_model_finds_the_least_squares(tmp_path: Path):
    x = torch.linspace(-1, 1, 40)[:, None] ** torch.arange(1, 3)
    y = x @ torch.tensor([[2.0], [-1.0]]) + 0.5
    np.savez(tmp_path / "table.npz", x=x.numpy(), y=y.numpy())
    config = small_supervised(
        **PLAIN,
        data={"name": "table", "file": str(tmp_path / "table.npz")},
        model={"name": "mlp", "hidden": []},
        stream={"name": "single_task", "epochs": 60},
        optimizer={"name": "sgd", "lr": 0.3},
        batch_size=10,
        log={"every": "60 epochs"},
        metrics={"every": None},
        checkpoint={"every": "100%"},
    )
    run = api.train(config, tmp_path / "run")
    last = {key: value for line in run.lines() for key, value in line.items()}
    assert last["eval/loss"] < 1e-6
    assert "train/accuracy" not in last and "eval/accuracy" not in last
    model = run.agent().model
    assert model.head.weight.flatten().tolist() == pytest.approx([2, -1], abs=1e-2)
    assert model.head.bias.item() == pytest.approx(0.5, abs=1e-2)
