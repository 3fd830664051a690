"""`rlplast diagnose`: what it says of runs of every kind, and what it leaves of them."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import rlplast
from rlplast.core.errors import Interrupted
from rlplast.core.network.edits import Assign, write
from rlplast.run import api
from rlplast.run.diagnose import Diagnosis, diagnose
from rlplast.study.spec import StudyConfig
from rlplast.training.config import parse_yaml
from tests.cli.commands import command, printed
from tests.cli.runs import files, refused
from tests.every_kind import KINDS, small_run
from tests.runs import at_step, stop

SHORT = ("--updates", 2, "--samples", 8, "--episodes", 1)
RunOf = Callable[[str], Path]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_diagnosed_with_a_study_and_stays_as_it_is(
    kind: str, run_of: RunOf, tmp_path: Path
) -> None:
    run = run_of(kind)
    before = files(run)
    found = printed("diagnose", run, *SHORT)
    assert found["kind"] == kind
    verdicts = {"lost", "slower or lost", "slower", "kept", "unclear"}
    assert {own["verdict"] for own in found["networks"]} <= verdicts
    assert all(own["fit"]["updates"] == 2 for own in found["networks"])
    assert files(run) == before

    proposed = parse_yaml(found["study"])
    study = StudyConfig.parse(proposed)
    assert list(study.arms) == ["none", "fresh", "shrink_perturb"]
    assert study.base == str(run / "config.yaml")
    hooks = {name: list(arm["hooks"]) for name, arm in study.arms.items()}
    assert hooks["none"] == list(rlplast.load(run).config.hooks)
    for name, method in (("fresh", "full_reset"), ("shrink_perturb", "shrink_perturb")):
        assert hooks[name][1:] == hooks["none"] and hooks[name][0]["method"] == method
    rlplast.plan(proposed, tmp_path / "study")  # which builds every arm


@pytest.mark.parametrize(
    ("total", "stream", "when"),
    [
        ("2 epochs", {"name": "warm_start", "fraction": 0.4, "epochs": 2}, "at: 50%"),
        ("3 epochs", {"name": "warm_start", "fraction": 0.4, "epochs": 2}, "on: phase_start"),
    ],
)
def test_study_resets_where_a_phase_starts_if_one_does(
    total: str, stream: dict[str, object], when: str, tmp_path: Path
) -> None:
    changes = {"total": total, "stream": stream, "hooks": [], "metrics": {"every": None}}
    api.train(small_run("supervised", {}, **changes), tmp_path / "run")
    found = rlplast.diagnose(tmp_path / "run", updates=1, samples=4)
    assert found.study.count(when) == 2
    rlplast.plan(parse_yaml(found.study), tmp_path / "study")


def test_the_text_has_verdict_signs_and_study(run_of: RunOf) -> None:
    outcome = command("diagnose", run_of("sac"), *SHORT)
    assert (outcome.code, outcome.err) == (0, "")
    starts = ("verdict ", "temperature ", "temperature: ", "A study that settles it", "base: ")
    for start in starts:
        assert any(line.startswith(start) for line in outcome.out.splitlines()), start


def test_agent_that_has_not_trained_has_no_signs(tmp_path: Path) -> None:
    api.train(small_run("sac", {}) | {"replay_ratio": 1e-3, "total": "40 env_steps"}, tmp_path)
    found = rlplast.diagnose(tmp_path, updates=1, samples=4)
    assert {own.verdict for own in found.networks} == {"new"}
    assert found.verdict.startswith("There is nothing to judge in actor and critic: all weights")
    assert "Signs" not in found.verdict and not found.agent and not found.scores


def test_agent_says_what_its_values_and_temperature_are(run_of: RunOf) -> None:
    found = rlplast.diagnose(run_of("sac"), updates=1, samples=4, episodes=1)
    names = [sign.name for sign in found.agent]
    assert names == ["overestimation", "temperature"] and found.scores["episodes"] == 1
    trainer = rlplast.load(run_of("sac")).agent()
    assert found.agent[1].now == pytest.approx(float(trainer.temperature().detach()))


def test_dead_network_is_found_in_a_run(run_of: RunOf, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = api.Run.trainer

    def dead(self: api.Run, *args: object) -> object:
        trainer = opened(self, *args)
        net = trainer.networks["q"]
        write([Assign(block, torch.full_like(block.view, -1.0)) for block in net.trainable()])
        return trainer

    monkeypatch.setattr(api.Run, "trainer", dead)
    found = diagnose(api.load(run_of("dqn")), updates=100, samples=32, episodes=0)
    assert found.verdict.startswith("Plasticity is lost in q. Signs: dormant_ratio")


def test_what_cannot_be_diagnosed_is_named(run_of: RunOf, tmp_path: Path) -> None:
    bad = [("lr", "0.0"), ("lr", "inf"), ("lr", "nan"), ("updates", -1), ("targets", -1)]
    for option, value in (*bad, ("samples", -1), ("episodes", -1)):
        message = refused(command("diagnose", run_of("dqn"), f"--{option}", value))
        assert message.startswith(f"{option} = {value}: allowed is")
    with pytest.raises(Interrupted):
        api.train(small_run("dqn", {}), tmp_path / "run", observer=at_step(1, stop))
    message = refused(command("diagnose", tmp_path / "run", "--checkpoint", "step-0"))
    assert "has no data yet" in message and "rlplast resume" in message
    (tmp_path / "model.zip").touch()
    (tmp_path / "policy.pth").touch()
    assert "diagnose_sb3" in refused(command("diagnose", tmp_path / "model.zip"))
    assert "policy.pth" in refused(command("measure", tmp_path / "model.zip"))
    assert "rename it" in refused(command("measure", tmp_path / "policy.pth"))


def test_verdict_of_several_networks_names_each() -> None:
    def said(**verdicts: str) -> str:
        networks = tuple(
            rlplast.metrics.NetworkDiagnosis(name, verdict, "", None, ())  # type: ignore[arg-type]
            for name, verdict in verdicts.items()
        )
        return Diagnosis(Path("run"), "sac", networks, (), {}, "").verdict

    assert said(actor="kept", critic="lost") == (
        "Plasticity is lost in critic. There is no loss of plasticity in actor."
    )
    assert said(actor="new", critic="new").startswith("There is nothing to judge in actor and")
    maybe = said(q="slower or lost")
    assert "may be lost" in maybe and "not lost" not in maybe and "another cause" not in maybe
    assert said(q="unclear") == "The test does not tell whether plasticity is lost in q."
    assert json.dumps(said(q="kept")).count("another cause") == 1
