"""What several tests of reports share."""

import pytest


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of what the page says: its pictures are not rendered."""
    monkeypatch.setattr("rlplast.report.pictures.png_of", lambda figure: b"")
    monkeypatch.setattr("rlplast.report.pictures.svg_of", lambda figure: "<svg ></svg>")
