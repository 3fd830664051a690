"""Pictures of Vega-Lite charts, drawn by a process of their own.

V8, which vl-convert runs, ends its process where it gets no memory. So `draw` runs this file as a
program, which imports nothing of rlplast: it reads charts on stdin and answers with pictures.
"""

import base64
import json
import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

__all__ = ["Picture", "draw", "main", "png", "svg"]

_GEOMETRY = re.compile(r' (?:d|transform|x|y|x1|x2|y1|y2|width|height)="[^"<>]*"')
_LONG = re.compile(r"-?\d+\.\d+(?![\de])")
_START, _EACH = 60.0, 20.0  # seconds that drawing may take: to begin, and for each picture


class Picture(NamedTuple):
    """A chart as the text of an .svg file and the bytes of a .png file."""

    svg: str
    png: bytes


def draw(
    specs: Mapping[str, Any], version: str, config: Mapping[str, Any], warn: Callable[[str], object]
) -> dict[str, Picture]:
    """Return the pictures of charts by name, all drawn by one other process.

    `version` is that of Vega-Lite, `config` what all charts have in common. `warn` is called with a
    line that names the pictures that could not be drawn, and why.
    """
    if not specs:
        return {}
    request = {"version": version, "config": config, "specs": [*specs.values()]}
    answers, why = _answers(json.dumps(request).encode(), _START + _EACH * len(specs))
    found: dict[str, Picture] = {}
    for name, answer in zip(specs, answers, strict=False):  # fewer, if the process was ended
        if "error" in answer:
            warn(f"picture {name} is not drawn: {answer['error']}")
        else:
            found[name] = Picture(answer["svg"], base64.b64decode(answer["png"]))
    rest = list(specs)[len(answers) :]
    if rest:
        others = f" and {len(rest) - 1} after it are" if len(rest) > 1 else " is"
        warn(f"picture {rest[0]}{others} not drawn: {why}")
    return found


def _answers(request: bytes, seconds: float) -> tuple[list[dict[str, str]], str]:
    """Return what the process that draws answered, and why it did not go on."""
    paths = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}  # finds what this one finds
    try:
        done = subprocess.run(
            [sys.executable, "-P", __file__],
            input=request,
            capture_output=True,
            env=os.environ | paths,
            timeout=seconds,
            check=False,
        )
        output, why = done.stdout, _reason(done.returncode, done.stderr.decode(errors="replace"))
    except subprocess.TimeoutExpired as error:
        output, why = error.stdout or b"", f"it took longer than {seconds:g} s"
    except OSError as error:
        output, why = b"", f"no process can be started ({error})"
    lines = output.splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith(b"\n")], why


def _reason(code: int, stderr: str) -> str:
    """Return why a process ended, from its exit code and its stderr."""
    if code >= 0:
        return (stderr.strip().splitlines() or [f"its process ended with exit code {code}"])[-1]
    why = f"its process was killed by {signal.Signals(-code).name}"
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return why
    return (
        f"{why}; addresses are limited to {limit / 1e9:.3g} GB, and drawing reserves about 60 GB, "
        "most of which it never uses: raise `ulimit -v`"
    )


def svg(spec: dict[str, Any], version: str, config: dict[str, Any]) -> str:
    """Return a chart as the text of an .svg file."""
    import vl_convert

    drawing = vl_convert.vegalite_to_svg(spec, vl_version=version, config=config)
    # Vega counts its clips on from one drawing to the next; from 0 on, equal charts are equal files
    clips = list(dict.fromkeys(re.findall(r'<clipPath id="(\w+)"', drawing)))
    numbers = {clip: f"clip-{number}" for number, clip in enumerate(clips)}
    drawing = re.sub(r"\bclip\d+\b", lambda found: numbers.get(found[0], found[0]), drawing)

    def rounded(number: re.Match[str]) -> str:
        return f"{float(number[0]):.1f}".removesuffix(".0")

    return _GEOMETRY.sub(lambda found: _LONG.sub(rounded, found[0]), drawing)


def png(drawing: str) -> bytes:
    """Return the text of an .svg file as the bytes of a .png file."""
    import vl_convert

    return vl_convert.svg_to_png(drawing, scale=2)


def main() -> None:
    """Answer each specification with a line of JSON: its picture, or why there is none."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints is no answer
    request = json.load(sys.stdin.buffer)
    for spec in request["specs"]:
        try:
            drawing = svg(spec, request["version"], request["config"])
            answer = {"svg": drawing, "png": base64.b64encode(png(drawing)).decode()}
        except ValueError as error:  # vl-convert's
            answer = {"error": " ".join(str(error).split())}
        print(json.dumps(answer), file=out, flush=True)  # at once: the next one may end the process


if __name__ == "__main__":
    main()
