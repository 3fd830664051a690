"""Every intervention and every layer in every kind of run, up to the last bit.

A run is the run without its hooks until they fire, and killed and resumed it is the run that
nobody killed.
"""

from pathlib import Path
from typing import Any

import pytest

from rlplast.core.errors import ConfigError
from rlplast.core.registry import rows
from rlplast.run import api
from rlplast.training import checkpoint
from tests.agents.toy_env import same
from tests.cases import CASES
from tests.every_kind import KINDS, small_run
from tests.gpt.runs import write_corpora
from tests.marks import slow
from tests.runs import Killed, at_step, check_resumes, final, kill, lines

FIRST = 0.6  # of a run: until then nothing fires
QUIET: dict[str, Any] = {
    "evaluate": {"every": None},
    "metrics": {"every": None},
    "checkpoint": {"every": "10%", "keep": 20},
}
# Runs of fewer updates than usual.
SHORTER = {"dqn": {"total": "60 env_steps"}, "sac": {"total": "90 env_steps"}}
LAYERS: dict[str, dict[str, Any]] = {
    "lifecycle": {"life": [4, 9], "recovery": [2, 5], "warmup": 3, "memory": "he", "redraw": True},
    "normalize_project": {"scale_offset": "regularise", "every": 2},
    "dropout": {"p": 0.2},
    "dropconnect": {"p": 0.2},
    "scheduled_drop": {"p": 0.3, "updates": 10},
    "layer_norm": {},
    "crelu": {"width": "double"},
    "deep_fourier": {},
    "stochastic_depth": {"p": 0.4},
    "rigl": {"sparsity": 0.5, "every": 3, "until": 20},
    "unit_features": {},
    "activation": {"kind": "rational"},
    "aid": {"p": 0.8},
}
# In which kinds of run a layer resumes: the first one in `make test`, the others in
# `make test-slow`.
RESUMES = {
    "lifecycle": ("dqn", "gpt", "sac"),
    "normalize_project": ("sac", "gpt"),
    "dropout": ("dqn", "ppo"),
    "dropconnect": ("supervised", "gpt"),
    "scheduled_drop": ("gpt", "dqn"),
    "layer_norm": ("ppo", "supervised"),
    "crelu": ("supervised", "sac"),
    "deep_fourier": ("gpt", "ppo"),
    "stochastic_depth": ("gpt", "sac"),
    "rigl": ("dqn", "sac"),
    "unit_features": ("dqn", "sac"),
    "activation": ("supervised", "sac"),
    "aid": ("gpt", "dqn"),
}
REFUSED_LAYERS = {
    ("gpt", "crelu"): "h.0.mlp.c_fc has the nonlinearity gelu: allowed is relu",
    ("gpt", "unit_features"): "lm_head.weight is tied to wte.weight",
    ("ppo", "crelu"): "fc1 has the nonlinearity tanh: allowed is relu",
    ("dqn", "stochastic_depth"): "finds no residual blocks in a QNetwork",
    ("ppo", "stochastic_depth"): "finds no residual blocks in a ValueNetwork",
    ("supervised", "stochastic_depth"): "finds no residual blocks in a Chain",
}
# Side by side in one run: a GPT's units are small, and not all of them are to be silent; what
# others have zeroed is not to be scaled up at once, or biases explode with it.
OWN = {"snr": {"eps": 0.1}, "swr": {"coef": 1e-3, "coef_head": 1e-3}}


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return write_corpora(tmp_path_factory.mktemp("corpora"))


def short_run(kind: str, corpora: dict[str, str], **changes: Any) -> dict[str, Any]:
    return small_run(kind, corpora, **QUIET, **SHORTER.get(kind, {}), **changes)


def row(method: str) -> dict[str, Any]:
    """A method in a config's hook list, which does nothing before `FIRST`."""
    inside = {"every": "1 updates", "from": f"{FIRST:.0%}"}
    schedule = inside if CASES[method].made_for_every_update else {"at": f"{FIRST:.0%}"}
    params = dict(CASES[method].params) | OWN.get(method, {})
    return {"method": method, "params": params, **schedule}


def accepted(kind: str) -> list[str]:
    return [method for method, case in CASES.items() if kind not in case.refuses]


def killed(config: dict[str, Any], steps: int, folder: Path) -> None:
    """Train, killed before and after the first firing."""
    with pytest.raises(Killed):
        api.train(config, folder, observer=at_step(round(0.25 * steps), kill))
    with pytest.raises(Killed):
        api.resume(folder, observer=at_step(round(0.5 * steps), kill))
    api.resume(folder)


