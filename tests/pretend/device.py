"""A pretended CUDA device for a CPU build of PyTorch: what it would launch and wait for is counted.

Tensors say ``cuda:0``, while memory and arithmetic are the CPU's. Tensors of two devices do not
mix, host generators are refused, a CUDA graph is a tape of operators, and inside a capture
nothing runs and nothing may wait. So tests of code for a GPU need none.

- `load`: build the library once, load it before torch, and patch ``torch.cuda``.
- `loaded`, `reason`: whether it is there, and why not.
- `counted`, `counts`, `Counts`: launches, waits, copies; of a real GPU waits and graphs alone.
- `Event`, `Stream`, `CUDAGraph`, `Graph`: what ``torch.cuda`` has instead of its own.

What it does not pretend: time, the numbers of CUDA's kernels and generators (they are the CPU's),
restrictions of single kernels, memory that graphs share, captures of several threads or streams,
and work that goes on by itself: all is done at once, so a missing event or a stream that does not
wait goes unnoticed.
"""

import ctypes
import hashlib
import json
import os
import subprocess
import sys
import sysconfig
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["Counts", "Unavailable", "counted", "counts", "load", "loaded", "reason"]

TORCH = "2.13.0"  # whose C++ interface device.cpp is written against
MEMORY = 80 << 30  # bytes
SOURCE = Path(__file__).with_name("device.cpp")
CACHE = Path(__file__).parents[2] / "build" / "pretend"

_library: Any = None
_reason = "not asked for: see the target test-device of the Makefile"


class Unavailable(RuntimeError):
    """Raised when the device cannot be pretended here."""


def loaded() -> bool:
    """Whether this process pretends a device."""
    return _library is not None


def reason() -> str:
    """Return why it does not."""
    return _reason


def load() -> None:
    """Pretend a device from now on; to be called before torch is imported.

    Raises:
        Unavailable: if torch is of another version, or can CUDA, or there is no compiler.
    """
    global _library, _reason
    if loaded():
        return
    try:
        _library = _opened(_built())
    except Unavailable as error:
        _reason = str(error)
        raise
    _patch()


def _built() -> Path:
    """Return the library, compiled unless it is there already."""
    spec = find_spec("torch")  # imports nothing
    if spec is None or spec.origin is None:
        raise Unavailable("torch is not installed")
    found = version("torch")
    folder = Path(spec.origin).parent
    if found.split("+")[0] != TORCH:
        raise Unavailable(f"torch is {found}: device.cpp is written for {TORCH}")
    if (folder / "lib" / "libtorch_cuda.so").exists():
        raise Unavailable("torch is a CUDA build: a device is pretended in CPU builds alone")
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:12]
    library = CACHE / f"device-{found}-{sysconfig.get_platform()}-{digest}.so"
    if not library.exists():
        _compile(folder, library)
    return library


