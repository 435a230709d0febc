"""Fills the templates that lie beside this module. Strict: a name that is missing or not used is an error.

A placeholder is written {{name}}; a value is inserted as it is and never looked at again.
"""

from __future__ import annotations

import re
from importlib.resources import files

_PLACEHOLDER = re.compile(r"\{\{(\w+)\}\}")


class TemplateError(ValueError):
    """A template and the values given for it do not agree; the message names the template and every such name."""


def render(template: str, **values: str) -> str:
    """The text of `template`.md, every placeholder filled, without blank lines around it; raises TemplateError."""
    text = files("coda_synth.prompts").joinpath(f"{template}.md").read_text(encoding="utf-8")
    return fill(text, values, template).strip()


def fill(text: str, values: dict[str, str], template: str = "the template") -> str:
    """The same for a text at hand."""
    wanted = set(_PLACEHOLDER.findall(text))
    faults = [f"{name} is missing" for name in sorted(wanted - set(values))]
    faults += [f"{name} is given but not used" for name in sorted(set(values) - wanted)]
    faults += [f"{name} is no text" for name, value in sorted(values.items()) if not isinstance(value, str)]
    if faults:
        raise TemplateError(f"{template}: {'; '.join(faults)}")
    return _PLACEHOLDER.sub(lambda match: values[match[1]], text)
