"""coda-synth: fast GPU kernels for Transformers, written by language models and judged on the device."""

import os.path  # and not pathlib, which takes longer to load than all the rest here

__version__ = "0.1.0"

_checkout = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
if os.path.isfile(os.path.join(_checkout, "pyproject.toml")):  # a bare checkout: the six folders are our siblings
    __path__.append(_checkout)
