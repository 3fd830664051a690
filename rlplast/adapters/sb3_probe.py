"""What scheduled hooks read in Stable-Baselines3: observations of the replay or the rollout."""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from rlplast.adapters.reading import TrainerSource
from rlplast.core.method.readings import OwnSource
from rlplast.core.network.network import Network
from rlplast.core.rng import preserve_global_rng, torch_stream

__all__ = ["Experience"]


class Experience(OwnSource, TrainerSource):
    """Batches of an algorithm's experience.

    Of a replay any transitions; of PPO and A2C observations of the last whole rollout, or, before
    there is one, of the first so far.
    """

    with_loss: Collection[str] = ()
    with_outputs: Collection[str] = ("q", "actor", "critic")  # not of a policy as a whole

    def __init__(self, model: Any, networks: Mapping[str, Network], seed: int) -> None:
        super().__init__(networks, None, None, seed)
        self.model = model
        self.on = False
        self.rollout: Any = None

    def start(self) -> list[Any]:
        """Begin to keep rollouts; there is nothing to take off afterwards."""
        self.on = True
        return []

    def _outputs_on(self, network: str, batch: Any, module: nn.Module) -> Tensor | None:
        """Return action values, a critic's values side by side, or an actor's unsquashed means."""
        if network not in self.with_outputs:
            return None
        means = [m for name, m in module.named_modules() if name in ("mu", "module.mu")]
        noted: list[Tensor] = []
        handles = [m.register_forward_hook(lambda _, __, out: noted.append(out)) for m in means]
        try:
            outputs = module(*batch[network])
        finally:
            for handle in handles:
                handle.remove()
        if noted:
            return noted[-1]
        return torch.cat(outputs, dim=1) if isinstance(outputs, tuple) else outputs

    def end_rollout(self) -> None:
        """Keep the observations of the rollout that has just ended."""
        if self.on:
            self.rollout = self._observations(self.model.rollout_buffer.buffer_size)

    def _observations(self, steps: int) -> Any:
        """Return the first observations of the rollout buffer, one row per step and env."""

        def flat(values: np.ndarray) -> Tensor:
            return torch.as_tensor(values[:steps].reshape(-1, *values.shape[2:]))

        return tree_map(flat, self.model.rollout_buffer.observations) if steps else None

    def sample(self, size: int, number: int) -> Any:
        """Return what each network is called with on a batch; None if there is no experience."""
        generator = torch_stream(self.seed, "probe", number)
        off_policy = getattr(self.model, "replay_buffer", None) is not None
        drawn = self._replayed(size, generator) if off_policy else self._played(size, generator)
        if drawn is None:
            return None
        calls = {name: drawn[:1] for name in self.networks}
        return calls | ({"critic": drawn} if "critic" in calls else {})

    def _replayed(self, size: int, generator: torch.Generator) -> tuple[Any, ...] | None:
        """Return observations and actions of the replay, which draws from NumPy's global stream."""
        replay = self.model.replay_buffer
        whole = getattr(replay, "ep_length", None)  # HER draws from episodes that have ended
        if replay.size() == 0 or (whole is not None and not (whole > 0).any()):
            return None
        with preserve_global_rng():
            np.random.seed(int(torch.randint(2**32, (), generator=generator)))
            batch = replay.sample(size, env=self.model.get_vec_normalize_env())
        return batch.observations, batch.actions

    def _played(self, size: int, generator: torch.Generator) -> tuple[Any, ...] | None:
        rollout = self._rollout()
        if rollout is None:
            return None
        rows = torch.randint(len(tree_leaves(rollout)[0]), (size,), generator=generator)
        return (tree_map(lambda values: values[rows].to(self.model.device), rollout),)

    def _rollout(self) -> Any:
        buffer = getattr(self.model, "rollout_buffer", None)
        if self.rollout is not None or buffer is None:
            return self.rollout
        return self._observations(buffer.pos)

    def state_dict(self) -> dict[str, Any]:
        """Return the rollout; the replay is Stable-Baselines3's to save."""
        rollout = self._rollout()
        return {} if rollout is None else {"rollout": rollout}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put back the rollout."""
        self.rollout = state.get("rollout")
