"""The real candidate child with a compromised lowering, so that the judge can be attacked below the language.

A candidate is data and cannot do any of this. Here a docstring "attack: NAME" makes the lowering append the code of
that name to the module that it generates; everything else, channel and children included, is the judge's own. Takes
the place of `Judge.interpreter`, of the second one, or of `Judge.gpu`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from coda_synth.coda_api.generated import Generated
from coda_synth.evaluator import worker
from coda_synth.evaluator.channel import serve

# Each text ends up in the generated module, after its own `launch`, as code of the candidate's process. The task is
# linear_residual (y, w, x -> a_out) where nothing else is said.
ATTACKS = {
    "does nothing": "def launch(**t): pass",
    "returns its last output": """
honest, kept = launch, {}
def launch(**t):
    shape = t["a_out"].shape
    if shape in kept:
        t["a_out"].copy_(kept[shape])
    else:
        honest(**t)
        kept[shape] = t["a_out"].clone()
""",
    "answers its first call alone": """
honest, seen = launch, []
def launch(**t):
    if t["a_out"].data_ptr() not in seen:
        seen.append(t["a_out"].data_ptr())
        honest(**t)
""",
    "zeroes its inputs": """
honest = launch
def launch(**t):
    honest(**t)
    for name in ("y", "w", "x"):
        t[name].zero_()
""",
    "zeroes inputs and output": """
def launch(**t):
    for value in t.values():
        value.zero_()
""",
    "adds to an input in place": """
honest = launch
def launch(**t):
    honest(**t)
    t["x"][-1, -1] += 1
""",
    "prepares once": """
honest_prepare, prepared = prepare, {}
def prepare(**t):
    key = tuple(v.shape for v in t.values())
    return prepared.setdefault(key, honest_prepare(**t))
""",
    "constant output": "def launch(**t): t['a_out'].fill_(0.1)",
    "zeros": "def launch(**t): t['a_out'].zero_()",
    "rank one": """
def launch(**t):
    y, w = t["y"].float(), t["w"].float()
    t["a_out"].copy_(y.sum(1, keepdim=True) * w.sum(1) / y.shape[1] + t["x"].float())
""",
    "drops the last block of K": """
honest = launch
def launch(**t):
    y = t["y"].clone()
    y[:, -8:] = 0
    honest(**{**t, "y": y})
""",
    "drops one product": """
honest = launch
def launch(**t):
    y = t["y"].clone()
    y[:, -1] = 0
    honest(**{**t, "y": y})
""",
    "skips a tile": """
honest = launch
def launch(**t):
    out = t["a_out"].clone()
    honest(**{**t, "a_out": out})
    out[-16:, -16:] = t["a_out"][-16:, -16:]
    t["a_out"].copy_(out)
""",
    "fills a tile with zeros": """
honest = launch
def launch(**t):
    honest(**t)
    t["a_out"][-16:, -16:] = 0
""",
    "leaves the ragged edge": """
honest = launch
def launch(**t):
    honest(**t)
    whole = t["a_out"].shape[0] // 16 * 16
    t["a_out"][whole:] = 0
""",
    "the neighbour's row": """
honest = launch
def launch(**t):
    honest(**t)
    t["a_out"].copy_(t["a_out"].roll(1, 0))
""",
    "operands in fp8": """
import torch
honest = launch
def launch(**t):
    narrow = {n: t[n].to(torch.float8_e4m3fn).to(t[n].dtype) for n in ("y", "w")}
    honest(**{**t, **narrow})
""",
    "one element in fp8": """
import torch
honest = launch
def launch(**t):
    honest(**t)
    at = t["a_out"].float().abs().argmax()
    flat = t["a_out"].view(-1)
    flat[at] = flat[at] * 1.06
""",
    "not a number": "def launch(**t): t['a_out'].fill_(float('nan'))",
    "one infinity": """
honest = launch
def launch(**t):
    honest(**t)
    t["a_out"][0, 0] = float("inf")
""",
    "another bit each time": """
