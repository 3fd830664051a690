"""Does a run lose plasticity? What its newest checkpoint says, in words."""

import copy
import dataclasses
import math
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlplast.core.duration import counted
from rlplast.core.errors import ConfigError
from rlplast.core.rng import preserve_global_rng
from rlplast.metrics.diagnosis import NetworkDiagnosis, Sign, diagnose_network
from rlplast.run.api import Run
from rlplast.training.config import dump_yaml

__all__ = ["Diagnosis", "diagnose"]


_VERDICTS = {
    "lost": "Plasticity is lost in {}.",
    "slower or lost": "Learning is slower than anew in {}, and plasticity may be lost: "
    "try more targets.",
    "slower": "Learning is slower than anew in {}, as in most trained networks, but not lost.",
    "kept": "There is no loss of plasticity in {}.",
    "unclear": "The test does not tell whether plasticity is lost in {}.",
    "new": "There is nothing to judge in {}: all weights are the initial ones.",
}
_ELSE = "If the run learns badly, look for another cause: exploration, learning rate, values."


@dataclass(frozen=True)
class Diagnosis:
    """What `diagnose` found.

    Attributes:
        run: the run's folder.
        kind: of the run.
        networks: what each network that gives outputs shows.
        agent: what an agent shows besides; empty for others.
        scores: of the episodes played; empty if none were, as where no network has trained.
        study: a study's YAML that compares the run (arm ``none``) with one whose networks are made
            fresh. All arms have the run's own hooks.
    """

    run: Path
    kind: str
    networks: tuple[NetworkDiagnosis, ...]
    agent: tuple[Sign, ...]
    scores: dict[str, float]
    study: str

    @property
    def verdict(self) -> str:
        """The answer in a sentence."""
        by = {
            verdict: " and ".join(n.network for n in self.networks if n.verdict == verdict)
            for verdict in _VERDICTS
        }
        alarms = [s.name for n in self.networks for s in n.signs if s.alarming]
        alarms += [sign.name for sign in self.agent if sign.alarming]
        signs = f" Signs: {', '.join(dict.fromkeys(alarms))}." if alarms else ""
        sentences = [text.format(by[verdict]) for verdict, text in _VERDICTS.items() if by[verdict]]
        if not by["lost"] and not by["slower or lost"] and (by["slower"] or by["kept"]):
            sentences.append(_ELSE)
        return " ".join(sentences) + signs


def diagnose(
    run: Run,
    *,
    updates: int = 2000,
    targets: int = 3,
    samples: int = 256,
    episodes: int = 3,
    lr: float | None = None,
    observer: Callable[[str], None] = lambda text: None,
) -> Diagnosis:
    """Say whether the networks of a run still learn, from its checkpoint; the run stays as it is.

    Args:
        run: what `rlplast.load` returns.
        updates: of each fit of new targets (`diagnose_network`), at least 1.
        targets: how many, at least 2.
        samples: inputs from the data or the replay, at least 1.
        episodes: of an agent, to compare its values with its returns; 0 for none.
        lr: learning rate of the fits, finite and above 0; default: where the run's own one begins.
        observer: called with what is done next.

    Raises:
        ConfigError: for a value that is not allowed, or a run without data.
        DamagedFile: if the checkpoint is damaged.
    """
    for name, value, least in (
        ("updates", updates, 1),
        ("targets", targets, 2),
        ("samples", samples, 1),
        ("episodes", episodes, 0),
    ):
        if value < least:
            raise ConfigError(f"{name} = {value}: allowed is {least} or more")
    if lr is not None and not 0 < lr < math.inf:
        raise ConfigError(f"lr = {lr}: allowed is a finite number above 0")
    config = run.config
    if hasattr(config.evaluate, "overestimation"):
        evaluate: Any = dataclasses.replace(config.evaluate, overestimation=True)
        config = dataclasses.replace(config, evaluate=evaluate)
    with closing(run.trainer(config)) as trainer, preserve_global_rng():
        batch = trainer.sample(samples, 0)
        if batch is None:
            raise ConfigError(
                f"{run.path} has no data yet to look at its networks with: allowed is a run whose "
                "checkpoint has some; go on with `rlplast resume`"
            )
        networks = []
        for name, network in trainer.networks.items():
            if network.trainable() and trainer.outputs(name, batch) is not None:
                observer(f"{name}: {3 * targets} fits of {updates:,} updates")
                first = network.optimizers[0].defaults["lr"]  # its schedule may be at its end
                rate = first if lr is None else lr
                options = {"updates": updates, "targets": targets, "lr": rate}
                networks.append(diagnose_network(trainer, network, batch, **options))
        scores: dict[str, float] = {}
        trained = any(network.verdict != "new" for network in networks)
        if trained and hasattr(trainer, "play") and episodes and not trainer.spec.changes:
            observer(counted(episodes, "episode"))
            scores = trainer.play(0, episodes).scores()
        agent, study = _of_agent(trainer, scores) if trained else (), _study(run, trainer)
    return Diagnosis(run.path, config.kind, tuple(networks), agent, scores, study)


def _of_agent(trainer: Any, scores: dict[str, float]) -> tuple[Sign, ...]:
    signs = []
    if "overestimation_normalized" in scores:
        share = scores["overestimation_normalized"]
        means = (
            "Q minus the return that followed, over the size of the return. Far above 0 the "
            "values have come loose, as they do at a high replay ratio"
        )
        signs.append(Sign("overestimation", share, None, None, share > 1, means))
    if "temperature" in trainer.networks:
        alpha = float(trainer.temperature().detach())
        means = "SAC's entropy coefficient. Outside 0.005 to 1 an agent often stands still"
        signs.append(Sign("temperature", alpha, None, None, not 0.005 < alpha < 1, means))
    return tuple(signs)


def _study(run: Run, trainer: Any) -> str:
    """Return a study that settles it: the run, and one whose networks are made fresh as well."""
    phases = getattr(trainer, "horizon", run.config.horizon)().phase  # that begin; 0: not counted
    schedule = {"on": "phase_start"} if phases > 1 else {"at": "50%"}
    reset = {"method": "full_reset", **schedule, "params": {"init": "fresh"}}
    perturb = {"method": "shrink_perturb", **schedule, "params": {"coef": 0.8}}
    arms = {"none": [], "fresh": [reset], "shrink_perturb": [perturb]}
    study = {
        "base": str(run.path / "config.yaml"),
        "seeds": 5,
        # Rows of their own in each arm: YAML would write shared ones as references. Resets come
        # first, for hooks such as pfo that keep a network near what it was when they fired.
        "arms": {
            name: {"hooks": [*added, *copy.deepcopy(run.config.hooks)]}
            for name, added in arms.items()
        },
    }
    return dump_yaml(study, flow=None, width=100).replace("'on': ", "on: ")  # a word of YAML 1.2
