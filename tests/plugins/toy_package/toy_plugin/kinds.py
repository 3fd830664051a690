"""A kind of run; what it names is imported when a config needs it."""

from rlplast import register_kind

register_kind(
    "toy_agent", config="toy_plugin.agent:ToyConfig", trainable="toy_plugin.agent:ToyAgent"
)
