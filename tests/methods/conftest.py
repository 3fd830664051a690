import pytest

from rlplast.methods import cbp, snr
from tests.methods.unit_nets import table_rows


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> None:
    for method in (cbp, snr):
        monkeypatch.setattr(method, "uniform_rows", table_rows)
