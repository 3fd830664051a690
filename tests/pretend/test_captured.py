"""Updates as CUDA graphs (``accelerate: graph``): the bits of eager updates, one launch each.

The eager ones never wait for the device, but for exceptions with a reason: whatever waits in every
update keeps a GPU idle while Python goes on. Reads of a number, copies from memory that is not
pinned and the like are waits.

`UPDATES` is 24, or what the environment variable CAPTURED_UPDATES says.
"""

import copy
import os
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch
from _pytest.mark import ParameterSet

from rlplast.core.errors import ConfigError
from rlplast.core.fast.graphs import EAGER, graphs_of
from rlplast.core.registry import rows
from rlplast.run import api
from rlplast.run.build import build
from rlplast.run.config_file import read_config
from rlplast.training.checkpoint import network_tensors
from tests.cases import CASES
from tests.every_kind import KINDS, small_run
from tests.marks import optimizers
from tests.methods import penalty_cases
from tests.pretend.device import counted
from tests.pretend.test_every_kind import DEVICE
from tests.runs import Killed, at_step, final, kill
from tests.test_every_kind import LAYERS, OWN, QUIET, RESUMES

UPDATES = int(os.environ.get("CAPTURED_UPDATES", "24"))
ALLOCATING = 3  # updates, in which state is allocated
AGENTS = ("dqn", "sac", "ppo")
LONG: dict[str, dict[str, Any]] = {
    "dqn": {"total": "10k env_steps"},
    "sac": {"total": "10k env_steps"},
    "ppo": {"total": "10k env_steps"},
    "supervised": {"stream": {"name": "warm_start", "fraction": 0.4, "epochs": UPDATES}},
    "gpt": {"phases": [{"updates": 10 * UPDATES, "mixture": {"low": 1}}]},
}
KEYS = {"supervised": 2}  # graphs of an update: its last batch of an epoch is smaller
# What cannot be part of a graph, and what the warning says of it.
DRAWS = ("drm", "full_reset", "head_reset", "redo", "renew_weights", "shrink_perturb")
OPTIMIZERS = ("adam_o", "kron", "muon", "muon_fire", "schedule_free", "trac", "upgd")
EAGER_BECAUSE = {
    "fire": "reads norms on the host",
    "regrama": "reads the clock",
    "persistent": "draws from a gen",
    "fp16": "skips updates, as the host decides",
    **dict.fromkeys(("c_chain", "infer", "l2_er", "sigreg"), "reads batches of its own"),
    **dict.fromkeys(OPTIMIZERS, "steps on the host"),
    **dict.fromkeys(DRAWS, "draws from a gen"),
}
# What waits for the device, and for what.
WAITS = {
    "kron": "its package copies numbers of the host",
    "l2_er": "singular values are checked",
    "permuted_pixels": "the pixels of a task are sent where it begins",
    # Made to fire now and then, not in every update.
    "fire": "eigenvalues are checked, and a choice is made by them",
    **dict.fromkeys((*DRAWS, "regrama"), "fresh weights are drawn on the host"),
}
BINS = {"bins": 7, "low": -5.0, "high": 5.0}
WITH_VALUES = {
    **{
        f"dqn {k}": ("dqn", {"values": {"kind": k, **BINS}}) for k in ("hl_gauss", "two_hot", "c51")
    },
    "sac c51": ("sac", {"values": {"kind": "c51", **BINS}, "critics": 3, "critic_subset": 2}),
    "simba_v2": ("sac", {"network": "simba_v2", "scale_rewards": 5, "values": {"kind": "c51"}}),
    "bro": ("sac", {"network": "bro"}),
    "shared trunk": ("ppo", {"shared_trunk": True}),
}


