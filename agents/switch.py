"""What happens to an agent where one task of a sequence follows another."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rlplast.core.errors import check_choice
from rlplast.core.validation import Section, validated

__all__ = ["PRESETS", "Switch", "switch_of"]


@dataclass(frozen=True)
class Switch(Section):
    """What happens at a switch; defaults leave the weights and Adam's moments as they are.

    Attributes:
        replay: clear: the new task's transitions alone are learnt from; or keep.
        explore: restart: the random steps of ``agent.initial_steps``, in which nothing is learnt,
            and DQN's ε begin anew; random_only: the random steps alone; or keep.
        optimizer: keep, or renew: its state is as new.
        target: copy of the trained network; keep; or renew: initial weights, drawn afresh.
        statistics: of observations and rewards, where an agent normalises them: keep, or restart.
    """

    replay: Literal["clear", "keep"] = "clear"
    explore: Literal["restart", "random_only", "keep"] = "restart"
    optimizer: Literal["keep", "renew"] = "keep"
    target: Literal["copy", "keep", "renew"] = "copy"
    statistics: Literal["keep", "restart"] = "keep"

    @property
    def waits(self) -> bool:
        """Whether updates wait for ``agent.initial_steps`` of each task."""
        return self.replay == "clear" or self.explore != "keep"


PRESETS = {
    # Tang et al. 2025 (C-CHAIN), MinAtar: one replay of all games; 10k random steps, without
    # updates, at the start of every game; ε falls once; Adam and target go on.
    "c_chain": Switch(replay="keep", explore="random_only", target="keep"),
    # Anand & Precup 2023 (PT-DQN), MinAtar: nothing happens; their ε is 0.1 throughout.
    "pt_dqn": Switch(replay="keep", explore="keep", target="keep"),
    # Wołczyk et al. 2021 (Continual World), SAC: the replay is cleared, then 10k random steps.
    # There updates begin after 1000 of them, here after all.
    "continual_world": Switch(replay="clear", explore="random_only", target="keep"),
}


def switch_of(value: str | Mapping[str, Any]) -> Switch:
    """Return what ``env.switch`` says: the name of a preset, or a choice for some of the parts."""
    if not isinstance(value, Mapping):
        check_choice("env.switch", value, PRESETS)
        return PRESETS[value]
    return validated(Switch, value, "env.switch")
