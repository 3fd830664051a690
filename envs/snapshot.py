"""The state of ordinary Python objects as plain data, and back; nothing is pickled.

- `take`: copies the attributes of objects, and of all that they refer to.
- `put`: gives other objects of the same classes those attributes.
- `checksum`: of the numbers, texts and arrays among attributes.
- `NoSnapshot`: raised for what holds more than Python shows, such as objects of C extensions.

A state comes from a file, so putting it back calls nothing that it names: objects are made without
their constructors, and functions and classes are those that are there.

Objects, lists, dicts, sets, deques, arrays and generators are copied once each, so what was shared
stays shared. Functions, classes, modules and spaces are not copied: they stay what they are in the
object that is written to, which must be alike. Only the variables of a function and the generators
of spaces are put back.
"""

import collections
import copyreg
import enum
import inspect
import random
import sys
import types
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from rlplast.envs.base import State, load_rng_state, rng_state

__all__ = ["NoSnapshot", "checksum", "put", "take"]

_DEEPEST = 50  # objects in objects; the checkpoint of a state recurses too
_SIMPLE = (type(None), bool, int, float, str)

_KEPT = (type, types.ModuleType, types.BuiltinFunctionType, np.ufunc)
_CONTAINERS: dict[str, type] = {
    kind.__name__: kind for kind in (list, tuple, set, frozenset, collections.deque)
}
_MAPPINGS: dict[str, type] = {
    kind.__name__: kind
    for kind in (dict, collections.OrderedDict, collections.defaultdict, collections.Counter)
}

_STREAMS: dict[type, tuple[str, Callable[[Any], Any]]] = {
    np.random.Generator: ("generator", lambda rng: rng_state(rng) | {"seed": _seed(rng)}),
    np.random.RandomState: ("legacy", lambda rng: rng.get_state(legacy=False)),
    random.Random: ("random", random.Random.getstate),
}
_PLAIN: dict[str, Any] = {
    f"builtins:{kind.__name__}": kind for kind in (list, dict, set, int, float, str, bool)
}


class NoSnapshot(TypeError):
    """Raised where a state cannot be taken or put back; says where it is."""


def take(roots: Sequence[Any], outside: Sequence[Any] = ()) -> State:
    """Return the attributes of objects as a state; see `rlplast.envs.base`.

    Args:
        roots: objects with a ``__dict__``; they may refer to each other.
        outside: what they refer to and do not own, such as a shared generator. It is not copied.

    Raises:
        NoSnapshot: naming the attribute that cannot be copied.
    """
    return {"roots": _Taking(roots, outside).attributes()}


def put(state: State, roots: Sequence[Any], outside: Sequence[Any] = ()) -> None:
    """Replace the attributes of objects by those of a state.

    Args:
        state: what `take` returned.
        roots: objects of the classes that it was taken of, in the same order.
        outside: what stands for `outside` there.

    Raises:
        NoSnapshot: if classes or functions are others now.
    """
    _Putting(roots, outside).fill(state["roots"])


