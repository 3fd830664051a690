import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import stats

import rlplast
from rlplast.agents.evaluation import Evaluation
from rlplast.core.errors import ConfigError
from rlplast.envs.base import Env
from tests.cli.commands import command
from tests.cli.runs import files, jsonl, refused, trained

SPOKEN = re.compile(
    r"(\d+) episodes: mean (-?[\d.]+) "
    r"\(95% interval (-?[\d.]+) to (-?[\d.]+)\), median (-?[\d.]+)\n"
)


def test_mean_median_and_interval_are_those_of_full_episodes_whoever_evaluates(small: Path):
    outcome = command("evaluate", small, "--episodes", 7)
    match = SPOKEN.fullmatch(outcome.out)
    assert (outcome.code, outcome.err) == (0, "") and match, outcome.out
    count, mean, low, high, median = (float(word) for word in match.groups())
    opened = rlplast.load(str(small))
    returns = opened.agent().play(0, 7).returns
    assert count == len(returns) == 7
    assert mean == pytest.approx(returns.mean(), abs=0.006)
    assert median == pytest.approx(np.median(returns), abs=0.006)
    ends = stats.ttest_1samp(returns, 0).confidence_interval()
    assert (low, high) == pytest.approx((ends.low, ends.high), abs=0.006)

    state = torch.get_rng_state()
    scores = opened.evaluate(episodes=7)
    assert torch.equal(torch.get_rng_state(), state)
    assert scores == opened.evaluate(episodes=7)
    assert scores["return_mean"] == returns.mean()
    assert (scores["return_low"], scores["return_high"]) == pytest.approx((ends.low, ends.high))
    mean = opened.agent().play(0, 4).returns.mean()
    few = f"mean {mean:.2f} (an interval needs at least 5 episodes)"
    assert few in command("evaluate", small, "--episodes", 4).out
    assert "return_low" not in opened.evaluate(4)
    with pytest.raises(ConfigError, match="episodes 0"):
        opened.evaluate(episodes=0)


def test_evaluation_is_that_of_the_last_weights_and_leaves_the_folder_alone(small: Path):
    before = files(small)
    assert command("evaluate", small).code == 0
    assert files(small) == before
    logged = [row for row in jsonl(small / "metrics.jsonl") if "eval/return_mean" in row][-1]
    number = logged["updates"] + logged["env_steps"]  # seeds what the loop evaluates there
    scores = rlplast.load(str(small)).agent().play(number, 3).scores()
    assert {f"eval/{name}": value for name, value in scores.items()}.items() <= logged.items()


def test_equal_returns_do_not_make_a_mean_certain(small: Path, monkeypatch: pytest.MonkeyPatch):
    for returns, said in (
        (np.full(6, 500.0), "mean 500.00 (all alike)"),
        (np.ones(6), "mean 1.00 (95% interval 0.61 to 1.00)"),  # Wilson's
    ):
        played = Evaluation(returns, np.ones(6), success_return=1.0)
        monkeypatch.setattr("rlplast.agents.agent.Agent.play", lambda *_, found=played: found)
        outcome = command("evaluate", small, "--episodes", 6)
        assert said in outcome.out
        assert "success rate 1.00 (95% interval 0.61 to 1.00)" in outcome.out


def test_the_interval_of_success_is_of_the_episodes_that_say_it(
    small: Path, monkeypatch: pytest.MonkeyPatch
):
    said = np.array([1, 0, 1, 0, 1, 1, *[np.nan] * 14])
    played = Evaluation(np.arange(20.0), np.ones(20), successes=said)
    monkeypatch.setattr("rlplast.agents.agent.Agent.play", lambda *_: played)
    ends = stats.binomtest(4, 6).proportion_ci(method="wilson")
    words = f"success rate 0.67 (95% interval {ends.low:.2f} to {ends.high:.2f})"
    assert words in command("evaluate", small, "--episodes", 20).out


def test_video_is_an_animation_of_the_first_environments_episodes_and_changes_no_score(
    tmp_path: Path,
):
    pytest.importorskip("minatar")
    video, env = tmp_path / "play.gif", {"id": "minatar/breakout", "num_envs": 1}
    quiet = {"log": {"every": "50%"}, "metrics": {"every": None}, "evaluate": {"every": None}}
    run = trained(tmp_path, env=env, total="60 env_steps", hooks=[], **quiet)
    plain = command("evaluate", run, "--episodes", 2)
    outcome = command("evaluate", run, "--episodes", 2, "--video", video)
    assert outcome.code == 0 and outcome.out.startswith(plain.out)
    assert outcome.out.endswith(f"\nvideo: {video}\n")
    assert {path.name for path in tmp_path.iterdir()} == {"play.gif", "run", "small.yaml"}
    lengths = rlplast.load(str(run)).agent().play(0, 2).lengths
    with Image.open(video) as picture:
        assert picture.format == "GIF"
        assert picture.size == (160, 160)
        assert 1 < picture.n_frames <= lengths.sum()  # equal neighbours are stored once


def test_bad_usage_is_named(small: Path, tmp_path: Path):
    for words, says in {
        ("--episodes", "0"): "--episodes 0",
        ("--video", "play.mp4"): ".gif",
        ("--video", "no/such/play.gif"): "a folder that exists",
        ("--epsiodes", "3"): "--epsiodes",
    }.items():
        outcome = command("evaluate", small, *words)
        assert (outcome.code, outcome.out) == (2, "")
        assert says in outcome.err.splitlines()[-1], words
    assert f"{tmp_path} is no run's folder" in refused(command("evaluate", tmp_path))


def test_what_draws_no_pictures_is_named(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    words = ("evaluate", small, "--video", tmp_path / "play.gif")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "pygame", None)
        assert command(*words).err.rstrip().endswith("pip install 'rlplast[classic]'")

    def render(env: Env) -> None:
        raise ZeroDivisionError("no paint")

    monkeypatch.setattr(Env, "render", render)
    outcome = command(*words)
    assert outcome.code != 0
    assert "no paint" in outcome.err and "in an evaluation" in outcome.err
    assert list(tmp_path.iterdir()) == []


def test_damaged_checkpoints_are_named_and_the_newest_good_one_is_played(
    small: Path, tmp_path: Path
):
    folder = Path(shutil.copytree(small, tmp_path / "run"))
    older, newest = (folder / "checkpoints" / name for name in ("step-150", "step-200"))
    good = command("evaluate", folder, "--checkpoint", older.name)
    damage(newest)
    outcome = command("evaluate", folder)
    assert (outcome.code, outcome.out) == (0, good.out)
    assert outcome.err.startswith(f"passed over: {newest}/tensors.safetensors has ")
    with pytest.warns(UserWarning, match=r"passed over: .*step-200/tensors"):
        agent = rlplast.load(folder).agent()
    assert agent.clock.env_steps == 150
    damage(older)
    refused(command("evaluate", folder), code=1)


def damage(checkpoint: Path) -> None:
    tensors = checkpoint / "tensors.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:-7])
