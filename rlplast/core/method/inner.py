"""What methods do at every update, whatever list they are in."""

from collections.abc import Callable, Iterable
from functools import partial

from rlplast.core.clock import Clock, Time
from rlplast.core.errors import ConfigError
from rlplast.core.method.hook import Hook
from rlplast.core.method.method import Method, State, implements
from rlplast.core.method.penalties import Term
from rlplast.core.method.schedule import Schedule
from rlplast.core.network.blocks import Block
from rlplast.core.network.network import Network

__all__ = ["hook_terms", "inside_updates", "tick"]


def inside_updates(networks: Iterable[Network], terms: Iterable[Term] = ()) -> list[Hook]:
    """Return a hook, which shares the state of `terms`, per method that plans in every update."""
    states = {(term.method, term.network): term.state for term in terms}
    rows = [(m, n) for n in networks for m in n.installed if m.key == "layers"]
    hooks = [
        _hook(m, n, f"layers/{i} {m.name}", states.get((m, n)))
        for i, (m, n) in enumerate(rows)
        if implements(m, "plan")
    ]
    for term in terms:
        if term.method.key == "penalties" and implements(term.method, "plan"):
            # Outside its window too: what it remembers of weights is fresh when that opens.
            key = f"{term.key} {term.method.name}"
            hooks.append(_hook(term.method, term.network, key, term.state, term.select))
    return hooks


def hook_terms(hook: Hook) -> list[Term]:
    """Return what a hook's method adds to losses from its first firing on, by network."""
    method = hook.method
    if not implements(method, "term") or implements(method, "install"):  # that one is the network's
        return []
    return [
        Term(
            f"{hook.label}/{network.name}",
            method,
            network,
            partial(_term_blocks, hook, network.name),
            hook.states.setdefault(network.name, {}),
            started=partial(_has_fired, hook, network.name),
        )
        for network in hook.known
    ]


def _term_blocks(hook: Hook, network: str) -> tuple[Block, ...]:
    hook.refresh()
    return tuple(b for b in hook.edited[network] if b.trainable and hook.method.covers(b))


def _has_fired(hook: Hook, network: str) -> bool:
    return network in hook.fired


def _hook(
    method: Method,
    network: Network,
    key: str,
    state: State | None,
    select: Callable[[], tuple[Block, ...]] | None = None,
) -> Hook:
    return Hook(
        method=method,
        schedule=Schedule(every=Time(1, "updates")),
        networks=(network,),
        key=key,
        states={} if state is None else {network.name: state},
        select=select,
    )


def tick(network: Network) -> None:
    """Advance every lifecycle layer of a network by one update; call it after each optimizer step.

    `Hooks` does this for its networks at every update.

    Args:
        network: a network whose module has layers that act at every update.

    Raises:
        ConfigError: if there is no such layer, or `network` is a bare module.
    """
    if not isinstance(network, Network):
        raise ConfigError(
            f"tick got a {type(network).__name__}: make a rlplast.Network of the model and its "
            "optimizer, once, and pass that"
        )
    network.refresh()
    hooks, count = network.ticks or (inside_updates([network]), 0)
    if not hooks:
        raise ConfigError(
            "tick: the model has no layer that ticks: call rlplast.replace_layers on it first"
        )
    network.ticks = hooks, count + 1
    for hook in hooks:
        hook.refresh()
        hook.after_update(Clock(updates=count + 1), 0)
