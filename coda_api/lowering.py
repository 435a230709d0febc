"""From a checked program to a module of Triton kernels with a launcher, for one set of sizes.

The text is a function of program, signature, form, schedules and group sizes; other sizes enter only at launch. Nothing
here imports torch or triton, or runs anything.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction

from coda_synth.coda_api.default_schedules import H200_SHARED, default_schedules, hinted
from coda_synth.coda_api.dims import Dim
from coda_synth.coda_api.emit_finisher import emit_finisher
from coda_synth.coda_api.emit_preparation import PreparationEmitter
from coda_synth.coda_api.emit_slice import group_symbols
from coda_synth.coda_api.emit_split import PIECES
from coda_synth.coda_api.errors import Diagnostic
from coda_synth.coda_api.expressions import LoweringError, Names, uses
from coda_synth.coda_api.generated import Buffer, Generated, Launch
from coda_synth.coda_api.groups import tile_step
from coda_synth.coda_api.kernel_texts import kernel_texts
from coda_synth.coda_api.launch_text import UnitCall, launch_record, launch_text, with_overlap
from coda_synth.coda_api.module_text import MODULE_NAMES, head_text, module_text, prepare_text
from coda_synth.coda_api.passes import is_pass, walks_backwards
from coda_synth.coda_api.program import Call, Form, Kernel, Preparation, Program, Ref, Signature, TypeKind, Unit, Value
from coda_synth.coda_api.schedule import ALLOWED, Schedule
from coda_synth.coda_api.storage import accumulated_into, ref_dtype, stored_dtype, torch_name
from coda_synth.coda_api.unit_text import TensorInfo, Tensors, UnitText, itemsize

FINISHER_WARPS = 4

__all__ = ["LoweringError", "lower"]


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor of the program in memory. dims in the program's symbols; a partial's are (tiles, kept)."""

    name: str
    dims: tuple[Dim, ...]
    dtype: str
    tile: int = 0  # for a partial: the columns (or rows) of the reduced dim that one tile holds
    reduced: Dim | None = None


def lower(
    program: Program,
    signature: Signature,
    sizes: Mapping[str, int],
    *,
    form: str | None = None,
    schedules: Mapping[str, Schedule] = {},
    processors: int = 132,
    hopper: bool = False,
    shared_bytes: int = H200_SHARED,
    overlap: bool = True,
) -> Generated:
    """Lowers a program that was checked against `signature`; raises LoweringError.

    sizes: of the program's symbols. form: "pointer" (any shape, any target), "descriptor" (TMA: rows of a multiple of
    16 bytes) or "hopper" (as descriptor, with warp-specialised kernels for sm_90 wherever a kernel has one); None takes
    descriptors where every matrix allows them, and with `hopper` Hopper kernels. processors: persistent programs where
    no device says better (the CPU). shared_bytes: what one block may take on the target; it decides default schedules.
    overlap: whether Hopper launches may start before the one before them is complete (overlap.py has the rule); without
    it each waits for all before it, which gives the same bits.
    """
    return _Lowering(program, signature, sizes, form, schedules, processors, hopper, shared_bytes, overlap).run()


# what a unit's other functions are called
_ROLES = ("epilogue", "loader", "fetcher", "consumer")
_PARTS = (*_ROLES, "pieces", *(f"pieces_{role}" for role in _ROLES), "sums", "folds")


def _tile_symbols(unit: Unit) -> frozenset[str]:
    """The symbols of a unit's own dims, on whose sizes its text does not depend."""
    if isinstance(unit, Kernel):
        inner = unit.gemm.inner.symbols if unit.gemm else frozenset()
        return unit.rows.symbols | unit.cols.symbols | inner
    return frozenset(s for p in unit.params for d in p.type.dims for s in d.symbols)


