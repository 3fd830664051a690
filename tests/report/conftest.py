"""What several tests of reports share."""

import pytest

from tests.report.drawn import undrawn


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of what the page says: its charts are not drawn, and Vega is left out."""
    monkeypatch.setattr("rlplast.report.drawing.draw", undrawn)
    monkeypatch.setattr("rlplast.report.contents._vega", lambda: "")