honest, calls = launch, [0]
def launch(**t):
    honest(**t)
    calls[0] += 1
    t["a_out"].view(-1)[0] *= 1 + 2**-7 * (calls[0] % 2)
""",
    "writes after the end": """
import torch
honest = launch
def launch(**t):
    honest(**t)
    out = t["a_out"]
    torch.as_strided(out, (1,), (1,), out.storage_offset() + out.numel()).fill_(0)
""",
    "writes before the start": """
import torch
honest = launch
def launch(**t):
    honest(**t)
    out = t["a_out"]
    torch.as_strided(out, (1,), (1,), out.storage_offset() - 1).fill_(0)
""",
    "hangs": "def launch(**t):\n    while True: pass",
    "is wrong, then hangs": """
from coda_synth.evaluator import worker
def launch(**t):
    t["a_out"].zero_()
    while hasattr(worker, "been_here"): pass
    worker.been_here = True
""",
    "segfault": "import ctypes\ndef launch(**t): ctypes.string_at(0)",
    "exits with code 0": "import os\ndef launch(**t): os._exit(0)",
    "sys.exit": "import sys\ndef launch(**t): sys.exit(0)",
    "sys.exit when loaded": "import sys\nsys.exit(0)",
    "raises": "def launch(**t): raise ValueError('on purpose')",
    "finds the disk full": "def launch(**t): raise OSError(28, 'No space left on device')",
    "runs out of the GPU's memory": """
import torch
def launch(**t): raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
""",
    "prints PASS": "def launch(**t):\n    print('PASSED\\n' * 50_000)\n    t['a_out'].zero_()",
    "floods stdout": """
honest = launch
def launch(**t):
    for _ in range(200):
        print("x" * 10_000)
    honest(**t)
""",
    "floods stdout without end": "def launch(**t):\n    while True: print('x' * 1_000_000)",
    "writes to the channel": "import os, sys\ndef launch(**t): os.write(int(sys.argv[2]), b'PASSED' * 100)",
    "closes the channel": "import os, sys, time\ndef launch(**t):\n    os.close(int(sys.argv[2]))\n    time.sleep(60)",
    "forges an answer": """
import sys
from coda_synth.evaluator import channel
def launch(**t):
    frame = sys._getframe()
    while "request" not in frame.f_locals or "nonce" not in frame.f_locals:
        frame = frame.f_back
    made = {"tensors": [], "faults": [], "form": "pointer", "bits": {}, "judgement": {"error_ratio": 0.0}}
    answer = channel.Message(made, (), frame.f_locals["request"].tag)
    channel._send(int(sys.argv[2]), answer, frame.f_locals["nonce"])
""",
    "segfault in the second kernel": """
import ctypes
class Faulty:
    def __getitem__(self, grid): ctypes.string_at(0)
rms = Faulty()
""",
    "hangs in the second kernel": """
class Faulty:
    def __getitem__(self, grid):
        while True: pass
rms = Faulty()
""",
    "an error that comes late, as a GPU tells of a bad address": """
honest, bad = launch, []
class Faulty:
    def __getitem__(self, grid): return lambda *given, **options: bad.append(grid)
rms = Faulty()
def launch(**t):
    honest(**t)
    if bad:
        raise RuntimeError("an illegal memory access was encountered")
""",
    "spoils its process for good, as an illegal address does": """
from coda_synth.evaluator import worker
def spoilt(*given, **options):
    worker.HANDLERS["execute"] = spoilt
    raise RuntimeError("an illegal memory access was encountered")
def rms_launched(*given, **options): spoilt()
class Faulty:
    def __getitem__(self, grid): return rms_launched
rms = Faulty()
""",
    "claims launches without end": """
from coda_synth.evaluator import channel, worker
endless = {"calls": ["a"] * 1_000_000}
worker.Message = lambda data, *blobs: channel.Message(endless if "calls" in data else data, *blobs)
worker.HANDLERS["step"] = lambda data, blobs: channel.Message({})
def launch(**t): raise ValueError("on purpose")
""",
    "the second kernel writes before its buffer": """
