"""Method: a dataclass with up to four functions; and what those who write one import."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor, nn

from rlplast.core.clock import Clock
from rlplast.core.device import capturing, refuse_capture
from rlplast.core.errors import ConfigError, did_you_mean
from rlplast.core.method.context import READS, Context
from rlplast.core.network.blocks import Block
from rlplast.core.network.edits import Assign, Edit, Scale
from rlplast.core.network.network import Network
from rlplast.core.registry import LISTS, register

__all__ = [
    "Assign",
    "Block",
    "Context",
    "Edit",
    "Method",
    "Network",
    "Scale",
    "State",
    "carry",
    "implements",
    "method",
    "readable",
]

State = dict[str, Tensor]
_NEEDS = {"hooks": "plan", "layers": "install", "penalties": "term"}


class Method:
    """A method: a frozen dataclass whose fields are its parameters.

    It implements one or more of `install`, `setup`, `plan` and `term`, which share one state.
    Register it with `method`; see docs/how-to/add-a-method.md.

    Attributes:
        name: registry name.
        key: the config key that lists it: hooks, layers or penalties.
        reads: what `plan` and `term` read besides weights: names of `READS`.
        policies: optimizer and follower policy for a hook that does not set them.
        probe: size of the probe batch that a scheduled firing reads.
        fires_once: whether a second firing makes no sense and is refused.
    """

    name: ClassVar[str] = ""
    key: ClassVar[str] = "hooks"
    reads: ClassVar[tuple[str, ...]] = ()
    policies: ClassVar[tuple[str, str]] = ("network", "copy")
    probe: int = 256
    fires_once: ClassVar[bool] = False

    @property
    def uses_initial(self) -> bool:
        """Whether plans read the initial weights θ0; default: whether `init` is ``stored``."""
        return getattr(self, "init", None) == "stored"

    @property
    def reads_loss(self) -> bool:
        """Whether `term` follows the size of the loss."""
        return False

    @property
    def measures_deviation(self) -> bool:
        """Whether receipts say how far a network's outputs move from a multiple of themselves."""
        return False

    def covers(self, block: Block) -> bool:
        """Return whether `term` can read a trainable Block; default: every one."""
        return True

    def check_layers(
        self, network: Network, blocks: Sequence[Block], left: Sequence[Block]
    ) -> None:
        """Refuse a hook's ``layers`` that the method cannot keep to; default: none are refused.

        Args:
            network: the network.
            blocks: what `setup` will get: Blocks in scope of the layers named.
            left: the Blocks of all other layers that training moves.

        Raises:
            ConfigError: naming the Block that would have to change too.
        """

    def install(self, model: nn.Module, seed: int) -> list[str]:
        """Change a model's modules in place, before it is initialised and gets an optimizer.

        Args:
            model: the raw module, without wrappers; targets and averages get the same call.
            seed: of every draw of the new modules; equal seeds, equal draws.

        Returns:
            The paths of what was replaced or added.

        Raises:
            NothingToEdit: if there is nothing to change.
        """
        raise NotImplementedError

    def setup(self, network: Network, blocks: Sequence[Block]) -> State:
        """Return the method's own tensors for one network, allocated once and saved.

        Those whose names begin with ``count/`` are counters of reset units, int64 without
        dimensions: receipts say what was added.

        Raises:
            NothingToEdit: if there is nothing to act on in this network.
        """
        return {}

    def plan(self, context: Context, state: State) -> list[Edit]:
        """Return the complete plan of one firing; write nothing."""
        raise NotImplementedError

    def follow(self, context: Context, state: State) -> list[Edit]:
        """Return edits of the method's own state, planned in every update without waiting."""
        return []

    def captured_key(self, clock: Clock) -> Hashable:
        """Return a key, equal for clocks at which `plan`, `follow` and `term` do the same.

        An update captured as a CUDA graph is repeated while this stays equal. A method without it
        that reads the clock inside updates is not captured. The clock is that after the update for
        `plan` and `follow`, and before it for `term`.
        """
        return None

    def evaluation(self, network: Network, state: State) -> Mapping[Block, Tensor]:
        """Return the weights that evaluations use instead of a network's; default: none."""
        return {}

    def metrics(self, state: State) -> Mapping[str, Tensor]:
        """Return the method's own measurements in one network: 0-d tensors by name.

        A name is a metric's, maybe with a slash and a part. A run logs those in its
        ``metrics.names``.
        """
        return {}

    def term(self, context: Context, state: State) -> Tensor:
        """Return what is added to the loss: 0-d, differentiable, strength included.

        It is called at every update and waits for no device. Read weights by `Block.live` and θ0 by
        ``context.network.initial[block.name]``, both at each call.
        """
        raise NotImplementedError


class _Hidden:
    """The clock of a captured update for a method without `captured_key`."""

    def __init__(self, label: str) -> None:
        self.label = label

    def __getattr__(self, name: str) -> Any:
        refuse_capture(f"{self.label} reads the clock")

    __getitem__ = __getattr__


def readable(clock: Clock, method: Method, label: str) -> Clock:
    """Return a clock as a method may read it: in a captured update only by `captured_key`."""
    if not capturing() or implements(method, "captured_key"):
        return clock
    hidden: Any = _Hidden(label)
    return hidden


def implements(kind: Any, function: str) -> bool:
    """Return whether a method, or its class, implements a function of `Method`."""
    kind = kind if isinstance(kind, type) else type(kind)
    return getattr(kind, function) is not getattr(Method, function)


def method(name: str, *, source: str, key: str | None = None) -> Callable[[Any], Any]:
    """Register a frozen dataclass derived from `Method`.

    Args:
        name: the name configs use.
        source: paper, equation or table the definition comes from.
        key: the config key that lists it; default: penalties for a method with a term, else hooks
            for one with a plan, else layers.

    Raises:
        ConfigError: for a name that is taken, or a method without the function its key needs.
    """

    def add(cls: Any) -> Any:
        default = next((k for k in ("penalties", "hooks") if implements(cls, _NEEDS[k])), "layers")
        cls.name, cls.key = name, key or default
        if cls.key not in _NEEDS:
            raise ConfigError(f"method {name!r}: key {key!r}: {did_you_mean(cls.key, _NEEDS)}")
        if not implements(cls, _NEEDS[cls.key]):
            raise ConfigError(
                f"method {name!r} is listed under {cls.key!r} and has no {_NEEDS[cls.key]}(): "
                "implement it, or give another key"
            )
        for what in cls.reads:
            if what not in READS:
                raise ConfigError(f"method {name!r} reads {what!r}: {did_you_mean(what, READS)}")
        return register("methods", name, source=source, listed=LISTS[cls.key])(cls)

    return add


def carry(state: State, anew: State, module: nn.Module) -> None:
    """Make a method's state fit, in place, what `setup` returns of a network that has changed.

    Values stay, on the device and in the type of `anew`; its tensors of the module are taken.
    """
    of_module = {id(t) for t in (*module.parameters(), *module.buffers())}
    for name in state.keys() - anew.keys():
        del state[name]
    for name, tensor in anew.items():
        held = state.get(name)
        if held is None or held.shape != tensor.shape or id(tensor) in of_module:
            state[name] = tensor
        else:
            state[name] = held.to(tensor.device, tensor.dtype)
