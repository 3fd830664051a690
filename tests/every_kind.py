"""A run of a second or two of each kind."""

import copy
from typing import Any

from tests.gpt.runs import plain
from tests.ppo_runs import small_ppo
from tests.runs import TINY
from tests.sac_runs import small_sac
from tests.supervised_runs import small_supervised

KINDS = ("dqn", "sac", "ppo", "supervised", "gpt")


def small_run(kind: str, corpora: dict[str, str], **changes: Any) -> dict[str, Any]:
    """Return the config of a small run.

    Args:
        kind: one of `KINDS`.
        corpora: what a GPT is trained on, as `write_corpora` returns it.
        **changes: of the config.
    """
    found = {
        "dqn": lambda: TINY,
        "sac": small_sac,
        "ppo": small_ppo,
        "supervised": small_supervised,
        "gpt": lambda: plain(corpora),
    }[kind]()
    return copy.deepcopy(found | changes)
