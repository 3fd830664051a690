import pytest

from rlplast.methods import cbp, snr
from tests.methods.unit_nets import table_rows


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let methods draw the rows of new units from the table, as their twins do."""
    for method in (cbp, snr):
        monkeypatch.setattr(method, "uniform_rows", table_rows)