class _Taking:
    def __init__(self, roots: Sequence[Any], outside: Sequence[Any]) -> None:
        self.roots, self.seen = roots, {id(root): ["root", i] for i, root in enumerate(roots)}
        self.seen |= {id(other): ["outside", i] for i, other in enumerate(outside)}
        self.memory: dict[int, str] = {}  # of arrays and generators: whose it is
        self.alive: list[Any] = []  # keeps ids apart
        self.depth = 0
        for other in outside:
            if isinstance(other, np.random.Generator):
                self.own(other.bit_generator, "what is outside")

    def own(self, memory: Any, path: str) -> None:
        """Note whose a piece of memory is: copied twice, it would be two."""
        if id(memory) in self.memory:
            what = "views of one array" if isinstance(memory, np.ndarray) else "one generator"
            raise NoSnapshot(f"{path} and {self.memory[id(memory)]} are {what}")
        self.memory[id(memory)] = path
        self.alive.append(memory)

    def attributes(self) -> list[Any]:
        return [
            [_name(type(root)), self.mapping(_attributes(root), type(root).__name__)]
            for root in self.roots
        ]

    def mapping(self, values: Any, path: str) -> list[Any]:
        return [
            [self.node(key, path), self.node(value, f"{path}.{key}")]
            for key, value in tuple(values.items())
        ]

    def node(self, value: Any, path: str) -> Any:
        if value is None or type(value) in (bool, int, float, str):
            return value
        if isinstance(value, np.generic):
            return self.array(np.asarray(value), path) | {"is": "scalar"}
        if isinstance(value, enum.Enum):
            return {"is": "enum", "of": _name(type(value)), "name": value.name}
        if type(value) is bytes:
            return {"is": "bytes", "hex": value.hex()}
        if id(value) in self.seen:
            return {"is": "again", "at": self.seen[id(value)]}
        if self.depth == _DEEPEST:
            raise NoSnapshot(f"{path[:60]}… is more than {_DEEPEST} objects deep")
        self.depth += 1
        try:
            return self.whole(value, path)
        finally:
            self.depth -= 1

    def whole(self, value: Any, path: str) -> Any:
        """Return a node for what may have parts."""
        if type(value) in (tuple, frozenset):  # no name of its own: it may be part of a cycle only
            items = [self.node(item, f"{path}[{i}]") for i, item in enumerate(value)]
            return {"is": type(value).__name__, "items": items}
        number = len(self.seen)
        self.seen[id(value)] = ["copy", number]
        self.alive.append(value)
        return {"n": number} | self.mutable(value, path)

    def mutable(self, value: Any, path: str) -> dict[str, Any]:
        kind = type(value)
        if kind in _MAPPINGS.values():
            made_by = getattr(value, "default_factory", None)
            extra = {} if made_by is None else {"default": self.node(made_by, path)}
            return {"is": kind.__name__, "items": self.mapping(value, path)} | extra
        if kind in _CONTAINERS.values():
            items = [self.node(item, f"{path}[{i}]") for i, item in enumerate(value)]
            most = {"maxlen": value.maxlen} if kind is collections.deque else {}
            return {"is": kind.__name__, "items": items} | most
        if kind is np.ndarray:
            return self.array(value, path)
        if kind in _STREAMS:
            name, read = _STREAMS[kind]
            self.own(_bits(value), path)
            return {"is": name, "state": self.node(read(value), path)}
        return self.kept(value, path) or self.instance(value, path)

    def kept(self, value: Any, path: str) -> dict[str, Any] | None:
        """Return a node for what is not copied, if it is of that kind."""
        if isinstance(value, types.MethodType):
            name = value.__func__.__name__
            if inspect.getattr_static(type(value.__self__), name, None) is not value.__func__:
                raise NoSnapshot(f"{path} is a method {name} that its class has not")
            return {"is": "method", "name": name, "self": self.node(value.__self__, path)}
        if (fixed := _fixed(value, path)) is None:
            return None
        rng = vars(value).get("_np_random") if fixed["is"] == "space" else None
        if rng is not None:  # it is made when the space is first used
            self.own(rng.bit_generator, path)
            fixed |= {"rng": rng_state(rng)}
        return fixed | {"parts": [self.node(part, path) for part in _parts(value)]}

    def instance(self, value: Any, path: str) -> dict[str, Any]:
        """Return a node for an object of a class of Python's own."""
        kind = type(value)
        if isinstance(value, tuple) and hasattr(kind, "_fields"):
            items = [self.node(item, f"{path}.{i}") for i, item in enumerate(value)]
            return {"is": "named", "of": _name(kind), "items": items}
        if not _is_plain(value):
            raise NoSnapshot(f"{path} is a {_name(kind)}, whose state Python does not show")
        return {"is": "object", "of": _name(kind), "items": self.mapping(_attributes(value), path)}

    def array(self, value: np.ndarray, path: str) -> dict[str, Any]:
        owner = value
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        if owner.base is not None:
            raise NoSnapshot(f"{path} is an array in the memory of a {_name(type(owner.base))}")
        if value.dtype.kind not in "biufcSUMmO":  # of the others the name does not say all
            raise NoSnapshot(f"{path} is an array of {value.dtype}")
        self.own(owner, path)
        if value.dtype == object:
            items = [self.node(v, f"{path}[{i}]") for i, v in enumerate(value.ravel().tolist())]
            return {"is": "objects", "shape": list(value.shape), "items": items}
        order = "F" if value.flags.fnc else "C"  # sums depend on it
        flat = np.frombuffer(value.tobytes(order), np.uint8).copy()
        known = {"type": value.dtype.str, "shape": list(value.shape), "order": order}
        return {"is": "array", "bytes": flat} | known


