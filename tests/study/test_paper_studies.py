"""The papers' studies beside their tables, the official scripts and docs/papers.

The values below were copied from the papers, not from the studies.
"""

import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from rlplast import envs
from rlplast.optimizers.updater import Updater
from rlplast.run.config_file import read_config
from rlplast.run.shipped import config_folder, shipped_configs
from rlplast.study.api import read_study_config, study_cells
from rlplast.study.spec import StudyConfig, runs_of
from rlplast.supervised.models import build_model
from tests.marks import slow

PAGES = sorted((Path(__file__).parents[2] / "docs" / "papers").glob("*.md"))
FOLDER = config_folder() / "study"
NAMES = sorted(
    p.relative_to(FOLDER.parent).with_suffix("").as_posix() for p in FOLDER.glob("*/*.yaml")
)


def arm_config(study: StudyConfig, task: str, arm: str) -> Any:
    """Return the config of an arm in a task, of the first seed."""
    seed = study.seed_list()[0]
    (run,) = [r for r in runs_of(study) if (r.task, r.arm, r.seed) == (task, arm, seed)]
    return read_config(study.base, *run.overrides)


def rows_of(study: StudyConfig, task: str, arm: str) -> list[dict[str, Any]]:
    """Return the hooks and penalties that an arm has in a task."""
    config = arm_config(study, task, arm)
    return [dict(row) for row in (*config.hooks, *config.penalties)]


def row(study: StudyConfig, task: str, arm: str) -> dict[str, Any]:
    """Return the only hook or penalty of an arm, without its name."""
    (found,) = rows_of(study, task, arm)
    return {key: value for key, value in found.items() if key != "method"}


# FIRE, Tables 6 to 8: S&P, DASH (α, λ), Parseval, FIRE's iterations; its scripts: continual
# backprop (rate, maturity), ReDo, L2 Init, SNR.
FIRE = {
    "fig2a_cifar10": (0.8, (0.3, 0.05), 1e-3, 10, (1e-4, 1000), 0.5, 1e-3, 0.99),
    "fig2a_cifar100": (0.8, (0.1, 0.05), 1e-5, 10, (1e-4, 100), 0.5, 1e-3, 0.99),
    "fig2a_tiny_imagenet": (0.8, (0.1, 0.05), 1e-3, 10, (1e-4, 1000), 0.5, 1e-3, 0.92),
    "fig2b_cifar10": (0.8, (0.3, 0.05), 1e-3, 10, (1e-5, 1000), 0.05, 1e-5, 0.92),
    "fig2b_cifar100": (0.8, (0.1, 0.05), 1e-5, 10, (1e-5, 1000), 0.01, 1e-4, 0.96),
    "fig2b_tiny_imagenet": (0.8, (0.1, 0.1), 1e-4, 10, (1e-5, 1000), 0.01, 1e-5, 0.99),
    "fig2c_cifar100": (0.8, (0.3, 0.3), 1e-5, 10, (1e-5, 1000), 0.01, 1e-5, 0.92),
    "fig2c_tiny_imagenet": (0.8, (0.3, 0.1), 1e-3, 10, (1e-4, 1000), 0.05, 1e-4, 0.98),
}
SCOPES = {"cifar10": "resnet", "cifar100": "vit", "tiny_imagenet": "vgg"}
EPOCHS = {"a": [1000, 100], "b": [100] * 10, "c": [100] * 20}


