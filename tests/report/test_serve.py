"""`rlplast report --serve`: the page waits for the first run and is renewed as runs end."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from rlplast.core.errors import ConfigError
from rlplast.report.serve import _Handler, _state, serve
from tests.report.runs import write_study

SECONDS = 300.0  # on a busy machine


def wait_for(true: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.slow
def test_page_waits_for_the_first_run_and_is_written_again_when_one_ends(tmp_path: Path):
    absent = {("asterix", "none", 1): "running", ("asterix", "fire", 1): "running"}
    study = write_study(tmp_path, arms=("none", "fire"), seeds=(1,), statuses=absent)
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "import rlplast.report.serve; rlplast.report.serve._EVERY = 0.1; "
        "from rlplast.cli.main import main; sys.exit(main())"
    )
    command = [sys.executable, "-c", code, "report", str(study), "--serve", "--port", "0"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}

    def page() -> str:
        with urllib.request.urlopen(address, timeout=SECONDS) as found:
            return found.read().decode()

    def end(arm: str, status: str) -> None:
        (run,) = study.glob(f"cells/asterix/seed-1/{arm}-*/run.json")
        run.write_text(run.read_text().replace("running", status))

    with subprocess.Popen(command, text=True, **pipes) as process:
        try:
            assert process.stdout is not None and process.stderr is not None
            address = process.stdout.readline().split()[1]
            assert "No run is done yet" in page() and "2 running, 0 to start" in page()
            end("none", "done")
            wait_for(lambda: "1 run is done" in page())
            assert not list(study.glob("report/*.svg"))  # which are slow to draw
            end("fire", "failed")
            wait_for(lambda: (study / "report" / "curve-asterix.svg").exists())
            process.send_signal(signal.SIGINT)  # as Ctrl-C does
            assert process.wait(SECONDS) == 0 and process.stderr.read() == ""
        finally:
            process.kill()


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
    (folder.parent / "secret.html").write_text("secret")
    (folder / "inner").mkdir()
    (folder / "out.html").symlink_to(folder.parent / "secret.html")
    (folder / "deep").symlink_to(folder.parent)
    linked = ("out.html", "deep/secret.html", "deep/")
    for path in (*linked, "inner/", "%00", "missing", "../secret.html", "%2e%2e/secret.html"):
        assert answer(port, f"/{path}", "localhost")[0] == 404, path
    for path in ("/?x", "/report.html"):
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


def test_a_port_that_cannot_be_is_refused_before_anything_is_written(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        for port in (99999, other.getsockname()[1]):
            with pytest.raises(ConfigError, match=rf"--port {port} \(.*\): allowed is a free one"):
                serve([tmp_path], pytest.fail, tmp_path / "out", port, print, print)
    assert not (tmp_path / "out").exists()