def train(config: dict[str, Any], folder: Path) -> int:
    """Train; return the number of steps."""
    steps = 0

    def count(loop: Any) -> None:
        nonlocal steps
        steps += 1

    api.train(config, folder, observer=count)
    return steps


def before(folder: Path) -> dict[str, Any]:
    """What a run has saved before `FIRST`, and its lines: by name, without what hooks keep."""
    found: dict[str, Any] = {}
    saved = {int(path.name.split("-")[1]): path for path in folder.glob("checkpoints/step-*")}
    early = [saved[n] for n in sorted(saved) if n < 0.45 * max(saved)]  # in the unit of its length
    for path in early:
        tensors, state = checkpoint.load(path)
        found |= {f"{path.name} {n}": t for n, t in tensors.items() if not n.startswith("state/")}
        found[f"{path.name} clock"] = state["clock"]
        found[f"{path.name} trainable"] = state["trainable"]
        last = state["clock"]["updates"]
        found["lines"] = [row for row in lines(folder, "metrics") if row["updates"] <= last]
    assert state["clock"]["updates"] > 0
    return found


PLAIN: dict[str, dict[str, Any]] = {}  # what runs without hooks have saved


def check_hooks(
    kind: str, methods: list[str], corpora: dict[str, str], folder: Path, **changes: Any
) -> None:
    """Check that methods wait for `FIRST`, act, and resume: in a small run with some changes."""
    config = short_run(kind, corpora, hooks=[row(method) for method in methods], **changes)
    steps = train(config, folder / "through")
    plain = config | {"hooks": []}
    if repr(plain) not in PLAIN:
        train(plain, folder / "plain")
        PLAIN[repr(plain)] = before(folder / "plain")
    expected, found = PLAIN[repr(plain)], before(folder / "through")
    assert expected["lines"]
    for name, value in expected.items():
        assert same(value, found[name]), name
    receipts = lines(folder / "through", "receipts")
    assert {r["method"] for r in receipts} == set(methods)
    for method in (m for m in methods if CASES[m].edits_weights):
        assert any(r["sfe"] > 0 for r in receipts if r["method"] == method), method
    killed(config, steps, folder / "killed")
    assert final(folder / "killed") == final(folder / "through")


def check_layer(
    kind: str, layer: str, corpora: dict[str, str], folder: Path, **changes: Any
) -> None:
    """Check that a small run with a layer, and some changes, resumes."""
    layers = [{"method": layer, "params": LAYERS[layer]}]
    check_resumes(short_run(kind, corpora, hooks=[], layers=layers, **changes), folder)


@pytest.mark.parametrize("kind", [slow(k) if k == "sac" else k for k in KINDS])
def test_all_interventions_in_one_run_wait_and_resume(
    kind: str, corpora: dict[str, str], tmp_path: Path
) -> None:
    check_hooks(kind, accepted(kind), corpora, tmp_path)


# Each method in one kind of run: all kinds have their turn. All methods together are in each kind.
ALONE = [
    next((k, m) for k in (KINDS * 2)[i % len(KINDS) :] if m in accepted(k))
    for i, m in enumerate(CASES)
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "method"), ALONE)
def test_each_intervention_alone_waits_and_resumes(
    kind: str, method: str, corpora: dict[str, str], tmp_path: Path
) -> None:
    check_hooks(kind, [method], corpora, tmp_path)


def test_every_layer_has_parameters_for_a_short_run() -> None:
    assert {info.name for info in rows("layers")} == LAYERS.keys() == RESUMES.keys()


@pytest.mark.parametrize(
    ("kind", "layer"),
    [
        (kind, layer) if kind == kinds[0] else slow(kind, layer)
        for layer, kinds in RESUMES.items()
        for kind in kinds
    ],
)
def test_layers_resume(kind: str, layer: str, corpora: dict[str, str], tmp_path: Path) -> None:
    check_layer(kind, layer, corpora, tmp_path)


def test_layers_that_a_run_cannot_have_are_refused(corpora: dict[str, str], tmp_path: Path) -> None:
    for (kind, layer), message in REFUSED_LAYERS.items():
        layers = [{"method": layer, "params": LAYERS[layer]}]
        with pytest.raises(ConfigError, match=message):
            api.train(short_run(kind, corpora, hooks=[], layers=layers), tmp_path / kind / layer)
