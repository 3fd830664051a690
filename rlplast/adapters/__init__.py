"""Hooks inside other people's trainers; each module needs the library it is named after.

- `rlplast.adapters.sb3.HookCallback`: Stable-Baselines3 and sb3-contrib.
- `rlplast.adapters.hf_trainer.HookCallback`: the Hugging Face Trainer.
- `rlplast.adapters.lightning.HookCallback`: Lightning.
- `rlplast.adapters.driver.Driver`: what the three share; `rlplast.adapters.state`: what it saves;
  `rlplast.adapters.reading`: what hooks read; `rlplast.adapters.penalising` and
  `rlplast.adapters.measuring`: penalties and metrics.
"""

__all__: list[str] = []
