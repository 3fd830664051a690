"""The supervised trainer: its place in the stream, its updates, and exact resume."""

from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplast.core.batches import batch_slices
from rlplast.core.clock import Clock
from rlplast.core.errors import ConfigError
from rlplast.core.rng import torch_stream
from rlplast.run import api
from rlplast.run.build import build
from rlplast.supervised.streams import Phase
from rlplast.supervised.trainer import position
from tests.refused import check_refused
from tests.runs import Killed, at_step, final, kill
from tests.supervised.published import write_mnist
from tests.supervised_runs import small_supervised

PLAIN: dict[str, Any] = {"hooks": [], "penalties": [], "augment": [], "label_smoothing": 0.0}


def trainable(**changes: Any) -> Any:
    return build(api.read_config(small_supervised(**changes)))[0]


def steps(trainer: Any, number: int) -> None:
    for _ in range(number):
        trainer.step()


@settings(max_examples=40)
@given(n=st.integers(1, 40), epochs=st.integers(1, 4), batch_size=st.integers(1, 50))
def test_position_is_that_of_a_plain_loop(n: int, epochs: int, batch_size: int):
    phase = Phase(torch.arange(n), torch.arange(1), epochs)
    starts = [*range(0, n, batch_size)]
    if len(starts) > 1 and n - starts[-1] == 1 < batch_size:
        starts.pop()  # a single one joins the batch before
    assert batch_slices(n, batch_size) == [slice(*pair) for pair in pairwise([*starts, n])]
    for updates in range(epochs * len(starts) + 1):
        here = position(phase, batch_size, updates)
        assert (here.epoch, here.batch) == divmod(updates, len(starts))
        assert (here.batches, here.updates) == (len(starts), updates)


def test_an_epoch_is_every_image_once_and_a_last_one_alone_joins_the_batch_before():
    stream = {"name": "warm_start", "fraction": 0.1, "epochs": 1}
    trainer = trainable(**PLAIN, batch_size=67, stream=stream)
    phase, batches = trainer.stream[0].train, []
    while not trainer.clock.epochs:
        batches.append(trainer._chosen(trainer.here()))
        trainer.step()
    assert len(phase) == 2 * 67 + 1 and [len(b) for b in batches] == [67, 68]
    assert torch.equal(torch.cat(batches).sort()[0], phase)


def test_draws_are_new_for_each_update_and_reading_and_those_of_noise_for_each_seed():
    trainer = trainable(augment=["crop", "flip"])
    chosen = trainer._chosen(trainer.here())
    parts = []
    for updates in (0, 0, 1):
        trainer.clock = Clock(updates=updates)
        parts.append(next(trainer._parts(chosen, 1))[0])
    samples = [trainer.sample(8, number).x for number in (0, 0, 1)]
    batches = [next(trainer.batches(1, 8, number)).x for number in (0, 0, 1)]
    for one, again, other in (parts, samples, batches):
        assert torch.equal(one, again) and not torch.equal(one, other)
    noisy = [trainable(**PLAIN, optimizer={"name": "upgd"}, seed=seed) for seed in (1, 1, 2)]
    one, again, other = (own.updater.optimizers[0].seed for own in noisy)
    assert one == again != other


def test_micro_batches_add_up_to_the_batch():
    penalties = [{"method": "l2", "params": {"coef": 0.1}}]
    plain = PLAIN | {"penalties": penalties, "optimizer": {"name": "sgd", "lr": 0.05}}
    whole, parts = trainable(**plain), trainable(**plain, micro_batch=7)
    steps(whole, 6)
    steps(parts, 6)
    expected, found = (t.networks["model"].module.state_dict() for t in (whole, parts))
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-6)
    one, other = whole.metrics(), parts.metrics()
    assert other["train/accuracy"] == one["train/accuracy"]
    for name in ("train/loss", "train/penalty"):
        assert other[name] == pytest.approx(one[name], rel=1e-5)


def test_a_validation_run_also_says_how_it_does_on_the_test_images():
    trainer = trainable(data={"name": "digits", "validation": 0.2})
    scores, unseen = trainer.evaluate(0, 0), trainer.data.unseen
    right = (trainer.predict(unseen.x).argmax(1) == unseen.y).double().mean()
    assert scores["test_accuracy"] == pytest.approx(float(right))
    assert {"accuracy", "loss", "ece", "test_loss", "test_ece"} <= scores.keys()
    assert not any(name.startswith("test_") for name in trainable().evaluate(0, 0))


