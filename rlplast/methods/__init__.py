"""Methods, one file each: interventions, penalties and layers; regularisers that are a key.

Importing this package imports every file of it, which registers its method. What several methods
share is here too: `rlplast.methods.recycling` (edits of single units), `rlplast.methods.draws`
(draws without a generator), `rlplast.methods.rescaling` (layers multiplied in forward order).
"""

import importlib
import pkgutil

__all__: list[str] = []

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
