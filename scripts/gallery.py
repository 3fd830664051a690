"""Make the reports of the gallery: runs shipped studies, some of them smaller, and writes pages.

    python scripts/gallery.py OUT [NAME ...]

A study that is done is not run again. Each page lands as docs/gallery/NAME.html, its last chart
of curves as docs/gallery/NAME.png.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from PIL import Image

from rlplast.training.config import dump_yaml, read_yaml

ROOT = Path(__file__).parents[1]
GALLERY = ROOT / "docs" / "gallery"

# Name of a shipped study → what is made smaller; arms and tasks are those of the shipped file.
STUDIES: dict[str, dict[str, Any]] = {
    "random_labels": {
        "arms": ["none", "full_reset", "shrink_perturb", "fire", "redo", "l2_init"],
        "seeds": 20,
    },
    "digits_warm_start": {},
    "demo": {},
    "permuted_pixels": {"arms": ["none", "full_reset", "l2_init", "layer_norm"], "seeds": 5},
    "persistent/digits": {"tasks": ["bad", "good"], "seeds": 10},
}
FILES = re.compile(r' ?<a href="[\w-]+\.(?:csv|png|svg)">[^<]*</a>')  # links to what stays out
WIDTH = 900  # pixels of a picture
CHARTS = ("curve-*.png", "sequence-*.png")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("out", type=Path, help="folder of the studies' runs")
    parser.add_argument("names", nargs="*", default=list(STUDIES), metavar="NAME")
    parser.add_argument("--jobs", default="2", help="runs at once")
    args = parser.parse_args()
    for name in args.names:
        make(name, args.out, args.jobs)


def make(name: str, out: Path, jobs: str) -> None:
    slug = name.replace("/", "_")
    folder = out / slug
    config = smaller(name, out / f"{slug}.yaml")
    rlplast("study", config, "--out", folder, "--jobs", jobs)
    rlplast("report", folder)
    report = folder / "report"
    GALLERY.mkdir(exist_ok=True)
    page = (report / "report.html").read_text()
    (GALLERY / f"{slug}.html").write_text(FILES.sub("", page))
    pictures = sorted(path for pattern in CHARTS for path in report.glob(pattern))
    picture = Image.open(pictures[-1]).convert("RGB")
    picture.thumbnail((WIDTH, WIDTH))
    colours = picture.quantize(method=Image.Quantize.FASTOCTREE)  # the median cut loses thin lines
    colours.save(GALLERY / f"{slug}.png", optimize=True)


def smaller(name: str, path: Path) -> Path:
    """Write the config of a study with fewer arms, tasks, seeds; or return the shipped one."""
    shipped = ROOT / "configs" / "study" / f"{name}.yaml"
    changes = STUDIES[name]
    if not changes:
        return shipped
    config = read_yaml(shipped)  # in which "on" is a word
    for key in {"arms", "tasks"} & set(changes):
        config[key] = {name: config[key][name] for name in changes[key]}
    config["seeds"] = changes["seeds"]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(dump_yaml(config))
    return path


def rlplast(*words: object) -> None:
    subprocess.run([sys.executable, "-m", "rlplast", *map(str, words)], check=True, cwd=ROOT)


if __name__ == "__main__":
    main()