@pytest.mark.parametrize("name", FIRE)
def test_fires_classifiers_have_the_published_values(name: str) -> None:
    study = read_study_config(f"study/fire/{name}")
    shrink, dash, parseval, iterations, cbp, redo, l2_init, snr = FIRE[name]
    warm = {"from": "phase 1"} if name.startswith("fig2a") else {}
    start: dict[str, Any] = {"on": "phase_start"}

    def has(arm: str, **expected: Any) -> None:
        found = row(study, "", arm)
        params = expected.pop("params")
        assert found.pop("params").items() >= params.items(), arm
        assert found == expected, arm

    assert study.seed_list() == [1, 2, 3] and rows_of(study, "", "none") == []
    has("full_reset", **start, params={"init": "stored"})
    has("shrink_perturb", **start, params={"coef": shrink})
    # The code leaves the mode as it is: its first stage of a warm start ends 9 epochs after a test.
    mode = "train" if name.startswith("fig2a") else "eval"
    has("dash", **start, params={"alpha": dash[0], "coef": dash[1], "mode": mode})
    has("parseval", **warm, params={"coef": parseval, "norms": True})
    scope = SCOPES[name.partition("_")[2]]
    has("fire", **start, scope=scope, params={"iterations": iterations})
    has("cbp", every="1 updates", **warm, params={"replacement_rate": cbp[0], "maturity": cbp[1]})
    has("redo", every="1 epochs", **warm, params={"threshold": redo, "probe": 512})
    has("l2_init", **warm, params={"coef": l2_init})
    has("snr", every="1 updates", **warm, params={"percentile": snr, "tau_max": 20000})


@pytest.mark.parametrize("name", FIRE)
def test_fires_muon_has_the_scripts_rates_and_tensors(name: str) -> None:
    config = arm_config(read_study_config(f"study/fire/{name}"), "", "muon")
    optimizer = config.optimizer
    optimizer.check()
    assert (config.hooks, config.penalties, optimizer.renew) == ([], [], True)
    assert (optimizer.name, optimizer.lr, optimizer.weight_decay) == ("muon_fire", 1e-3, 0)
    assert optimizer.first_phase == ("adam" if name.startswith("fig2a") else None)
    model = build_model(replace(config.model, width=12), (3, 64, 64), 10)
    updater = Updater(optimizer, model)
    updater.begin(1)
    muon, adam = updater.optimizers
    (own,), (rest,) = muon.param_groups, adam.param_groups
    assert own["ratio"] * own["lr"] == 1e-2 and rest["lr"] == 1e-3
    assert (own["momentum"], rest["betas"]) == (0.95, (0.9, 0.95))
    # As many as in the networks of its code.
    counts = {"cifar10": 20, "cifar100": 75, "tiny_imagenet": 13}
    assert len(own["params"]) == counts[name.partition("_")[2]]


@pytest.mark.parametrize("name", FIRE)
def test_fires_classifiers_have_the_published_stages_and_optimizer(name: str) -> None:
    study = read_study_config(f"study/fire/{name}")
    found: Any = read_config(study.base, study.overrides)
    assert found.stream.epochs_of_phases() == EPOCHS[name[4]]
    assert found.stream.fraction == (0.1 if name[4] == "a" else None)
    assert (found.batch_size, found.augment, found.evaluate.every) == (256, [], "1 epochs")
    optimizer = found.optimizer
    assert (optimizer.name, optimizer.lr, optimizer.weight_decay) == ("adam", 1e-3, 0)
    assert (optimizer.clip_norm, optimizer.renew, optimizer.warmup) == (0.5, True, 0.1)


def test_fires_gpts_have_the_published_coefficients_and_checkpoints() -> None:
    study = read_study_config("study/fire/fig3")
    starts = {"best": ("best", 0.5), "30k": ("step-30000", 0.8), "60k": ("step-60000", 0.5)}
    assert list(study.task_list()) == list(starts) and study.seed_list() == [1, 2, 3]
    for task, (checkpoint, coef) in starts.items():
        assert study.task_list()[task] == {"start.checkpoint": checkpoint}
        assert row(study, task, "shrink_perturb") == {"at": "0%", "params": {"coef": coef}}
        assert row(study, task, "fire")["params"] == {"iterations": 5, "include_tied": True}
    scratch = [run for run in runs_of(study) if run.arm == "full_reset"]
    assert {run.task for run in scratch} == {"best"}  # one curve for all three
    config: Any = read_config(study.base, *scratch[0].overrides)
    assert config.start.run is None and config.hooks == []


