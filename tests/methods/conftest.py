import pytest

from rlplast.methods import recycling
from tests.methods.unit_nets import table_rows


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recycling, "uniform_rows", table_rows)
