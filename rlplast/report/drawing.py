"""Pictures of Vega-Lite charts, drawn by a process of their own.

V8, which vl-convert runs, ends its process where it gets no memory. So `draw` runs this file as a
program, which reads charts on stdin and answers with their pictures.
"""

import base64
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

__all__ = ["Picture", "draw", "svg"]

_GEOMETRY = re.compile(r' (?:d|transform|x|y|x1|x2|y1|y2|width|height)="[^"<>]*"')
_LONG = re.compile(r"-?\d+\.\d+(?![\de])")


class Picture(NamedTuple):
    """A chart as the text of an .svg file and the bytes of a .png file."""

    svg: str
    png: bytes


def draw(specs: Mapping[str, Any]) -> dict[str, Picture]:
    """Return the pictures of charts by name, all drawn by one other process on white paper.

    Raises:
        RlplastError: if they cannot be drawn, with the reason.
    """
    from rlplast.core.errors import RlplastError  # not needed by the process that draws
    from rlplast.report.vega import CONFIG, VERSION  # slow to import; most commands draw nothing

    if not specs:
        return {}
    config = CONFIG | {"background": "white"}
    request = {"version": VERSION, "config": config, "specs": [*specs.values()]}
    paths = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}  # finds what this one finds
    try:
        done = subprocess.run(
            [sys.executable, "-P", __file__],
            input=json.dumps(request).encode(),
            capture_output=True,
            env=os.environ | paths,
            check=False,
        )
    except OSError as error:
        raise RlplastError(f"no process can be started ({error})") from error
    if done.returncode:
        raise RlplastError(_reason(done.returncode, done.stderr.decode(errors="replace")))
    answers = json.loads(done.stdout)
    pictures = [Picture(own["svg"], base64.b64decode(own["png"])) for own in answers]
    return dict(zip(specs, pictures, strict=True))


def _reason(code: int, stderr: str) -> str:
    """Return why a process ended, from its exit code and its stderr."""
    if code > 0:
        return (stderr.strip().splitlines() or [f"its process ended with exit code {code}"])[-1]
    return (
        f"its process was killed by {signal.Signals(-code).name}; drawing reserves about 60 GB of "
        "addresses, most of which it never uses: if they are limited, raise `ulimit -v`"
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


def main() -> None:
    """Answer the specifications on stdin with a JSON list of their pictures on stdout."""
    import vl_convert

    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints is no answer
    request = json.load(sys.stdin.buffer)
    answers = []
    for spec in request["specs"]:
        drawing = svg(spec, request["version"], request["config"])
        png = base64.b64encode(vl_convert.svg_to_png(drawing, scale=2)).decode()
        answers.append({"svg": drawing, "png": png})
    json.dump(answers, out)
    out.flush()


if __name__ == "__main__":
    main()