def test_fires_agents_act_at_the_midpoint_in_the_published_environments() -> None:
    tasks = {
        "fig4a": [f"atari/{game}" for game in ("Asterix", "BeamRider", "DemonAttack")],
        "fig4b": [f"humanoid_bench/h1-{t}-v0" for t in ("balance_simple", "walk", "run")],
    }
    for name, ids in tasks.items():
        study = read_study_config(f"study/fire/{name}")
        assert [values["env.id"] for values in study.task_list().values()] == ids
        first = next(iter(study.task_list()))
        for arm in ("full_reset", "shrink_perturb", "fire"):
            assert {hook["at"] for hook in rows_of(study, first, arm)} == {"50%"}
        assert rows_of(study, first, "none") == []
        assert {"swr", "lifecycle"} <= set(study.arms)


def test_fires_dqn_has_the_published_values() -> None:
    study = read_study_config("study/fire/fig4a")
    assert study.seed_list() == [1, 2, 3]
    for values in study.task_list().values():
        found: Any = read_config(study.base, study.overrides, values)
        agent, evaluate = found.agent, found.evaluate
        # Table 3, but for the learning rate, which is the code's.
        assert (found.optimizer.name, found.optimizer.lr) == ("adam", 6.25e-5)
        assert (found.optimizer.eps, agent.gamma, agent.batch_size) == (1.5e-4, 0.99, 32)
        assert (agent.epsilon_end, agent.epsilon_eval) == (0.01, 0.001)
        assert (agent.buffer_size, agent.initial_steps) == (10**6, 20_000)
        assert found.total_time().value == 10 * 250_000
        assert (found.replay_ratio, agent.target_every, agent.huber_delta) == (1, 2000, 1)
        # The code.
        assert (agent.network, agent.init, found.env.num_envs) == ("nature", "xavier_uniform", 4)
        assert (agent.epsilon_start, agent.epsilon_decay) == (1, 0.1)
        assert (agent.double, agent.n_step) == (False, 1)
        assert (evaluate.every, evaluate.steps) == ("10%", 125_000)
        # shimmy 1.1.0, which its environments are registered by: 108 000 frames, four a step.
        spec = envs.spec(found.env.id, **found.env.options)
        assert (spec.max_episode_steps, spec.frames_per_step) == (27_000, 4)
    linear_back = {"at": "50%", "scope": "dqn", "optimizer": "keep"}
    assert row(study, "atari/Asterix", "fire") == {
        **linear_back,
        "followers": "copy",
        "params": {"iterations": 10, "polynomial": "cubic"},
    }
    assert row(study, "atari/Asterix", "shrink_perturb") == {
        **linear_back,
        "followers": "same_edit",
        "params": {"coef": 0.8, "init": "stored"},
    }
    new_adam = {"at": "50%", "optimizer": "network"}
    assert row(study, "atari/Asterix", "plasticity_injection") == new_adam


def test_fires_sac_has_the_published_values() -> None:
    study = read_study_config("study/fire/fig4b")
    assert study.seed_list() == [1, 2, 3]
    for values in study.task_list().values():
        found: Any = read_config(study.base, study.overrides, values)
        agent = found.agent
        # Table 4.
        assert (found.optimizer.name, found.optimizer.lr) == ("adamw", 1e-4)
        assert (found.optimizer.weight_decay, agent.gamma, agent.tau) == (0.01, 0.99, 0.005)
        assert (agent.actor_width, agent.actor_blocks) == (128, 1)
        assert (agent.critic_width, agent.critic_blocks, agent.critics) == (512, 2, 2)
        assert (agent.buffer_size, agent.batch_size, agent.initial_steps) == (10**6, 256, 5000)
        assert found.replay_ratio == 2
        # The code, and the plot in its repository: 10⁶ simulator steps.
        assert found.env.options == {"action_repeat": 2}
        assert found.total_time().value * 2 == 10**6
        assert (agent.initial_temperature, agent.target_entropy_scale) == (0.01, 0.5)
        assert (agent.log_std, agent.log_std_min, agent.log_std_max) == ("squash", -10, 2)
        assert agent.normalize_obs and found.optimizer.decay == "all"
        assert (found.evaluate.every, found.evaluate.episodes) == ("2%", 10)
    edits = {"shrink_perturb": {"coef": 0.8}, "fire": {"iterations": 10}}
    for arm, coefs in (edits | {"plasticity_injection": {}}).items():
        edit, temperature = rows_of(study, "h1-walk", arm)
        assert (edit["method"], edit["at"], edit["networks"]) == (arm, "50%", ["actor", "critic"])
        assert edit.get("params", {}).items() >= coefs.items()
        # A method's own policy for targets is copy.
        assert (edit["optimizer"], edit.get("followers", "copy")) == ("network", "copy")
        assert (temperature["method"], temperature["networks"]) == ("full_reset", ["temperature"])