def _is_plain(value: Any) -> bool:
    """Say whether an object holds nothing but its attributes."""
    kind = type(value)
    own = {"__reduce__", "__reduce_ex__", "__getstate__", "__del__"}
    custom = any(base is not object and own & vars(base).keys() for base in kind.__mro__)
    more = isinstance(value, (*_CONTAINERS.values(), dict, str, int, float, bytes))
    if custom or more or type(kind).__module__ not in ("builtins", "abc"):
        return False
    try:
        object.__reduce_ex__(value, 2)  # refuses memory that is not Python's
    except (TypeError, AttributeError):
        return False
    return True


def _slots(kind: type) -> list[str]:
    return copyreg._slotnames(kind)  # pyright: ignore[reportAttributeAccessIssue]


def _attributes(value: Any) -> dict[str, Any]:
    found = {}
    for name in _slots(type(value)):
        with suppress(AttributeError):  # of one that is not set
            found[name] = object.__getattribute__(value, name)  # a wrapper would ask what it wraps
    return found | getattr(value, "__dict__", {})


def checksum(values: Mapping[str, Any]) -> int:
    """Return a checksum of the numbers, texts and arrays among attributes.

    Examples:
        >>> checksum({"a": 1, "b": object()}) == checksum({"b": None, "a": 1})
        True
    """
    found = 0
    for name in sorted(values):
        value = values[name]
        if isinstance(value, bool | int | float | str | np.generic | np.ndarray):
            array = np.asarray(value)
            data = repr(value).encode() if array.dtype.hasobject else array.tobytes()
            found = zlib.crc32(f"{name} {array.dtype} {array.shape}".encode() + data, found)
    return found


def _is_space(value: Any) -> bool:
    modules = [str(getattr(base, "__module__", "")) for base in type(value).__mro__]
    return any(module.startswith("gymnasium.spaces") for module in modules)


def _fixed(value: Any, path: str) -> dict[str, Any] | None:
    """Return what must be the same in a new environment of what is not copied; else None.

    Raises:
        NoSnapshot: for a function or class that may be taken for another.
    """
    if isinstance(value, types.FunctionType):
        return {"is": "function", "of": _name(value), "same": _behaviour(value, path)}
    if isinstance(value, types.CellType):
        return {"is": "cell", "of": "a variable of a function"}
    if _is_space(value):
        same = checksum(_attributes(value))  # bounds may be changed in place
        return {"is": "space", "of": _name(type(value)), "same": same}
    module = getattr(value, "__self__", None)
    if not isinstance(value, _KEPT) or not isinstance(module, types.ModuleType | None):
        return None
    if isinstance(value, type) and _find(_name(value)) is not value:
        raise NoSnapshot(f"{path} is the class {_name(value)}, which is none of its module")
    return {"is": "kept", "of": _name(value)}


def _parts(value: Any) -> list[Any]:
    """Return what a function, a function's variable or a space consists of."""
    if isinstance(value, types.FunctionType):
        return list(value.__closure__ or ())
    if isinstance(value, types.CellType):
        with suppress(ValueError):  # of one that is empty
            return [value.cell_contents]
    held = list[Any]()
    for inner in vars(value).values() if _is_space(value) else ():
        several = list(inner.values()) if isinstance(inner, dict) else inner
        held += several if isinstance(several, list | tuple) else [inner]
    return [part for part in held if _is_space(part)]


def _behaviour(function: types.FunctionType, path: str) -> int:
    """Return a checksum of what tells a function from others of its name.

    Raises:
        NoSnapshot: if it keeps a state in its attributes or defaults.
    """
    own: tuple[Any, ...] = ()
    if _find(_name(function)) is not function:  # what a module has is not the environment's
        own = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
        kept = vars(function).keys() - {"__wrapped__"}
        if kept or not all(type(value) in _SIMPLE for value in own):
            raise NoSnapshot(f"{path} is a function with attributes, or defaults that may change")
    return zlib.crc32(repr((_code(function.__code__), own)).encode())


