"""Names of an older tinygrad: kernels written down row by row, and the way from a value to its program, step by step.

    from koine.compat import BinaryOps, MetalLanguage, UOpGraph, UOps, dtypes, uops_to_cstyle

    g = UOpGraph()
    c0 = g.add(UOps.CONST, dtypes.int, arg=0)
    print(uops_to_cstyle(MetalLanguage(), 'tester', g))

docs/linear-walk.md has these names beside those of today, and says where they differ.
"""
from __future__ import annotations

import enum
import itertools
from typing import Any, Iterable, Sequence

from . import _koine
from ._koine import Kernel, Program, Size, Tensor, Variable
from ._koine import UOp as _Node
from ._koine.compat import BinaryOps, TernaryOps, UnaryOps, UOp, UOpGraph, UOps, compile
from .errors import TypeError, ValueError

__all__ = ["BinaryOps", "BufferOps", "CStyleLanguage", "CUDALanguage", "CompiledASTRunner", "Device", "HIPLanguage", "ImageDType", "LazyOp",
           "Linearizer", "MemBuffer", "MetalLanguage", "MultiLazyBuffer", "Node", "NumNode", "OpenCLLanguage", "PtrDType", "ReduceOps",
           "ScheduleItem", "Tensor", "TernaryOps", "UOp", "UOpGraph", "UOps", "UnaryOps", "Variable", "WGSLLanguage", "compile",
           "create_schedule", "dedup", "dtypes", "flatten", "lower_schedule_item", "print_tree", "run_schedule", "to_function_name",
           "uops_to_cstyle"]


class dtypes:
    """Dtypes by their old names and by today's."""

    bool, int8, int16, int32, int64 = (_koine.DType[n] for n in ("bool", "int8", "int16", "int32", "int64"))
    uint8, uint16, uint32, uint64 = (_koine.DType[n] for n in ("uint8", "uint16", "uint32", "uint64"))
    float16, bfloat16, float32, float64 = (_koine.DType[n] for n in ("float16", "bfloat16", "float32", "float64"))
    char, short, int, long = int8, int16, int32, int64
    uchar, ushort, uint, ulong = uint8, uint16, uint32, uint64
    half, float, double = float16, float32, float64

    @staticmethod
    def as_const(value: Any, dtype: Any) -> Any:
        """A Python number of the kind of a dtype."""
        return float(value) if dtype.is_float else bool(value) if dtype is dtypes.bool else int(value)


def PtrDType(dtype: Any) -> Any:
    """The dtype of a DEFINE_GLOBAL: here that of its elements."""
    return dtype


class ImageDType:
    """Of nothing: there are no images."""


class MultiLazyBuffer:
    """Of nothing: a value on several devices is one node."""


#: What arithmetic on Variables gives.
Node = Size


class _Number(type):
    def __instancecheck__(cls, value: object) -> bool:
        return type(value) is Size and value.min == value.max


class NumNode(metaclass=_Number):
    """A Node that is a number, such as `x * 0`."""


class CStyleLanguage:
    """A language of texts."""

    name = "C"


class OpenCLLanguage(CStyleLanguage):
    name = "OpenCL"


class CUDALanguage(CStyleLanguage):
    name = "CUDA"


class HIPLanguage(CStyleLanguage):
    name = "HIP"


class MetalLanguage(CStyleLanguage):
    name = "Metal"


class WGSLLanguage(CStyleLanguage):
    name = "WGSL"


def uops_to_cstyle(lang: CStyleLanguage, function_name: str, uops: UOpGraph) -> str:
    """The text of a kernel in a language."""
    if not isinstance(lang, CStyleLanguage):
        raise TypeError(f"uops_to_cstyle: takes a language such as MetalLanguage(), not a '{type(lang).__name__}'")
    return _koine.compat.uops_to_cstyle(lang.name, function_name, uops)


# --- the way from a value to its program ---------------------------------------------------------


class BufferOps(enum.Enum):
    LOAD, CONST, STORE = range(3)


class ReduceOps(enum.Enum):
    SUM, MAX, PROD = range(3)


class MemBuffer:
    """A parameter of a kernel: data0, data1 and so on, the output first."""

    def __init__(self, param: _Node):
        self.idx, self.dtype = int(param.arg.split()[0]), param.dtype

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MemBuffer) and (self.idx, self.dtype) == (other.idx, other.dtype)

    def __hash__(self) -> int:
        return hash((self.idx, self.dtype))

    def __repr__(self) -> str:
        return f"MemBuffer(idx={self.idx}, dtype={self.dtype})"