# SWR, Tables 2 to 4: S&P, L2, L2 Init, SWR (of features, of the classifier), by task.
PAIRS = ("mnist_mlp", "cifar10_cnn", "cifar100_cnn", "cifar100_cnn_bn", "tiny_imagenet_vgg16")
WITH_NORMS = PAIRS[3:]
SWR: dict[str, list[tuple[Any, ...]]] = {
    "fig2_6": [
        (0.4, 1e-5, 1e-5, (1e-4,)),
        (0.8, 1e-2, 1e-2, (1e-3,)),
        (0.8, 1e-2, 1e-2, (1e-3,)),
        (0.8, 1e-2, 1e-2, (1e-4, 1)),
        (0.8, 1e-5, 1e-5, (1e-2, 1e-1)),
    ],
    "fig3_7": [
        (0.6, 1e-4, 1e-4, (1e-4,)),
        (0.8, 1e-2, 1e-2, (1e-3,)),
        (0.8, 1e-2, 1e-2, (1e-3,)),
        (0.8, 1e-2, 1e-2, (1e-4, 1e-1)),
        (0.8, 1e-4, 1e-4, (1e-2, 1e-2)),
    ],
    "fig4_8": [
        (0.2, 1e-5, 1e-5, (1e-4,)),
        (0.4, 1e-2, 1e-2, (1e-1,)),
        (0.6, 1e-2, 1e-2, (1e-1,)),
        (0.4, 1e-2, 1e-2, (1e-1, 1e-2)),
        (0.4, 1e-4, 1e-3, (1e-4, 1)),
    ],
    "table1": [
        (None, 1e-5, 1e-5, (1e-4,)),
        (None, 1e-2, 1e-2, (1e-3,)),
        (None, 1e-2, 1e-2, (1e-3,)),
        (None, 1e-2, 1e-2, (1e-4, 1e-1)),
        (None, 1e-5, 1e-5, (1e-2, 1e-1)),
    ],
}
SWR["table5"] = SWR["table1"]
STREAMS = {
    "fig2_6": ("warm_start", [100, 100]),
    "fig3_7": ("continual_full", [100] * 10),
    "fig4_8": ("continual_limited", [100] * 10),
    "table1": ("single_task", [200]),
    "table5": ("single_task", [200]),
}


@pytest.mark.parametrize("name", SWR)
def test_swrs_classifiers_have_the_published_values(name: str) -> None:
    study = read_study_config(f"study/swr/{name}")
    assert tuple(study.task_list()) == PAIRS and study.seed_list() == [1, 2, 3, 4, 5]
    for task, (shrink, l2, l2_init, swr) in zip(PAIRS, SWR[name], strict=True):
        assert row(study, task, "l2") == {"params": {"coef": l2}}
        assert row(study, task, "l2_init") == {"params": {"coef": l2_init}}
        coefs = dict(zip(("coef", "coef_head"), swr, strict=False))
        arms = {"swr": coefs, "swr_reanchored": coefs | {"reanchor_on_lr_decay": True}}
        for arm, params in arms.items() if name == "table5" else [("swr", coefs)]:
            # As Algorithm 1 is printed; beside it, where there are norms, as it is proved.
            found = row(study, task, arm)
            assert found == {"every": "1 updates", "params": params | {"rule": "printed"}}
            there = any((r.task, r.arm) == (task, f"{arm}_exact") for r in runs_of(study))
            assert there == (task in WITH_NORMS)
            if there:
                found = row(study, task, f"{arm}_exact")
                assert found == {"every": "1 updates", "params": params}
        if shrink is not None:
            start = {"on": "phase_start", "optimizer": "keep"}  # the code: one Adam, never cleared
            assert row(study, task, "shrink_perturb") == start | {"params": {"coef": shrink}}
            assert row(study, task, "head_reset") == start | {"params": {"init": "stored"}}


