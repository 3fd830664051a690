"""`rlplast report --serve`: the page waits for the first run and is renewed as runs end."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from rlplast.core.errors import ConfigError
from rlplast.report.serve import _Handler, _state, serve
from tests.report.runs import write_study

SECONDS = 60.0


@contextmanager
def served(study: Path) -> Iterator[str]:
    """Run the command; gives the page's address, and ends it as Ctrl-C does."""
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from functools import partial; import rlplast.report.serve as s; "
        "s.serve = partial(s.serve, every=0.1); "
        "from rlplast.cli.main import main; sys.exit(main())"
    )
    command = [sys.executable, "-c", code, "report", str(study), "--serve", "--port", "0"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:
        try:
            assert process.stdout is not None and process.stderr is not None
            yield process.stdout.readline().split()[1]
            process.send_signal(signal.SIGINT)
            assert process.wait(SECONDS) == 0
            assert process.stderr.read() == ""
        finally:
            process.kill()


def page(address: str) -> str:
    with urllib.request.urlopen(address, timeout=SECONDS) as answer:
        return answer.read().decode()


def wait_for(true: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.slow
def test_page_waits_for_the_first_run_and_is_written_again_when_one_ends(tmp_path: Path):
    absent = {("asterix", "none", 1): "running", ("asterix", "fire", 1): "running"}
    study = write_study(tmp_path, arms=("none", "fire"), seeds=(1,), statuses=absent)
    with served(study) as address:
        waiting = page(address)
        assert "No run is done yet" in waiting and "2 running, 0 to start" in waiting
        (run,) = study.glob("cells/asterix/seed-1/none-*/run.json")
        run.write_text(json.dumps(json.loads(run.read_text()) | {"status": "done"}))
        wait_for(lambda: "1 run is done" in page(address))
        assert not list(study.glob("report/*.svg"))  # which are slow to draw
        (run,) = study.glob("cells/asterix/seed-1/fire-*/run.json")
        run.write_text(json.dumps(json.loads(run.read_text()) | {"status": "failed"}))
        wait_for(lambda: (study / "report" / "curve-asterix.svg").exists())
        assert page(address.removesuffix("report.html") + "?x") == page(address)
        with pytest.raises(urllib.error.HTTPError):
            page(f"{address}.missing")


@pytest.fixture
def shown(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    """A folder with a page that a server in this process shows; gives both: folder and port."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "report.html").write_text("the page")
    handler = partial(_Handler, directory=str(tmp_path / "out"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield tmp_path / "out", server.server_port
        server.shutdown()
        thread.join()


def answer(port: int, path: str = "/", *hosts: str, method: str = "GET") -> tuple[int, str]:
    """Return status and body of what a raw request is answered with."""
    head = "".join(f"Host: {host}\r\n" for host in hosts)
    with socket.create_connection(("127.0.0.1", port), SECONDS) as client:
        client.sendall(f"{method} {path} HTTP/1.0\r\n{head}\r\n".encode())
        output = b"".join(iter(lambda: client.recv(65536), b"")).decode()
    lines, _, body = output.partition("\r\n\r\n")
    return int(lines.split()[1]), body


def test_only_requests_for_this_machines_own_name_are_answered(shown: tuple[Path, int]):
    _, port = shown
    for host in ("localhost", "LocalHost:1", f"127.0.0.1:{port}", f"[::1]:{port}"):
        assert answer(port, "/", host) == (200, "the page")
    foreign = ("evil.example", f"evil.example:{port}", "localhost.evil.example", "", "127.0.0.1:x")
    for hosts in (*((host,) for host in foreign), (), ("localhost", "evil.example")):
        status, body = answer(port, "/report.html", *hosts)
        assert (status, "http://localhost" in body, "the page" in body) == (403, True, False)
    assert answer(port, "/", "evil.example", method="HEAD") == (403, "")


def test_only_files_of_the_folder_are_shown(shown: tuple[Path, int]):
    folder, port = shown
    (folder.parent / "outside").mkdir()
    (folder.parent / "outside" / "index.html").write_text("secret")
    (folder.parent / "outer.html").write_text("secret")  # whose path begins as the folder's does
    (folder / "out.html").symlink_to(folder.parent / "outer.html")
    (folder / "deep").symlink_to(folder.parent / "outside")
    (folder / "round").symlink_to(folder / "round")
    (folder / "inner").mkdir()
    (folder / "in.html").symlink_to("report.html")
    bad = ("out.html", "deep/index.html", "deep/", "round", "inner/", "%00", "./", "../outer.html")
    for path in (*bad, "%2e%2e/outer.html", "..%2fouter.html"):
        assert answer(port, f"/{path}", "localhost")[0] == 404, path
    for path in ("/in.html", "/?x", "/report.html"):
        assert answer(port, path, "localhost") == (200, "the page")


def test_a_folder_that_vanishes_while_it_is_looked_at_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    study = write_study(tmp_path, arms=("none",), seeds=(1, 2))
    whole, listed = _state([study]), os.scandir

    def vanishing(path: str) -> object:
        if "seed-2" in str(path):
            raise FileNotFoundError(path)
        return listed(path)

    monkeypatch.setattr(os, "scandir", vanishing)
    assert 0 < len(_state([study])) < len(whole)


@pytest.mark.parametrize("port", [99999, None])
def test_a_port_that_cannot_be_is_refused_before_anything_is_written(tmp_path: Path, port):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        own = port or other.getsockname()[1]  # one that is taken
        with pytest.raises(ConfigError, match=rf"--port {own} \(.*\): allowed is a free one"):
            serve([tmp_path], pytest.fail, tmp_path / "out", own, print, print)
    assert not (tmp_path / "out").exists()
