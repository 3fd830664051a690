"""The state of ordinary Python objects as plain data, and back; nothing is pickled.

- `take`: copies the attributes of objects, and of all that they refer to.
- `put`: gives other objects of the same classes those attributes.
- `NoSnapshot`: raised for what holds more than Python shows, such as objects of C extensions.

A state comes from a file, so putting it back calls nothing that it names: objects are made without
their constructors, and functions and classes are those that are there.

Objects, lists, dicts, sets, deques, arrays and generators are copied once each, so what was shared
stays shared. Functions, classes, modules, spaces and pygame's surfaces are not copied: they stay
what they are in the object that is written to, and only a function's own cells are.
"""

import collections
import copyreg
import enum
import inspect
import random
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rlplast.envs.base import State, load_rng_state, rng_state

__all__ = ["NoSnapshot", "put", "take"]

_KEPT = (type, types.ModuleType, types.BuiltinFunctionType, np.ufunc)
_CONTAINERS: dict[str, type] = {
    kind.__name__: kind for kind in (list, tuple, set, frozenset, collections.deque)
}
_MAPPINGS: dict[str, type] = {
    kind.__name__: kind
    for kind in (dict, collections.OrderedDict, collections.defaultdict, collections.Counter)
}

_STREAMS: dict[type, tuple[str, Callable[[Any], Any]]] = {
    np.random.Generator: ("generator", rng_state),
    np.random.RandomState: ("legacy", lambda rng: rng.get_state(legacy=False)),
    random.Random: ("random", random.Random.getstate),
}
_PLAIN = {f"builtins:{kind.__name__}": kind for kind in (list, dict, set, int, float, str, bool)}


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
        self.memory: dict[int, str] = {}  # of arrays: whose it is
        self.alive: list[Any] = []  # keeps ids apart

    def attributes(self) -> list[Any]:
        return [
            [_name(type(root)), self.mapping(vars(root), type(root).__name__)]
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
        if type(value) in (tuple, frozenset):  # no name of its own: it may be part of a cycle only
            items = [self.node(item, f"{path}[{i}]") for i, item in enumerate(value)]
            return {"is": type(value).__name__, "items": items}
        self.seen[id(value)] = ["copy", len(self.alive)]
        self.alive.append(value)
        return {"n": len(self.alive) - 1} | self.mutable(value, path)

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
        if isinstance(value, np.ndarray):
            return self.array(value, path)
        if kind in _STREAMS:
            name, read = _STREAMS[kind]
            return {"is": name, "state": self.node(read(value), path)}
        return self.kept(value, path) or self.instance(value, path)

    def kept(self, value: Any, path: str) -> dict[str, Any] | None:
        """Return a node for what is not copied, if it is of that kind."""
        kind = type(value)
        modules = [str(getattr(base, "__module__", "")) for base in kind.__mro__]
        if isinstance(value, types.FunctionType):
            try:
                cells = [self.node(c.cell_contents, path) for c in value.__closure__ or ()]
            except ValueError as error:
                raise NoSnapshot(f"{path} is a function with an empty cell") from error
            return {"is": "function", "of": _name(value), "cells": cells}
        if isinstance(value, types.MethodType):
            own = self.node(value.__self__, path)
            return {"is": "method", "name": value.__func__.__name__, "self": own}
        if isinstance(value, _KEPT) and isinstance(
            getattr(value, "__self__", None), types.ModuleType | None
        ):
            return {"is": "kept", "of": _name(value)}
        if any(module.startswith("pygame") for module in modules):
            return {"is": "kept", "of": "pygame"}
        if any(module.startswith("gymnasium.spaces") for module in modules):
            rng = vars(value).get("_np_random")  # a space's generator is made when it is first used
            drawn = None if rng is None else rng_state(rng)
            return {"is": "space", "of": _name(kind), "rng": drawn}
        return None

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
        if self.memory.setdefault(id(owner), path) != path:
            raise NoSnapshot(f"{path} and {self.memory[id(owner)]} are views of one array")
        self.alive.append(owner)
        if value.dtype.hasobject:
            if value.dtype != object:
                raise NoSnapshot(f"{path} is an array of records with objects")
            items = [self.node(v, f"{path}[{i}]") for i, v in enumerate(value.ravel().tolist())]
            return {"is": "objects", "shape": list(value.shape), "items": items}
        flat = np.frombuffer(value.tobytes(), np.uint8).copy()
        return {"is": "array", "type": value.dtype.str, "shape": list(value.shape), "bytes": flat}


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
    slots = _slots(type(value))
    found = {name: getattr(value, name) for name in slots if hasattr(value, name)}
    return found | getattr(value, "__dict__", {})


def _stream(kind: str, state: Any) -> Any:
    """Return a new generator that goes on from a state."""
    if kind == "generator":
        bits = _class(f"numpy.random:{state['bit_generator']}", "rng", np.random.BitGenerator)
        found = np.random.Generator(bits())
        load_rng_state(found, state)
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

    def fill(self, nodes: list[Any]) -> None:
        if len(nodes) != len(self.roots):
            raise NoSnapshot(f"a state of {len(nodes)} objects cannot fill {len(self.roots)}")
        for root, (kind, items) in zip(self.roots, nodes, strict=True):
            if kind != _name(type(root)):
                raise NoSnapshot(f"a state of {kind} cannot fill {_name(type(root))}")
            now = vars(root)
            new = {k: self.value(v, now.get(k), f"{kind}.{k}") for k, v in items}
            now.clear()
            now.update(new)

    def value(self, node: Any, now: Any, path: str) -> Any:
        """Return what a node stands for; `now` is what is in its place."""
        if not isinstance(node, dict):
            return node
        kind = node["is"]
        if kind == "again":
            return self.made[tuple(node["at"])]
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
        return known(self.rest(kind, node, now, path))

    def instance(self, found: Any, items: list[Any], now: Any, path: str) -> Any:
        """Give an object its attributes."""
        existing = _attributes(now) if type(now) is type(found) else {}
        slots = _slots(type(found))
        for name, item in items:
            value = self.value(item, existing.get(name), f"{path}.{name}")
            if name in slots:
                object.__setattr__(found, name, value)
            else:
                vars(found)[name] = value
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
        if "state" in node:
            return _stream(kind, self.value(node["state"], None, path))
        return self.kept(kind, node, now, path)

    def items(self, node: dict[str, Any], now: Any, path: str) -> list[Any]:
        """Return the items of a node; those of a list are paired with what is in its place."""
        paired = list(now) if isinstance(now, list | tuple | collections.deque) else []
        paired += [None] * (len(node["items"]) - len(paired))
        return [
            self.value(item, old, f"{path}[{i}]")
            for i, (item, old) in enumerate(zip(node["items"], paired, strict=False))
        ]

    def kept(self, kind: str, node: dict[str, Any], now: Any, path: str) -> Any:
        """Return what is in a node's place, which is not made anew."""
        if node["of"] == "pygame":
            return now
        if kind == "kept" and now is None:
            now = _PLAIN.get(node["of"])
        named = type(now) if kind == "space" else now
        if now is None or _name(named) != node["of"]:
            raise NoSnapshot(f"{path} was {node['of']}, and is {now!r} in a new environment")
        if kind == "space" and node["rng"] is not None:
            load_rng_state(now.np_random, node["rng"])
        if kind == "function":
            for cell, item in zip(now.__closure__ or (), node["cells"], strict=True):
                cell.cell_contents = self.value(item, cell.cell_contents, path)
        return now


def _array(node: dict[str, Any]) -> np.ndarray:
    flat = np.asarray(node["bytes"], np.uint8)
    return np.frombuffer(flat.tobytes(), np.dtype(node["type"])).reshape(node["shape"]).copy()


def _class(name: str, path: str, base: type = object) -> Any:
    """Return a class by name, from what is imported, if it is one of `base`.

    Raises:
        NoSnapshot: if it is none.
    """
    module, _, qualified = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in qualified.split("."):
        found = vars(found).get(part) if hasattr(found, "__dict__") else None
    if not isinstance(found, type) or not issubclass(found, base):
        raise NoSnapshot(f"{path} was a {name}, which is no {base.__name__} that is imported now")
    return found
