"""Several processes of one machine that train a cell together, as torchrun would start them.

- `lead`: starts the others.
"""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rlplast.study.child import GRACE, PARENT, STOPPED

__all__ = ["lead"]

_PATIENCE = 20.0  # seconds in which the first sees by itself that another one has failed


@contextmanager
def lead(processes: int, command: Sequence[str]) -> Iterator[None]:
    """Be rank 0 of so many processes, and start the others.

    They end with this one. If one of them fails, this one does too, though it may be waiting for
    that one's numbers.

    Args:
        processes: how many there are.
        command: program and arguments of the others; what they print is not kept, but for errors.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    names = {"TORCHELASTIC_RUN_ID": "rlplast", "WORLD_SIZE": str(processes)}
    names |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    over = threading.Event()
    others = []
    for rank in map(str, range(1, processes)):
        own = names | {"RANK": rank, "LOCAL_RANK": rank, PARENT: str(os.getpid())}
        own |= {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}  # as the first imports
        others.append(
            subprocess.Popen(command, stdout=subprocess.DEVNULL, env={**os.environ, **own})
        )
        threading.Thread(target=_fail_with, args=(others[-1], over), daemon=True).start()
    os.environ.update(names, RANK="0", LOCAL_RANK="0")
    try:
        yield
    finally:
        over.set()
        for other in others:
            other.kill()


def _fail_with(other: "subprocess.Popen[bytes]", over: threading.Event) -> None:
    """End this process if another one fails; after a stop, this one may still be saving."""
    code = other.wait()
    if code != 0 and not over.wait(GRACE if code == STOPPED else _PATIENCE):
        os._exit(code if 0 < code != STOPPED else 1)