def _compile(torch_folder: Path, library: Path) -> None:
    compiler = which("g++")
    if compiler is None:
        raise Unavailable("there is no g++")
    include, lib = torch_folder / "include", torch_folder / "lib"
    library.parent.mkdir(parents=True, exist_ok=True)
    unfinished = library.with_suffix(f".{os.getpid()}")
    command = [compiler, "-std=c++20", "-O1", "-fPIC", "-shared", str(SOURCE)]
    command += ["-o", str(unfinished), f"-I{include}", f"-I{include}/torch/csrc/api/include"]
    command += [f"-L{lib}", f"-Wl,-rpath,{lib}", "-ltorch", "-ltorch_cpu", "-lc10"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{SOURCE.name} does not compile:\n{done.stderr[-4000:]}")
    unfinished.replace(library)


def _opened(path: Path) -> Any:
    if "torch" in sys.modules:
        raise Unavailable("torch is imported already: load the device before it")
    library = ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
    number, text = ctypes.c_int64, ctypes.c_char_p
    for name, result, arguments in (
        ("counts", text, []),
        ("count", None, [text]),
        ("wait", text, [text]),
        ("waits_raise", None, [ctypes.c_int]),
        ("allocated", number, []),
        ("stream", number, []),
        ("new_stream", number, []),
        ("set_stream", None, [number]),
        ("capturing", ctypes.c_int, []),
        ("begin", text, [ctypes.POINTER(number)]),
        ("end", text, []),
        ("replay", text, [number]),
        ("forget", None, [number]),
    ):
        function = getattr(library, f"pretend_{name}")
        function.restype, function.argtypes = result, arguments
    return library


# What is counted.


@dataclass
class Counts:
    """What happened on the device.

    Attributes:
        launches: operator → how often it was launched, roughly one kernel each.
        waits: what the host waited for → how often.
        copies: between host and device that nothing waited for.
        event_waits: for events, which are recorded to be waited for.
        graphs: replays of captured graphs.
    """

    launches: dict[str, int] = field(default_factory=dict)
    waits: dict[str, int] = field(default_factory=dict)
    copies: int = 0
    event_waits: int = 0
    graphs: int = 0

    @property
    def launched(self) -> int:
        """All launches, those inside graphs not counted."""
        return sum(self.launches.values())


def counts() -> Counts:
    """Return what happened since the last call."""
    found: dict[str, int] = json.loads(_library.pretend_counts())

    def of(kind: str) -> dict[str, int]:
        return {k.removeprefix(kind): n for k, n in found.items() if k.startswith(kind)}

    copies = sum(of("copy to ").values())
    others = found.get("event wait", 0), found.get("graph", 0)
    return Counts(of("launch "), of("wait "), copies, *others)


@contextmanager
def counted() -> Iterator[Counts]:
    """Yield counts, which are filled in at the end with what happened inside."""
    if not loaded():
        with _counted_really() as seen:
            yield seen
        return
    counts()
    seen = Counts()
    try:
        yield seen
    finally:
        vars(seen).update(vars(counts()))


@contextmanager
def _counted_really() -> Iterator[Counts]:
    """Yield counts of a real GPU: waits, of which torch warns, and replays of graphs."""
    import torch

    seen, replay = Counts(), torch.cuda.CUDAGraph.replay

    def counting(graph: torch.cuda.CUDAGraph) -> None:
        seen.graphs += 1
        replay(graph)

    torch.cuda.CUDAGraph.replay = counting  # type: ignore[method-assign]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype")
        torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            yield seen
    finally:
        torch.cuda.set_sync_debug_mode("default")
        torch.cuda.CUDAGraph.replay = replay  # type: ignore[method-assign]
    waits = Counter[str]()
    for one in warned:
        if "synchronizing CUDA operation" in str(one.message):
            waits[f"{one.filename}:{one.lineno}"] += 1
        else:
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
    seen.waits = dict(waits)


def _checked(message: bytes | None) -> None:
    if message is not None:
        raise RuntimeError(message.decode())


def _wait(what: str) -> None:
    _checked(_library.pretend_wait(what.encode()))


# What torch.cuda has in place of its own.


class Event:
    """A moment; all work before it is done at once, so waiting for one is merely counted."""

    def record(self, stream: "Stream | None" = None) -> None:
        """Note the work of now, which is done."""

    def synchronize(self) -> None:
        if _library.pretend_capturing():
            _wait("event.synchronize")
        _library.pretend_count(b"event wait")


class Stream:
    """A queue of work; entered, the current one of this thread."""

    def __init__(self, device: Any = None, priority: int = 0, *, number: int | None = None) -> None:
        self.stream_id = _library.pretend_new_stream() if number is None else number
        self.cuda_stream = self.stream_id
        self._outer: list[int] = []

    @property
    def device(self) -> "torch.device":
        import torch

        return torch.device("cuda", 0)

    def __enter__(self) -> "Stream":
        self._outer.append(_library.pretend_stream())
        _library.pretend_set_stream(self.stream_id)
        return self

    def __exit__(self, *error: object) -> None:
        _library.pretend_set_stream(self._outer.pop())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.stream_id == self.stream_id

    def __hash__(self) -> int:
        return hash(self.stream_id)

    def wait_stream(self, other: "Stream") -> None:
        """Let this stream wait, not the host."""

    def synchronize(self) -> None:
        _wait("stream.synchronize")


class CUDAGraph:
    """A tape of the operators of a capture, of which Python runs once, as on a device."""

    def __init__(self, keep_graph: bool = False) -> None:
        self._tape = 0
        self._pool = _new_pool()

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        if not _library.pretend_stream():
            raise RuntimeError("CUDA graphs must be captured on a non-default stream")
        self.reset()
        self._pool = self._pool if pool is None else pool
        tape = ctypes.c_int64()
        _checked(_library.pretend_begin(ctypes.byref(tape)))
        self._tape = tape.value

    def capture_end(self) -> None:
        _checked(_library.pretend_end())

    def replay(self) -> None:
        _checked(_library.pretend_replay(self._tape))

    def reset(self) -> None:
        _library.pretend_forget(self._tape)
        self._tape = 0

    def pool(self) -> tuple[int, int]:
        return self._pool

    def register_generator_state(self, generator: "torch.Generator") -> None:
        """Generators of the device may be drawn from in any graph."""

    def __del__(self) -> None:
        self.reset()


class Graph:
    """What captures: ``with torch.cuda.graph(graph):``."""

    def __init__(
        self,
        cuda_graph: CUDAGraph,
        pool: Any = None,
        stream: Stream | None = None,
        capture_error_mode: str = "global",
    ) -> None:
        self.cuda_graph, self._pool, self._mode = cuda_graph, pool, capture_error_mode
        self._stream = Stream() if stream is None else stream

    def __enter__(self) -> None:
        _wait("device.synchronize")  # as torch does before each capture
        self._stream.__enter__()
        try:
            self.cuda_graph.capture_begin(self._pool, self._mode)
        except BaseException:
            self._stream.__exit__()
            raise

    def __exit__(self, kind: object, *error: object) -> None:
        try:
            self.cuda_graph.capture_end()
            if kind is not None:
                self.cuda_graph.reset()  # what was not captured whole is not to be replayed
        finally:
            self._stream.__exit__()


_pools = 0


def _new_pool() -> tuple[int, int]:
    global _pools
    _pools += 1
    return 0, _pools


def _properties(device: Any = None) -> SimpleNamespace:
    return SimpleNamespace(
        name="pretended CUDA device",
        major=9,
        minor=0,
        total_memory=MEMORY,
        multi_processor_count=132,
        max_threads_per_multi_processor=2048,
        warp_size=32,
        L2_cache_size=50 << 20,
    )


def _set_sync_debug_mode(mode: int | str) -> None:
    _library.pretend_waits_raise(int(mode in (2, "error")))


def _allocated(device: Any = None) -> int:
    return _library.pretend_allocated()


def _set_device(device: Any) -> None:
    import torch

    index = torch.device(device).index if not isinstance(device, int) else device
    if index not in (None, 0, -1):
        raise RuntimeError(f"CUDA error: invalid device ordinal ({device}): there is one device")


def _patch() -> None:
    """Let ``torch.cuda`` speak of the device."""
    import torch

    cuda: Any = torch.cuda
    generator = torch.Generator("cuda")  # the first one is the device's own
    default = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "_is_compiled": lambda: False,  # asked for by what imports parts that are not there
        "init": lambda: None,
        "_lazy_init": lambda: None,
        "_lazy_call": lambda call, **keys: call(),
        "_initialized": True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": _set_device,
        "_exchange_device": lambda device: 0,
        "_maybe_exchange_device": lambda device: 0,
        "is_bf16_supported": lambda including_emulation=True: True,
        "get_device_properties": _properties,
        "_get_device_properties": _properties,
        "set_sync_debug_mode": _set_sync_debug_mode,
        "_sleep": lambda cycles: None,
        "synchronize": lambda device=None: _wait("device.synchronize"),
    }
    memory = {
        "memory_allocated": _allocated,
        "empty_cache": lambda: None,
        "mem_get_info": lambda device=None: (MEMORY - _allocated(), MEMORY),
    }
    streams = {
        "Event": Event,
        "Stream": Stream,
        "stream": lambda stream: stream,
        "current_stream": lambda device=None: Stream(number=_library.pretend_stream()),
    }
    graphs = {
        "CUDAGraph": CUDAGraph,
        "graph": Graph,
        "graph_pool_handle": _new_pool,
        "is_current_stream_capturing": lambda: bool(_library.pretend_capturing()),
    }
    random = {
        "default_generators": (generator,),
        "get_rng_state": lambda device="cuda": generator.get_state(),
        "get_rng_state_all": lambda: [generator.get_state()],
        "set_rng_state": lambda state, device="cuda": generator.set_state(state),
        "set_rng_state_all": lambda states: [generator.set_state(state) for state in states[:1]],
        "manual_seed": generator.manual_seed,
        "manual_seed_all": generator.manual_seed,
        "initial_seed": generator.initial_seed,
    }
    for name, value in (default | memory | streams | graphs | random).items():
        setattr(cuda, name, value)
    for name in random:
        setattr(cuda.random, name, random[name])
    cuda.amp.common.amp_definitely_not_available = lambda: False
    _patch_copies()


def _patch_copies() -> None:
    """Let ``copy.deepcopy`` copy tensors of the device, whose storages it cannot make."""
    import torch

    for kind in (torch.Tensor, torch.nn.Parameter):
        setattr(kind, "__deepcopy__", _copier(kind.__deepcopy__))  # noqa: B010


def _copier(usual: Any) -> Any:
    import torch

    def copied(self: "torch.Tensor", memo: dict[int, Any]) -> Any:
        if self.device.type != "cuda" or id(self) in memo:
            return usual(self, memo)
        if not self.is_leaf:
            raise RuntimeError("Only Tensors created explicitly by the user support deepcopy")
        new = torch.empty_strided(self.shape, self.stride(), dtype=self.dtype, device=self.device)
        new.copy_(self.detach())
        if isinstance(self, torch.nn.Parameter):
            new = torch.nn.Parameter(new, self.requires_grad)
        memo[id(self)] = new.requires_grad_(self.requires_grad)
        return new

    return copied