# The config of one run of a paper, and the study, the task and the arm that it is.
SINGLE = {
    **{f"supervised/swr_{pair}": ("swr/fig2_6", pair, "swr") for pair in PAIRS},
    "supervised/fire_cifar10_resnet18": ("fire/fig2a_cifar10", "", "fire"),
    "supervised/fire_cifar100_vit": ("fire/fig2a_cifar100", "", "fire"),
    "supervised/fire_tiny_imagenet_vgg16": ("fire/fig2a_tiny_imagenet", "", "fire"),
    "supervised/lcl_cifar10": ("lcl/tables_1_2_resnet18", "cifar10", "lcl"),
    "supervised/lcl_imagenet_probe": ("lcl/table_3", "swin_b", "lcl"),
    "supervised/persistent_lenet5": ("persistent/figures_6_7_8", "good", "persistent"),
    "gpt/fire_a42_phase2": ("fire/fig3", "best", "fire"),
    "dqn/asterix": ("fire/fig4a", "atari/Asterix", "none"),
    "dqn/beamrider": ("fire/fig4a", "atari/BeamRider", "none"),
    "dqn/demonattack": ("fire/fig4a", "atari/DemonAttack", "none"),
    "sac/h1_balance": ("fire/fig4b", "h1-balance_simple", "none"),
    "sac/h1_walk": ("fire/fig4b", "h1-walk", "none"),
    "sac/h1_run": ("fire/fig4b", "h1-run", "none"),
}
WRITTEN = ("log", "metrics", "evaluate", "checkpoint")  # what a run writes, and how often


def test_every_config_of_a_papers_run_is_compared() -> None:
    papers = ("fire_", "swr_", "lcl_", "persistent_")
    named = {name for name in shipped_configs() if name.partition("/")[2].startswith(papers)}
    named -= {name for name in named if name.startswith("study/")}
    assert named - SINGLE.keys() == {"gpt/fire_a42_phase1"}  # from which the study starts


@pytest.mark.parametrize("name", SINGLE)
def test_the_config_of_one_run_is_the_arm_of_its_study(name: str) -> None:
    """All is compared but what is written, where it starts, and corrupted images."""
    study, task, arm = SINGLE[name]
    single: Any = asdict(read_config(name))
    own: Any = asdict(arm_config(read_study_config(f"study/{study}"), task, arm))
    for config in (single, own):
        for key in WRITTEN:
            del config[key]
        config.get("data", {})["corrupted"] = config.get("start", {})["run"] = None
    assert single == own


@pytest.mark.parametrize("name", SWR)
def test_swrs_classifiers_have_the_published_nets_and_stages(name: str) -> None:
    study = read_study_config(f"study/swr/{name}")
    for task, values in study.task_list().items():
        found: Any = read_config(study.base, study.overrides, values)
        assert (found.stream.name, found.stream.epochs_of_phases()) == STREAMS[name]
        data, _, model = task.rpartition("_cnn_bn" if task.endswith("_bn") else "_")
        assert (found.data.name, found.model.name) == (data, model or "cnn_bn")
        assert found.model.batch_norm == (model == "vgg16")  # cnn_bn has it by itself
        optimizer = found.optimizer
        assert (optimizer.lr, optimizer.renew, optimizer.warmup) == (1e-3, False, 0)
        falls = ("step", [0.5, 0.75], 0.1) if name == "table5" else ("constant", [], 0.1)
        assert (optimizer.schedule, optimizer.milestones, optimizer.gamma) == falls