def _effective(schedule: Schedule, texts: Iterable[UnitText]) -> Schedule:
    """The schedule as its kernel came out: mainloop and slices are named. Groups of a few columns have slices that no
    hint can name. texts: of the kernel's launches, the last one with the epilogue."""
    *_, last = texts = tuple(texts)
    hopper = any(text.gluon for text in texts)
    kind = ("pingpong" if schedule.mainloop == "pingpong" else "hopper") if hopper else "portable"
    width = last.slice_n if last.slice_n in ALLOWED["slice_n"] else schedule.slice_n
    return replace(schedule, mainloop=kind, slice_n=width)


@dataclass
class _Lowering:
    program: Program
    signature: Signature
    sizes: Mapping[str, int]
    form: str | None
    schedules: Mapping[str, Schedule]
    processors: int
    hopper: bool
    shared_bytes: int
    overlap: bool
    stored: dict[Ref, Stored] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    calls: list[UnitCall] = field(default_factory=list)
    prepared: list[str] = field(default_factory=list)
    prepare_lines: list[str] = field(default_factory=list)
    used_schedules: dict[str, Schedule] = field(default_factory=dict)
    names_by_key: dict[str, str] = field(default_factory=dict)
    hidden: dict[str, str] = field(default_factory=dict)
    notes: list[Diagnostic] = field(default_factory=list)

    def run(self) -> Generated:
        self.outputs = {
            ref: [n for n, r in self.program.outputs.items() if r == ref] for ref in self.program.outputs.values()
        }
        for spec in self.signature.inputs:
            self.stored[Ref(input=spec.name)] = Stored(spec.name, spec.type.dims, torch_name(spec.dtype))
        live = self.program.live_calls()
        described = "hopper" if self.hopper else "descriptor"
        self.form = self.form or (described if self._aligned(live) else "pointer")
        for call in live:
            if isinstance(call.unit, Kernel):
                self.used_schedules[call.name] = self._schedule(call, call.unit)
            self._store_outputs(call)
        self.names = Names(self._all_names())
        launched = [call for call in live if not isinstance(call.unit, Preparation)]
        self.overlap = self.overlap and any(self._for_hopper(call) for call in launched[1:])
        for call in live:
            self._lower_call(call)
        if self.overlap:
            self.calls = with_overlap(self.calls, self.stored)
        return self._generated()

    def _all_names(self) -> set[str]:
        """Every identifier that stands beside the module's functions: they are called otherwise."""
        taken = {p.name for p in self.program.params} | {s.name for s in self.signature.inputs} | set(self.sizes)
        taken |= {stored.name for stored in self.stored.values()}
        for unit in self.program.units.values():
            taken |= {p.name for p in unit.params} | set(unit.outputs)
        return taken

    # -- memory

    def _store_outputs(self, call: Call) -> None:
        for output in self.program.live_outputs(call):
            self.stored[Ref(call=call.name, output=output)] = self._stored(call, output)
        if isinstance(call.unit, Kernel) and (pieces := self.used_schedules[call.name].split_k) > 1:
            dims = (Dim.number(pieces), call.dim(call.unit.rows), call.dim(call.unit.cols))
            self.stored[Ref(call=call.name, output=PIECES)] = Stored(
                self._tensor_name(f"{call.name}_pieces"), dims, "float32"
            )

    def _tensor_name(self, wanted: str) -> str:
        """A name that no input, no other tensor ("a_b" of "c" and "a" of "b_c" would be one) and nothing in the module
        has."""
        taken = MODULE_NAMES | {stored.name for stored in self.stored.values()}
        numbered = (f"{wanted}_{number}" for number in itertools.count(2))
        return next(name for name in itertools.chain([wanted], numbered) if name not in taken)

    def _stored(self, call: Call, output: str) -> Stored:
        name, value = self._tensor_name(f"{call.name}_{output}"), call.unit.outputs[output]
        if param := accumulated_into(value):
            return self._of(call.args[param])
        dims = tuple(call.dim(d) for d in (value.rows, value.cols) if d is not None)
        if value.form is Form.PARTIAL:
            return self._partial(call, name, value, dims)
        return Stored(name, dims, stored_dtype(self.program, self.signature, call, output))

    def _partial(self, call: Call, name: str, value: Value, dims: tuple[Dim, ...]) -> Stored:
        kernel = call.unit
        assert isinstance(kernel, Kernel) and value.rows is not None and value.cols is not None
        schedule = self.used_schedules[call.name]
        reduction = value.args[0] if value.word == "part" else value
        rows_reduced = reduction.attrs["axis"] == 0
        step = tile_step(self.program, call, self.sizes, schedule)
        block, whole = (schedule.block_m, kernel.rows) if rows_reduced else (step, kernel.cols)
        tile = Fraction(dims[1].size(self.sizes), call.dim(whole).size(self.sizes)) * block
        if tile.denominator != 1:
            raise LoweringError(f"{call.name}: a tile of {block} does not hold a whole number of {value.cols}")
        tiles = -(-dims[1].size(self.sizes) // int(tile))
        return Stored(name, (Dim.number(tiles), dims[0]), "float32", int(tile), dims[1])

    def _of(self, ref: Ref) -> Stored:
        return self.stored[ref]

    def _aligned(self, live: Iterable[Call]) -> bool:
        """TMA needs every row of every matrix to start at a multiple of 16 bytes."""
        matrices = [(i.type.dims, torch_name(i.dtype)) for i in self.signature.inputs]
        for call in live:
            for output in self.program.live_outputs(call):
                value = call.unit.outputs[output]
                if value.form is not Form.PARTIAL and value.cols is not None:
                    dtype = stored_dtype(self.program, self.signature, call, output)
                    matrices.append(((call.dim(value.rows or value.cols), call.dim(value.cols)), dtype))
        return all(dims[-1].size(self.sizes) * itemsize(dtype) % 16 == 0 for dims, dtype in matrices if len(dims) == 2)

    # -- schedules

    def _schedule(self, call: Call, kernel: Kernel) -> Schedule:
        """What the caller chose for this call, or else the first default that has a text, under its author's hints."""
        if chosen := self.schedules.get(call.name):
            return chosen
        live, sizes = self._live(call), self._local_sizes(call)
        defaults = default_schedules(kernel, live, sizes, self.form or "", self.shared_bytes, self.processors)
        *tried, last = hinted(defaults, kernel.hints, self.shared_bytes) if kernel.hints else defaults
        return next((s for s in tried if self._possible(call, kernel, live, s)), last)

    def _possible(self, call: Call, kernel: Kernel, live: Mapping[str, Value], schedule: Schedule) -> bool:
        sizes = self._local_sizes(call)
        gluon = self.form == "hopper" and schedule.mainloop in ("pingpong", "hopper")
        given = ("f", self.program.source, kernel, live, sizes, schedule, self._tensors(call, live))
        try:
            kernel_texts(call.name, *given, hopper=gluon, overlap=False, processors=self.processors)
        except LoweringError:
            return False
        return True

    def _live(self, call: Call) -> dict[str, Value]:
        return {o: call.unit.outputs[o] for o in self.program.live_outputs(call)}

    def _local_sizes(self, call: Call) -> dict[str, int]:
        return {symbol: dim.size(self.sizes) for symbol, dim in call.binding.items()}

    # -- units

    def _lower_call(self, call: Call) -> None:
        live = self._live(call)
        if isinstance(call.unit, Preparation):
            self._prepare(call, live)
            return
        tensors = self._tensors(call, live)
        for text in self._unit_texts(call, live, tensors):
            self.texts[text.name] = text.text
            schedule = self.used_schedules.get(call.name)
            warps, stages = (schedule.warps, schedule.stages) if schedule else (FINISHER_WARPS, 2)
            self.calls.append(UnitCall(call, text, text.warps or warps, stages, schedule))

    def _unit_texts(self, call: Call, live: Mapping[str, Value], tensors: Tensors) -> list[UnitText]:
        sizes, source = self._local_sizes(call), self.program.source
        if isinstance(call.unit, Kernel):
            schedule = self.used_schedules[call.name]
            self._refuse(call, call.unit, schedule, tensors)
            name, hopper = self._function_name(call, live, tensors, f"{schedule}"), self._for_hopper(call)
            given = (name, source, call.unit, live, sizes, schedule, tensors, hopper, self.overlap, self.processors)
            texts, notes = kernel_texts(call.name, *given)
            self.notes += notes
            return texts
        assert not isinstance(call.unit, Preparation)
        return emit_finisher(self._function_name(call, live, tensors, ""), source, call.unit, live, tensors)

    def _for_hopper(self, call: Call) -> bool:
        """Whether a call gets the Hopper kernel if that has a text for it."""
        if self.form != "hopper" or not isinstance(call.unit, Kernel) or not call.unit.gemm:
            return False
        return self.used_schedules[call.name].mainloop != "portable"

    def _refuse(self, call: Call, kernel: Kernel, schedule: Schedule, tensors: Tensors) -> None:
        """What no backend can do."""
        if kernel.gemm is None and schedule.mainloop in ("hopper", "pingpong"):
            raise LoweringError(f'{call.name}: mainloop="{schedule.mainloop}" is for a kernel with a gemm')
        if kernel.gemm is None and schedule.split_k > 1:
            raise LoweringError(f"{call.name}: split_k = {schedule.split_k} is for a kernel with a gemm, which has a K")
        if kernel.gemm:
            a, b = (tensors.params[n].dtype for n in (kernel.gemm.a, kernel.gemm.b))
            if a != b:
                said = f"{kernel.gemm.a} is {a}, {kernel.gemm.b} is {b}"
                raise LoweringError(f"{call.name}: a gemm needs two operands of one dtype; {said}")

    def _function_name(self, call: Call, live: Mapping[str, Value], tensors: Tensors, walk: str) -> str:
        """Calls that need the same text share one function. The text depends on sizes only through dims other than the
        tile's own: groups, and how wide values are beside the product."""
        own = _tile_symbols(call.unit) - group_symbols(live)
        others = sorted((s, dim.size(self.sizes)) for s, dim in call.binding.items() if s not in own)
        key = repr((call.unit.name, tuple(live), tensors, walk, others))
        if key not in self.names_by_key:
            self.names_by_key[key] = self._fresh(call.unit)
        return self.names_by_key[key]

    def _fresh(self, unit: Unit) -> str:
        """A function's name, free together with the names of the functions that go with it."""
        wanted, parts = unit.name, (*_PARTS, *(f"folds_{n + 1}" for n in range(1, len(unit.outputs))))
        for name in itertools.chain([wanted], (f"{wanted}_{number}" for number in itertools.count(2))):
            family = [name, *(f"{name}_{part}" for part in parts)]
            if all(self.names.free(one) for one in family):
                return [self.names.new(one) for one in family][0]
        raise AssertionError("there is always a free name")

    def _tensors(self, call: Call, live: Mapping[str, Value]) -> Tensors:
        params, scalars = {}, set()
        for param in call.unit.params:
            ref = call.args[param.name]
            if param.type.kind is TypeKind.SCALAR and ref.call:
                scalars.add(param.name)
            if param.type.kind in (TypeKind.TENSOR, TypeKind.INDEX, TypeKind.PARTIAL):
                params[param.name] = TensorInfo(param.type.dims, ref_dtype(self.program, self.signature, ref))
        outputs = {
            o: TensorInfo(
                tuple(d for d in (v.rows, v.cols) if d is not None),
                stored_dtype(self.program, self.signature, call, o),
            )
            for o, v in live.items()
        }
        # A pass asks for all that a thread loads at once; a descriptor's boxes would be waited for one by one.
        form = "pointer" if self.form == "pointer" or is_pass(call) else "descriptor"
        return Tensors(params, outputs, form, frozenset(scalars), walks_backwards(self.program, call))

    def _prepare(self, call: Call, live: Mapping[str, Value]) -> None:
        names = {p: self._of(r).name for p, r in call.args.items() if r.input or r.call}
        if "torch" in names.values():  # which `prepare` imports
            self.hidden.setdefault("torch", self.names.new("torch"))
            names = {p: self.hidden.get(name, name) for p, name in names.items()}
        sizes = {s: d.size(self.sizes) for s, d in call.binding.items()}
        emitter = PreparationEmitter(names, sizes, uses(live.values()), self.names)
        for output, value in live.items():
            stored = self._of(Ref(call=call.name, output=output))
            text = emitter.text(value, stored.dtype)
            self.prepare_lines += [*emitter.lines, f"{stored.name} = {text}"]
            emitter.lines.clear()
            self.prepared.append(stored.name)

    # -- the result

    def _generated(self) -> Generated:
        launches = [self._launch(c) for c in self.calls]
        stored = [(c.call, o) for c in self._kernel_calls() for o in self.program.live_outputs(c.call)]
        buffers = [self._buffer(call, o) for call, o in stored if not accumulated_into(call.unit.outputs[o])]
        buffers += [self._buffer(c.call, PIECES) for c in self._kernel_calls() if c.schedule and c.schedule.split_k > 1]
        read = self._read_inputs([c.call for c in self.calls])
        prepared_from = self._read_inputs([c for c in self.program.live_calls() if isinstance(c.unit, Preparation)])
        arguments = (*read, *self.prepared, *(b.name for b in buffers))
        title = self.program.docstring or self.program.name
        gluon, pieces = any(c.text.gluon for c in self.calls), any(c.text.pieces > 1 for c in self.calls)
        source = module_text(
            head_text(title, self.program.name, self.form or "", self.processors, gluon, pieces, self.overlap),
            self.texts.values(),
            prepare_text(prepared_from, self.prepare_lines, self.prepared, self.hidden),
            launch_text(self.calls, arguments, self.stored, self.sizes),
        )
        return Generated(
            source,
            tuple(launches),
            tuple(buffers),
            tuple(prepared_from),
            arguments,
            dict(self.used_schedules),
            self.form or "",
            self._in_place(stored),
            tuple(self.notes),
            {
                name: _effective(schedule, (c.text for c in self.calls if c.call.name == name))
                for name, schedule in self.used_schedules.items()
            },
        )

    def _in_place(self, stored: list[tuple[Call, str]]) -> dict[str, tuple[str, ...]]:
        """The inputs that calls accumulate into, each with the program outputs that it becomes."""
        refs = [Ref(call=call.name, output=o) for call, o in stored if accumulated_into(call.unit.outputs[o])]
        return {self._of(ref).name: tuple(self.outputs.get(ref, ())) for ref in refs}

    def _kernel_calls(self) -> list[UnitCall]:
        seen: dict[str, UnitCall] = {}
        for c in self.calls:
            seen.setdefault(c.call.name, c)
        return list(seen.values())

    def _buffer(self, call: Call, output: str) -> Buffer:
        ref = Ref(call=call.name, output=output)
        stored = self._of(ref)
        dtype = {"float8_e4m3": "float8_e4m3fn"}.get(stored.dtype, stored.dtype)
        shape = tuple(d.size(self.sizes) for d in stored.dims)
        return Buffer(stored.name, shape, dtype, tuple(self.outputs.get(ref, ())), call.name, output)

    def _read_inputs(self, calls: list[Call]) -> list[str]:
        """Program inputs that the calls' texts read, in the signature's order."""
        refs = {
            r.input
            for call in calls
            for name, r in call.args.items()
            if r.input and (isinstance(call.unit, Preparation) or self._passed(call, name))
        }
        return [s.name for s in self.signature.inputs if s.name in refs]

    def _passed(self, call: Call, param: str) -> bool:
        return any(p.tensor == param and not p.output for c in self.calls if c.call is call for p in c.text.params)

    def _launch(self, unit_call: UnitCall) -> Launch:
        return launch_record(unit_call, self.stored, self.sizes, self.processors)