_REDUCES = {"Add": ReduceOps.SUM, "Max": ReduceOps.MAX, "Mul": ReduceOps.PROD}


class LazyOp:
    """A node of a kernel, read as it was then: STORE, SUM, MUL, LOAD."""

    def __init__(self, node: _Node, kernel: Kernel):
        self._node, self._kernel = node, kernel

    @property
    def op(self) -> Any:
        """BufferOps, ReduceOps or an operation; the name of today's op where it had none."""
        name = self._node.op
        if name == "Reduce":
            return _REDUCES[self._node.arg.split()[0]]
        if name in ("Load", "Const", "Store"):
            return BufferOps[name.upper()]
        return _koine.compat.operation_of(self._node) or name

    @property
    def src(self) -> tuple[LazyOp, ...]:
        """What it is computed from; of a LOAD nothing."""
        name, sources = self._node.op, self._node.src
        values = sources[1:2] if name == "Store" else [] if name == "Load" else sources[:1] if name == "Reduce" else sources
        return tuple(LazyOp(v, self._kernel) for v in values)

    @property
    def arg(self) -> Any:
        """Of LOAD and STORE the MemBuffer; of others the text of theirs, or None."""
        if self._node.op not in ("Load", "Store"):
            return self._node.arg or None
        memory = self._node.src[0]
        while memory.op != "Param":
            memory = memory.src[0]
        return MemBuffer(memory)

    def __repr__(self) -> str:
        return f"LazyOp({self.op}, {len(self.src)} sources, arg={self.arg!r})"


def _stores(node: _Node) -> list[_Node]:
    return [node] if node.op == "Store" else [s for below in node.src for s in _stores(below)] if node.op in ("Sink", "End") else []


class ScheduleItem:
    """A launch: its tree of LazyOps, one for each output, and its buffers. `print` shows the tree."""

    def __init__(self, kernel: Kernel, values: Sequence[_Node]):
        self.kernel, self._values = kernel, values

    @property
    def ast(self) -> tuple[LazyOp, ...]:
        return tuple(LazyOp(s, self.kernel) for s in _stores(self.kernel.ast))

    @property
    def outputs(self) -> tuple[Any, ...]:
        return tuple(_Buffer(b, self.kernel.device) for k, b in enumerate(self.kernel.buffers) if self.kernel.stores(k))

    @property
    def inputs(self) -> tuple[Any, ...]:
        return tuple(_Buffer(b, self.kernel.device) for k, b in enumerate(self.kernel.buffers) if not self.kernel.stores(k))

    def __str__(self) -> str:
        return str(self.kernel)

    def __repr__(self) -> str:
        return f"ScheduleItem({len(self.outputs)} outputs, {len(self.inputs)} inputs, '{self.kernel.reason}')"


class _Buffer:
    def __init__(self, node: _Node, device: str):
        self.node, self.dtype, self.device = node, node.dtype, device


def create_schedule(values: Iterable[Any]) -> list[ScheduleItem]:
    """What would run for tensors, or nodes (`x.lazydata`): items to look at. Nothing has run."""
    given = [v.uop if isinstance(v, Tensor) else v for v in values]
    return [ScheduleItem(k, given) for k in _koine.schedule(given)]


def run_schedule(schedule: Iterable[ScheduleItem]) -> None:
    """Computes the values that the items are for: all of them in one submission. Those that depend on memory are data then."""
    _koine._realize(dedup(v for item in schedule for v in item._values))


def lower_schedule_item(si: ScheduleItem) -> CompiledASTRunner:
    """The compiled program of an item."""
    return Device[si.kernel.device].get_runner(*si.ast)


class Linearizer:
    """A kernel on its way to a list of rows: those of plain loops, as with NOOPT then. What the heuristic makes of it has no old names;
    `koine.lower_kernel` shows that."""

    def __init__(self, *ast: LazyOp):
        if not ast or not all(isinstance(op, LazyOp) for op in ast):
            raise TypeError("Linearizer: takes the ast of a ScheduleItem, as in Linearizer(*si.ast)")
        self.ast, self.kernel = ast, ast[0]._kernel
        parameters = [MemBuffer(p) for p in _parameters(self.kernel.ast)]
        self.bufs = sorted(parameters, key=lambda b: b.idx)
        self.outbufs = [b for b in self.bufs if self.kernel.stores(b.idx)]
        self.global_size, self.local_size = [1, 1, 1], [1, 1, 1]
        self.name, self.uops, self.operations, self.bytes = "", UOpGraph(), 0.0, 0.0

    def linearize(self) -> Linearizer:
        """Fills `name` and `uops`, and the sizes of the grid where the device has groups of threads."""
        self.name, self.uops, self.operations, self.bytes = _koine.compat.plain_rows(self.kernel)
        self.global_size, self.local_size = _sizes(self.uops)
        return self


