"""What arms are called, and how they look: colours on both papers, and to every reader."""

import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlplast import report
from rlplast.report.arms import (
    BASELINE,
    COLOURS,
    differences,
    label_of,
    looks,
    number_variants,
)

# Names


@pytest.mark.parametrize(
    ("hooks", "label"),
    [
        ([{"method": "fire", "on": "phase_start"}], "fire on phase_start"),
        ([{"method": "swr", "every": "1 updates", "at": None}], "swr every 1 updates"),
        (
            [
                {"method": "fire", "at": ["25%", "50%"]},
                {"method": "redo", "every": "5%", "from": "10%"},
            ],
            "fire at 25%, 50% + redo every 5% from 10%",
        ),
        (
            [{"method": "redo", "when": {"metric": "dormant_ratio", "above": 0.5}}],
            "redo when dormant_ratio above 0.5",
        ),
        (None, "none"),
    ],
)
def test_labels_say_what_is_done_and_when(hooks: list[Any] | None, label: str):
    assert label_of({"hooks": hooks}) == label
    others = {"layers": [{"method": "lifecycle"}], "penalties": [{"method": "l2_init"}]}
    parts = [label] * bool(hooks) + ["lifecycle", "l2_init"]
    assert label_of({"hooks": hooks} | others) == " + ".join(parts)


def test_configs_of_one_arm_differ_in_what_does_not_change_training_alone():
    one = {"seed": 1, "threads": 1, "evaluate": {"every": "10%"}, "agent": {"lr": 0.1}}
    other = {"seed": 2, "threads": 4, "evaluate": {"every": "5%"}, "agent": {"lr": 0.1}}
    assert differences(one, other) == []
    other["agent"] = {"lr": 0.2}
    assert differences(one, other) == ["agent.lr 0.1, 0.2"]


def test_variants_are_numbered_by_their_configs_whatever_their_order():
    configs = [{"seed": seed, "agent": {"lr": lr}} for lr in (0.3, 0.1, 0.2) for seed in (1, 2)]
    tasks, labels = ["a"] * 6, ["none"] * 6
    names, notes = number_variants(configs, tasks, labels)
    assert names == [*2 * ["none (3)"], *2 * ["none"], *2 * ["none (2)"]]
    assert notes == [
        "a: none and none (2) differ in agent.lr 0.1, 0.2",
        "a: none and none (3) differ in agent.lr 0.1, 0.3",
    ]
    assert number_variants(configs[::-1], tasks, labels) == (names[::-1], notes)
    apart, nothing = number_variants(configs[::2], ["a", "b", "c"], labels[:3])
    assert (apart, nothing) == (["none"] * 3, [])  # one config of each task


# Looks

NAMES = [f"arm {number}" for number in range(40)]


def test_the_baseline_is_grey_wherever_it_stands():
    for place in range(4):
        arms = [*NAMES[:place], "none", *NAMES[place:3]]
        colours = {look.name: look.colour for look in looks(arms, "none")}
        assert colours.pop("none") == BASELINE
        assert BASELINE not in colours.values()
    assert BASELINE not in {look.colour for look in looks(NAMES, None)}


def test_an_arm_that_is_appended_changes_no_other():
    for count in range(len(NAMES)):
        fewer, more = looks(NAMES[:count], "arm 2"), looks(NAMES[: count + 1], "arm 2")
        assert more[:count] == fewer


def test_a_colour_is_of_the_name_unless_an_arm_before_has_it():
    alone = {name: looks([name], None)[0] for name in NAMES}
    assert {look.colour for look in alone.values()} == set(COLOURS)
    for one, other in itertools.permutations(NAMES[:12], 2):
        first, second = looks([one, other], None)
        assert first == alone[one]
        taken = alone[other].colour == first.colour
        assert second.colour == alone[other].colour or taken
        assert second.colour != first.colour
        _, second = looks(["none", other], "none")
        assert second.colour == alone[other].colour


def test_every_arm_looks_unlike_all_others():
    found = looks(NAMES, None)
    assert [(look.index, look.name) for look in found] == list(enumerate(NAMES))
    assert len({(look.colour, look.dash) for look in found}) == len(NAMES)
    assert {look.dash for look in found[:6]} == {(1, 0)}
    assert len({look.colour for look in found[:6]}) == 6


# Colours

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
