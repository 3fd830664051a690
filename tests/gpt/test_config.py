from dataclasses import replace
from typing import Any

import pytest

from rlplast.core.clock import Clock, Time
from rlplast.gpt.config import GPTConfig, Phase
from rlplast.run.config_file import dump_config, read_config
from rlplast.run.shipped import shipped_configs
from rlplast.training.config import parse_yaml
from tests.refused import check_refused

SMALL: dict[str, Any] = {
    "kind": "gpt",
    "model": {"layers": 1, "heads": 1, "width": 8, "context": 16, "vocab_size": 256},
    "corpora": {"code": "embedded/stdlib", "words": "embedded/docstrings"},
    "phases": [
        {"updates": 100, "mixture": {"code": 1}},
        {"updates": "0.3k updates", "mixture": {"words": 9, "code": 0.1}},
    ],
    "batch_size": 4,
}


def config(**changes: Any) -> GPTConfig:
    found = read_config(SMALL | changes)
    assert isinstance(found, GPTConfig)
    return found


def test_phases_follow_one_another_and_weights_become_shares() -> None:
    first, second = config().phase_list()
    assert first == Phase(0, 100, {"code": 1.0})
    assert (second.start, second.updates) == (100, 300)
    assert second.shares == pytest.approx({"words": 9 / 9.1, "code": 0.1 / 9.1})


def test_total_is_all_phases_unless_it_is_shorter() -> None:
    whole = Clock(updates=400, tokens=400 * 4 * 16, phase=2)
    assert (config().total_time(), config().horizon()) == (Time(400, "updates"), whole)
    for updates, phases in ((100, 1), (101, 2)):
        shorter = config(total=f"{updates} updates")
        assert shorter.horizon() == Clock(updates=updates, tokens=updates * 64, phase=phases)
        assert shorter.reference_time() == Time(updates, "updates")


def test_shipped_phases_are_those_of_the_paper() -> None:
    own = [name for name in shipped_configs() if name.startswith("gpt/")]
    assert all(isinstance(read_config(name), GPTConfig) for name in own)
    first, second = read_config("gpt/fire_a42_phase1"), read_config("gpt/fire_a42_phase2")
    assert isinstance(first, GPTConfig) and isinstance(second, GPTConfig)
    assert (first.model, first.optimizer) == (second.model, second.optimizer)
    assert first.model == replace(GPTConfig().model, gelu="exact")
    assert first.optimizer == GPTConfig().optimizer
    assert first.total_time().value * 480 * 1024 == pytest.approx(400 * 118e6, rel=0.01)
    (mixed,) = second.phase_list()
    assert mixed.shares["wikitext"] == pytest.approx(0.1 / 9.1)
    one_pass = 9_035_582_198 + 118e6  # tokens of both corpora, where Figure 3's axis ends
    assert second.total_time().value * 480 * 1024 == pytest.approx(one_pass, rel=0.001)
    kept = [i * 10_000 for i in range(10)][-first.checkpoint.keep :]
    assert {30_000, 60_000} <= set(kept) and first.checkpoint.best == "loss"


def test_one_key_of_a_section_leaves_the_others_as_they_are() -> None:
    assert config(optimizer={"lr": 1e-3}).optimizer == replace(GPTConfig().optimizer, lr=1e-3)


def test_what_is_written_is_read_back_equal_and_resuming_needs_no_other_run() -> None:
    first = config(start={"run": "runs/one", "checkpoint": "best"}, checkpoint={"best": "loss"})
    assert read_config(parse_yaml(dump_config(first))) == first
    assert first.to_resume().start.run is None
    assert first.start.run == "runs/one"


MIXED: dict[str, Any] = {"updates": 3, "mixture": {"code": 1}}
# What the JSON Schema does not say; the rest: tests/run/test_schema_inputs.py.
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"corpora": {}}, "embedded/stdlib"),
    ({"corpora": {"code": 3}}, "corpora.code = 3"),
    ({"corpora": {"a/b": "x"}}, "'a/b'"),
    ({"phases": []}, "phases = []"),
    ({"phases": [3]}, "phases[0] = 3"),
    ({"phases": [{"updatse": 3}]}, "'updates'"),
    ({"phases": [{"mixture": {"code": 1}}]}, "phases[0].updates = null"),
    ({"phases": [MIXED | {"updates": 0}]}, "updates = 0"),
    ({"phases": [MIXED | {"updates": "3 tokens"}]}, "'3 tokens'"),
    ({"phases": [{"updates": 3}]}, "phases[0].mixture = None"),
    ({"phases": [MIXED | {"mixture": {"cod": 1}}]}, "'code'"),
    ({"phases": [MIXED | {"mixture": {"code": 0}}]}, "mixture.code = 0"),
    ({"total": "401 updates"}, "at most all phases, 400"),
    ({"total": "10 tokens"}, "a number of updates, or auto"),
    ({"model": {"width": 9, "heads": 2}}, "model.width = 9"),
    ({"optimizer": {"stepped": "epoch"}}, "no epochs"),
    ({"evaluate": {"every": "3 epochs"}}, "this run counts updates, tokens, phase"),
    ({"start": {"run": "a", "huggingface": "b"}}, "start.run = 'a' and start.huggingface"),
    ({"checkpoint": {"best": "los"}}, "'loss'"),
    ({"checkpoint": {"best": "code/loss"}, "evaluate": {"every": None}}, "evaluate.every"),
]


def test_what_does_not_fit_together_is_named() -> None:
    check_refused(lambda changes: config(**changes), REFUSED)
