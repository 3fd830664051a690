from dataclasses import replace
from typing import Any

import pytest

from rlplast.core.clock import Clock, Time
from rlplast.core.errors import ConfigError
from rlplast.gpt.config import GPTConfig, Phase
from rlplast.run.config_file import dump_config, read_config
from rlplast.run.shipped import shipped_configs
from rlplast.training.config import parse_yaml

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


def test_defaults_are_those_of_the_paper() -> None:
    model, optimizer = GPTConfig().model, GPTConfig().optimizer
    assert (model.layers, model.heads, model.width, model.context) == (12, 12, 768, 1024)
    assert (model.vocab_size, model.bias, GPTConfig().batch_size) == (50304, False, 480)
    assert (optimizer.name, optimizer.betas, optimizer.lr) == ("adamw", (0.9, 0.95), 6e-4)
    assert (optimizer.weight_decay, optimizer.decay, optimizer.lr_min) == (0.1, "matrices", 6e-5)
    assert (optimizer.warmup, optimizer.warmup_max, optimizer.schedule) == (0.1, 2000, "cosine")
    assert (optimizer.clip_norm, optimizer.renew) == (1.0, True)


@pytest.mark.parametrize("name", [n for n in shipped_configs() if n.startswith("gpt/")])
def test_shipped_configs_are_read(name: str) -> None:
    assert isinstance(read_config(name), GPTConfig)


def test_shipped_phases_are_those_of_the_paper() -> None:
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
    found = config(optimizer={"lr": 1e-3})
    assert (found.optimizer.lr, found.optimizer.name, found.optimizer.clip_norm) == (
        1e-3,
        "adamw",
        1.0,
    )


def test_what_is_written_is_read_back_equal() -> None:
    first = config(start={"run": "runs/one", "checkpoint": "best"}, checkpoint={"best": "loss"})
    assert read_config(parse_yaml(dump_config(first))) == first


def test_resuming_needs_no_other_run() -> None:
    given = config(start={"run": "runs/one", "checkpoint": "best"})
    assert given.to_resume().start.run is None
    assert given.start.run == "runs/one"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"corpora": {}}, r"corpora = {}.*embedded/stdlib"),
        ({"corpora": {"code": 3}}, r"corpora\.code = 3: allowed are embedded/stdlib"),
        ({"corpora": {"a/b": "x"}}, r"name 'a/b': allowed is text without a slash"),
        ({"phases": []}, r"phases = \[\]"),
        ({"phases": [3]}, r"phases\[0\] = 3: allowed is a mapping"),
        ({"phases": [{"updatse": 3}]}, r"phases\[0\].*'updatse': did you mean 'updates'"),
        ({"phases": [{"mixture": {"code": 1}}]}, r"phases\[0\]\.updates = null"),
        ({"phases": [{"updates": 0, "mixture": {"code": 1}}]}, r"updates = 0: allowed is \[1, inf"),
        ({"phases": [{"updates": "3 tokens", "mixture": {"code": 1}}]}, r"'3 tokens': allowed"),
        ({"phases": [{"updates": 3}]}, r"phases\[0\]\.mixture = None"),
        ({"phases": [{"updates": 3, "mixture": {"cod": 1}}]}, r"'cod': did you mean 'code'"),
        ({"phases": [{"updates": 3, "mixture": {"code": 0}}]}, r"mixture\.code = 0: allowed is"),
        ({"total": "401 updates"}, r"total = '401 updates': allowed is at most all phases, 400"),
        ({"total": "10 tokens"}, r"total = '10 tokens': allowed is a number of updates, or auto"),
        ({"total": "10 epochs"}, r"total = '10 epochs': allowed is a number of updates, or auto"),
        ({"micro_batch": 0}, r"micro_batch = 0: allowed is \[1, 1000000\]"),
        ({"batch_size": 0}, r"batch_size = 0"),
        ({"precision": "fp8"}, r"precision = 'fp8'"),
        ({"accelerate": "graphs"}, r"accelerate = 'graphs': did you mean 'graph'"),
        ({"model": {"width": 9, "heads": 2}}, r"model\.width = 9"),
        ({"optimizer": {"lr": 0}}, r"optimizer\.lr = 0"),
        ({"optimizer": {"stepped": "epoch"}}, r"optimizer\.stepped = 'epoch'.*no epochs"),
        ({"evaluate": {"batches": 0}}, r"evaluate\.batches = 0"),
        ({"evaluate": {"every": "3 epochs"}}, r"evaluate.*this run counts updates, tokens, phase"),
        ({"start": {"run": "a", "huggingface": "b"}}, r"start\.run = 'a' and start\.huggingface"),
        ({"start": {"checkpoint": "last"}}, r"start\.checkpoint = 'last': allowed are newest"),
        ({"checkpoint": {"best": "los"}}, r"checkpoint\.best = 'los': did you mean 'loss'"),
        ({"checkpoint": {"best": "code/loss"}, "evaluate": {"every": None}}, r"evaluate\.every"),
    ],
    ids=str,
)
def test_bad_values_are_refused_with_what_is_allowed(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(**changes)