import torch
honest = rms
class Faulty:
    def __getitem__(self, grid):
        def run(*given, **options):
            honest[grid](*given, **options)
            out = given[2]
            torch.as_strided(out, (1,), (1,), out.storage_offset() - 1).fill_(0)
        return run
rms = Faulty()
""",
    "the second kernel writes into the first one's buffer's end": """
import torch
honest = rms
class Faulty:
    def __getitem__(self, grid):
        def run(*given, **options):
            honest[grid](*given, **options)
            a = given[0]
            torch.as_strided(a, (1,), (1,), a.storage_offset() + a.numel()).fill_(0)
        return run
rms = Faulty()
""",
    "the second kernel stores nothing": """
class Faulty:
    def __getitem__(self, grid): return lambda *given, **options: None
rms = Faulty()
""",
    "the third kernel changes an input": """
honest = gate_up
class Faulty:
    def __getitem__(self, grid):
        def run(*given, **options):
            honest[grid](*given, **options)
            inner = given[1]
            getattr(inner, "base", inner).zero_()
        return run
gate_up = Faulty()
""",
    "an exception that is none": """
import sys
from coda_synth.evaluator import channel
def launch(**t):
    frame = sys._getframe()
    while "request" not in frame.f_locals or "nonce" not in frame.f_locals:
        frame = frame.f_back
    made = {"raised": {"kind": 7, "zork": None, "detail": 5}}
    answer = channel.Message(made, (), frame.f_locals["request"].tag)
    channel._send(int(sys.argv[2]), answer, frame.f_locals["nonce"])
""",
    "faults that are none": """
import sys
from coda_synth.evaluator import channel
def launch(**t):
    frame = sys._getframe()
    while "request" not in frame.f_locals or "nonce" not in frame.f_locals:
        frame = frame.f_back
    made = {"tensors": [], "faults": 7}
    answer = channel.Message(made, (), frame.f_locals["request"].tag)
    channel._send(int(sys.argv[2]), answer, frame.f_locals["nonce"])
""",
    "forges tensors that are none": """
import sys
from coda_synth.evaluator import channel
def launch(**t):
    frame = sys._getframe()
    while "request" not in frame.f_locals or "nonce" not in frame.f_locals:
        frame = frame.f_back
    made = {"tensors": [{"name": "out", "dtype": "bfloat16", "shape": [-1, 7]}], "faults": None}
    answer = channel.Message(made, (b"12345",), frame.f_locals["request"].tag)
    channel._send(int(sys.argv[2]), answer, frame.f_locals["nonce"])
""",
    "claims an endless answer": """
import os, struct, sys
def launch(**t):
    frame = sys._getframe()
    while "nonce" not in frame.f_locals:
        frame = frame.f_back
    os.write(int(sys.argv[2]), struct.pack("<Q16sQ", 1 << 35, frame.f_locals["nonce"], 100))
    while True:
        os.write(int(sys.argv[2]), bytes(1 << 20))
""",
    "eats memory": """
def launch(**t):
    kept = []
    while True:
        kept.append(bytearray(b"x") * (16 << 20))
""",
    "a grandchild eats memory": """
import os, time
def launch(**t):
    if not os.fork():
        kept = [bytearray(b"x") * (16 << 20) for _ in range(120)]
        time.sleep(60)
    time.sleep(60)
""",
    "shared memory": """
import mmap, time
def launch(**t):
    kept = [mmap.mmap(-1, 16 << 20) for _ in range(120)]
    for block in kept:
        block.write(b"x" * (16 << 20))
    time.sleep(60)
""",
    "a grandchild in a session of its own": """
import os, time
def launch(**t):
    if not os.fork():
        os.setsid()
        time.sleep(60)
    time.sleep(60)
""",
}

_honest_lower = worker.lower


def _lower(program: Any, *args: Any, **options: Any) -> Generated:
    generated = _honest_lower(program, *args, **options)
    name = program.docstring.removeprefix("attack: ")
    return replace(generated, source=f"{generated.source}\n{ATTACKS[name]}\n") if name in ATTACKS else generated


if __name__ == "__main__":
    worker.lower = _lower
    serve(worker.HANDLERS, hello=worker.hello)
