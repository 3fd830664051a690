import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from rlplast import envs
from rlplast.cli.list_command import list_rows
from rlplast.core.errors import ConfigError
from rlplast.core.registry import FAMILIES
from rlplast.run import shipped
from rlplast.training.config import read_yaml
from tests.cli.commands import command, printed

ROOT = Path(__file__).resolve().parents[2]


def rows(*words: str) -> list[dict]:
    return printed("list", *words)


def test_rows_are_what_the_registry_says_with_the_fields_of_the_contract():
    found = rows()
    for row in found:
        assert list(row) == ["name", "family", "summary", "params", "source", "from"]
        assert all(row[key] for key in ("name", "summary", "source", "from")), row
        assert all(set(p) == {"default", "range"} for p in row["params"].values()), row
    keys = [(row["family"], row["name"]) for row in found]
    assert len(set(keys)) == len(keys)
    assert found == [row for family in FAMILIES for row in rows(family)]
    for family in ("interventions", "metrics", "optimizers", "kinds", "replay"):
        ours = [row for row in list_rows(family) if row["from"] == "rlplast"]
        assert rows(family) == json.loads(json.dumps(ours))
    assert rows("envs") == json.loads(json.dumps(envs.list_envs()))
    (fire,) = [row for row in rows("interventions") if row["name"] == "fire"]
    assert fire["params"]["iterations"] == {"default": 10, "range": "[1, 1000]"}
    hooks = rows("hooks")  # listed when asked for
    assert "dqn/hooks/fire" in {row["name"] for row in hooks}
    assert all(row["family"] == "hooks" and row["summary"] for row in hooks)
    assert not any(row["family"] == "hooks" for row in found)


def test_a_name_shows_one_entry_with_what_its_parameters_mean():
    assert [(row["family"], row["name"]) for row in rows("redo")] == [("interventions", "redo")]
    for name in ("redo", "l2_init", "srank", "muon", "gym/CartPole-v1", "dqn", "dqn/demo"):
        shown = command("list", name).out
        assert shown.startswith(f"\n{name}\n")
        assert ("Attributes:" in shown) == (name in ("redo", "l2_init"))
    unknown = command("list", "redoo")
    assert unknown.code == 2 and "did you mean 'redo'?" in unknown.err


PROGRAM = """
import runpy, sys
sys.modules["torch"] = None
for words in (["list"], ["list", "envs", "--json"], ["show", sys.argv[1]], ["list", "nowhere"]):
    sys.argv = ["rlplast", *words]
    try:
        runpy.run_module("rlplast", run_name="__main__")
    except SystemExit as error:
        assert error.code == 2 * ("nowhere" in words), error
    assert not {"scipy.stats", "altair"} & sys.modules.keys(), words  # which are slow to import
raise SystemExit(3)
"""


def test_the_program_lists_and_shows_without_torch_in_letters_that_the_output_has(small: Path):
    words = [sys.executable, "-c", PROGRAM, str(small)]
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, check=False)
    assert done.returncode == 3, done
    assert b"weight_clip" in done.stdout and b"1 of fire" in done.stdout and done.stdout.isascii()
    (line,) = done.stderr.splitlines()
    assert line.startswith(b"rlplast: 'nowhere' is no family")


def test_configs_are_the_files_with_their_comments_first_sentence():
    found = {row["name"]: row for row in rows("configs")}
    paths = [p for p in ROOT.glob("configs/**/*.yaml") if p.parent.name != "hooks"]
    files = {p.relative_to(ROOT / "configs").as_posix() for p in paths}
    assert {f"{name}.yaml" for name in found} == files
    for row in found.values():
        lines = (ROOT / row["source"]).read_text(encoding="utf-8").split("\n# ")
        comment = " ".join(lines).removeprefix("# ").replace("\n", " ") + " "
        assert comment.startswith(row["summary"] + " ")
        assert row["summary"].endswith(".")
        assert ". " not in row["summary"]


def test_tables_show_every_name_and_fit_a_pipe_and_a_terminal(monkeypatch: pytest.MonkeyPatch):
    for columns in (160, 80):
        for words in ([], ["methods"], ["envs"], ["metrics"], ["layers"], ["configs"]):
            lines = command("list", *words).out.splitlines()
            assert max(map(len, lines)) <= columns, words
            assert not any(line.endswith(" ") for line in lines), words
        monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("COLUMNS")
    outcome = command("list", "interventions")
    assert outcome.code == 0
    assert all(row["name"] in outcome.out for row in rows("interventions"))
    assert "iterations = 10  [1, 1000]" in outcome.out
    last = command("list", "methods").out.splitlines()[-1]
    (page,) = [word for word in last.split() if word.endswith(".md")]
    assert (ROOT / page).read_text().startswith("# How to choose a method")


def test_environments_are_counted_or_stand_below_each_other_under_what_they_share():
    outcome = command("list")
    assert all(row["family"] == "envs" or row["name"] in outcome.out for row in rows())
    ids = [row["name"] for row in rows("envs")]
    for start, number in Counter(name.split("/")[0] for name in ids).items():
        (line,) = [line for line in outcome.out.splitlines() if line.startswith(f"{start}/… ")]
        counted = "1 environment" if number == 1 else f"{number} environments"
        assert f" {counted}, see" in line
    assert "dmc/cheetah-run" not in outcome.out
    lines = command("list", "envs").out.splitlines()
    found = [line.split()[0] for line in lines if line and line.split()[0] in ids]
    assert sorted(found) == sorted(ids) and "dmc/cheetah-run" in ids
    assert sum("sticky = 0.25" in line for line in lines) == 1


def test_config_is_found_by_name_and_by_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    shipped_file = ROOT / "configs" / "dqn" / "asterix.yaml"
    assert shipped.find_config("dqn/asterix") == shipped_file
    assert shipped.find_config("dqn/asterix.yaml") == shipped_file
    own = tmp_path / "own.yaml"
    own.write_text("kind: dqn\n")
    assert read_yaml(shipped.find_config(str(own))) == {"kind": "dqn"}
    for name, hint in (("dqn/asterx", "'dqn/asterix'"), ("../pyproject", "allowed: ")):
        with pytest.raises(ConfigError, match=hint):
            shipped.find_config(name)
    monkeypatch.chdir(tmp_path)  # a folder of a config's name is no config
    (tmp_path / "dqn" / "asterix").mkdir(parents=True)
    assert shipped.find_config("dqn/asterix") == shipped_file