def _code(code: types.CodeType) -> list[Any]:
    constants = [
        _code(value)
        if isinstance(value, types.CodeType)
        else sorted(map(repr, value))  # whose order is another one in another process
        if isinstance(value, frozenset)
        else repr(value)
        for value in code.co_consts
    ]
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    return [code.co_code, names, constants]


def _bits(rng: Any) -> Any:
    """Return what a generator draws from, which others may draw from too."""
    return getattr(rng, "bit_generator", getattr(rng, "_bit_generator", rng))


def _seed(rng: np.random.Generator) -> dict[str, Any]:
    """Return what the children that a generator spawns depend on."""
    seed = rng.bit_generator.seed_seq
    if type(seed) is not np.random.SeedSequence:
        raise NoSnapshot(f"a generator has a seed of {_name(type(seed))}")
    return dict(seed.state)


def _stream(kind: str, state: Any) -> Any:
    """Return a new generator that goes on from a state."""
    if kind == "generator":
        bits = _class(f"numpy.random:{state['bit_generator']}", "rng", np.random.BitGenerator)
        found = np.random.Generator(bits(np.random.SeedSequence(**state["seed"])))
        load_rng_state(found, {key: value for key, value in state.items() if key != "seed"})
    elif kind == "legacy":
        found = np.random.RandomState()
        found.set_state(state)
    else:
        found = random.Random()
        found.setstate(state)
    return found


def _name(value: Any) -> str:
    """Return where a class, function or module is imported from."""
    qualified = getattr(value, "__qualname__", None)
    module = getattr(value, "__module__", None) or "builtins"
    if qualified is None:
        return getattr(value, "__name__", repr(value))
    return f"{module}:{qualified}"


