"""The pages' commands: they and their options exist, their configs are accepted."""

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlplast.cli.main import COMMANDS, main, parser
from rlplast.cli.train_command import overrides
from rlplast.core import registry
from rlplast.run.config_file import read_config
from rlplast.run.shipped import shipped_configs
from rlplast.training.config import RunConfig
from tests.docs.snippets import BLOCKS, PAGES, ROOT

EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
RLPLAST = re.compile(r".*?(?:^|\s|/)rlplast (.*)")
INLINE = re.compile(r"`rlplast ([^`\n]+)`")
# What only names a command, or is a pattern such as "rlplast COMMAND --help".
NAMED = "|".join(COMMANDS)
NO_COMMAND = re.compile(rf"({NAMED}|--import MODULE|bench CONFIG)$|.*(COMMAND|…|\.\.\.)")
# What is quick, and leaves nothing behind.
CHEAP = re.compile(r"(list|units|data)\b(?!.*--root)")


def command_lines() -> Iterator[tuple[str, Path, str]]:
    """Yield where, on which page, and what, for every line of a block of commands."""
    for block in BLOCKS:
        if block.language == "sh":
            for line in block.text.replace("\\\n", " ").splitlines():
                if shlex.split(line, comments=True):
                    files = " FILE" if "xargs" in line else ""
                    yield str(block), block.page, line + files


LINES = list(command_lines())
OURS = [(where, found[1]) for where, _, line in LINES if (found := RLPLAST.match(line))]
OTHERS = [(where, line.strip()) for where, _, line in LINES if not RLPLAST.match(line)]
IN_TEXT = sorted(
    {
        (page.relative_to(ROOT).as_posix(), found[1])
        for page in PAGES
        for found in INLINE.finditer(page.read_text())
        if not NO_COMMAND.match(found[1])
    }
)


def split(line: str) -> list[str]:
    return [re.sub(r"\$\w+", "1", word) for word in shlex.split(line, comments=True)]


def train_commands(page: Path) -> dict[str, RunConfig]:
    """Return, by its folder, the config of each run that a page trains from a shipped config."""
    found = {}
    for _, where, line in LINES:
        if where == page and (match := re.match(r"rlplast (train .*)", line)):
            arguments, rest = parser().parse_known_args(split(match[1]))
            if arguments.config in shipped_configs():
                found[str(arguments.out)] = read_config(arguments.config, overrides(rest))
    return found


def check_exists(line: str) -> None:
    """Check that a command, its options and its config's keys and methods exist."""
    arguments, rest = parser().parse_known_args(split(line))
    if arguments.command not in ("train", "units", "apply", "bench"):
        assert not rest
    elif getattr(arguments, "config", None) in shipped_configs():
        config = read_config(arguments.config, overrides(rest))
        if not arguments.modules:  # else methods may be those of the module
            for key, family in registry.LISTS.items():
                for row in getattr(config, key):
                    registry.build(family, row["method"], row.get("params"))


def test_commands_and_their_options_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    wrong = []
    for where, line in [*OURS, *IN_TEXT]:
        try:
            check_exists(line)
        except (Exception, SystemExit) as error:
            wrong.append(f"{where}: rlplast {line}: {error!r}")
    assert not wrong, "\n".join(wrong)


def test_cheap_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for line in sorted({line for _, line in OURS if CHEAP.match(line)}):
        assert main(split(line)) == 0, line


@pytest.mark.slow
def test_the_command_of_the_tutorial_on_methods_runs(
    tmp_path: Path, own_methods: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    [file] = [block for block in BLOCKS if block.file == "soften.py"]
    (tmp_path / file.file).write_text(file.text)
    [line] = [line for _, line in OURS if line.startswith("--import soften ")]
    monkeypatch.chdir(tmp_path)
    assert main([*split(line), "--stream.epochs", "[2, 2]", "--out", "run"]) == 0
    assert '"method": "soften"' in (tmp_path / "run" / "receipts.jsonl").read_text()


def known(line: str) -> bool:
    """Return whether a line that is no command of rlplast's names what there is."""
    match shlex.split(line, comments=True):
        case ["make", *targets]:
            text = (ROOT / "Makefile").read_text()
            return all(f"\n{target}:" in text for target in targets)
        case ["pip", "install", *options] | ["uv", "pip", "install", *options]:
            extras = re.findall(r"\[([\w,]+)\]", options[-1])
            return options[-2] == "-e" and set(",".join(extras).split(",")) <= {*EXTRAS, ""}
        case ["python", "-m", "pytest", *files]:
            tests = [f for f in files if f.startswith("tests/") and "my_" not in f]
            return all(list(ROOT.glob(file)) for file in tests)
        case ["python", "-m", "benchmarks", *words]:
            text = (ROOT / "benchmarks" / "__main__.py").read_text()
            return all(
                f'"{word}"' in text for word in words if word != "cuda" and not word.isdigit()
            )
        case ["python", "-m", module, *options] if module.startswith(("benchmarks.", "tests.")):
            text = (ROOT / f"{module.replace('.', '/')}.py").read_text()
            return all(f'"{o}"' in text for o in options if o.startswith("--"))
        case ["python" | "bash", script, *options]:
            text = (ROOT / script).read_text()
            return all(f'"{o}"' in text for o in options if o.startswith("--"))
        case ["for", *_] | ["done"] | ["tensorboard", "--logdir", _]:
            return True
        case ["wandb", "login"] | ["wandb", "sync", _] | ["mlflow", "ui", "--backend-store-uri", _]:
            return True
        case ["trackio", "show", "--project", _]:
            return True
    return False


def test_other_commands_name_what_exists() -> None:
    wrong = [f"{where}: {line}" for where, line in OTHERS if not known(line)]
    assert not wrong, "\n".join(wrong)
