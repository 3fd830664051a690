"""Actor and critic of PPO and A2C, as views of one policy with one optimizer."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.fx
from torch import Tensor, nn

from rlplast.core.errors import ConfigError

__all__ = ["PARTS", "Part", "parts_of"]

PARTS = ("actor", "critic")


class Part(nn.Module):
    """Modules of a policy under their names there, with a forward pass of their own.

    `hidden` names the hidden layers in ``mlp_extractor``, `head` the last layer, `own` parameters
    of the policy itself.
    """

    def __init__(
        self, policy: Any, extractor: nn.Module, hidden: str, head: str, own: tuple[str, ...] = ()
    ) -> None:
        super().__init__()
        self.features_extractor = extractor
        self.mlp_extractor = nn.Module()
        self.mlp_extractor.add_module(hidden, getattr(policy.mlp_extractor, hidden))
        self.add_module(head, getattr(policy, head))
        for name in own:
            self.register_parameter(name, getattr(policy, name))
        self.use_sde = bool(own) and policy.use_sde
        self._hidden, self._head = hidden, head
        self._space, self._normalize = policy.observation_space, policy.normalize_images

    def hand_back(self, policy: Any) -> None:
        """Give the policy the last layer of this part, which a method may have replaced."""
        setattr(policy, self._head, self.get_submodule(self._head))

    def forward(self, obs: Any) -> Tensor:
        """Return logits or means of actions, or values (n, 1)."""
        from stable_baselines3.common.preprocessing import preprocess_obs

        # Units are found by tracing, which cannot follow what only reshapes and scales inputs.
        traced = isinstance(obs, torch.fx.Proxy) and not self.use_sde
        raw: Any = obs
        seen = raw if traced else preprocess_obs(raw, self._space, normalize_images=self._normalize)
        hidden = self.mlp_extractor.get_submodule(self._hidden)(self.features_extractor(seen))
        return self.get_submodule(self._head)(hidden)


def parts_of(policy: Any) -> Mapping[str, Part]:
    """Return actor and critic of a policy; ConfigError if they share layers or it has others."""
    pi, vf = policy.pi_features_extractor, policy.vf_features_extractor
    if pi is vf and any(True for _ in pi.parameters()):
        raise ConfigError(
            f"actor and critic of this {type(policy).__name__} share their features extractor, "
            "which is a part of neither: pass policy_kwargs with share_features_extractor=False, "
            "or name the network 'policy', which has all layers"
        )
    own = ("log_std",) if getattr(policy, "log_std", None) is not None else ()
    parts = {
        "actor": Part(policy, pi, "policy_net", "action_net", own),
        "critic": Part(policy, vf, "value_net", "value_net"),
    }
    held = {id(p) for part in parts.values() for p in part.parameters()}
    others = [name for name, p in policy.named_parameters() if id(p) not in held]
    if others:
        raise ConfigError(
            f"{type(policy).__name__} has layers that are in neither actor nor critic, such as "
            f"{others[0]}: name the network 'policy', which has all layers"
        )
    return parts