def test_the_variants_of_swrs_code_have_the_published_values() -> None:
    study = read_study_config("study/swr/code_variants")
    names = dict(zip(study.task_list(), ("fig2_6", "fig3_7", "fig4_8", "table1"), strict=True))
    for task, name in names.items():
        _, l2, l2_init, swr = SWR[name][PAIRS.index("cifar100_cnn_bn")]
        assert row(study, task, "l2_doubled") == {"params": {"coef": 2 * l2}}
        assert row(study, task, "l2_init_doubled") == {"params": {"coef": 2 * l2_init}}
        for rule in ("exact", "printed"):
            for arm, coefs in (("swr", swr), ("swr_swapped", swr[::-1])):
                params = dict(zip(("coef", "coef_head"), coefs, strict=True)) | {"rule": rule}
                found = row(study, task, f"{arm} rule={rule}")
                assert found == {"every": "1 updates", "params": params}
        values = study.task_list()[task]
        found: Any = read_config(study.base, study.overrides, values)
        assert (found.stream.name, found.stream.epochs_of_phases()) == STREAMS[name]
        assert (found.data.name, found.model.name) == ("cifar100", "cnn_bn")


def test_grids_are_those_of_the_papers() -> None:
    def grids(name: str) -> dict[str, list[list[Any]]]:
        arms = read_study_config(name).arms
        return {name: list(arm.grid.values()) for name, arm in arms.items() if arm and arm.grid}

    thin, wide = [0.2, 0.4, 0.6, 0.8], [0.1, 0.01, 1e-3, 1e-4, 1e-5]
    assert grids("study/fire/fig2_grid") == {
        "shrink_perturb": [thin],
        "dash": [[0.1, 0.3], [0.05, 0.1, 0.3]],
        "parseval": [[1e-3, 1e-4, 1e-5]],
    }
    assert grids("study/fire/fig3_grid") == {"shrink_perturb": [[0.2, 0.5, 0.8]]}
    own = [1, *wide[:-1]]
    assert grids("study/swr/grid") == {
        "l2": [wide],
        "l2_init": [wide],
        "shrink_perturb": [thin],
        "swr": [own],
        "swr_norms": [own, own],
    }


# The task of a grid, and the study and the task of it whose values came out.
CHOSEN = {("study/fire/fig2_grid", name): (f"study/fire/{name}", "") for name in FIRE} | {
    ("study/swr/grid", f"{setting}_{pair}"): (f"study/swr/{name}", pair)
    for setting, name in zip(
        ("warm", "full", "limited", "single"), ("fig2_6", "fig3_7", "fig4_8", "table1"), strict=True
    )
    for pair in PAIRS
}


@pytest.mark.parametrize(("grid", "task"), CHOSEN)
def test_a_grid_has_the_runs_whose_values_were_chosen(grid: str, task: str) -> None:
    """All of a run's config is compared: data, network, stream, optimizer, hooks, penalties."""
    name, own_task = CHOSEN[grid, task]
    study, searched = read_study_config(name), read_study_config(grid)
    tried = {run.arm: run for run in runs_of(searched) if (run.task, run.seed) == (task, 1)}
    chosen = {r.arm: r for r in runs_of(study) if (r.task, r.seed) == (own_task, 1)}
    for arm in {"none", "shrink_perturb", "dash", "parseval", "l2", "l2_init", "swr"} & set(chosen):
        if name.startswith("study/fire/") and arm == "l2_init":
            continue  # of the scripts, not of Table 5
        config = read_config(study.base, *chosen[arm].overrides)
        (row,) = [*config.hooks, *config.penalties] or [{"params": {}}]
        wanted = {k: row["params"][k] for k in ("alpha", "coef", "coef_head") if k in row["params"]}
        arm = "swr_norms" if "coef_head" in wanted else arm
        label = " ".join([arm, *(f"{k}={v:g}" for k, v in wanted.items())])
        assert read_config(searched.base, *tried[label].overrides) == config, label


def test_fires_ablations_are_the_warm_start_of_figure_2a() -> None:
    warm = read_study_config("study/fire/fig2a_cifar10")
    base: Any = read_config(warm.base, warm.overrides)
    for name in ("fig5a", "fig5b"):
        study = read_study_config(f"study/fire/{name}")
        found: Any = read_config(study.base, study.overrides)
        assert study.seed_list() == [1, 2, 3]
        parts = ("data", "model", "stream", "optimizer", "batch_size", "augment")
        assert [getattr(found, p) for p in parts] == [getattr(base, p) for p in parts]
        for arm in set(study.arms) - {"fire"}:
            assert rows_of(study, "", arm) == rows_of(warm, "", arm)
    fire = row(warm, "", "fire")
    assert row(read_study_config("study/fire/fig5b"), "", "fire") == fire
    for number in (1, 2, 3, 5, 10, 20):
        found = row(read_study_config("study/fire/fig5a"), "", f"fire iterations={number}")
        assert found == fire | {"params": {"iterations": number}}


