import pytest
import torch

from rlplast.core.errors import ConfigError
from rlplast.training.fingerprint import check_data, fingerprint


def test_fingerprints_differ_with_what_they_are_of_and_not_with_its_layout():
    data = torch.arange(12, dtype=torch.uint8)
    for other in (data.view(3, 4), data.flip(0), data.to(torch.int64), data[:11]):
        assert fingerprint([data]) != fingerprint([other]), other
    turned = data.view(3, 4).T
    assert fingerprint([turned.contiguous()]) == fingerprint([turned])


def test_changed_data_are_named():
    check_data({"a": "1", "b": "2"}, {"a": "1", "b": "2"})
    with pytest.raises(ConfigError, match=r"^b: "):
        check_data({"a": "1", "b": "2"}, {"a": "1", "b": "3"})