class _Putting:
    def __init__(self, roots: Sequence[Any], outside: Sequence[Any]) -> None:
        self.made: dict[tuple[str, int], Any] = {("root", i): root for i, root in enumerate(roots)}
        self.made |= {("outside", i): other for i, other in enumerate(outside)}
        self.roots = roots
        self.stay: dict[int, str] = {}  # of what stays: whose it is

    def fill(self, nodes: list[Any]) -> None:
        if len(nodes) != len(self.roots):
            raise NoSnapshot(f"a state of {len(nodes)} objects cannot fill {len(self.roots)}")
        for root, (kind, items) in zip(self.roots, nodes, strict=True):
            if kind != _name(type(root)):
                raise NoSnapshot(f"a state of {kind} cannot fill {_name(type(root))}")
            now = _attributes(root)
            new = {k: self.value(v, now.get(k), f"{kind}.{k}") for k, v in items}
            vars(root).clear()
            for name in now.keys() & _slots(type(root)):
                object.__delattr__(root, name)
            _set(root, new)

    def value(self, node: Any, now: Any, path: str) -> Any:
        """Return what a node stands for; `now` is what is in its place."""
        if not isinstance(node, dict):
            return node
        kind = node["is"]
        if kind == "again":
            found = self.made[tuple(node["at"])]
            if isinstance(found, types.CellType) and found is not now:
                raise NoSnapshot(f"{path} shared a variable that it does not in a new environment")
            return found
        if kind == "scalar":
            return _array(node)[()]
        if kind == "enum":
            return _class(node["of"], path, enum.Enum)[node["name"]]
        if kind == "bytes":
            return bytes.fromhex(node["hex"])
        if kind in ("tuple", "frozenset"):
            return _CONTAINERS[kind](self.items(node, now, path))
        return self.mutable(kind, node, now, path)

    def mutable(self, kind: str, node: dict[str, Any], now: Any, path: str) -> Any:
        def known(value: Any) -> Any:  # before its parts, which may refer to it
            self.made["copy", node["n"]] = value
            return value

        if kind in _MAPPINGS:
            default = [self.value(node["default"], None, path)] if "default" in node else []
            found = known(_MAPPINGS[kind](*default))
            now = now if isinstance(now, dict) else {}
            for key_node, item in node["items"]:
                key = self.value(key_node, None, path)
                found[key] = self.value(item, now.get(key), f"{path}.{key}")
            return found
        if kind in ("list", "deque"):
            found = known(collections.deque(maxlen=node["maxlen"]) if kind == "deque" else [])
            found.extend(self.items(node, now, path))
            return found
        if kind == "set":
            items = set(self.items(node, now, path))
            return known(now if now == items else items)  # whose order may be another one
        if kind == "array":
            return known(_array(node))
        if kind == "objects":
            found = known(np.empty(node["shape"], object))
            found.ravel()[:] = self.items(node, now, path)
            return found
        if kind == "object":
            found = known(object.__new__(_class(node["of"], path)))  # runs no code of its own
            if not _is_plain(found):
                raise NoSnapshot(f"{path} was a {node['of']}, whose state Python does not show")
            return self.instance(found, node["items"], now, path)
        if kind in ("function", "cell", "space", "kept"):
            plain = _PLAIN.get(node["of"]) if kind == "kept" and now is None else now
            return self.kept(node, plain, path)
        return known(self.rest(kind, node, now, path))

    def instance(self, found: Any, items: list[Any], now: Any, path: str) -> Any:
        """Give an object its attributes."""
        existing = _attributes(now) if type(now) is type(found) else {}
        for name, item in items:
            _set(found, {name: self.value(item, existing.get(name), f"{path}.{name}")})
        return found

    def rest(self, kind: str, node: dict[str, Any], now: Any, path: str) -> Any:
        """Return what has no parts that could refer to it."""
        if kind == "method":
            own = self.value(node["self"], None, path)
            found = inspect.getattr_static(type(own), node["name"], None)
            if not isinstance(found, types.FunctionType):
                raise NoSnapshot(f"{path} was a method {node['name']}, which is not there now")
            return types.MethodType(found, own)
        if kind == "named":
            return tuple.__new__(_class(node["of"], path, tuple), self.items(node, now, path))
        return _stream(kind, self.value(node["state"], None, path))

    def items(self, node: dict[str, Any], now: Any, path: str) -> list[Any]:
        """Return the items of a node; those of a list are paired with what is in its place."""
        paired = list(now) if isinstance(now, list | tuple | collections.deque) else []
        paired += [None] * (len(node["items"]) - len(paired))
        return [
            self.value(item, old, f"{path}[{i}]")
            for i, (item, old) in enumerate(zip(node["items"], paired, strict=False))
        ]

    def kept(self, node: dict[str, Any], now: Any, path: str) -> Any:
        """Return what is in a node's place, which is not made anew."""
        fixed, parts = _fixed(now, path), _parts(now)
        if fixed != {k: node.get(k) for k in fixed or ()} or len(parts) != len(node["parts"]):
            raise NoSnapshot(f"{path} was {node['of']}, and is {now!r} in a new environment")
        if node["is"] != "kept" and id(now) in self.stay:
            raise NoSnapshot(f"{path} and {self.stay[id(now)]} are one in a new environment")
        self.stay[id(now)] = path
        self.made["copy", node["n"]] = now  # before its parts, which may refer to it
        if "rng" in node:  # before those of its parts, which it seeds when it is first used
            load_rng_state(now.np_random, node["rng"])
        for part, own in zip(node["parts"], parts, strict=True):
            found = self.value(part, own, path)
            if node["is"] == "cell":
                now.cell_contents = found
        return now


def _array(node: dict[str, Any]) -> np.ndarray:
    flat = np.asarray(node["bytes"], np.uint8)
    found = np.frombuffer(flat.tobytes(), np.dtype(node["type"]))
    return found.reshape(node["shape"], order=node["order"]).copy(node["order"])


def _find(name: str) -> Any:
    """Return what a name of `_name` stands for in what is imported, or None."""
    module, _, qualified = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in qualified.split("."):
        found = vars(found).get(part) if hasattr(found, "__dict__") else None
    return found


def _set(found: Any, values: Mapping[str, Any]) -> None:
    slots = _slots(type(found))
    for name, value in values.items():
        if name in slots:
            object.__setattr__(found, name, value)
        else:
            vars(found)[name] = value


def _class(name: str, path: str, base: type = object) -> Any:
    """Return a class by name, from what is imported, if it is one of `base`.

    Raises:
        NoSnapshot: if it is none.
    """
    found = _find(name)
    if not isinstance(found, type) or not issubclass(found, base):
        raise NoSnapshot(f"{path} was a {name}, which is no {base.__name__} that is imported now")
    return found