def tensors(of: Any, path: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield all tensors in a state, with their place."""
    if isinstance(of, torch.Tensor):
        yield path, of.cpu()
    elif isinstance(of, Mapping):
        for name, value in of.items():
            yield from tensors(value, f"{path}/{name}")


def accelerated(config: dict[str, Any], how: str) -> dict[str, Any]:
    """Return a config whose updates are eager (off), compiled or graphs."""
    found = copy.deepcopy(config)
    (found["agent"] if found["kind"] in AGENTS else found)["accelerate"] = how
    return found


def trained(
    config: dict[str, Any], accelerate: str
) -> tuple[dict[str, torch.Tensor], Counter[str], int]:
    """Return all tensors after some updates, waits of the last, and how many were replays."""
    config = accelerated(config, accelerate)
    agent: Any
    agent, hooks = build(read_config(config, {}))
    agent.attach(hooks)
    replays, waits = 0, Counter[str]()
    while agent.clock.updates < UPDATES:
        before = agent.clock
        with counted() as seen:
            agent.step()
        if agent.clock.updates > before.updates:
            replays += seen.graphs
            waits += seen.waits if before.updates >= ALLOCATING else Counter()
        hooks.fire(before, agent.clock)
    found: dict[str, Any] = {"trainable": agent.state_dict(), "hooks": hooks.state_dict()}
    for network in agent.networks.values():
        found |= network_tensors(network)
    agent.close()
    return dict(tensors(found)), waits, replays


def least(kind: str, keys: int = 1) -> int:
    """Return how many updates are replays, if they have so many keys or fewer."""
    return UPDATES - EAGER * keys * KEYS.get(kind, 1)


def plain(kind: str, corpora: dict[str, str], **changes: Any) -> dict[str, Any]:
    """Return the config of a run without hooks, with changes."""
    keys: dict[str, Any] = {"hooks": [], "penalties": [], **DEVICE[kind], **QUIET, **LONG[kind]}
    keys |= {"optimizer": {"schedule": "linear", "warmup": 0.001}}
    own = changes.pop("agent", {})
    config = small_run(kind, corpora, **(keys | changes))
    if kind in AGENTS:
        config["agent"] = config.get("agent", {}) | own
    return config


def check(kind: str, what: str, replayed: int, corpora: dict[str, str], **changes: Any) -> None:
    """Check that graphs change no bit, and that at least so many updates were replays."""
    config = plain(kind, corpora, **changes)
    eager, waits, _ = trained(config, "off")
    assert bool(waits) == (what in WAITS), waits
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        graphs, _, replays = trained(config, "graph")
    assert graphs.keys() == eager.keys()
    assert [name for name in eager if not torch.equal(eager[name], graphs[name])] == []
    if what in EAGER_BECAUSE:
        assert replays < least(kind)
        assert EAGER_BECAUSE[what] in "".join(str(w.message) for w in warned)
    else:
        assert [str(w.message) for w in warned] == []
        assert replays >= replayed


def once_if_eager(found: Iterable[Any]) -> list[Any]:
    """Return kinds of runs with names of what acts in them; one kind for what is eager in all."""
    cases = []
    for case in (one if isinstance(one, ParameterSet) else pytest.param(one) for one in found):
        kinds = ("supervised",) if case.values[0] in EAGER_BECAUSE else KINDS
        cases += [pytest.param(kind, *case.values, marks=case.marks) for kind in kinds]
    return cases


@pytest.mark.parametrize("kind", KINDS)
def test_plain_updates(kind: str, corpora: dict[str, str]) -> None:
    check(kind, "", least(kind), corpora)


@pytest.mark.parametrize("keys", [{"actor_every": 2}, {"critic_subset": 2, "critics": 5}], ids=str)
def test_updates_that_differ_from_one_another(keys: dict[str, Any]) -> None:
    check("sac", "", least("sac", 2), {}, agent=keys)


@pytest.mark.parametrize("name", WITH_VALUES)
def test_networks_and_values_of_agents(name: str, corpora: dict[str, str]) -> None:
    kind, changes = WITH_VALUES[name]
    check(kind, "", least(kind), corpora, agent=changes)


@pytest.mark.parametrize("kind", ["supervised", "gpt"])
def test_updates_in_parts(kind: str, corpora: dict[str, str]) -> None:
    check(kind, "", least(kind), corpora, micro_batch=40 if kind == "supervised" else 2)


def test_phases_with_other_optimizers(corpora: dict[str, str]) -> None:
    optimizer = {"name": "adam", "first_phase": "sgd", "renew": True}
    stream = {"name": "warm_start", "fraction": 0.4, "epochs": [1, UPDATES]}
    check("supervised", "", least("supervised", 2), corpora, optimizer=optimizer, stream=stream)


def test_an_optimizer_of_the_first_phase_that_cannot_be_captured_is_named(
    corpora: dict[str, str],
) -> None:
    optimizer = {"name": "adam", "first_phase": "muon"}
    stream = {"name": "warm_start", "fraction": 0.4, "epochs": [2, UPDATES]}
    check("supervised", "muon", 0, corpora, optimizer=optimizer, stream=stream)


def test_updates_too_rare_to_be_captured_keep_no_memory() -> None:
    graphs = graphs_of("graph", torch.device("cuda"), "accelerate")
    assert graphs is not None
    x, out = torch.ones(1000, device="cuda"), torch.zeros(1000, device="cuda")
    before = torch.cuda.memory_allocated()
    for number in range(50):
        graphs(number, lambda x: out.add_(x).sum(), x)
    assert torch.cuda.memory_allocated() == before
    for _ in range(EAGER + 2):
        graphs("often", lambda x: out.add_(x).sum(), x)
    assert out[0] == 50 + EAGER + 2


def test_the_online_accuracy_of_tasks(corpora: dict[str, str]) -> None:
    stream = {"name": "permuted_pixels", "phases": 3, "epochs": 1 + UPDATES // 30}
    changes = {"stream": stream, "augment": ["crop", "flip"]}
    check("supervised", "permuted_pixels", least("supervised"), corpora, **changes)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_gpt_in_low_precision(precision: str, corpora: dict[str, str]) -> None:
    check("gpt", precision, least("gpt"), corpora, precision=precision)


@pytest.mark.parametrize(
    ("kind", "method"), once_if_eager(m for m, case in CASES.items() if not case.refuses_inside)
)
def test_hooks_inside(kind: str, method: str, corpora: dict[str, str]) -> None:
    if kind in CASES[method].refuses:
        pytest.skip(f"{kind} refuses {method}")
    params = dict(CASES[method].params) | OWN.get(method, {})
    row = {"method": method, "params": params, "every": "1 updates", "from": "8 updates"}
    check(kind, method, least(kind, 3) - 1, corpora, hooks=[row])


@pytest.mark.parametrize("refresh", [1, 3, 1000])
def test_thresholds_of_snr_are_renewed_whenever_they_are_due(refresh: int) -> None:
    params = dict(CASES["snr"].params) | OWN["snr"] | {"refresh": refresh}
    row = {"method": "snr", "params": params, "every": "1 updates"}
    check("sac", "snr", least("sac", 2), {}, hooks=[row])


def in_turn(names: Iterable[str]) -> list[tuple[str, str]]:
    """Return each name with a kind of run: all kinds have their turn."""
    return list(zip(cycle(KINDS), names, strict=False))


@pytest.mark.parametrize(
    ("kind", "method"), in_turn(["fire", "full_reset", "head_reset", "hare_tortoise", "fire"])
)
def test_scheduled_hooks_write_between_replays(
    kind: str, method: str, corpora: dict[str, str]
) -> None:
    params = dict(CASES[method].params) | OWN.get(method, {})
    row = {"method": method, "params": params, "every": "9 updates"}
    check(kind, "", least(kind), corpora, hooks=[row])


@pytest.mark.parametrize("kind", KINDS)
def test_updates_after_a_firing_wait_for_nothing(kind: str, corpora: dict[str, str]) -> None:
    for method, case in CASES.items():
        if case.refuses_inside and kind not in case.refuses:
            params = dict(case.params) | OWN.get(method, {})
            row = {"method": method, "params": params, "at": "2 updates"}
            _, waits, _ = trained(plain(kind, corpora, hooks=[row]), "off")
            assert not waits, method


@pytest.mark.parametrize(
    ("kind", "layer"), [(kind, layer) for layer, kinds in RESUMES.items() for kind in kinds]
)
def test_layers(kind: str, layer: str, corpora: dict[str, str]) -> None:
    replayed = UPDATES // 4 if layer == "rigl" else least(kind, 2)
    layers = [{"method": layer, "params": LAYERS[layer]}]
    check(kind, layer, replayed, corpora, layers=layers)


@pytest.mark.parametrize(("kind", "method"), in_turn(info.name for info in rows("penalties")))
def test_penalties_with_a_window(kind: str, method: str, corpora: dict[str, str]) -> None:
    row = penalty_cases.row(method) | {"from": "8 updates", "until": "16 updates"}
    check(kind, method, least(kind, 3), corpora, penalties=[row])


@pytest.mark.parametrize(("kind", "name"), once_if_eager(optimizers()))
def test_optimizers(kind: str, name: str, corpora: dict[str, str]) -> None:
    keys = {"name": name, "schedule": "cosine", "clip_norm": 1.0}
    check(kind, name, least(kind), corpora, optimizer=keys)


@pytest.mark.filterwarnings("ignore:accelerate = 'graph'.*shrink_perturb")  # a GPT's, late
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_was_killed_goes_on_as_the_eager_one(
    kind: str, corpora: dict[str, str], tmp_path: Path
) -> None:
    total = {"total": "60 env_steps"} if kind in AGENTS else {}
    config = small_run(kind, corpora, **(QUIET | total | DEVICE[kind]))
    api.train(accelerated(config, "off"), tmp_path / "eager")
    graph = accelerated(config, "graph")
    with pytest.raises(Killed):
        api.train(graph, tmp_path / "graph", observer=at_step(15 if total == {} else 30, kill))
    api.resume(tmp_path / "graph")
    assert final(tmp_path / "graph") == final(tmp_path / "eager")


@pytest.mark.parametrize("kind", KINDS)
def test_a_cpu_has_no_graphs(kind: str, corpora: dict[str, str]) -> None:
    config = accelerated(small_run(kind, corpora, device="cpu"), "graph")
    with pytest.raises(ConfigError, match="CUDA graphs need a GPU; allowed here are off and"):
        build(read_config(config, {}))