def test_updates_are_those_of_a_plain_loop():
    trainer = trainable(**PLAIN, optimizer={"name": "sgd", "lr": 0.05, "momentum": 0.9})
    net = trainer.networks["model"]
    weights = [block.view.clone().requires_grad_() for block in net.blocks]
    momenta = [torch.zeros_like(w) for w in weights]
    data, phase = trainer.data.train, trainer.stream[0].train
    pixels = data.x.double().transpose(0, 1).flatten(1)
    mean = pixels.mean(1).view(1, -1, 1, 1)
    std = pixels.std(1, unbiased=False).view(1, -1, 1, 1)
    for epoch in range(2):
        order = torch.randperm(len(phase), generator=torch_stream(3, "data", "epoch", 0, epoch))
        for chosen in phase[order].split(100):
            h = ((data.x[chosen].double() - mean) / std).float().flatten(1)
            for i in range(0, len(weights), 2):
                h = F.linear(h if i == 0 else h.relu(), weights[i], weights[i + 1])
            grads = torch.autograd.grad(F.cross_entropy(h, data.y[chosen]), weights)
            with torch.no_grad():
                for w, m, g in zip(weights, momenta, grads, strict=True):
                    m.mul_(0.9).add_(g)
                    w.sub_(m, alpha=0.05)
    steps(trainer, 12)
    for block, theirs in zip(net.blocks, weights, strict=True):
        torch.testing.assert_close(block.view, theirs.detach(), rtol=1e-4, atol=1e-6)


def test_optimizer_state_is_zeroed_at_a_phase_start_if_asked():
    for renew in (True, False):
        trainer = trainable(**PLAIN, optimizer={"name": "adam", "renew": renew})
        steps(trainer, 13)
        state = [s for own in trainer.updater.optimizers[0].state.values() for s in own.values()]
        assert state
        assert all(not s.any() for s in state) == renew


def test_the_first_phase_has_its_own_optimizer_and_the_second_a_new_one():
    """Beside a run of adam, and one of muon_fire from the weights at the second phase on."""
    shared: dict[str, Any] = {"lr": 1e-2, "warmup": 0.5, "clip_norm": 0.5, "renew": True}
    both = trainable(**PLAIN, optimizer=shared | {"name": "muon_fire", "first_phase": "adam"})
    adam = trainable(**PLAIN, optimizer=shared | {"name": "adam"})
    muon = trainable(**PLAIN, optimizer=shared | {"name": "muon_fire"})
    steps(both, 12)
    steps(adam, 12)
    steps(muon, 13)
    states = [t.model.state_dict() for t in (both, adam, muon)]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    muon.model.load_state_dict(states[0])
    assert [type(o).__name__ for o in both.networks["model"].optimizers] == ["Adam"]
    steps(both, 1 + 7)
    steps(muon, 7)  # whose state is renewed at the start of the phase
    names = [type(o).__name__ for o in both.networks["model"].optimizers]
    assert names == ["FireMuon", "AdamW"]
    assert all(torch.equal(states[0][name], states[2][name]) for name in states[0])
    assert not torch.equal(states[0]["head.weight"], states[1]["head.weight"])


def test_a_run_with_an_optimizer_of_its_first_phase_goes_on_in_either(tmp_path):
    optimizer = {"name": "muon_fire", "first_phase": "adam", "lr": 3e-3}
    through = api.train(small_supervised(optimizer=optimizer), tmp_path / "through")
    run = tmp_path / "run"
    killed(small_supervised(optimizer=optimizer), run, 8, 12)  # in the first phase, in the second
    assert final(run) == final(through.path)
    agent = through.agent()
    assert [type(o).__name__ for o in agent.networks["model"].optimizers] == ["FireMuon", "AdamW"]


def test_the_learning_rate_starts_anew_at_every_phase():
    optimizer = {"name": "sgd", "lr": 1.0, "warmup": 0.5, "stepped": "epoch"}
    trainer = trainable(**PLAIN, optimizer=optimizer)
    rates = []
    for _ in range(20):
        before = trainer.clock.updates
        trainer.step()
        if trainer.clock.updates > before:
            rates.append(trainer.updater.lr)
    assert rates == [0.5] * 6 + [1.0] * 6 + [0.5] * 7


