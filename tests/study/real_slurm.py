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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.study.commands import until

__all__ = ["Cluster", "cluster"]

_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")
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

    def start(self) -> None:
        """Start all daemons."""
        files = {"key-file": "key", "socket": "munge.socket", "pid-file": "munge.pid"}
        files |= {"log-file": "munge.log", "seed-file": "munge.seed"}
        words = {
            "munged": ["--foreground", *(f"--{k}={self.home / v}" for k, v in files.items())],
            "slurmctld": ["-D"],
            "slurmd": ["-D"],
        }
        for name in words:
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
                until((self.home / "munge.socket").exists)
        until(lambda: self.say("sinfo", "--noheader", "--format=%T") == "idle")

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
            until(lambda: not self.say("squeue", "--noheader"), 20)
        for daemon in reversed(self._daemons.values()):
            daemon.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(10)
            daemon.kill()
            daemon.wait()
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
    path = f"{os.environ['PATH']}:{_PATH}"
    if lacking := [name for name in _PROGRAMS if shutil.which(name, path=path) is None]:
        pytest.skip(f"needs {', '.join(lacking)}: install slurm-wlm and munge")
    # Not pytest's folder: the path of a socket is short, and munged wants one that all may enter.
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder:
        home = Path(folder)
        home.chmod(0o755)
        setenv("PATH", path)
        setenv("SLURM_CONF", str(home / "slurm.conf"))
        made = Cluster(home)
        try:
            try:
                made.start()
            except AssertionError:
                last = [out.read_text(errors="replace")[-300:] for out in home.glob("*.out")]
                pytest.skip(f"Slurm does not start here: {last}")
            yield made
        finally:
            made.close()


def _die_with_parent() -> None:
    """Have Linux kill a daemon when the tests are gone (PR_SET_PDEATHSIG is 1)."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
