"""The JSON Schema of configs, beside what a reader of configs says."""

import json
from typing import Any

import jsonschema
import pytest

from docs.generate import SCHEMA
from rlplast.core.errors import ConfigError
from rlplast.run.build import build
from rlplast.run.config_file import read_config
from rlplast.run.shipped import shipped_configs
from rlplast.study.schema import schema_text
from rlplast.training.config import read_yaml
from tests.cli.commands import command


@pytest.fixture(scope="module")
def schema() -> jsonschema.Draft7Validator:
    text = SCHEMA.read_text()
    jsonschema.Draft7Validator.check_schema(json.loads(text))
    return jsonschema.Draft7Validator(json.loads(text))


def test_the_shipped_schema_is_what_the_command_prints() -> None:
    assert command("schema").out == schema_text() == SCHEMA.read_text()


def test_shipped_configs_keep_to_it_and_name_it(schema: jsonschema.Draft7Validator) -> None:
    for name, path in shipped_configs().items():
        found = [(list(e.path), e.message[:200]) for e in schema.iter_errors(read_yaml(path))]
        assert found == [], name
        place = "../" * name.count("/") + "schema.json"
        assert f"\n# yaml-language-server: $schema={place}\n" in path.read_text(), name


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"kind": "sac", "agent": {"tau": 0.5}},
        {"kind": "supervised", "stream": {"epochs": 3}},
        {"agnet": {}},
        {"kind": "dqnn"},
        {"agent": {"tau": 1.5}},
        {"kind": "sac", "agent": {"critics": 0}},
        {"kind": "sac", "agent": {"double": True}},
        {"evaluate": {"every": None}},
        {"hooks": [{"method": "fire", "at": "50%"}]},
        {"hooks": [{"method": "fier", "at": "50%"}]},
        {"hooks": [{"method": "fire", "att": "50%"}]},
        {"hooks": [{"method": "fire", "at": "50%", "params": {"iterations": 0}}]},
        {"hooks": [{"method": "fire", "at": ["25%", "1k env_steps"], "until": None}]},
        {"hooks": [{"method": "fire", "at": "50 percent"}]},
        {"hooks": [{"method": "fire", "at": "50%", "every": "10%"}]},
        {"optimizer": {"name": "adm"}},
        {"optimizer": {"name": "sgd", "params": {"foo": 1}}},
        {"optimizer": {"betas": [0.9]}},
    ],
    ids=str,
)
def test_it_refuses_what_a_config_refuses(
    config: dict[str, Any], schema: jsonschema.Draft7Validator
) -> None:
    given = config
    if "hooks" in config:  # what is in a row is checked when a run is built
        given = config | {"env": {"id": "gym/CartPole-v1"}, "agent": {"network": "mlp"}}
    try:
        read = read_config(given)
        if "hooks" in config:
            build(read)[0].close()
        fits = True
    except ConfigError:
        fits = False
    assert schema.is_valid(config) == fits