def _sizes(rows: UOpGraph) -> tuple[list[int], list[int]]:
    """Groups, and threads in one, along each axis: what SPECIAL rows say."""
    sizes = {"g": [1, 1, 1], "l": [1, 1, 1]}
    for row in rows.uops:
        if row.uop is UOps.SPECIAL:
            number, name, limit = row.arg
            sizes[name[0]][number] = limit
    return sizes["g"], sizes["l"]


def _parameters(ast: _Node) -> list[_Node]:
    seen: set[_Node] = set()
    stack, out = [ast], []
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.op == "Param" and node.dtype is not None:
            out.append(node)
        stack += node.src
    return out


class _Text(str):
    """Source that knows the rows it is of."""

    uops: UOpGraph


class _Compiler:
    def __init__(self, lang: CStyleLanguage):
        self._lang = lang

    def render(self, name: str, uops: UOpGraph) -> str:
        text = _Text(uops_to_cstyle(self._lang, name, uops))
        text.uops = uops
        return text


class CompiledASTRunner:
    """A program: its name, its text, the sizes of its grid, and the estimates that it was made with; `exec` runs it on buffers, `clprg` is
    Koine's own, whose grid it has: what its rows say."""

    def __init__(self, name: str, prg: str, dname: str = "CPU", global_size: Any = None, local_size: Any = None, variables: Any = (),
                 op_estimate: Any = 0, mem_estimate: Any = 0, outcount: int = 1):
        if not isinstance(prg, _Text):
            raise TypeError("CompiledASTRunner: takes what compiler.render() gives: a text alone does not say what it computes")
        self.name, self.prg, self.dname = name, prg, dname
        self.vars, self.op_estimate, self.mem_estimate, self.outcount = variables, op_estimate, mem_estimate, outcount
        self.clprg: Program = compile(prg.uops, name, dname)
        self.global_size, self.local_size = list(self.clprg.grid), list(self.clprg.group)
        for what, given, has in (("global_size", global_size, self.global_size), ("local_size", local_size, self.local_size)):
            if given is not None and list(given) != has:
                raise ValueError(f"CompiledASTRunner: {what} is {list(given)}, and the rows of {name} have {has}")

    def exec(self, rawbufs: Sequence[Any], var_vals: dict[str, int] | None = None) -> None:
        """Runs it on a buffer for each parameter, such as NumPy arrays: data0, data1 and so on."""
        self.clprg(*rawbufs, **(var_vals or {}))


class _Device:
    """What makes runners on one device."""

    def __init__(self, dname: str):
        self.dname = dname
        self.compiler = _Compiler(OpenCLLanguage() if dname.startswith("CL") else CStyleLanguage())

    def get_linearizer(self, *ast: LazyOp) -> Linearizer:
        return Linearizer(*ast)

    def get_runner(self, *ast: LazyOp) -> CompiledASTRunner:
        return self.to_program(self.get_linearizer(*ast))

    def to_program(self, k: Linearizer) -> CompiledASTRunner:
        k.linearize()
        return CompiledASTRunner(k.name, self.compiler.render(to_function_name(k.name), k.uops), self.dname, k.global_size, k.local_size,
                                 k.uops.vars(), k.operations, k.bytes, outcount=len(k.outbufs))


class _Devices:
    def __getitem__(self, name: str) -> _Device:
        return _Device(name)

    @property
    def DEFAULT(self) -> str:
        return _koine.default_device()


Device = _Devices()


def print_tree(op: LazyOp) -> None:
    """The tree of the kernel that a node is of."""
    print(op._kernel, end="")


def to_function_name(name: str) -> str:
    """A name that every language takes."""
    return "".join(c if c.isascii() and (c.isalnum() or c == "_") else f"{ord(c):02X}" for c in name)


def flatten(lists: Iterable[Iterable[Any]]) -> list[Any]:
    return list(itertools.chain.from_iterable(lists))


def dedup(values: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(values))


# `x.lazydata` is `x.uop` for those that import this.
Tensor.lazydata = property(lambda self: self.uop, doc="Its node.")  # type: ignore[attr-defined]
