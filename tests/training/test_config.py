import pytest
import yaml

from rlplast.core.errors import ConfigError
from rlplast.training.config import dump_yaml, parse_yaml


def test_numbers_of_a_config_are_those_that_python_reads_and_words_stay_words():
    for text in ("1e-3", "6.25e-5", "2E5", "-1e+4", ".5", "3."):
        assert parse_yaml(f"value: {text}", "here") == {"value": float(text)}
    for text in ("on", "off", "yes", "no", "1e", "e3", "1-3", "5:30", "'010'"):
        assert parse_yaml(f"value: {text}", "here") == {"value": text.strip("'")}
    for text, number in (("010", 10), ("-07", -7), ("1_000", 1000)):  # of YAML 1.2
        assert parse_yaml(f"value: {text}", "here") == {"value": number}


def test_what_is_dumped_is_read_back():
    words = ["on", "1e-3", "010", "5:30", "null", "true", "a: b", "", "é\n", "~", "2001-01-01"]
    value = {"b": [1e-3, 1e300, 1.0, 7, True, None, *words], "a": {"on": float("inf"), "c": []}}
    for flow in (False, True, None):
        assert parse_yaml(dump_yaml(value, flow)) == value
    read = yaml.safe_load(dump_yaml({"on": "off", "lr": 1e-05, "large": 1e300, "no": "yes"}))
    assert read == {"on": "off", "lr": 1e-05, "large": 1e300, "no": "yes"}  # by YAML 1.1
    assert list(parse_yaml(dump_yaml(value))) == ["b", "a"]


def test_a_key_given_twice_is_named_with_its_line():
    with pytest.raises(ConfigError, match=r"here is no valid YAML: .*\"seed\".*line 2"):
        parse_yaml("seed: 1\nseed: 2", "here")
