"""Plays the commands of Slurm that submitit and we call, on one JSON file per job in $FAKE_SLURM.

Its state may also be changed by empty files: `full` (nothing starts), `down` (the controller does
not answer), `no accounts` (sacct refuses).
"""

import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any


def install(home: Path, setenv: Any) -> Path:
    """Put commands that run this file in front of PATH; returns where their jobs lie."""
    (home / "bin").mkdir(parents=True)
    for name in ("sbatch", "srun", "squeue", "sacct", "scontrol", "scancel"):
        _write(home, name, f'exec {sys.executable} -S {__file__} {name} "$@"')
    setenv("PATH", f"{home / 'bin'}:{os.environ['PATH']}")
    setenv("FAKE_SLURM", str(home))
    return home


def refuse(home: Path) -> None:
    """Have Slurm refuse what comes from now on."""
    _write(home, "sbatch", "echo 'no such partition' >&2; exit 1")


def _write(home: Path, name: str, line: str) -> None:
    (home / "bin" / name).write_text(f"#!/bin/sh\n{line}\n")
    (home / "bin" / name).chmod(0o755)


def state(home: Path, number: object) -> dict[str, Any]:
    path = home / f"{number}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def set_state(home: Path, number: object, **changes: Any) -> None:
    part = home / f"{number}.{os.getpid()}"
    part.write_text(json.dumps(state(home, number) | changes))
    part.replace(home / f"{number}.json")


def start(home: Path, number: str) -> None:
    """Stand for the daemon: run the script in the background, then write its state."""
    if os.fork():
        return
    os.setsid()
    quiet = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(quiet, descriptor)
    environment = {**os.environ, "SLURM_JOB_ID": number}
    # sbatch keeps the text: submitit renames the script as soon as it has the job's number.
    command = ["bash", "-c", state(home, number)["text"]]
    script = subprocess.Popen(command, start_new_session=True, env=environment)
    set_state(home, number, pid=script.pid, State="RUNNING")
    code = script.wait()
    now = state(home, number)
    if (now["State"], now["pid"]) == ("RUNNING", script.pid):
        set_state(home, number, State="FAILED" if code else "COMPLETED")
    os._exit(0)


def _answer(home: Path, command: str, last: str) -> None:
    """Say which jobs there are, or how one ended."""
    if command == "sacct":
        if (home / "no accounts").exists():
            sys.exit("Slurm accounting storage is disabled")
        print(state(home, last.removeprefix("--jobs="))["State"])
        return
    for number in itertools.count(1):  # a listing of the folder may miss a file just replaced
        if not (about := state(home, number)):
            return
        if not about.get("forgotten"):
            print(f"{number}|{about['State'].split()[0]}|{about['script']}")


def main(command: str, words: list[str]) -> None:
    home, number = Path(os.environ["FAKE_SLURM"]), words[-1]
    if (home / "down").exists() and command != "srun":
        sys.exit("slurm_load_jobs error: Connection refused")
    if command == "sbatch":
        script = Path(words[0])
        number = str(next(i for i in itertools.count(1) if not state(home, i)))
        about = {"script": str(script.resolve()), "text": script.read_text()}
        set_state(home, number, State="PENDING", **about)
        if not (home / "full").exists():
            start(home, number)
        print(f"Submitted batch job {number}")
    elif command == "srun":
        first = next(i for i, word in enumerate(words) if "python" in word)
        os.execvp(words[first], words[first:])
    elif command in ("squeue", "sacct"):
        _answer(home, command, words[-1])
    elif command == "scontrol":
        set_state(home, number, State="REQUEUED")
        start(home, number)
    elif state(home, number)["State"] in (["PENDING"] if words[:-1] else ["PENDING", "RUNNING"]):
        set_state(home, number, State="CANCELLED by 0")
        if "pid" in state(home, number):
            os.killpg(state(home, number)["pid"], signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