@pytest.fixture(scope="module")
def through(tmp_path_factory: pytest.TempPathFactory) -> api.Run:
    folder = tmp_path_factory.mktemp("supervised") / "through"
    return api.train(small_supervised(), folder)


def killed(config: dict[str, Any], run: Any, *stops: int) -> None:
    """Train and resume, killed after so many steps each time, and then to the end."""
    for number, count in enumerate(stops):
        observer = at_step(count, kill)
        with pytest.raises(Killed):
            api.resume(run, observer=observer) if number else api.train(
                config, run, observer=observer
            )
    api.resume(run)


def test_a_run_ends_with_its_stream_and_leaves_every_kind_of_line(through):
    last = through.lines()[-1]
    assert (last["updates"], last["epochs"], last["phase"]) == (40, 4, 1)
    keys = {key for row in through.lines() for key in row}
    assert {"train/loss", "train/accuracy", "train/penalty", "train/lr"} <= keys
    assert {"eval/accuracy", "eval/loss", "eval/ece", "metric/srank/model"} <= keys
    receipts = through.lines("receipts")
    assert {r["method"] for r in receipts} == {"fire", "swr", "shrink_perturb", "head_reset"}
    # A phase is evaluated before the hook at its successor fires.
    (fire,) = [r for r in receipts if r["method"] == "fire"]
    assert fire["clock"] == {"updates": 12, "epochs": 2, "phase": 1}
    evaluated = [r for r in through.lines() if "eval/accuracy" in r]
    assert [(r["updates"], r["phase"]) for r in evaluated] == [(6, 0), (12, 0), (26, 1), (40, 1)]


def test_killed_and_resumed_equals_uninterrupted(tmp_path, through):
    # Inside an epoch; at its end; at a phase's end; at the start of the next; later.
    killed(small_supervised(), tmp_path / "run", 2, 4, 6, 1, 9)
    assert final(tmp_path / "run") == final(through.path)


def test_looking_changes_no_training(tmp_path):
    changes: dict[str, Any] = {"model": {"name": "cnn_bn"}, "total": "1 epochs", "hooks": []}
    found = []
    for name, often in (("quiet", None), ("often", "1 updates")):
        looks = {"evaluate": {"every": often}, "metrics": {"every": often, "batch_size": 32}}
        api.train(small_supervised(**changes, **looks), tmp_path / name)
        found.append(final(tmp_path / name)["tensors.safetensors"])
    assert found[0] == found[1]


def test_a_saved_run_predicts_and_is_evaluated_on_its_phase(through):
    trainer = through.agent()
    assert trainer.clock.phase == 1
    logits = trainer.predict(trainer.data.test.x)
    accuracy = float((logits.argmax(1) == trainer.data.test.y).double().mean())
    scores = [row["eval/accuracy"] for row in through.lines() if "eval/accuracy" in row]
    assert scores[-1] == accuracy
    with pytest.raises(ConfigError, match="has no actions"):
        through.act(trainer.data.test.x.numpy())


def test_new_classes_are_evaluated_alone_and_among_all():
    stream = {"name": "class_incremental", "phases": 5, "epochs": 2}
    trainer = trainable(**PLAIN, stream=stream, checkpoint={"best": "accuracy_all"})
    steps(trainer, 5)
    test, y = trainer.data.test, trainer.data.test.y
    seen = torch.isin(y, trainer.data.train.y[trainer.stream[0].train])
    right = trainer.predict(test.x).argmax(1) == y
    found = trainer.evaluate(0, 1)
    assert found["accuracy"] == pytest.approx(float(right[seen].double().mean()))
    assert found["accuracy_all"] == pytest.approx(float(right.double().mean()))
    assert trainer.clock.phase == 0 and found["accuracy"] > 2 * found["accuracy_all"] > 0
    assert "accuracy_all" not in trainable(**PLAIN).evaluate(0, 1)


