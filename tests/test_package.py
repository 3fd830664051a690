"""What is built for others: a wheel, an sdist, and how they behave once installed."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml

from rlplast import __version__
from tests.plugins.packages import RUN, TOY

hatchling = pytest.importorskip("hatchling")
ROOT = Path(__file__).parents[1]


def run(*words: object, cwd: Path | None = None, code: int = 0, env: Any = None) -> str:
    """Run a program; returns its output, and of one that is to fail what it says."""
    command = [str(word) for word in words]
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    return done.stderr if code else done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel and the sdist."""
    out = tmp_path_factory.mktemp("dist")
    words = ("-m", "hatchling", "build", "-d", out, "-t", "wheel", "-t", "sdist")
    run(sys.executable, *words, cwd=ROOT)
    return out / f"rlplast-{__version__}-py3-none-any.whl", out / f"rlplast-{__version__}.tar.gz"


def names_in(archive: Path) -> set[str]:
    """Names of the files in a wheel, or in an sdist below its one folder: each is there once."""
    if archive.suffix == ".whl":
        names = zipfile.ZipFile(archive).namelist()
    else:
        with tarfile.open(archive) as file:
            names = [str(PurePosixPath(*PurePosixPath(n).parts[1:])) for n in file.getnames()]
    assert len(names) == len(set(names))
    return set(names)


def sources(folder: str, suffix: str = ".py") -> set[str]:
    return {p.relative_to(ROOT).as_posix() for p in (ROOT / folder).rglob(f"*{suffix}")}


def configs() -> set[str]:
    """Configs, and the data of studies with the pages that say where they are from."""
    return set().union(*(sources("configs", suffix) for suffix in (".yaml", ".csv", ".md")))


def test_the_wheel_has_one_package_with_everything_in_it(built: tuple[Path, Path]) -> None:
    names = names_in(built[0])
    info = f"rlplast-{__version__}.dist-info"
    assert {name.split("/")[0] for name in names} == {"rlplast", info}
    code = sources("rlplast") | {f"rlplast/{p}" for p in sources("agents") | sources("envs")}
    shipped = {f"rlplast/{path}" for path in configs()}
    others = {
        "rlplast/py.typed",
        "rlplast/configs/schema.json",
        "rlplast/cli/registered.json",
        "rlplast/core/fast/linear.cpp",
        "rlplast/report/columns.yaml",
        "rlplast/report/report.css",
        "rlplast/report/report.js",
        "rlplast/report/report.html.j2",
        "rlplast/report/scores.json",
    }
    assert {n for n in names if n.startswith("rlplast/")} == code | shipped | others
    assert f"{info}/licenses/LICENSE" in names


def test_the_sdist_has_what_it_takes_to_build_test_and_document(built: tuple[Path, Path]) -> None:
    _, sdist = built
    names = names_in(sdist)
    folders = ("src/rlplast", "tests", "docs", "benchmarks", "scripts")
    expected = set().union(*(sources(folder) for folder in folders))
    expected |= configs() | sources("docs", ".md") | sources("docs", ".png")
    expected |= {f"src/rlplast/{path}" for path in sources("agents") | sources("envs")}
    expected |= {
        "AGENTS.md",
        "CHANGELOG.md",
        "CITATION.cff",
        "CONTRIBUTING.md",
        "LICENSE",
        "Makefile",
        "README.md",
        "constraints.txt",
    }
    expected |= {"mkdocs.yml", "pyproject.toml", "src/rlplast/py.typed"}
    assert not expected - names
    once = ("agents", "envs", "rlplast", "runs", ".venv")
    assert not [name for name in names if name.startswith(once)]
    with tarfile.open(sdist) as file:
        assert not [member.name for member in file if member.issym() or member.islnk()]


def test_workers_of_the_program_import_no_torch() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    module = project["scripts"]["rlplast"].partition(":")[0]
    code = f"import sys, {module}; print('torch' in sys.modules)"
    assert run(sys.executable, "-c", code, cwd=ROOT).strip() == "False"