def test_swrs_illustrations_have_the_published_values() -> None:
    scaled, balanced = (read_study_config(f"study/swr/{name}") for name in ("fig1", "fig5"))
    for study, model, epochs in ((scaled, "cnn", 100 + 50), (balanced, "mlp", 200)):
        found: Any = read_config(study.base, study.overrides)
        assert study.seed_list() == [1, 2, 3, 4, 5]
        assert (found.data.name, found.model.name, found.batch_size) == ("cifar10", model, 256)
        assert (found.stream.name, found.stream.epochs_of_phases()) == ("single_task", [epochs])
        assert (found.optimizer.name, found.optimizer.lr) == ("adam", 1e-3)
        assert (found.optimizer.schedule, found.evaluate.every) == ("constant", "1 epochs")
    for arm, proportional in (("proportional", True), ("plain", False)):
        found = row(scaled, "", f"{arm} factor=0.5")
        params = {"proportional": proportional, "factor": 0.5}
        assert found == {"at": "100 epochs", "optimizer": "keep", "params": params}
    config: Any = read_config(balanced.base, balanced.overrides)
    assert config.model.hidden == [100, 100] and config.metrics.every == "1 epochs"
    assert row(balanced, "", "swr") == {"every": "1 updates", "params": {"coef": 1e-3}}


# Persistent neurons, section 4, partial model: network, batch size, epochs.
PARTIAL = {
    "figure_9": ("lenet5", 256, 150),
    "figure_10": ("alexnet", 128, 150),
    "figures_11_12": ("resnet18", 128, 350),
}


@pytest.mark.parametrize("name", PARTIAL)
def test_persistent_neurons_partial_model_has_the_published_values(name: str) -> None:
    study = read_study_config(f"study/persistent/{name}")
    found: Any = read_config(study.base, study.overrides)
    network, batch_size, epochs = PARTIAL[name]
    assert (found.model.name, found.batch_size) == (network, batch_size)
    assert set(found.stream.epochs_of_phases()) == {epochs}
    assert found.model.init == (None if network != "resnet18" else "torch")  # torch's by itself
    assert (found.optimizer.name, found.optimizer.lr, found.optimizer.schedule) == (
        "adam",
        1e-3,
        "constant",
    )
    data = found.data
    assert (data.name, data.validation, data.validation_of) == ("cifar10", 0.5, "test")
    params = row(study, "", "persistent")["params"]
    assert (params["coef"], params["layers"]) == (1e-3, "one")
    assert params["solutions"] + 1 == found.stream.num_phases()


# Persistent neurons, section 4, full model: standard deviation of the initial weights.
FULL = {"bad": 0.2, "good": 0.05}


@pytest.mark.parametrize("task", FULL)
def test_persistent_neurons_full_model_has_the_published_values(task: str) -> None:
    study = read_study_config("study/persistent/figures_6_7_8")
    assert list(study.task_list()) == list(FULL)
    found: Any = read_config(study.base, study.overrides, study.task_list()[task])
    model, optimizer, data = found.model, found.optimizer, found.data
    assert (model.name, model.init, model.init_std) == ("lenet5", "normal", FULL[task])
    assert (optimizer.name, optimizer.lr, optimizer.schedule) == ("adam", 1e-3, "constant")
    assert (found.batch_size, found.stream.num_phases()) == (256, 1 + 19)
    assert (data.name, data.validation, data.validation_of) == ("cifar10", 0.5, "test")
    assert row(study, task, "persistent")["params"] == {
        "coef": 0.01,
        "layers": "all",
        "solutions": 19,
    }


