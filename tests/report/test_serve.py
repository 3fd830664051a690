"""`rlplast report --serve`: the page waits for the first run and is renewed as runs end."""

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest

from rlplast.core.errors import ConfigError
from rlplast.report import serve as serving
from rlplast.report.serve import _state, serve
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
            line = process.stdout.readline()
            yield line.split()[1]
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
        assert "chart-curve-asterix" in waiting  # of what has been measured so far
        (run,) = study.glob("cells/asterix/seed-1/none-*/run.json")
        run.write_text(json.dumps(json.loads(run.read_text()) | {"status": "done"}))
        wait_for(lambda: "1 run is done" in page(address))
        assert "1 running, 0 to start; about" in page(address)
        assert not list(study.glob("report/*.svg"))  # which are slow to draw
        (run,) = study.glob("cells/asterix/seed-1/fire-*/run.json")
        run.write_text(json.dumps(json.loads(run.read_text()) | {"status": "failed"}))
        wait_for(lambda: (study / "report" / "curve-asterix.svg").exists())
        assert page(address.removesuffix("report.html")) == page(address)
        with pytest.raises(urllib.error.HTTPError):
            page(f"{address}.missing")


@pytest.mark.slow
def test_only_files_of_the_report_are_shown(tmp_path: Path):
    with served(write_study(tmp_path, arms=("none",), seeds=(1,))) as address:
        root = address.removesuffix("report.html")
        assert page(f"{root}?x") == page(address)
        for path in ("./", "%00", "../", "%2e%2e/"):
            with pytest.raises(urllib.error.HTTPError):
                page(root + path)


@pytest.fixture
def shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, int]]:
    """A folder with a page that a server in this process shows; gives both: folder and port."""
    monkeypatch.setattr(serving._Handler, "timeout", 0.2)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "report.html").write_text("the page")
    handler = partial(serving._Handler, directory=str(tmp_path / "out"))
    with serving._Server(("127.0.0.1", 0), handler) as server:
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


def test_a_link_that_leads_out_of_the_folder_is_not_followed(shown: tuple[Path, int]):
    folder, port = shown
    (folder.parent / "secret.html").write_text("secret")
    (folder.parent / "outside").mkdir()
    (folder.parent / "outside" / "index.html").write_text("secret")
    (folder / "out.html").symlink_to(folder.parent / "secret.html")
    (folder / "deep").symlink_to(folder.parent / "outside")
    (folder / "round").symlink_to(folder / "round")
    (folder / "in.html").symlink_to("report.html")
    for path in ("/out.html", "/deep/index.html", "/deep/", "/round", "/%2e%2e/secret.html"):
        assert answer(port, path, "localhost")[0] == 404
    assert answer(port, "/in.html", "localhost") == (200, "the page")


def test_a_client_that_asks_nothing_is_let_go(shown: tuple[Path, int]):
    with socket.create_connection(("127.0.0.1", shown[1]), SECONDS) as client:
        assert client.recv(1) == b""  # the server closes, or this call fails after a minute


def test_a_client_that_asks_byte_by_byte_is_let_go(shown: tuple[Path, int]):
    with socket.create_connection(("127.0.0.1", shown[1]), SECONDS) as client:
        client.settimeout(0.05)  # shorter than the server waits for a byte

        def closed() -> bool:
            try:
                client.sendall(b"G")
                return client.recv(1) == b""
            except TimeoutError:
                return False
            except ConnectionError:
                return True

        wait_for(closed)


def test_connections_have_a_bound_and_come_free_again(
    shown: tuple[Path, int], monkeypatch: pytest.MonkeyPatch
):
    _, port = shown
    monkeypatch.setattr(serving._Handler, "timeout", SECONDS)
    with ExitStack() as stack:
        for _ in range(serving.CONNECTIONS):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), SECONDS))
        with socket.create_connection(("127.0.0.1", port), SECONDS) as further:
            assert further.recv(1) == b""

    def free() -> bool:
        try:
            return answer(port, "/", "localhost") == (200, "the page")
        except (ConnectionError, IndexError):
            return False

    wait_for(free)


def test_a_client_that_resets_is_passed_over_in_silence(
    shown: tuple[Path, int], capfd: pytest.CaptureFixture[str]
):
    folder, port = shown
    (folder / "large.svg").write_bytes(bytes(20_000_000))  # more than the buffers between hold
    for request in (b"", b"GET /large.svg HTTP/1.0\r\nHost: localhost\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", port), SECONDS) as client:
            client.sendall(request)
            client.recv(1 if request else 0)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wait_for(lambda: not any("process_request" in own.name for own in threading.enumerate()))
    assert answer(port, "/", "localhost") == (200, "the page")
    assert capfd.readouterr().err == ""


def test_a_folder_that_vanishes_while_it_is_looked_at_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    study = write_study(tmp_path, arms=("none",), seeds=(1, 2))
    whole = _state([study])
    listed = os.scandir

    def vanishing(path: str) -> object:
        if "seed-2" in str(path):
            raise FileNotFoundError(path)
        return listed(path)

    monkeypatch.setattr(os, "scandir", vanishing)
    assert 0 < len(_state([study])) < len(whole)


def test_a_port_that_cannot_be_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"--port 99999 .*: allowed is a free one"):
        serve([tmp_path], pytest.fail, tmp_path / "out", 99999, print, print)


def test_a_taken_port_is_refused_before_anything_is_written(tmp_path: Path):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"--port {port} \(.*\): allowed is a free one"):
            serve([tmp_path], pytest.fail, tmp_path / "out", port, print, print)
    assert not (tmp_path / "out").exists()