class Installed:
    """An environment of its own, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        run(sys.executable, "-m", "venv", "--without-pip", folder / "venv")  # it has the host's
        self.bin = folder / "venv" / ("Scripts" if os.name == "nt" else "bin")
        scheme = {"base": str(folder / "venv"), "platbase": str(folder / "venv")}
        paths = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
        paths.add(str(Path(hatchling.__file__).parents[1]))
        site = Path(sysconfig.get_path("purelib", "venv", scheme))
        (site / "host.pth").write_text("\n".join(sorted(paths)) + "\n")

    def __call__(self, program: str, *words: object, code: int = 0) -> str:
        env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        return run(self.bin / program, *words, cwd=self.folder, code=code, env=env)

    def python(self, text: str) -> str:
        return self("python", "-c", text).strip()

    def commands(self, *lines: list[object]) -> None:
        """Run commands of the program, one after the other in one process."""
        words = [[str(word) for word in line] for line in lines]
        self.python(
            f"from rlplast.cli.main import main\nfor w in {words!r}: assert main(w) == 0, w"
        )

    def install(self, *what: object) -> None:
        words = ("--no-deps", "--no-index", "--no-build-isolation", "--ignore-installed")
        self("python", "-m", "pip", "install", "-q", *words, *what)

    def uninstall(self, name: str) -> None:
        self("python", "-m", "pip", "uninstall", "-q", "-y", name)

    def rows(self, *words: str) -> list[dict[str, str]]:
        return json.loads(self("rlplast", "list", *words, "--json"))


def package(folder: Path, name: str, module: str, text: str, points: Sequence[str] = ()) -> Path:
    """Write a project of one package; returns its folder."""
    (folder / module).mkdir(parents=True)
    (folder / module / "__init__.py").write_text(text)
    lines = ['[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"']
    lines += [f'[project]\nname = "{name}"\nversion = "1.0"']
    lines += ["[tool.hatch.build.targets.wheel]", f'packages = ["{module}"]', *points]
    (folder / "pyproject.toml").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="module")
def installed(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Installed:
    made = Installed(tmp_path_factory.mktemp("installed"))
    made.install(built[0])
    return made


@pytest.mark.slow
def test_a_package_called_agents_and_ours_leave_each_other_alone(
    installed: Installed, tmp_path: Path
) -> None:
    other = package(tmp_path / "other", "dummy-agents", "agents", "WHO = 'the other'\n")
    installed.install(other)
    both = "import agents, rlplast.agents.dqn as d; print(agents.WHO, d.__file__)"
    assert installed.python(both).startswith(f"the other {installed.folder}")
    installed.uninstall("dummy-agents")
    assert installed.python("import rlplast.agents.dqn as d; print(d.DQN.__name__)") == "DQN"
    assert {row["from"] for row in installed.rows()} == {"rlplast"}


@pytest.mark.slow
def test_a_broken_plugin_is_one_line(installed: Installed, tmp_path: Path) -> None:
    points = ('[project.entry-points."rlplast.methods"]', 'bad = "broken_plugin"')
    text = "import no_such_package\n"
    installed.install(package(tmp_path / "b", "broken-plugin", "broken_plugin", text, points))
    output = installed("rlplast", "train", "dqn/demo", "--out", "broken_run", code=2)
    assert "broken-plugin 1.0" in output.splitlines()[-1] and "Traceback" not in output
    assert not (installed.folder / "broken_run").exists()
    installed.uninstall("broken-plugin")


@pytest.mark.slow
def test_a_plugin_is_listed_trained_resumed_studied_and_reported(
    installed: Installed, tmp_path: Path
) -> None:
    shutil.copytree(TOY, tmp_path / "toy")
    installed.install(tmp_path / "toy")
    assert {row["name"] for row in installed.rows() if row["from"] == "toy-plugin 0.1"} == {
        "toy_scale",
        "toy/walk",
        "gym/ToyWalk-v0",
        "toy_agent",
    }
    config, plain, study = (tmp_path / f"{name}.yaml" for name in ("toy", "plain", "study"))
    config.write_text(yaml.safe_dump(RUN | {"env": {"num_envs": 2, "workers": 2}}))
    plain.write_text(yaml.safe_dump(RUN))
    arms = {"none": {"hooks": []}, "toy": {}}
    study.write_text(yaml.safe_dump({"base": str(plain), "seeds": [1], "arms": arms}))
    installed.commands(
        ["train", config, "--out", "run"],
        ["resume", "run", "--total", "80 env_steps"],
        ["evaluate", "run", "--episodes", 2],
        ["study", study, "--out", "study"],
        ["report", "study"],
    )
    assert (installed.folder / "study" / "report" / "report.html").exists()
    assert "toy_scale" in (installed.folder / "run" / "receipts.jsonl").read_text()
    installed.uninstall("toy-plugin")
    assert "kind = 'toy_agent'" in installed("rlplast", "resume", "run", code=2)


@pytest.mark.slow
def test_the_sdist_installs_and_can_be_worked_in(built: tuple[Path, Path], tmp_path: Path) -> None:
    made, (_, sdist) = Installed(tmp_path), built
    made.install(sdist)
    assert "dqn/asterix" in {row["name"] for row in made.rows("configs")}
    assert made.python("import rlplast.envs as e; print(e.spec('gym/CartPole-v1').num_actions)")
    shutil.unpack_archive(sdist, tmp_path / "unpacked", filter="data")
    (folder,) = (tmp_path / "unpacked").iterdir()
    made.uninstall("rlplast")
    made.install("-e", folder)
    where = made.python("import rlplast.agents.dqn as d; print(d.__file__)")
    assert where == str(folder / "src" / "rlplast" / "agents" / "dqn.py")


@pytest.mark.slow
def test_of_an_editable_install_only_the_package_can_be_imported(tmp_path: Path) -> None:
    made = Installed(tmp_path)
    made.install("-e", ROOT)
    (tmp_path / "envs").mkdir()  # somebody's own, which has no __init__.py
    (tmp_path / "envs" / "mine.py").write_text("WHO = 'mine'\n")
    spec = "rlplast.envs.spec('gym/CartPole-v1').num_actions"
    assert made.python(f"import envs.mine, rlplast.envs; print(envs.mine.WHO, {spec})") == "mine 2"
    paths = made.python("import sys; print(*sys.path, sep='\\n')").splitlines()
    ours = [p for p in map(Path, paths) if ROOT in p.parents and ROOT / ".venv" not in p.parents]
    assert [[inside.name for inside in path.iterdir()] for path in ours] == [["rlplast"]]
    assert str(ROOT) not in paths
    where = made.python("import rlplast.study.executors as a; print(a._ROOT)")
    assert where == str(ROOT / "src")  # where the processes of a study's cells find it
