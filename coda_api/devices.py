"""Devices by name, from devices.toml: what the cost model and the build check need to know of them."""

from __future__ import annotations

import difflib
import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files


class UnknownDevice(LookupError):
    """No device has this name or target; the message says which there are."""


@dataclass(frozen=True, slots=True)
class Device:
    """One part. Rates per second, dense, at 16-bit operands; `peak_*` by datasheet, the others sustained."""

    name: str
    names: tuple[str, ...]  # as the driver reports it
    target: str  # "sm_90"
    sms: int
    shared_bytes: int
    l2_bytes: int
    peak_bytes_per_s: float
    copy_bytes_per_s: float
    peak_flops_per_s: float
    matmul_flops_per_s: float
    peak_fp32_flops_per_s: float
    clock_hz: float
    source: str

    @property
    def has_tma(self) -> bool:
        """Descriptors are hardware from sm_90 on; before, triton turns them into loads that it does not pipeline."""
        return self.target.startswith("sm_") and int(self.target.removeprefix("sm_")) >= 90

    def peak_flops(self, dtype: str) -> float:
        return self.peak_fp32_flops_per_s if dtype == "float32" else self.peak_flops_per_s

    def matmul_flops(self, dtype: str) -> float:
        return self.peak_fp32_flops_per_s if dtype == "float32" else self.matmul_flops_per_s


def device(name: str) -> Device:
    """The device of this name, of the driver's name, or the first one of a target ("sm_90"). Raises UnknownDevice."""
    devices = _devices()
    for known in devices.values():
        if name in (known.name, *known.names):
            return known
    for known in devices.values():
        if name == known.target:
            return known
    wanted = [*devices, *sorted({d.target for d in devices.values()})]
    nearest = difflib.get_close_matches(name, wanted, n=2, cutoff=0.5)
    hint = f"did you mean {' or '.join(nearest)}?" if nearest else f"known are {', '.join(wanted)}"
    raise UnknownDevice(f"the cost model has no device {name!r}; {hint}")


def device_names() -> tuple[str, ...]:
    return tuple(_devices())


@functools.cache
def _devices() -> Mapping[str, Device]:
    table = tomllib.loads(files("coda_synth.coda_api").joinpath("devices.toml").read_text(encoding="utf-8"))
    return {name: Device(name=name, **{**row, "names": tuple(row["names"])}) for name, row in table.items()}