MUON = {"name": "muon_fire", "first_phase": "adam"}
ONE: dict[str, Any] = {"stream": {"name": "single_task", "epochs": 2}}
# What the JSON Schema does not say; the rest: tests/run/test_schema_inputs.py.
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"total": "5 epochs"}, "at most all phases, 4 epochs"),
    ({"total": "41 updates"}, "ends after 40 updates"),
    ({"total": "1 phase"}, "for its first phases set stream.phases"),
    ({"total": "10 env_steps"}, "ends after updates or epochs"),
    ({"precision": "fp16"}, "precision = 'fp16'"),
    ({"hooks": [{"method": "fire", "at": "phase 2"}]}, "at or past the end"),
    ({"hooks": [{"method": "fire", "at": "40 updates"}]}, "at or past the end"),
    (ONE, "would never be due"),
    (PLAIN | ONE | {"optimizer": MUON}, "one phase, so muon_fire never trains"),
    (PLAIN | {"optimizer": MUON | {"params": {"head": ["nosuch"]}}}, "nosuch"),
    ({"optimizer": {"first_phase": "adamm"}}, "first_phase = 'adamm'"),
]


def test_what_does_not_fit_together_is_named():
    check_refused(lambda changes: trainable(**changes), REFUSED)
    rows = [(kind, "optimizer.first_phase = 'adam'") for kind in ("dqn/demo", "gpt/stdlib_demo")]
    check_refused(lambda kind: api.read_config(kind, {"optimizer.first_phase": "adam"}), rows)


@pytest.mark.parametrize(
    ("total", "every"),
    [("auto", "20 updates"), ("2 epochs", "12 updates"), ("13 updates", "1 epochs")],
)
def test_nothing_fires_at_the_end_of_a_run(total, every, tmp_path):
    hook = {"method": "shrink_perturb", "every": every}
    run = api.train(small_supervised(total=total, hooks=[hook]), tmp_path / "run")
    last = run.lines()[-1]
    at = [receipt["clock"] for receipt in run.lines("receipts")]
    assert {k: last[k] for k in ("updates", "epochs", "phase")} not in at
    if total == "13 updates":  # an epoch's end inside the run is none of the run's
        assert [clock["epochs"] for clock in at] == [1, 2]


def test_the_horizon_is_where_the_run_ends():
    for total in ("auto", "3 epochs", "1 epochs", "17 updates", "26 updates"):
        trainer = trainable(total=total, metrics={"every": None}, **PLAIN)
        end, goal = trainer.horizon(), trainer.config.total_time()
        while trainer.clock[goal.unit] < goal.value:
            trainer.step()
        assert trainer.clock.updates == end.updates, total
        assert trainer.clock.phase == end.phase - 1, total
        assert 0 <= end.epochs - trainer.clock.epochs <= 1, total


def test_what_fell_on_the_end_of_a_run_fires_when_it_is_extended(tmp_path):
    hooks = [{"method": "shrink_perturb", "every": "1 epochs"}]
    keys = {"hooks": hooks, "evaluate": {"every": None}, "metrics": {"every": None}}
    whole = api.train(small_supervised(total="3 epochs", **keys), tmp_path / "whole")
    early = api.train(small_supervised(total="2 epochs", **keys), tmp_path / "grown")
    assert early.lines()[-1]["updates"] == 12
    grown = api.resume(tmp_path / "grown", total="3 epochs")
    fired = [[r["clock"] for r in run.lines("receipts")] for run in (whole, grown)]
    assert fired[0] == fired[1]
    tensors = [final(run.path)["tensors.safetensors"] for run in (whole, grown)]
    assert tensors[0] == tensors[1]


def test_a_checkpoint_of_a_phase_that_the_config_lacks_is_refused():
    trainer = trainable()
    state = trainer.state_dict()
    trainer.clock = Clock(phase=len(trainer.stream))
    with pytest.raises(ConfigError, match="phases 0 to 1, and the checkpoint is in phase 2"):
        trainer.load_state_dict(state)


def test_a_run_is_not_resumed_on_other_data(tmp_path):
    write_mnist(tmp_path / "data")
    config = small_supervised(
        data={"name": "mnist", "folder": str(tmp_path / "data")}, batch_size=5, hooks=[]
    )
    with pytest.raises(Killed):
        api.train(config, tmp_path / "run", observer=at_step(4, kill))
    write_mnist(tmp_path / "data", train=40)
    with pytest.raises(ConfigError, match=r"data\.train: the data are not those"):
        api.resume(tmp_path / "run")
