"""Charts drawn in this process, which is quicker, or not at all."""

import json
from collections.abc import Mapping

from rlplast.report import drawing
from rlplast.report.drawing import Picture
from rlplast.report.vega import CONFIG, VERSION, Spec

__all__ = ["svg", "undrawn"]


def svg(spec: Spec) -> str:
    """The .svg file of a chart."""
    own = json.loads(json.dumps(spec))
    return drawing.svg(own, VERSION, CONFIG | {"background": "white"})


def undrawn(specs: Mapping[str, Spec]) -> dict[str, Picture]:
    """Empty pictures."""
    return dict.fromkeys(specs, Picture("<svg ></svg>", b""))
