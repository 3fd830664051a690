"""Nonlinearities of hidden layers that methods replace."""

from torch import nn

from rlplast.core.errors import ConfigError, NothingToEdit
from rlplast.core.method.install import hidden_layers, put
from rlplast.core.network.units import NONLINEARITY, UnitGroup

__all__ = ["nonlinear", "replace_nonlinearity", "replaceable"]

_REPLACED = "replaced_by"  # attribute of nonlinearities: the method that put them there


def nonlinear(model: nn.Module, method: str) -> dict[str, UnitGroup]:
    """Return the layers with hidden units and a nonlinearity → their units, of the first member.

    Raises:
        NothingToEdit: if there is none; it names `method`.
    """
    groups = {path: units[0] for path, units in hidden_layers(model, method).items()}
    groups = {path: group for path, group in groups.items() if group.nonlinearity != "linear"}
    if not groups:
        raise NothingToEdit(f"{method} finds no layer with a nonlinearity")
    return groups


def replaceable(model: nn.Module, method: str) -> dict[str, UnitGroup]:
    """Return the same, if all of their nonlinearities can be replaced.

    Raises:
        NothingToEdit: if there is none; it names `method`.
        ConfigError: for one that cannot be replaced, or is by a method already.
    """
    groups = nonlinear(model, method)
    for path, group in groups.items():
        place = _place(group)
        if place is None:
            raise ConfigError(
                f"{method}: {path} has the nonlinearity {group.nonlinearity} as a function, or as "
                "a module that others use: give it a module of its own, such as nn.ReLU()"
            )
        layer = model.get_submodule(path)
        now = model.get_submodule(place) if place else getattr(layer, NONLINEARITY, None)
        if hasattr(now, _REPLACED):
            raise ConfigError(
                f"{method}: the nonlinearity of {path} is replaced by {vars(now)[_REPLACED]} "
                "already"
            )
    return groups


def _place(group: UnitGroup) -> str | None:
    return None if group.point is None else group.point.nonlinearity


def replace_nonlinearity(model: nn.Module, group: UnitGroup, new: nn.Module, method: str) -> None:
    """Put a nonlinearity in the place of a layer's; `group` is as `replaceable` returned it."""
    vars(new)[_REPLACED] = method
    place = _place(group)
    if place:
        put(model, model.get_submodule(place), new)
    else:  # the network asks `rlplast.core.network.units.activated` for it
        setattr(model.get_submodule(group.weight.block.path), NONLINEARITY, new)
