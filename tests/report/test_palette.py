"""Colours of arms: seen on both papers, and told apart by readers who are colour-blind."""

import itertools
import re
from pathlib import Path

import numpy as np
import pytest

from rlplast import report
from rlplast.report.arm_styles import BASELINE, COLOURS

# Machado, Oliveira & Fernandes (2009), severity 1, of linear RGB.
SIGHTS = {
    "protan": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deutan": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritan": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
    "all": np.eye(3).tolist(),
}
# Linear RGB to cones, and their cube roots to Oklab (Ottosson 2020).
CONES = [
    [0.4122214708, 0.5363325363, 0.0514459929],
    [0.2119034982, 0.6806995451, 0.1073969566],
    [0.0883024619, 0.2817188376, 0.6299787005],
]
OKLAB = [
    [0.2104542553, 0.7936177850, -0.0040720468],
    [1.9779984951, -2.4285922050, 0.4505937099],
    [0.0259040371, 0.7827717662, -0.8086757660],
]


def linear(colour: str) -> np.ndarray:
    shares = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(shares <= 0.04045, shares / 12.92, ((shares + 0.055) / 1.055) ** 2.4)


def papers() -> list[str]:
    css = (Path(report.__file__).parent / "report.css").read_text()
    return re.findall(r"--paper: (#\w{6})", css)


@pytest.mark.parametrize("colour", [BASELINE, *COLOURS])
def test_a_colour_has_a_contrast_of_3_to_both_papers(colour: str):
    weights = np.array([0.2126, 0.7152, 0.0722])
    assert len(papers()) == 2
    for paper in papers():
        darker, lighter = sorted(float(weights @ linear(own)) + 0.05 for own in (colour, paper))
        assert lighter / darker > 3


@pytest.mark.parametrize("sight", SIGHTS)
def test_two_colours_are_apart_to_every_sight(sight: str):
    seen = [np.clip(np.array(SIGHTS[sight]) @ linear(own), 0, 1) for own in (BASELINE, *COLOURS)]
    places = [np.array(OKLAB) @ np.cbrt(np.array(CONES) @ own) for own in seen]
    distances = [float(np.linalg.norm(a - b)) for a, b in itertools.combinations(places, 2)]
    assert min(distances) > 0.08
