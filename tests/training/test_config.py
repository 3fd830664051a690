import pytest

from rlplast.core.errors import ConfigError
from rlplast.training.config import parse_yaml


def test_numbers_of_a_config_are_those_that_python_reads_and_words_stay_words():
    for text in ("1e-3", "6.25e-5", "2E5", "-1e+4", ".5", "3."):
        assert parse_yaml(f"value: {text}", "here") == {"value": float(text)}
    for text in ("on", "off", "yes", "no", "1e", "e3", "1-3", "'010'"):
        assert parse_yaml(f"value: {text}", "here") == {"value": text.strip("'")}
    for text, number in (("010", "10"), ("-07", "-7"), ("0_17", "17")):
        with pytest.raises(ConfigError, match=f"line 2: .* write {number}"):
            parse_yaml(f"a: 0\nseed: {text}", "here")
