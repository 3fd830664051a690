"""A headless Chromium that tests drive over its DevTools pipe, with nothing but Python."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from select import select
from time import monotonic, sleep
from typing import Any

__all__ = ["Browser", "chromium"]

SECONDS = 60.0  # for an answer; starting on a busy machine is slow
OFFLINE = ("--no-first-run", "--disable-background-networking", "--disable-component-update")
# Chromium speaks on the descriptors 3 and 4, which this small program puts in place.
LAUNCH = (
    "import os, sys\n"
    "os.dup2(int(sys.argv[1]), 53); os.dup2(int(sys.argv[2]), 54)\n"
    "os.dup2(53, 3); os.dup2(54, 4)\n"
    "os.execv(sys.argv[3], sys.argv[3:])\n"
)


def chromium() -> str | None:
    """The path of a Chromium or Chrome, or None."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((found for name in names if (found := shutil.which(name))), None)


class Browser:
    """One page of a headless Chromium; collects what it requests and complains about.

    Args:
        program: the browser.
        profile: an empty folder for its files.
        size: of the window.
    """

    def __init__(self, program: str, profile: Path, size: tuple[int, int] = (1200, 900)) -> None:
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.loaded = False
        self._number = 0
        self._rest = b""
        self._session: str | None = None
        read, self._write = os.pipe()
        self._read, write = os.pipe()
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"]
        options += [f"--user-data-dir={profile}", f"--window-size={size[0]},{size[1]}", *OFFLINE]
        self._process = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, str(read), str(write), program, *options],
            pass_fds=(read, write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read)
        os.close(write)
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        answer = self.ask("Target.attachToTarget", targetId=target, flatten=True)
        self._session = answer["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._write)  # at the pipe's end the browser leaves
        os.close(self._read)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command; returns its result, and keeps what is reported meanwhile."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self._keep(answer)

    def open(self, url: str) -> None:
        """Go to an address, and wait until it is loaded."""
        self.loaded = False
        self.ask("Page.navigate", url=url)
        while not self.loaded:
            self._keep(self._receive())

    def value(self, script: str) -> Any:
        """Return the value of an expression in the page."""
        answer = self.ask("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def click(self, selector: str) -> None:
        """Press and release the mouse in the middle of an element."""
        place = f"document.querySelector({selector!r}).getBoundingClientRect()"
        self.value(f"document.querySelector({selector!r}).scrollIntoView({{block: 'nearest'}})")
        x, y = (self.value(f"{place}.{k} + {place}.{size} / 2") for k, size in SIDES)
        for kind in ("mousePressed", "mouseReleased"):
            event = {"type": kind, "x": x, "y": y, "button": "left", "clickCount": 1}
            self.ask("Input.dispatchMouseEvent", **event)

    def move(self, x: float, y: float, kind: str = "mouseMoved", **more: Any) -> None:
        """Move the mouse to a place of the window, or do `kind` there."""
        self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def wait_for(self, script: str) -> None:
        """Wait until an expression in the page is true."""
        end = monotonic() + SECONDS
        while not self.value(script):
            assert monotonic() < end, f"never true: {script}"
            sleep(0.02)

    def press(self, key: str, code: int) -> None:
        """Press and release a key of the keyboard."""
        text = {"text": key} if len(key) == 1 else {}
        for kind in ("keyDown", "keyUp"):
            event = {"type": kind, "key": key, "windowsVirtualKeyCode": code}
            self.ask("Input.dispatchKeyEvent", **event, **(text if kind == "keyDown" else {}))

    def _receive(self) -> dict[str, Any]:
        end = monotonic() + SECONDS
        while b"\0" not in self._rest:
            ready, _, _ = select([self._read], [], [], max(0.0, end - monotonic()))
            part = os.read(self._read, 1 << 16) if ready else b""
            assert part, "the browser said nothing more"
            self._rest += part
        message, self._rest = self._rest.split(b"\0", 1)
        return json.loads(message)

    def _keep(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        match event.get("method"):
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])
            case "Page.loadEventFired":
                self.loaded = True
            case "Runtime.exceptionThrown" | "Runtime.consoleAPICalled" | "Log.entryAdded":
                self.complaints.append(json.dumps(params))


SIDES = (("x", "width"), ("y", "height"))
