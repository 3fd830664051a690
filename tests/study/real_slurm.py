"""A real Slurm: a cluster of one node, on ports of loopback, in a folder of its own.

- `cluster`: starts one, and ends it.
- `Cluster`: its daemons, and what an administrator does.
"""

import contextlib
import ctypes
import getpass
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

__all__ = ["Cluster", "cluster"]

_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")
_INSTALL = "RLPLAST_APT_SLURM"  # environment variable: install what is missing
_PATH = "/usr/sbin"  # where Debian has the daemons, which is not in everybody's PATH
_CONFIG = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={home}/munge.socket,cred_expire=5
StateSaveLocation={home}/state
SlurmdSpoolDir={home}/spool
SlurmctldPidFile={home}/slurmctld.pid
SlurmdPidFile={home}/slurmd.pid
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
ReturnToService=2
KillWait=5
MinJobAge=300
NodeName={host} NodeAddr=127.0.0.1 CPUs=2
PartitionName=main Nodes=ALL Default=YES MaxTime=10 State=UP
"""


def _require() -> None:
    """Skip the test where Slurm is not installed, and is not to be.

    Raises:
        CalledProcessError: if it cannot be installed.
    """
    if _lacking() and os.environ.get(_INSTALL):
        update = "apt-get update && apt-get install -y --no-install-recommends slurm-wlm munge"
        with tempfile.NamedTemporaryFile(prefix="apt-") as log:
            subprocess.run(
                ["flock", "/tmp/rlplast-apt-slurm.lock", "sh", "-c", update],  # one at a time
                check=True,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"},
            )
    if lacking := ", ".join(_lacking()):
        pytest.skip(f"needs {lacking}: install slurm-wlm and munge, or set {_INSTALL}=1 as root")


def _lacking() -> list[str]:
    path = f"{os.environ['PATH']}:{_PATH}"
    return [name for name in _PROGRAMS if shutil.which(name, path=path) is None]


class Cluster:
    """Slurm's daemons of one node with room for two jobs, which end with this process.

    Args:
        home: for all of their files.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        (home / "state").mkdir()
        (home / "key").write_bytes(os.urandom(128))
        (home / "key").chmod(0o400)
        with contextlib.ExitStack() as held:
            sockets = [held.enter_context(socket.socket()) for _ in range(2)]
            for one in sockets:
                one.bind(("127.0.0.1", 0))
            ports = [one.getsockname()[1] for one in sockets]
        host = socket.gethostname().partition(".")[0]
        about = {"host": host, "ports": ports, "user": getpass.getuser(), "home": home}
        (home / "slurm.conf").write_text(_CONFIG.format(**about))
        self.host = host

    def start(self, *names: str) -> None:
        """Start daemons: munged, slurmctld, slurmd."""
        files = {"key-file": "key", "socket": "munge.socket", "pid-file": "munge.pid"}
        files |= {"log-file": "munge.log", "seed-file": "munge.seed"}
        words = {
            "munged": ["--foreground", *(f"--{k}={self.home / v}" for k, v in files.items())],
            "slurmctld": ["-D"],
            "slurmd": ["-D"],
        }
        for name in names:
            with (self.home / f"{name}.out").open("ab") as out:
                self._daemons[name] = subprocess.Popen(
                    [name, *words[name]],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    preexec_fn=_die_with_parent,
                    start_new_session=True,
                )
            if name == "munged":
                _until((self.home / "munge.socket").exists, 10)

    def kill(self, name: str) -> None:
        """Kill a daemon at once."""
        daemon = self._daemons.pop(name)
        daemon.kill()
        daemon.wait()

    def answers(self) -> bool:
        """Whether the node is there for jobs."""
        return self.say("sinfo", "--noheader", "--format=%T") == "idle"

    def control(self, *words: object) -> None:
        """Have scontrol do something."""
        subprocess.run(["scontrol", *map(str, words)], check=True)

    def say(self, *command: object) -> str:
        """Return what a command says, nothing if it fails."""
        words = list(map(str, command))
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=30)
        return done.stdout.strip()

    def close(self) -> None:
        """End all jobs and daemons."""
        for number in self.say("squeue", "--noheader", "--states=SUSPENDED", "--format=%A").split():
            self.say("scontrol", "resume", number)  # Slurm would leave them standing
        self.say("scancel", f"--user={getpass.getuser()}")
        with contextlib.suppress(AssertionError):
            _until(lambda: not self.say("squeue", "--noheader"), 20)
        for name in ("slurmd", "slurmctld", "munged"):
            if name in self._daemons:
                self._daemons[name].terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._daemons[name].wait(10)
                self.kill(name)
        for pid in self.left():  # slurmstepd outlives its job by some seconds, or much else
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def left(self) -> list[int]:
        """Return the processes that this cluster has started, or that a job of it has."""
        mark, found = f"SLURM_CONF={self.home}/".encode(), []
        for file in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if mark in file.read_bytes() and file.parent.name != str(os.getpid()):
                    found.append(int(file.parent.name))
        return found


@contextlib.contextmanager
def cluster(setenv: Any) -> Iterator[Cluster]:
    """Have a cluster run, which the commands of Slurm find; its jobs and daemons end with it.

    Where there is no Slurm, or it does not start, the test is skipped, and says why.
    """
    _require()
    # Not pytest's folder: the path of a socket is short, and munged wants one that all may enter.
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder:
        home = Path(folder)
        home.chmod(0o755)
        setenv("PATH", f"{os.environ['PATH']}:{_PATH}")
        setenv("SLURM_CONF", str(home / "slurm.conf"))
        made = Cluster(home)
        try:
            _start(made)
            yield made
        finally:
            made.close()


def _start(made: Cluster) -> None:
    """Start all daemons."""
    try:
        made.start("munged", "slurmctld", "slurmd")
        _until(made.answers, 30)
    except AssertionError:
        if os.environ.get(_INSTALL):  # then somebody wants to know
            raise
        last = [path.read_text(errors="replace")[-300:] for path in made.home.glob("*.out")]
        pytest.skip(f"Slurm does not start here: {last}")


def _die_with_parent() -> None:
    """Have Linux kill a daemon when the tests are gone (PR_SET_PDEATHSIG is 1)."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def _until(condition: Any, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "Slurm does not start"
        time.sleep(0.2)
