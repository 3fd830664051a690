"""Fingerprints of data tell what differs, and nothing else."""

import pytest
import torch

from rlplast.core.errors import ConfigError
from rlplast.training.fingerprint import check_data, fingerprint

BYTES = torch.arange(12, dtype=torch.uint8)


@pytest.mark.parametrize(
    "other",
    [BYTES.view(3, 4), BYTES.flip(0), BYTES.to(torch.int64), BYTES[:11]],
    ids=["shape", "contents", "type", "length"],
)
def test_fingerprints_differ_with_what_they_are_of(other):
    assert fingerprint([BYTES]) != fingerprint([other])


def test_layout_in_memory_does_not_count():
    assert fingerprint([BYTES.view(3, 4).T.contiguous()]) == fingerprint([BYTES.view(3, 4).T])


def test_changed_data_are_named():
    check_data({"a": "1", "b": "2"}, {"a": "1", "b": "2"})
    with pytest.raises(ConfigError, match=r"^b: the data are not those"):
        check_data({"a": "1", "b": "2"}, {"a": "1", "b": "3"})
