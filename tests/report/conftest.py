"""What several tests of reports share."""

import pytest


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of what the page says: its charts are not drawn, and Vega is left out."""
    monkeypatch.setattr("rlplast.report.vega.png", lambda drawing: b"")
    monkeypatch.setattr("rlplast.report.vega.svg", lambda spec: "<svg ></svg>")
    monkeypatch.setattr("rlplast.report.page._vega", lambda: "")
