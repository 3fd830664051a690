"""The process that draws: Vega-Lite specifications on its stdin, pictures on its stdout.

V8, which vl-convert runs, ends its process where it gets no memory, and it needs all three standard
streams. So `rlplast.report.vega.draw` runs this file as a program. It imports nothing of rlplast.

- `svg`, `png`: one picture.
- `main`: all of a request.
"""

import base64
import json
import os
import re
import sys
from typing import Any

import vl_convert

__all__ = ["main", "png", "svg"]

_GEOMETRY = re.compile(r' (?:d|transform|x|y|x1|x2|y1|y2|width|height)="[^"<>]*"')
_LONG = re.compile(r"-?\d+\.\d+(?![\de])")


def svg(spec: dict[str, Any], version: str, config: dict[str, Any]) -> str:
    """Return a chart as the text of an .svg file.

    Args:
        spec: the chart.
        version: of Vega-Lite.
        config: what all charts have in common.
    """
    drawing = vl_convert.vegalite_to_svg(spec, vl_version=version, config=config)
    # Vega counts its clips on from one drawing to the next; from 0 on, equal charts are equal files
    clips = list(dict.fromkeys(re.findall(r'<clipPath id="(\w+)"', drawing)))
    numbers = {clip: f"clip-{number}" for number, clip in enumerate(clips)}
    drawing = re.sub(r"\bclip\d+\b", lambda found: numbers.get(found[0], found[0]), drawing)
    return _GEOMETRY.sub(lambda found: _LONG.sub(_rounded, found[0]), drawing)


def _rounded(number: re.Match[str]) -> str:
    """Return a number of pixels with one decimal."""
    return f"{float(number[0]):.1f}".removesuffix(".0")


def png(drawing: str) -> bytes:
    """Return the text of an .svg file as the bytes of a .png file."""
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
