"""Charts drawn in this process, which is quicker, or not at all."""

import json
from collections.abc import Mapping
from typing import Any

from rlplast.report import drawing
from rlplast.report.vega import PAPER, VERSION, Picture, Spec, _printable

__all__ = ["svg", "undrawn"]


def svg(spec: Spec) -> str:
    """The .svg file of a chart."""
    return drawing.svg(json.loads(json.dumps(_printable(spec))), VERSION, PAPER)


def undrawn(specs: Mapping[str, Spec], warn: Any) -> dict[str, Picture]:
    """Empty pictures."""
    return dict.fromkeys(specs, Picture("<svg ></svg>", b""))