def test_persistent_neurons_tanh_units_have_the_published_values() -> None:
    study = read_study_config("study/persistent/figures_13_14_15")
    found: Any = read_config(study.base, study.overrides)
    model, data = found.model, found.data
    assert (model.name, model.activation, model.init) == ("mlp", "tanh", "xavier")
    assert len(model.hidden) + 1 == 7
    assert set(found.stream.epochs_of_phases()) == {30}
    assert (data.name, data.validation, data.validation_of) == ("cifar10", 0.5, "test")
    params = row(study, "", "persistent")["params"]
    assert params["layers"] == "one" and params["solutions"] + 1 == found.stream.num_phases()


def test_persistent_neurons_curve_has_the_published_values() -> None:
    study = read_study_config("study/persistent/figures_3_4_5")
    found: Any = read_config(study.base, study.overrides)
    model, optimizer = found.model, found.optimizer
    assert (model.hidden, model.activation, model.init) == ([32, 32], None, "he")
    assert (optimizer.name, optimizer.lr, optimizer.momentum) == ("sgd", 1e-3, 0.9)
    examples = found.data.examples or 100  # gradient descent: an epoch is an update
    assert found.batch_size == examples
    assert found.stream.epochs_of_phases() == [50_000] * 100
    assert row(study, "", "persistent")["params"] == {"coef": 0.01, "solutions": 99}


# The lifecycle paper, Tables 1, 2 and 4.


@pytest.mark.parametrize("name", ["resnet18", "deit_tiny", "efficientnetv2_s"])
def test_the_lifecycle_studies_have_the_published_values(name: str) -> None:
    study = read_study_config(f"study/lcl/tables_1_2_{name}")
    assert study.seed_list() == [42, 123, 888]
    assert list(study.task_list()) == ["cifar10", "cifar100"]
    for task, values in study.task_list().items():
        found: Any = read_config(study.base, study.overrides, values)
        data, optimizer = found.data, found.optimizer
        assert (data.name, data.validation, data.validation_of) == (task, 0.1, "train")
        assert (found.model.name, found.model.pretrained) == (name, False)
        assert (found.stream.epochs_of_phases(), found.batch_size) == ([100], 128)
        assert (optimizer.name, optimizer.lr, optimizer.betas) == ("adamw", 1e-3, None)
        assert (optimizer.schedule, optimizer.warmup * 100) == ("cosine", 5)
        assert found.augment == ["crop", "flip"]
    arms = {"baseline", "weight_decay", "dropout", "dropconnect", "scheduled_drop"}
    arms |= {"label_smoothing", "rigl", "lcl", "lcl_no_warmup"}
    arms |= {f"lcl_reinit_{m}{end}" for m in ("he", "xavier") for end in ("", "_no_warmup")}
    assert set(study.arms) == arms | {"stochastic_depth"}
    for arm in (name for name in arms if name.startswith("lcl")):
        memory = next((m for m in ("he", "xavier") if m in arm.split("_")), "restore")
        for lifecycle in (dict(entry) for entry in arm_config(study, "cifar10", arm).layers):
            params = lifecycle["params"]
            assert params.get("memory", "restore") == memory, arm
            assert (params["warmup"] == 0) == arm.endswith("no_warmup"), arm
            # Classes that sleep in evaluation cannot be told apart.
            outputs = {"head", "classifier"} & set(params["layers"])
            assert not outputs or params["eval_mask"] is False, arm


# All papers.


def test_the_page_names_every_study_and_every_study_it_names_is_there() -> None:
    pages = "".join(page.read_text() for page in PAGES)
    named = re.findall(r"rlplast study (study/\w+/\w+)", pages)
    papers = {name.rpartition("/")[0] for name in named}
    assert sorted(set(named)) == [n for n in NAMES if n.rpartition("/")[0] in papers]
    assert {"study/fire", "study/swr"} <= papers


@pytest.mark.parametrize("name", [slow(n) if n == "study/swr/grid" else n for n in NAMES])
def test_a_study_is_planned_without_its_data(name: str) -> None:
    study = read_study_config(name)
    study = replace(study, seeds=study.seed_list()[:1])  # others are planned alike
    runs = {(cell.task, cell.arm) for cell in study_cells(study) if cell.arm is not None}
    assert runs == {(run.task, run.arm) for run in runs_of(study)}
