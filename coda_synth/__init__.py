"""coda-synth: fast GPU kernels for Transformers, written by language models and judged on the device."""

from pathlib import Path

__version__ = "0.1.0"

_checkout = Path(__file__).resolve().parent.parent
if (_checkout / "pyproject.toml").is_file():  # a bare checkout: the six folders are our siblings
    __path__.append(str(_checkout))
