"""`rlplast diagnose`: what it says of runs of every kind, and what it leaves of them."""

import json
from pathlib import Path

import pytest
import torch
from rich.cells import cell_len

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
from tests.gpt.runs import write_corpora
from tests.runs import at_step, stop

SHORT = ("--updates", 5, "--samples", 8, "--episodes", 1)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A finished run of each kind; tests only read them."""
    folder = tmp_path_factory.mktemp("diagnose")
    corpora = write_corpora(folder)
    for kind in KINDS:
        api.train(small_run(kind, corpora), folder / kind)
    return {kind: folder / kind for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_diagnosed_and_stays_as_it_is(
    kind: str, runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = files(runs[kind])
    monkeypatch.setenv("COLUMNS", "80")
    outcome = command("diagnose", runs[kind], *SHORT)
    assert (outcome.code, outcome.err) == (0, "")
    lines = outcome.out.splitlines()
    text = [line for line in lines if str(runs[kind]) not in line]
    assert max(map(cell_len, text)) <= 80
    assert any(line.startswith("verdict ") for line in lines)
    found = printed("diagnose", runs[kind], *SHORT, "--json")
    assert found["kind"] == kind
    verdicts = {"lost", "slower or lost", "slower", "kept", "unclear"}
    assert {own["verdict"] for own in found["networks"]} <= verdicts
    assert all(own["fit"]["updates"] == 5 for own in found["networks"])
    assert files(runs[kind]) == before


@pytest.mark.parametrize("kind", KINDS)
def test_study_that_it_proposes_is_one(kind: str, runs: dict[str, Path], tmp_path: Path) -> None:
    found = rlplast.diagnose(runs[kind], updates=1, samples=4, episodes=0)
    study = StudyConfig.parse(parse_yaml(found.study))
    assert list(study.arms) == ["none", "fresh", "shrink_perturb"]
    assert study.base == str(runs[kind] / "config.yaml")
    hooks = {name: list(arm["hooks"]) for name, arm in study.arms.items()}
    assert hooks["none"] == list(rlplast.load(runs[kind]).config.hooks)
    for name, method in (("fresh", "full_reset"), ("shrink_perturb", "shrink_perturb")):
        assert hooks[name][1:] == hooks["none"] and hooks[name][0]["method"] == method
    rlplast.plan(parse_yaml(found.study), tmp_path / "study")  # which builds every arm


@pytest.mark.parametrize(
    ("total", "stream", "when"),
    [
        ("auto", {"name": "single_task", "epochs": 2}, "at: 50%"),
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


def test_agent_that_has_not_trained_has_no_signs(tmp_path: Path) -> None:
    api.train(small_run("sac", {}) | {"replay_ratio": 1e-3, "total": "40 env_steps"}, tmp_path)
    found = rlplast.diagnose(tmp_path, updates=1, samples=4)
    assert {own.verdict for own in found.networks} == {"new"}
    assert found.verdict.startswith("There is nothing to judge in actor and critic: all weights")
    assert "Signs" not in found.verdict and not found.agent and not found.scores


def test_agent_says_what_its_values_and_temperature_are(runs: dict[str, Path]) -> None:
    found = rlplast.diagnose(runs["sac"], updates=1, samples=4, episodes=1)
    names = [sign.name for sign in found.agent]
    assert names == ["overestimation", "temperature"] and found.scores["episodes"] == 1
    trainer = rlplast.load(runs["sac"]).agent()
    assert found.agent[1].now == pytest.approx(float(trainer.temperature().detach()))


def test_dead_network_is_found_in_a_run(runs: dict[str, Path], monkeypatch) -> None:
    opened = api.Run.trainer

    def dead(self: api.Run, *args: object) -> object:
        trainer = opened(self, *args)
        net = trainer.networks["q"]
        write([Assign(block, torch.full_like(block.view, -1.0)) for block in net.trainable()])
        return trainer

    monkeypatch.setattr(api.Run, "trainer", dead)
    found = diagnose(api.load(runs["dqn"]), updates=100, samples=32, episodes=0)
    assert found.verdict.startswith("Plasticity is lost in q. Signs: dormant_ratio")


def test_values_that_are_not_allowed_are_named(runs: dict[str, Path]) -> None:
    bad = [("lr", lr) for lr in ("0.0", "inf", "nan")]
    for option, value in (
        *bad,
        ("updates", -1),
        ("targets", -1),
        ("samples", -1),
        ("episodes", -1),
    ):
        message = refused(command("diagnose", runs["dqn"], f"--{option}", value))
        assert message.startswith(f"{option} = {value}: allowed is")


def test_run_without_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        api.train(small_run("dqn", {}), tmp_path / "run", observer=at_step(1, stop))
    checkpoints = tmp_path / "run" / "checkpoints"
    first = min(checkpoints.iterdir(), key=lambda path: int(path.name.removeprefix("step-")))
    message = refused(command("diagnose", tmp_path / "run", "--checkpoint", first.name))
    assert "has no data yet" in message and "rlplast resume" in message


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


def test_a_file_in_place_of_a_run_says_what_to_do(tmp_path: Path):
    (tmp_path / "model.zip").touch()
    (tmp_path / "policy.pth").touch()
    assert "diagnose_sb3" in refused(command("diagnose", tmp_path / "model.zip"))
    assert "policy.pth" in refused(command("measure", tmp_path / "model.zip"))
    assert "rename it" in refused(command("measure", tmp_path / "policy.pth"))
