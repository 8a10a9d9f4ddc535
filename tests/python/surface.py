"""The surface of the package as a table: how the arguments of each function are drawn, and what NumPy and PyTorch have for it.

test_surface.py runs it. A `Row` draws its operands (arrays, often read through a view) and numbers, and says what the result is:
NumPy's functions on arrays of a wider dtype, and how far a result of the dtype at hand may be from that. PyTorch's are given
tensors of float64, or of the dtype where it holds whole numbers.
"""
from __future__ import annotations

import copy
import dataclasses
import functools
import math
import typing
from typing import Any, Callable

import ml_dtypes
import numpy as np

import koine
from koine import Tensor, nn

FLOATS = ("float16", "bfloat16", "float32", "float64")
EIGHTHS = ("float8e4m3", "float8e5m2")
INTS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
SIGNED = INTS[:4]


def numpy_dtype(name: str) -> np.dtype:
    return np.dtype(getattr(koine, name).numpy if name != "bool" else bool)


def name_of(dtype: np.dtype) -> str:
    return next(d.name for d in koine.DType if d.numpy is not None and np.dtype(d.numpy) == dtype)


def is_float(dtype: np.dtype) -> bool:
    return dtype.kind == "f" or dtype.kind == "V"  # those of ml_dtypes have no kind of their own


def wide(a: np.ndarray) -> np.ndarray:
    """Floats in a dtype of many more digits: what a function of them is, but for its rounding."""
    if not is_float(a.dtype):
        return a
    return a.astype(np.longdouble if a.dtype.itemsize >= 8 else np.float64)


def unit(dtype: np.dtype) -> float:
    """The largest relative error of one rounding."""
    return float(ml_dtypes.finfo(dtype).eps) / 2


def smallest(dtype: np.dtype) -> float:
    return float(ml_dtypes.finfo(dtype).smallest_subnormal)


class Want(typing.NamedTuple):
    """A result: wide numbers, the dtype, and how far each may be off; None: not at all."""
    value: np.ndarray
    dtype: np.dtype
    error: Any = None
    signs: bool = False  # zeros have theirs


# --- arguments ---------------------------------------------------------------------------------------


@dataclasses.dataclass
class Operand:
    base: np.ndarray
    view: str
    again: Callable[[], np.ndarray]  # other numbers of the same kind
    places: bool = False  # positions along an axis, no numbers to compute with

    def of(self, x: Any) -> Any:
        return VIEWS[self.view](x)


def flipped(x: Any) -> Any:
    return x.flip(-1) if not isinstance(x, np.ndarray) else np.flip(x, -1)


# What an operand is read through, of arrays and of tensors; a tensor of PyTorch has no negative steps.
VIEWS: dict[str, Callable] = {
    "": lambda x: x,
    "turned": lambda x: x.swapaxes(0, -1) if isinstance(x, np.ndarray) else x.transpose(0, -1),
    "step": lambda x: x[..., ::2],
    "part": lambda x: x[1:],
    "flip": flipped,
    "repeated": lambda x: np.broadcast_to(x, (x.shape[0] * 3, *x.shape[1:])) if isinstance(x, np.ndarray)
    else x.expand(3, *x.shape[1:]),
}


def base_shape(view: str, shape: tuple) -> tuple | None:
    """Of what is seen as `shape` through the view; None where nothing is."""
    if not shape:
        return shape if view == "" else None
    if view == "turned":
        return (shape[-1], *shape[1:-1], shape[0]) if len(shape) > 1 else shape
    if view == "step":
        return (*shape[:-1], max(2 * shape[-1] - 1, 0))
    if view == "part":
        return (shape[0] + 1, *shape[1:])
    if view == "repeated":
        return (1, *shape[1:]) if shape[0] == 3 else None
    return shape


SPECIAL_SHARE = 0.15


def limits_of(dtype: np.dtype, special: str) -> np.ndarray:
    """plain: NaN, infinities, zeros; tiny: also the smallest; all: also the largest."""
    f = ml_dtypes.finfo(dtype)
    out = [math.nan, 0.0, -0.0, 1.0, -1.0]
    if not math.isnan(float(np.asarray(math.inf).astype(dtype))):
        out += [math.inf, -math.inf]
    if special in ("tiny", "all"):
        out += [float(f.smallest_subnormal), -float(f.smallest_subnormal), float(f.smallest_normal), float(f.eps)]
    if special == "all":
        out += [float(f.max), -float(f.max)]
    return np.array(out, np.float64).astype(dtype)


class Draw:
    """Draws what a case is made of. `smooth`: ordinary float64, or another dtype given, for derivatives."""

    def __init__(self, rng: np.random.Generator, smooth: str = ""):
        self.rng, self.smooth = rng, smooth
        self.operands: list[Operand] = []

    def whole(self, low: int, high: int) -> int:
        """low to high, both included."""
        return int(self.rng.integers(low, high, endpoint=True))

    def chance(self, p: float = 0.5) -> bool:
        return bool(self.rng.random() < p)

    def one(self, of: typing.Sequence) -> Any:
        return of[self.whole(0, len(of) - 1)]

    def dtype(self, of: typing.Sequence[str] = FLOATS) -> np.dtype:
        if self.smooth:
            return numpy_dtype(self.smooth)
        return numpy_dtype(self.one(of))

    def shape(self, least_rank: int = 0, most_rank: int = 3, least: int = 0) -> tuple:
        rank = self.whole(least_rank, most_rank)
        sizes = [self.one((1, 2, 3, 3, 4, 5)) for _ in range(rank)]
        if rank and self.chance(0.08) and not self.smooth:
            sizes[self.whole(0, rank - 1)] = self.one((7, 8, 16, 17, 33, 65))
        if least == 0 and rank and self.chance(0.08):
            sizes[self.whole(0, rank - 1)] = 0
        return tuple(max(n, least) for n in sizes)

    def narrower(self, shape: tuple) -> tuple:
        """One that broadcasts to it."""
        cut = shape[self.whole(0, len(shape)):] if self.chance(0.4) else shape
        return tuple(1 if self.chance(0.25) else n for n in cut)

    def axis(self, rank: int) -> int:
        return self.whole(-rank, rank - 1) if rank and self.chance(0.75) else -1

    def axes(self, rank: int) -> int | tuple | None:
        """As sum() and its like take them: none, one, or several."""
        if rank == 0 or self.chance(0.25):
            return None
        if self.chance():
            return self.axis(rank)
        picked = self.rng.permutation(rank)[:self.whole(1, rank)]
        return tuple(int(a) - (rank if self.chance(0.3) else 0) for a in picked)

    def numbers(self, shape: tuple, dtype: np.dtype, low: float, high: float, special: str) -> np.ndarray:
        if dtype == bool:
            return np.asarray(self.rng.random(shape) < 0.5)
        if not is_float(dtype):
            info = np.iinfo(dtype)
            least, most = max(int(low), info.min), min(int(high), info.max)
            out = self.rng.integers(least, max(least, most), shape, dtype=np.int64, endpoint=True).astype(dtype)
            limits = np.array([info.min, info.max, info.max - 1, info.max // 2 + 1, 0, 1], dtype)
        else:
            out = np.asarray(self.rng.uniform(low, high, shape)).astype(dtype)
            if self.chance(0.3) and not self.smooth:
                out = np.asarray(np.round(out.astype(np.float64))).astype(dtype)  # ties
            limits = limits_of(dtype, special)
        if special:
            picked = limits[self.rng.integers(0, len(limits), shape)]
            out = np.where(self.rng.random(shape) < SPECIAL_SHARE, picked, out)
        return np.asarray(out, dtype)

    def array(self, shape: tuple, dtype: np.dtype, low: float = -4, high: float = 4,
              special: str = "all") -> np.ndarray:
        """An operand: what is seen of it. `special`: which limits it holds; see limits_of."""
        special = "" if self.smooth else special
        views = [v for v in VIEWS if base_shape(v, shape) is not None]
        view = self.one(views) if self.chance(0.4) else ""
        below = base_shape(view, shape)

        def again():
            a = self.numbers(below, dtype, low, high, special)
            return a.T.copy().T if self.chance(0.2) else a  # not row-major

        operand = Operand(again(), view, again)
        self.operands.append(operand)
        return operand.of(operand.base)

    def positions(self, shape: tuple, size: int, negative: bool = False) -> np.ndarray:
        """Whole numbers below a size as an operand."""
        def again():
            a = self.rng.integers(-size if negative else 0, size, shape)
            return np.asarray(a, dtype)

        dtype = np.dtype(self.one(("int32", "int64")))
        self.operands.append(Operand(again(), "", again, True))
        return self.operands[-1].base


@dataclasses.dataclass
class Row:
    name: str
    draw: Callable[[Draw], dict | None]
    numpy: Callable[..., Any]  # arrays and numbers -> Want, or several
    ours: Callable[..., Any]
    torch: Callable[..., Any] | None = None
    smooth: bool = False  # it has derivatives where `draw` draws ordinary numbers
    vmap: bool = True
    slack: float = 1  # how much more roundings may cost of its derivatives: divided by a small spread, or many terms of both signs
    apart: Callable | None = None  # of the arrays, where PyTorch is known to have another value: docs/transforms.md, "Corners"
    covers: tuple = ()  # names of the package

    @property
    def of_terms(self) -> bool:
        """Whether its results, and all their derivatives, are sums of products of numbers that it is given: of absolute numbers the sums
        of the terms' magnitudes, of ones how many terms there are."""
        return getattr(self.numpy, "of_terms", False)

    def __repr__(self) -> str:
        return self.name


def of_terms(f: Callable) -> Callable:
    """Marks what is so: see Row."""
    f.of_terms = True  # type: ignore[attr-defined]
    return f


ROWS: list[Row] = []


def row(name: str, draw: Callable, numpy: Callable, ours: Callable | None = None, torch: Callable | None = None, **more: Any) -> None:
    covers = more.pop("covers", (f"Tensor.{name}",))
    ROWS.append(Row(name, draw, numpy, ours or getattr(Tensor, name), torch, covers=covers, **more))


# --- meaning of dtypes -------------------------------------------------------------------------------


def rounded(dtype: np.dtype, value: np.ndarray, units: float, scale: Any = None, floor: float = 0, signs: bool = False) -> Want:
    """`units` roundings of what is `scale` large (the value itself), and of the smallest numbers."""
    with np.errstate(all="ignore"):
        size = np.abs(value) if scale is None else np.abs(scale)
        size = np.where(np.isfinite(size), size, 0)
        error = units * unit(dtype) * size + (units and 1 + units) * smallest(dtype) + floor * unit(dtype)
    return Want(np.asarray(value), dtype, error, signs)


def as_float(a: np.ndarray) -> np.ndarray:
    """Functions of whole numbers are those of float32."""
    return a if is_float(a.dtype) else a.astype(np.float32)


def common(*arrays: np.ndarray) -> np.dtype:
    """What they promote to. Differences for derivatives are taken in long double."""
    if any(a.dtype == np.longdouble for a in arrays):
        return np.dtype(np.longdouble)
    out = name_of(arrays[0].dtype)
    for a in arrays[1:]:
        out = koine.promote(out, name_of(a.dtype)).name
    return numpy_dtype(out)


def cast(a: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """As Koine's cast: floats to integers truncate and saturate, NaN is 0; the others are NumPy's."""
    with np.errstate(all="ignore"):
        if is_float(a.dtype) and dtype == bool:
            return np.asarray(a.astype(np.float64) != 0)
        if is_float(a.dtype) and not is_float(dtype):
            info = np.iinfo(dtype)
            w = np.trunc(a.astype(np.longdouble))
            inside = (w > np.longdouble(info.min) - 1) & (w < np.longdouble(info.max) + 1)
            out = np.where(inside, w, 0).astype(dtype)
            out = np.where(w >= np.longdouble(info.max), np.array(info.max, dtype), out)
            return np.asarray(np.where(w <= np.longdouble(info.min), np.array(info.min, dtype), out), dtype)
        if is_float(dtype) and dtype.kind == "V" and a.dtype.kind in "iub":
            return a.astype(np.float64).astype(dtype)
        return a.astype(dtype)


# --- of one operand ----------------------------------------------------------------------------------


def unary(name: str, f: Callable, units: float, dtypes: tuple | None = None, low: float = -4, high: float = 4,
          smooth: bool = False, torch: Any = None, kind: str = "float", special: str = "all", signs: bool = False, ours: Any = None,
          floor: float = 0, near: tuple | None = None, covers: tuple | None = None, apart: Callable | None = None) -> None:
    """`kind`: of a float; the same dtype; or bool. `near`: from where to where numbers for derivatives are."""
    def draw(d: Draw) -> dict:
        span = near if d.smooth and near else (low, high)
        d.array(d.shape(), d.dtype(dtypes or REALS), *span, special=special)
        return {}

    def numpy(a: np.ndarray) -> Want:
        with np.errstate(all="ignore"):
            if kind == "float":
                a = as_float(a)
            if kind == "bool":
                return Want(np.asarray(f(wide(a))), np.dtype(bool))
            if not is_float(a.dtype):
                return Want(np.asarray(f(a.astype(np.int8) if a.dtype == bool and f is not np.bitwise_not else a)).astype(a.dtype), a.dtype)
            return rounded(a.dtype, np.asarray(f(wide(a))), units, signs=signs, floor=floor)

    row(name, draw, numpy, ours, torch, smooth=smooth, covers=covers or (f"Tensor.{name}",), apart=apart)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return np.where(x < 0, np.exp(np.minimum(x, 0)) / (1 + np.exp(np.minimum(x, 0))), 1 / (1 + np.exp(-np.maximum(x, 0))))


def erf_near(x: np.ndarray) -> np.ndarray:
    """By its series, of which all terms have one sign. NumPy has no erf."""
    term = total = x
    for n in range(1, 60):
        term = term * (2 * x * x / (2 * n + 1))
        total = total + term
    return total * np.exp(-x * x) * 2 / np.sqrt(4 * np.arctan(x.dtype.type(1)))


def erfc_far(x: np.ndarray) -> np.ndarray:
    """By its continued fraction."""
    rest = x
    for n in range(400, 0, -1):
        rest = x + n / (2 * rest)
    return np.exp(-x * x) / rest / np.sqrt(4 * np.arctan(x.dtype.type(1)))


def erf(x: np.ndarray) -> np.ndarray:
    size = np.abs(x)
    far = np.copysign(1 - erfc_far(np.clip(size, 1.5, 200)), x)
    return np.where(size < 1.5, erf_near(np.clip(x, -1.5, 1.5)), far)


def erfc(x: np.ndarray) -> np.ndarray:
    far = erfc_far(np.clip(np.abs(x), 1.5, 200))
    return np.where(np.abs(x) < 1.5, 1 - erf_near(np.clip(x, -1.5, 1.5)), np.where(x < 0, 2 - far, far))


def gelu(x: np.ndarray, approximate: str) -> np.ndarray:
    if approximate == "none":
        out = x * erfc(-x / np.sqrt(x.dtype.type(2))) / 2
    else:
        out = x * sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3))
    return np.where(x == -np.inf, -0.0, out)


def silu(x: np.ndarray) -> np.ndarray:
    return np.where(x == -np.inf, -0.0, x * sigmoid(x))


REALS = (*FLOATS, *EIGHTHS, *INTS, "bool")
SAME = {"kind": "same", "signs": True}

unary("abs", np.abs, 0, torch=lambda x: x.abs(), smooth=True, near=(0.5, 4), kind="same", signs=True, covers=("Tensor.abs", "Tensor.__abs__"))
unary("neg", np.negative, 0, (*FLOATS, *EIGHTHS, *INTS), torch=lambda x: -x, smooth=True, kind="same", signs=True,
      covers=("Tensor.neg", "Tensor.__neg__"))
unary("square", np.square, 1, torch=lambda x: x.square(), smooth=True, **SAME)
unary("sign", np.sign, 0, torch=lambda x: x.sign(), smooth=True, near=(0.5, 4), apart=np.isnan, **SAME)
unary("relu", lambda x: np.where(x != x, x, np.maximum(x, 0)) if x.dtype != bool else x, 0, torch=lambda x: x.relu(), smooth=True,
      near=(-4, -0.3), kind="same")
unary("__pos__", lambda x: x, 0, ours=lambda x: +x, torch=lambda x: +x, smooth=True, covers=("Tensor.__pos__",), **SAME)
for name, f in {"floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "round": np.round}.items():
    unary(name, f, 0, torch=lambda x, name=name: getattr(x, name)(), smooth=True, near=(1.1, 1.4),
          covers=(f"Tensor.{name}", "Tensor.__round__") if name == "round" else None, **SAME)
unary("reciprocal", lambda x: 1 / x, 1, torch=lambda x: x.reciprocal(), smooth=True, near=(0.5, 4))
unary("sqrt", np.sqrt, 1, low=0, torch=lambda x: x.sqrt(), smooth=True, near=(0.5, 4), signs=True)
unary("rsqrt", lambda x: 1 / np.sqrt(x), 4, low=0, torch=lambda x: x.rsqrt(), smooth=True, near=(0.5, 4))
unary("exp", np.exp, 4, low=-20, high=20, torch=lambda x: x.exp(), smooth=True, near=(-2, 2))
unary("exp2", np.exp2, 4, low=-20, high=20, torch=lambda x: x.exp2(), smooth=True, near=(-2, 2))
unary("log", np.log, 4, low=0, torch=lambda x: x.log(), smooth=True, near=(0.5, 4))
unary("log2", np.log2, 4, low=0, torch=lambda x: x.log2(), smooth=True, near=(0.5, 4))
# The wider functions of NumPy are no better than the largest numbers allow: those are left out.
unary("sin", np.sin, 4, low=-99, high=99, torch=lambda x: x.sin(), smooth=True, special="all")
unary("cos", np.cos, 4, low=-99, high=99, torch=lambda x: x.cos(), smooth=True, special="all")
unary("tan", np.tan, 8, low=-9, high=9, torch=lambda x: x.tan(), smooth=True, near=(-1, 1), special="all")
unary("tanh", np.tanh, 8, low=-9, high=9, torch=lambda x: x.tanh(), smooth=True)
unary("sigmoid", sigmoid, 8, low=-30, high=30, torch=lambda x: x.sigmoid(), smooth=True)
unary("erf", erf, 8, torch=lambda x: x.erf(), smooth=True, signs=True)
unary("erfc", erfc, 8, torch=lambda x: x.erfc(), smooth=True)
unary("silu", silu, 8, low=-30, high=30, torch=lambda x: F().silu(x), smooth=True, apart=np.isneginf)
unary("softplus", lambda x: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))), 8, low=-30, high=30, torch=lambda x: F().softplus(x, threshold=1e3), smooth=True)
unary("isnan", np.isnan, 0, torch=lambda x: x.isnan(), kind="bool")
unary("isinf", np.isinf, 0, torch=lambda x: x.isinf(), kind="bool")
unary("isfinite", np.isfinite, 0, torch=lambda x: x.isfinite(), kind="bool")
unary("logical_not", np.logical_not, 0, torch=lambda x: x.logical_not(), kind="bool")
unary("bitwise_not", np.bitwise_not, 0, (*INTS, "bool"), torch=lambda x: x.bitwise_not(), kind="same",
      covers=("Tensor.bitwise_not", "Tensor.__invert__"))
for name in ("contiguous", "clone", "contiguous_backward"):
    unary(name, lambda x: x, 0, torch=lambda x: x, smooth=True, **SAME)
unary("detach", lambda x: x, 0, torch=lambda x: x.detach(), **SAME)


def F() -> Any:
    import torch.nn.functional
    return torch.nn.functional


def with_number(name: str, f: Callable, units: float, torch: Callable, draw_number: Callable, **more: Any) -> None:
    """Functions of a float and of numbers."""
    def draw(d: Draw) -> dict:
        d.array(d.shape(), d.dtype(REALS), *(more.get("near", (-4, 4)) if d.smooth else (-4, 4)))
        return draw_number(d)

    def numpy(a: np.ndarray, **numbers: float) -> Want:
        with np.errstate(all="ignore"):
            a = as_float(a)
            return rounded(a.dtype, f(wide(a), **numbers), units)

    row(name, draw, numpy, None, torch, smooth=True)


with_number("leaky_relu", lambda x, slope: np.where(x < 0, slope * x, x), 4, lambda x, slope: F().leaky_relu(x, slope),
            lambda d: {"slope": d.one((0.01, 0.5, 2.0))}, near=(-4, -0.3))
row("gelu", lambda d: d.array(d.shape(), d.dtype(REALS), -4, 4) is None or {"approximate": d.one(("tanh", "none"))},
    lambda a, approximate: rounded(as_float(a).dtype, gelu(wide(as_float(a)), approximate), 8),
    torch=lambda x, approximate: F().gelu(x, approximate=approximate), smooth=True, apart=np.isneginf)
with_number("elu", lambda x, alpha: np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0))), 8, lambda x, alpha: F().elu(x, alpha),
            lambda d: {"alpha": d.one((1.0, 0.3))}, near=(0.3, 4))
with_number("hardtanh", lambda x, low, high: np.where(x != x, x, np.clip(x, low, high)), 1,
            lambda x, low, high: F().hardtanh(x, low, high), lambda d: {"low": d.one((-1.0, -0.25)), "high": d.one((1.0, 3.0))},
            near=(-0.2, 0.9))


def nearest(w: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Wide floats as the nearest of a dtype, the even one of two. ml_dtypes rounds twice on the way from float64."""
    with np.errstate(all="ignore"):
        near = np.asarray(w.astype(dtype))
        if dtype.kind == "f":
            return near
        bits = near.view(f"u{dtype.itemsize}")
        best = np.abs(near.astype(np.longdouble) - w)
        for step in (1, -1):
            other = (bits + np.asarray(step).astype(bits.dtype)).astype(bits.dtype)
            gap = np.abs(other.view(dtype).astype(np.longdouble) - w)
            better = (gap < best) | ((gap == best) & (other % 2 == 0))
            better &= np.isfinite(other.view(dtype).astype(np.float64)) & np.isfinite(best)
            near = np.where(better, other.view(dtype), near)
            best = np.where(better, gap, best)
        return np.asarray(near, dtype)


def draw_cast(d: Draw) -> dict:
    d.array(d.shape(), d.dtype(REALS), -300, 300)
    return {"dtype": "float64" if d.smooth else d.one(REALS)}


def numpy_cast(a: np.ndarray, dtype: str = "float32") -> Want:
    to = numpy_dtype(dtype)
    if a.dtype == np.longdouble:
        return Want(a, a.dtype)
    if is_float(a.dtype) and is_float(to):
        return Want(nearest(a.astype(np.longdouble), to), to, None, True)
    if is_float(to) and not is_float(a.dtype):
        return Want(nearest(a.astype(np.longdouble), to), to)
    return Want(cast(a, to), to)


row("cast", draw_cast, numpy_cast, smooth=True)
row("astype", draw_cast, numpy_cast)
row("float", lambda d: d.array(d.shape(), d.dtype(REALS), -300, 300) is None or {}, numpy_cast)


def draw_bitcast(d: Draw) -> dict:
    size = d.one((1, 2, 4, 8))
    of = {1: ("int8", "uint8", *EIGHTHS), 2: ("int16", "uint16", "float16", "bfloat16"), 4: ("int32", "uint32", "float32"),
          8: ("int64", "uint64", "float64")}[size]
    d.array(d.shape(), d.dtype(of), -99, 99)
    return {"dtype": d.one(of)}


row("bitcast", draw_bitcast, lambda a, dtype: Want(np.ascontiguousarray(a).reshape(a.shape).view(numpy_dtype(dtype)), numpy_dtype(dtype), None, True))

# --- of two operands ---------------------------------------------------------------------------------


def two(d: Draw, dtypes: tuple, low: float = -4, high: float = 4, low_b: float | None = None, high_b: float | None = None,
        special: str = "all", same: bool = False) -> tuple[np.ndarray, np.ndarray]:
    full = d.shape()
    first = d.dtype(dtypes)
    second = first if same or d.chance(0.4) else d.dtype(dtypes)
    if dtypes[-1] not in FLOATS and "float32" not in dtypes and is_float(numpy_dtype(koine.promote(name_of(first), name_of(second)).name)):
        second = first  # int64 and uint64 are a float64
    return (d.array(d.narrower(full), first, low, high, special),
            d.array(d.narrower(full), second, low if low_b is None else low_b, high if high_b is None else high_b, special))


def both(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.dtype]:
    dtype = common(a, b)
    return cast(a, dtype), cast(b, dtype), dtype


def elementwise(f: Callable, units: float, scale: Callable | None = None) -> Callable:
    """What NumPy's function of two gives in the dtype that both promote to."""
    def numpy(a: np.ndarray, b: np.ndarray) -> Want:
        with np.errstate(all="ignore"):
            x, y, dtype = both(a, b)
            if not is_float(dtype):
                return Want(np.asarray(f(x, y)), np.asarray(f(x, y)).dtype)
            x, y = wide(x), wide(y)
            return rounded(dtype, f(x, y), units, scale and scale(x, y))
    return numpy


def binary(name: str, f: Callable, units: float, dtypes: tuple = REALS, apart: Callable | None = None, torch: Any = None, smooth: bool = False, span: tuple = (-4, 4),
           near: tuple = (-4, 4, -4, 4), special: str = "all", numpy: Callable | None = None, scale: Callable | None = None,
           ours: Callable | None = None, covers: tuple | None = None, **more: Any) -> None:
    def draw(d: Draw) -> dict:
        two(d, dtypes, *(near if d.smooth else (*span, *span)), special=special)
        return {}
    row(name, draw, numpy or elementwise(f, units, scale), ours, torch, smooth=smooth, covers=covers or (f"Tensor.{name}",), apart=apart, **more)


def remainder(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    if not is_float(x.dtype):
        return np.remainder(x, y)
    r = np.fmod(x, y)
    return np.where((r != 0) & ((r < 0) != (y < 0)), r + y, r)


def larger(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.maximum(np.abs(x), np.abs(y))


def floor_quotient(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.floor_divide(x, y)


# float8 is for keeping numbers: what rounds between several operations is left out.
WITHOUT_EIGHTHS = (*FLOATS, *INTS, "bool")
NO_BOOL = (*FLOATS, *EIGHTHS, *INTS)
binary("maximum", np.maximum, 0, torch=lambda x, y: torch_().maximum(x, y), smooth=True, near=(1, 4, -4, 0.9))
binary("minimum", np.minimum, 0, torch=lambda x, y: torch_().minimum(x, y), smooth=True, near=(1, 4, -4, 0.9))
binary("mod", remainder, 2, NO_BOOL, torch=lambda x, y: torch_().remainder(x, y), smooth=True, near=(2.1, 2.9, 1.05, 1.35),
       scale=larger, apart=lambda a, b: ~np.isfinite(a.astype(np.float64) / b.astype(np.float64)))
binary("idiv", floor_quotient, 2, NO_BOOL)
binary("bitwise_and", np.bitwise_and, 0, (*INTS, "bool"), covers=("Tensor.bitwise_and",))
binary("bitwise_or", np.bitwise_or, 0, (*INTS, "bool"))
binary("bitwise_xor", np.bitwise_xor, 0, (*INTS, "bool"))
binary("lshift", np.left_shift, 0, INTS, span=(0, 70))
binary("rshift", np.right_shift, 0, INTS, span=(0, 70))


def torch_() -> Any:
    import torch
    return torch


def integer_power(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """NumPy's; of a negative power the whole part, where NumPy has an error."""
    if y.dtype.kind == "u" or y.dtype == bool:
        return np.power(x, y)
    positive = np.power(x, np.maximum(y, 0))
    odd = (y % 2 != 0)
    below = np.where(x == 1, 1, np.where(x == -1, np.where(odd, -1, 1), 0)).astype(positive.dtype)
    return np.where(y < 0, below, positive).astype(positive.dtype)


def power(a: np.ndarray, b: np.ndarray) -> Want:
    with np.errstate(all="ignore"):
        x, y, dtype = both(a, b)
        if not is_float(dtype):
            out = integer_power(x, y)
            return Want(out, out.dtype)
        return rounded(dtype, np.power(wide(x), wide(y)), 8)


binary("pow", np.power, 8, torch=lambda x, y: x.pow(y), smooth=True, near=(0.3, 2, -2, 2), numpy=power, slack=4)


def draw_lerp(d: Draw) -> dict:
    full, dtype = d.shape(), d.dtype(FLOATS)
    for _ in range(3):
        d.array(d.narrower(full), dtype, special="tiny")  # nothing between is more than a number holds
    return {}


def lerp(a: np.ndarray, b: np.ndarray, t: np.ndarray) -> Want:
    with np.errstate(all="ignore"):
        dtype, (a, b, t) = a.dtype, map(wide, (a, b, t))
        return rounded(dtype, a + (b - a) * t, 4, np.abs(a) + (np.abs(a) + np.abs(b)) * np.abs(t))


row("lerp", draw_lerp, lerp, torch=lambda a, b, t: torch_().lerp(a, b, t), smooth=True,
    apart=lambda a, b, t: ~np.isfinite(a.astype(np.float64) + b))


def draw_where(d: Draw) -> dict:
    full = d.shape()
    d.operands.clear()
    condition = d.array(d.narrower(full), np.dtype(bool))
    first = d.dtype(REALS)
    d.array(d.narrower(full), first)
    d.array(d.narrower(full), first if d.chance() else d.dtype(REALS))
    return {}


def where(c: np.ndarray, a: np.ndarray, b: np.ndarray) -> Want:
    x, y, dtype = both(a, b)
    return Want(np.where(c, x, y).astype(dtype), dtype, None, True)


row("where", draw_where, where, torch=lambda c, a, b: torch_().where(c, a, b), smooth=True, covers=("Tensor.where", "where"))


def draw_clip(d: Draw) -> dict:
    full, dtype = d.shape(), d.dtype(REALS)
    d.array(d.narrower(full), dtype, *((-0.5, 0.5) if d.smooth else (-4, 4)))
    bounds = d.one(("both", "both", "low", "high"))
    if bounds != "high":
        d.array(d.narrower(full), dtype, -3, -1)
    if bounds != "low":
        d.array(d.narrower(full), dtype, 1, 3)
    return {"bounds": bounds}


def between(bounds: str, x: Any, *given: Any) -> tuple:
    """x and its bounds, None for one that is not."""
    return (x, None, given[0]) if bounds == "high" else (x, *given, *[None] * (2 - len(given)))


def clip(*xs: np.ndarray, bounds: str = "both") -> Want:
    x, low, high = between(bounds, *map(wide, xs))
    with np.errstate(all="ignore"):
        raised = x if low is None else np.maximum(x, low)
        return Want(raised if high is None else np.minimum(raised, high), xs[0].dtype, 0)


row("clip", draw_clip, clip, lambda *xs, bounds: Tensor.clip(*between(bounds, *xs)),
    lambda *xs, bounds: torch_().clamp(*between(bounds, *torch_().broadcast_tensors(*xs))), smooth=True)


def draw_masked(d: Draw) -> dict:
    full = d.shape()
    d.array(full, d.dtype(REALS))
    d.array(d.narrower(full), np.dtype(bool))
    return {"value": d.one((0, 1, True))}


def masked_fill(x: np.ndarray, mask: np.ndarray, value: float) -> Want:
    return Want(np.where(mask, np.asarray(value).astype(x.dtype), x), x.dtype)


row("masked_fill", draw_masked, masked_fill, torch=lambda x, mask, value: x.masked_fill(mask, value), smooth=True)

# --- operators: between tensors, reflected, in place, and with numbers ---------------------------------

FORMS = ("plain", "reflected", "in place")
OPERATORS: dict[str, tuple] = {}


def quotient(a: np.ndarray, b: np.ndarray) -> Want:
    """Of whole numbers float32; of 64-bit ones float64."""
    with np.errstate(all="ignore"):
        x, y, dtype = both(a, b)
        if not is_float(dtype):
            dtype = np.dtype(np.float64 if dtype.itemsize == 8 else np.float32)
            x, y = x.astype(dtype), y.astype(dtype)
        return rounded(dtype, wide(x) / wide(y), 1)


def operator(name: str, sign: str, numpy: Callable, dtypes: tuple, torch: bool = True, smooth: bool = False, near: tuple = (-4, 4, 0.5, 4),
             span: tuple = (-4, 4), special: str = "all") -> None:
    forms = FORMS if sign not in ("<", "<=", ">", ">=", "==", "!=") else FORMS[:2]
    apply = eval(f"lambda a, b: a {sign} b")

    def in_place(a: Any, b: Any) -> Any:
        names = {"a": a.clone(), "b": b}
        exec(f"a {sign}= b", names)
        return names["a"]

    def draw(d: Draw) -> dict:
        form = "plain" if d.smooth else d.one(forms)
        a, b = two(d, dtypes, *(near if d.smooth else (*span, *span)), special=special, same=form == "in place")
        other_kind = sign == "/" and not is_float(a.dtype) or sign == "**" and a.dtype == bool  # of the result, which a cannot hold
        if form == "in place" and (np.broadcast_shapes(a.shape, b.shape) != a.shape or other_kind):
            form = "plain"
        return {"form": form}

    def theirs(a: np.ndarray, b: np.ndarray, form: str) -> Want:
        out = numpy(b, a) if form == "reflected" else numpy(a, b)
        if form == "in place" and out.dtype != a.dtype:
            return Want(cast(out.value, a.dtype), a.dtype)
        return out

    def ours(a: Tensor, b: Tensor, form: str) -> Tensor:
        return in_place(a, b) if form == "in place" else apply(b, a) if form == "reflected" else apply(a, b)

    covers = (f"Tensor.__{name}__",)
    if len(forms) == 3:
        covers += (f"Tensor.__r{name}__", f"Tensor.__i{name}__")
    row(f"__{name}__", draw, theirs, ours, torch and (lambda a, b, form: apply(b, a) if form == "reflected" else apply(a, b)) or None, smooth=smooth, covers=covers, slack=4 if sign == "**" else 1)


def relation(f: Callable) -> Callable:
    def numpy(a: np.ndarray, b: np.ndarray) -> Want:
        with np.errstate(all="ignore"):
            x, y, _ = both(a, b)
            return Want(np.asarray(f(wide(x), wide(y))), np.dtype(bool))
    return numpy


operator("add", "+", elementwise(np.add, 1), REALS, smooth=True)
operator("sub", "-", elementwise(np.subtract, 1), NO_BOOL, smooth=True)
operator("mul", "*", elementwise(np.multiply, 1), REALS, smooth=True)
operator("truediv", "/", quotient, REALS, smooth=True)
operator("floordiv", "//", elementwise(floor_quotient, 2), NO_BOOL, torch=False)
operator("mod", "%", elementwise(remainder, 2, larger), NO_BOOL, torch=False)
operator("pow", "**", power, REALS, smooth=True, near=(0.3, 2, -2, 2))
for name, sign, f in (("and", "&", np.bitwise_and), ("or", "|", np.bitwise_or), ("xor", "^", np.bitwise_xor)):
    operator(name, sign, elementwise(f, 0), (*INTS, "bool"))
operator("lshift", "<<", elementwise(np.left_shift, 0), INTS, torch=False, span=(0, 70))
operator("rshift", ">>", elementwise(np.right_shift, 0), INTS, torch=False, span=(0, 70))
for name, sign, f in (("lt", "<", np.less), ("le", "<=", np.less_equal), ("gt", ">", np.greater), ("ge", ">=", np.greater_equal),
                      ("eq", "==", np.equal), ("ne", "!=", np.not_equal)):
    operator(name, sign, relation(f), REALS)
row("__divmod__", lambda d: two(d, NO_BOOL) and {"reflected": d.chance()},
    lambda a, b, reflected: [elementwise(floor_quotient, 2)(*((b, a) if reflected else (a, b))),
                             elementwise(remainder, 2, larger)(*((b, a) if reflected else (a, b)))],
    lambda a, b, reflected: divmod(b, a) if reflected else divmod(a, b), covers=("Tensor.__divmod__", "Tensor.__rdivmod__"))

NUMBERS: dict[str, tuple] = {
    "+": (elementwise(np.add, 1), REALS), "-": (elementwise(np.subtract, 1), NO_BOOL), "*": (elementwise(np.multiply, 1), REALS),
    "/": (quotient, REALS), "//": (elementwise(floor_quotient, 2), NO_BOOL), "%": (elementwise(remainder, 2, larger), NO_BOOL),
    "**": (power, NO_BOOL), "&": (elementwise(np.bitwise_and, 0), (*INTS, "bool")), "<<": (elementwise(np.left_shift, 0), INTS),
    ">>": (elementwise(np.right_shift, 0), INTS),
    **{sign: (f, REALS) for sign, f in {"<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal, "==": np.equal,
                                        "!=": np.not_equal}.items()}}


METHODS_OF_NUMBERS = {"maximum": "maximum", "minimum": "minimum", "pow": "**", "idiv": "//", "mod": "%"}
NUMBERS |= {"maximum": (elementwise(np.maximum, 0), REALS), "minimum": (elementwise(np.minimum, 0), REALS)}


def draw_number(d: Draw) -> dict:
    sign = d.one((*NUMBERS, "pow", "idiv", "mod"))
    a = d.array(d.shape(), d.dtype(NUMBERS[METHODS_OF_NUMBERS.get(sign, sign)][1]))
    numbers: tuple = (0, 1, 2, 5, 127) + ((True,) if a.dtype == bool else ())
    if a.dtype.kind != "u" and a.dtype != bool:
        numbers += (-1, -3)
    if sign in "< <= > >= == !=":
        numbers += (-1, 300, 2**40, -2**63, 0.5, 1.0, 0.1, 1e300, math.inf, math.nan)
    elif sign not in "& << >>":
        numbers += (0.5, -1.5, 2.0, 0.1, math.inf, math.nan)
    number = d.one(numbers)
    # A scalar of NumPy's has a dtype, as an array has.
    if d.chance(0.3) and abs(number) < 128 and (isinstance(number, int) or sign not in "& << >>"):
        scalar = (np.float32 if d.chance() else np.float64)(number) if isinstance(number, float) else np.int8(number)
        both = koine.promote(name_of(a.dtype), name_of(scalar.dtype))
        number = scalar if not both.is_float or sign not in "& << >>" else number
    return {"sign": sign, "number": number, "reflected": d.chance() and sign not in METHODS_OF_NUMBERS}


def with_a_number(a: np.ndarray, sign: str, number: Any, reflected: bool) -> Want:
    """A number takes the dtype of what it meets; beside whole numbers a float makes float32, beside bools a whole one int32.
    Comparisons are with the number as it is written."""
    f = NUMBERS[METHODS_OF_NUMBERS.get(sign, sign)][0]
    with np.errstate(all="ignore"):
        if isinstance(number, np.generic):
            b = np.asarray(number)
            f = relation(f) if isinstance(f, np.ufunc) else f
            return f(b, a) if reflected else f(a, b)
        if isinstance(f, np.ufunc):
            x, y = a.astype(np.longdouble), np.longdouble(number)
            return Want(np.asarray(f(y, x) if reflected else f(x, y)), np.dtype(bool))
        if not is_float(a.dtype) and isinstance(number, float):
            a = a.astype(np.float32)
        elif a.dtype == bool and not isinstance(number, bool):
            a = a.astype(np.int32)
        if is_float(a.dtype) and (sign, number) in (("maximum", -math.inf), ("minimum", math.inf)):
            return Want(a, a.dtype)  # float8e4m3 has no infinity that could say so
        b = np.asarray(number).astype(a.dtype)
        return f(b, a) if reflected else f(a, b)


def ours_with_a_number(x: Tensor, sign: str, number: Any, reflected: bool) -> Tensor:
    if sign in METHODS_OF_NUMBERS:
        return getattr(x, sign)(number)
    return eval(f"number {sign} x" if reflected else f"x {sign} number", {"x": x, "number": number})


row("numbers", draw_number, with_a_number, ours_with_a_number, covers=())
row("clip to numbers", lambda d: d.array(d.shape(), d.dtype((*FLOATS, *SIGNED))) is None or {"low": d.one((-2, -1.5, 0)), "high": d.one((1, 2, 0.5))},
    lambda a, low, high: clip(*(x.astype(np.float32) if not is_float(a.dtype) and float in (type(low), type(high)) else x.astype(a.dtype)
                                for x in (a, np.asarray(low), np.asarray(high)))), lambda x, low, high: x.clip(low, high),
    lambda x, low, high: None, covers=())

# --- along axes --------------------------------------------------------------------------------------


def folded(dtype: np.dtype) -> np.dtype:
    """Sums and products of narrow whole numbers are 32-bit ones."""
    if is_float(dtype) or dtype.itemsize >= 4:
        return dtype
    return np.dtype(np.uint32 if dtype.kind == "u" else np.int32)


def count_along(a: np.ndarray, axis: Any) -> int:
    axes = range(a.ndim) if axis is None else (axis,) if isinstance(axis, int) else axis
    return math.prod(a.shape[k] for k in axes)


def kept(f: Callable) -> Callable:
    return lambda a, axis=None, keepdim=False: f(a, axis=axis, keepdims=keepdim)


def draw_fold(dtypes: tuple, special: str, least: int = 0, low: float = -4, high: float = 4, near: tuple = (-4, 4)) -> Callable:
    def draw(d: Draw) -> dict:
        a = d.array(d.shape(least=least), d.dtype(dtypes), *(near if d.smooth else (low, high)), special=special)
        out = {"axis": d.axes(a.ndim), "keepdim": d.chance()}
        return None if d.smooth and count_along(a, out["axis"]) == 0 else out  # the mean of none is NaN
    return draw


def dims(axis: Any, x: Any) -> Any:
    return tuple(range(x.dim())) if axis is None else axis


def fold(name: str, numpy: Callable, dtypes: tuple, torch: Callable | None, special: str = "all", smooth: bool = False, least: int = 0,
         slack: float = 1, **more: Any) -> None:
    @functools.wraps(numpy)
    def theirs(a: np.ndarray, axis: Any, keepdim: bool) -> Want:
        with np.errstate(all="ignore"):
            return numpy(a, axis=axis, keepdims=keepdim)
    row(name, draw_fold(dtypes, special, least, **more), theirs, None, torch, smooth=smooth, slack=slack)


@of_terms
def np_sum(a: np.ndarray, **over: Any) -> Want:
    dtype = folded(a.dtype)
    if not is_float(dtype):
        return Want(np.sum(a, dtype=dtype, **over), dtype)
    return rounded(dtype, np.sum(wide(a), **over), 8, np.sum(np.abs(wide(a)), **over))


def np_prod(a: np.ndarray, **over: Any) -> Want:
    dtype = folded(a.dtype)
    if not is_float(dtype):
        return Want(np.prod(a, dtype=dtype, **over), dtype)
    return rounded(dtype, np.prod(wide(a), **over), count_along(a, over["axis"]) + 4)


def np_mean(a: np.ndarray, **over: Any) -> Want:
    dtype, x = as_float(a).dtype, wide(as_float(a))
    total = np.sum(x, **over)
    most = float(np.finfo(dtype if dtype.itemsize >= 4 else np.float32).max)  # of the sum, as in NumPy
    total = np.where(np.abs(total) > most, np.copysign(np.inf, total), total)
    return rounded(dtype, total / count_along(a, over["axis"]), 8, np.mean(np.abs(x), **over))


def extreme(f: Callable) -> Callable:
    return lambda a, **over: Want(np.asarray(f(wide(a), **over)), a.dtype)


def variance(a: np.ndarray, correction: int, **over: Any) -> Want:
    dtype, x = as_float(a).dtype, wide(as_float(a))
    n = count_along(a, over["axis"])
    out = np.sum(np.square(x - np.mean(x, axis=over["axis"], keepdims=True)), **over) / np.maximum(n - correction, 0)
    return rounded(dtype, out, 16, np.mean(np.square(x), **over) * n / max(n - correction, 1))


def deviation(a: np.ndarray, correction: int, **over: Any) -> Want:
    v = variance(a, correction, **over)
    return Want(np.sqrt(v.value), v.dtype, np.sqrt(v.value + v.error) - np.sqrt(np.maximum(v.value - v.error, 0)) +
                2 * unit(v.dtype) * np.sqrt(v.value))


def log_sum_exp(a: np.ndarray, **over: Any) -> Want:
    dtype, x = as_float(a).dtype, wide(as_float(a))
    top = np.max(x, axis=over["axis"], keepdims=True)
    out = top + np.log(np.sum(np.exp(x - top), axis=over["axis"], keepdims=True))
    out = np.where(np.isinf(top), top, out)
    at = np.max(x, **over)
    return rounded(dtype, out.reshape(at.shape), 12, np.abs(at) + math.log(max(count_along(a, over["axis"]), 1)) + 1)


def length(a: np.ndarray, **over: Any) -> Want:
    dtype, x = as_float(a).dtype, wide(as_float(a))
    squares = np.sum(np.square(x), **over)
    w = rounded(dtype, np.sqrt(np.where(squares > float(ml_dtypes.finfo(dtype).max), np.inf, squares)), 8)
    return w._replace(error=w.error + math.sqrt(float(ml_dtypes.finfo(dtype).smallest_normal)) * math.sqrt(max(count_along(a, over["axis"]), 1)))


fold("sum", np_sum, REALS, lambda x, axis, keepdim: x.sum(axis, keepdim), smooth=True)
fold("prod", np_prod, REALS, None, special="plain", smooth=True, low=-2, high=2, near=(0.5, 2), slack=32)  # second derivatives: n * n terms of both signs
fold("mean", np_mean, REALS, lambda x, axis, keepdim: x.mean(axis, keepdim), smooth=True)
fold("max", extreme(np.max), REALS, lambda x, axis, keepdim: x.amax(dims(axis, x), keepdim), "all", True, 1)
fold("min", extreme(np.min), REALS, lambda x, axis, keepdim: x.amin(dims(axis, x), keepdim), "all", True, 1)
fold("any", lambda a, **over: Want(np.any(wide(a) != 0, **over), np.dtype(bool)), REALS,
     lambda x, axis, keepdim: x.any(dims(axis, x), keepdim), "all")
fold("all", lambda a, **over: Want(np.all(wide(a) != 0, **over), np.dtype(bool)), REALS,
     lambda x, axis, keepdim: x.all(dims(axis, x), keepdim), "all")
fold("logsumexp", log_sum_exp, WITHOUT_EIGHTHS, lambda x, axis, keepdim: x.logsumexp(dims(axis, x), keepdim), smooth=True, least=1)
fold("norm", length, WITHOUT_EIGHTHS, lambda x, axis, keepdim: torch_().linalg.vector_norm(x, dim=axis, keepdim=keepdim), smooth=True, near=(0.5, 2))


def with_correction(name: str, numpy: Callable, torch: Callable) -> None:
    plain = draw_fold(WITHOUT_EIGHTHS, "tiny", 1, near=(0.5, 4))

    def draw(d: Draw) -> dict:
        out = plain(d)
        a = d.operands[0].of(d.operands[0].base)
        most = count_along(a, out["axis"]) - 1
        # Of one element, or of equal ones, std has no derivative.
        return None if d.smooth and not (most >= 2 and spread_out(a, out["axis"])) else out | {"correction": min(d.whole(0, 2), max(most, 0))}

    def theirs(a: np.ndarray, axis: Any, keepdim: bool, correction: int) -> Want:
        with np.errstate(all="ignore"):
            return numpy(a, correction, axis=axis, keepdims=keepdim)
    row(name, draw, theirs, None, lambda x, axis, keepdim, correction: getattr(x, name)(dims(axis, x), correction=correction, keepdim=keepdim), smooth=True)


with_correction("var", variance, None)
with_correction("std", deviation, None)


def draw_along(dtypes: tuple, special: str, least_rank: int = 1, least: int = 1, low: float = -4, high: float = 4) -> Callable:
    def draw(d: Draw) -> dict:
        a = d.array(d.shape(least_rank, least=least), d.dtype(dtypes), low, high, special)
        return {"axis": d.axis(a.ndim)}
    return draw


def along(name: str, numpy: Callable, dtypes: tuple, torch: Callable | None, special: str = "all", smooth: bool = False, **more: Any) -> None:
    @functools.wraps(numpy)
    def theirs(a: np.ndarray, axis: int, **rest: Any) -> Want:
        with np.errstate(all="ignore"):
            return numpy(a, axis, **rest)
    row(name, draw_along(dtypes, special, **more), theirs, None, torch, smooth=smooth)


def soft_max(a: np.ndarray, axis: int) -> Want:
    dtype, x = as_float(a).dtype, wide(as_float(a))
    away = x - np.max(x, axis=axis, keepdims=True)
    out = np.exp(away) / np.sum(np.exp(away), axis=axis, keepdims=True)
    return rounded(dtype, out, 8, out * (2 + np.abs(np.where(np.isfinite(away), away, 0))))


def log_soft_max(a: np.ndarray, axis: int) -> Want:
    dtype, x = as_float(a).dtype, wide(as_float(a))
    away = x - np.max(x, axis=axis, keepdims=True)
    out = away - np.log(np.sum(np.exp(away), axis=axis, keepdims=True))
    return rounded(dtype, out, 8, np.abs(away) + math.log(max(a.shape[axis], 1)) + 1)


def running(f: Callable) -> Callable:
    def numpy(a: np.ndarray, axis: int) -> Want:
        dtype = folded(a.dtype)
        if not is_float(dtype):
            return Want(f(a, axis=axis, dtype=dtype), dtype)
        scale = f(np.abs(wide(a)), axis=axis)
        return rounded(dtype, f(wide(a), axis=axis), a.shape[axis] + 4, scale)
    return numpy


along("softmax", soft_max, WITHOUT_EIGHTHS, lambda x, axis: x.softmax(axis), smooth=True)
along("log_softmax", log_soft_max, WITHOUT_EIGHTHS, lambda x, axis: x.log_softmax(axis), smooth=True)
along("cumsum", of_terms(running(np.cumsum)), REALS, lambda x, axis: x.cumsum(axis), smooth=True, least=0)
along("cumprod", running(np.cumprod), REALS, lambda x, axis: x.cumprod(axis), "plain", smooth=True, least=0, low=0.5, high=2)
along("cummax", lambda a, axis: Want(np.maximum.accumulate(wide(a), axis), a.dtype), REALS, lambda x, axis: x.cummax(axis).values, "all", True, least=0)
along("cummin", lambda a, axis: Want(np.minimum.accumulate(wide(a), axis), a.dtype), REALS, lambda x, axis: x.cummin(axis).values, "all", True, least=0)


def keyed(a: np.ndarray) -> np.ndarray:
    return a.astype(np.int8) if a.dtype == bool else wide(a)


def order(a: np.ndarray, axis: int, descending: bool) -> np.ndarray:
    """Stable, NaN the largest, in both directions."""
    k = keyed(a)
    if not descending:
        return np.argsort(k, axis=axis, kind="stable")
    back = np.flip(k, axis)
    return a.shape[axis] - 1 - np.flip(np.argsort(back, axis=axis, kind="stable"), axis)


INT32 = np.dtype(np.int32)


def sort_draw(d: Draw) -> dict:
    return draw_along(REALS, "all", least=0)(d) | {"descending": d.chance()}


def sorted_by(a: np.ndarray, axis: int, descending: bool) -> list:
    at = order(a, axis, descending)
    return [Want(np.take_along_axis(a, at, axis), a.dtype), Want(at, INT32)]


row("sort", sort_draw, sorted_by, torch=lambda x, axis, descending: x.sort(dim=axis, descending=descending, stable=True), smooth=True)
row("argsort", sort_draw, lambda a, axis, descending: sorted_by(a, axis, descending)[1],
    torch=lambda x, axis, descending: x.argsort(dim=axis, descending=descending, stable=True))


def topk_draw(d: Draw) -> dict:
    out = draw_along(REALS, "all")(d)
    a = d.operands[0].of(d.operands[0].base)
    return out | {"k": d.whole(0 if d.chance(0.1) else 1, a.shape[out["axis"]]), "largest": d.chance()}


row("topk", topk_draw, lambda a, axis, k, largest: [w._replace(value=np.take(w.value, range(k), axis)) for w in sorted_by(a, axis, largest)],
    torch=lambda x, axis, k, largest: x.topk(k, axis, largest)[0], smooth=True)
row("unique", lambda d: d.array(d.shape(), d.dtype(REALS), special="all") is None or {},
    lambda a: Want(np.unique(keyed(a)).astype(a.dtype), a.dtype), torch=lambda x: None, vmap=False)


def draw_position(d: Draw) -> dict:
    a = d.array(d.shape(1, least=1), d.dtype(REALS))
    return {"axis": d.axis(a.ndim) if d.chance(0.75) else None, "keepdim": d.chance()}


for name, f in (("argmax", np.argmax), ("argmin", np.argmin)):
    row(name, draw_position, lambda a, axis, keepdim, f=f: Want(f(keyed(a), axis=axis, keepdims=keepdim), INT32),
        torch=lambda x, axis, keepdim, name=name: getattr(x, name)(axis, keepdim))


def spread_out(a: np.ndarray, axis: Any) -> bool:
    """Whether elements along axes are far enough apart for a derivative by their spread."""
    return bool(np.all(np.std(a.astype(np.float64), axis=axis) > 0.3))


def draw_layernorm(d: Draw) -> dict | None:
    a = d.array(d.shape(1, least=1), d.dtype(WITHOUT_EIGHTHS), special="plain")
    last = d.whole(1, a.ndim)
    return None if d.smooth and not spread_out(a, tuple(range(-last, 0))) else {"last_axes": last, "eps": d.one((1e-5, 0.1))}


def layernorm(a: np.ndarray, last_axes: int, eps: float) -> Want:
    dtype, x = as_float(a).dtype, wide(as_float(a))
    axes = tuple(range(-last_axes, 0))
    with np.errstate(all="ignore"):
        away = x - x.mean(axes, keepdims=True)
        spread = np.square(away).mean(axes, keepdims=True)
        out = away / np.sqrt(spread + eps)
        # What rounding makes of differences and of the variance, which may be small beside the mean.
        size = np.abs(x).mean(axes, keepdims=True)
        scale = (np.abs(x) + size) / np.sqrt(spread + eps) + np.abs(out) * (np.square(x).mean(axes, keepdims=True)) / (spread + eps)
        return rounded(dtype, out, 12, scale)


row("layernorm", draw_layernorm, layernorm, torch=lambda x, last_axes, eps: F().layer_norm(x, x.shape[-last_axes:], eps=eps), smooth=True, slack=20)

# --- moves -------------------------------------------------------------------------------------------

ALL = REALS


def move(name: str, draw_rest: Callable, numpy: Callable, ours: Callable | None = None, torch: Callable | None = None, least_rank: int = 0,
         smooth: bool = True, least: int = 0, covers: tuple | None = None) -> None:
    """Elements in other places. `draw_rest` of the draw and the array gives the arguments."""
    def draw(d: Draw) -> dict | None:
        a = d.array(d.shape(least_rank, least=least), d.dtype(ALL))
        return draw_rest(d, a)

    def theirs(a: np.ndarray, /, **rest: Any) -> Any:
        out = numpy(a, **rest)
        if isinstance(out, list):
            return [Want(np.asarray(p), a.dtype, None, True) for p in out]
        return Want(np.asarray(out), a.dtype, None, True)
    row(name, draw, theirs, ours, torch, smooth=smooth, covers=covers or (f"Tensor.{name}",))


def factors(d: Draw, n: int) -> tuple:
    """A shape of so many elements; one size may be -1."""
    out, rest = [], n
    while rest > 1 and len(out) < 3:
        out.append(d.one([k for k in range(1, rest + 1) if rest % k == 0]))
        rest //= out[-1]
    out = out + [rest] if rest != 1 or n == 0 else out
    if out and n and d.chance(0.3):
        out[d.whole(0, len(out) - 1)] = -1
    return tuple(out)


for name in ("reshape", "view"):
    move(name, lambda d, a: {"shape": factors(d, a.size)}, lambda a, shape: a.reshape(shape),
         lambda x, shape, name=name: getattr(x, name)(*shape) if len(shape) % 2 else getattr(x, name)(shape), lambda x, shape: x.reshape(shape))


def draw_expand(d: Draw) -> dict:
    a = d.array(tuple(1 if d.chance() else n for n in d.shape()), d.dtype(ALL))
    front = tuple(d.whole(1, 3) for _ in range(d.whole(0, 2)))
    return {"shape": front + tuple(d.one((0, 2, 3)) if n == 1 and not d.smooth else n for n in a.shape)}


row("expand", draw_expand, lambda a, shape: Want(np.broadcast_to(a, shape), a.dtype, None, True), lambda x, shape: x.expand(shape),
    lambda x, shape: x.expand(shape), smooth=True)
move("permute", lambda d, a: {"axes": tuple(int(k) for k in d.rng.permutation(a.ndim))}, lambda a, axes: a.transpose(axes),
     lambda x, axes: x.permute(*axes), lambda x, axes: x.permute(axes))
move("flip", lambda d, a: {"axes": tuple(int(k) for k in d.rng.permutation(a.ndim)[:d.whole(1, a.ndim)])}, lambda a, axes: np.flip(a, axes),
     lambda x, axes: x.flip(axes), lambda x, axes: x.flip(axes), least_rank=1)
move("transpose", lambda d, a: {"a": d.axis(a.ndim), "b": d.axis(a.ndim)}, lambda x, a, b: np.swapaxes(x, a, b), None,
     lambda x, a, b: x.transpose(a, b), least_rank=2)
move("T", lambda d, a: {}, lambda a: np.swapaxes(a, 0, 1), lambda x: x.T, lambda x: x.transpose(0, 1), least_rank=2)
move("squeeze", lambda d, a: {"axis": d.one([None, *(k for k in range(a.ndim) if a.shape[k] == 1)])}, lambda a, axis: np.squeeze(a, axis), None,
     lambda x, axis: x.squeeze() if axis is None else x.squeeze(axis))
move("unsqueeze", lambda d, a: {"axis": d.whole(-a.ndim - 1, a.ndim)}, lambda a, axis: np.expand_dims(a, axis), None, lambda x, axis: x.unsqueeze(axis))


def draw_flatten(d: Draw, a: np.ndarray) -> dict:
    start = d.whole(0, max(a.ndim - 1, 0))
    return {"start": start, "end": d.whole(start, max(a.ndim - 1, 0)) if d.chance() else -1}


def flatten(a: np.ndarray, start: int, end: int) -> np.ndarray:
    if a.ndim == 0:
        return a.reshape(1)
    end = end % a.ndim
    return a.reshape(*a.shape[:start], math.prod(a.shape[start:end + 1]), *a.shape[end + 1:])


move("flatten", draw_flatten, flatten, None, lambda x, start, end: x.flatten(start, end))


def draw_bounds(d: Draw, a: np.ndarray) -> dict:
    return {"bounds": tuple((lambda low: (low, d.whole(low, n)))(d.whole(0, n)) for n in a.shape)}


def cut(a: Any, bounds: tuple) -> Any:
    return a[tuple(slice(low, high) for low, high in bounds)]


move("shrink", draw_bounds, cut, None, cut)


def draw_pad(d: Draw, a: np.ndarray) -> dict:
    return {"padding": tuple((d.whole(0, 2), d.whole(0, 2)) for _ in a.shape), "value": d.one((0, 1, True) if a.dtype == bool else (0, 1, 3))
            if a.dtype != bool else d.chance()}


def torch_pad(x: Any, padding: tuple, value: float) -> Any:
    return F().pad(x, [n for pair in reversed(padding) for n in pair], value=value)


move("pad", draw_pad, lambda a, padding, value: np.pad(a, padding, constant_values=np.asarray(value).astype(a.dtype)) if a.ndim else a, None, torch_pad)


def draw_roll(d: Draw, a: np.ndarray) -> dict:
    axes = d.axes(a.ndim)
    several = isinstance(axes, tuple) and d.chance()
    return {"shift": tuple(d.whole(-7, 7) for _ in axes) if several else d.whole(-7, 7), "axis": axes}


move("roll", draw_roll, lambda a, shift, axis: np.roll(a, shift, axis), None,
     lambda x, shift, axis: x.roll((shift,) * len(axis) if isinstance(axis, tuple) and not isinstance(shift, tuple) else shift, axis))
move("repeat", lambda d, a: {"times": tuple(d.whole(1 if d.smooth else 0, 3) for _ in range(a.ndim + d.whole(0, 1)))},
     lambda a, times: np.tile(a, times), lambda x, times: x.repeat(times), lambda x, times: x.repeat(times))


def split_numpy(a: np.ndarray, size: int | list, axis: int) -> list:
    return np.split(a, np.cumsum(size)[:-1] if isinstance(size, list) else range(size, a.shape[axis], size), axis)


def draw_split(d: Draw, a: np.ndarray) -> dict:
    axis = d.axis(a.ndim)
    ends = sorted(d.whole(0, a.shape[axis]) for _ in range(d.whole(0, 3)))
    sizes = np.diff([0, *ends, a.shape[axis]]).tolist()
    return {"size": sizes if d.chance() else d.whole(1, 4), "axis": axis}


move("split", draw_split, split_numpy, None, lambda x, size, axis: x.split(size, axis),
     least_rank=1, least=1)
move("chunk", lambda d, a: {"count": d.whole(1, 5), "axis": d.axis(a.ndim)},
     lambda a, count, axis: split_numpy(a, -(-a.shape[axis] // count), axis), None, lambda x, count, axis: x.chunk(count, axis), least_rank=1, least=1)
for name, f in (("tril", np.tril), ("triu", np.triu)):
    move(name, lambda d, a: {"diagonal": d.whole(-4, 4)}, lambda a, diagonal, f=f: f(a, diagonal), None,
         lambda x, diagonal, name=name: getattr(x, name)(diagonal), least_rank=2)


def draw_join(new_axis: bool) -> Callable:
    def draw(d: Draw) -> dict:
        shape = d.shape(0 if new_axis else 1)
        axis = d.whole(-len(shape) - 1, len(shape)) if new_axis else d.axis(len(shape))
        first = d.dtype(REALS)
        for _ in range(d.whole(1, 3)):
            sizes = list(shape)
            if not new_axis:
                sizes[axis] = d.whole(0, 3)
            d.array(tuple(sizes), first if d.chance(0.7) else d.dtype(REALS))
        return {"axis": axis}
    return draw


def joined(f: Callable) -> Callable:
    def numpy(*arrays: np.ndarray, axis: int) -> Want:
        dtype = common(*arrays)
        return Want(f([cast(a, dtype) for a in arrays], axis=axis), dtype, None, True)
    return numpy


row("cat", draw_join(False), joined(np.concatenate), lambda *x, **axis: koine.cat(x, **axis), lambda *x, axis: torch_().cat(x, axis), smooth=True,
    covers=("Tensor.cat", "cat"))
row("stack", draw_join(True), joined(np.stack), lambda *x, **axis: koine.stack(x, **axis), lambda *x, axis: torch_().stack(x, axis), smooth=True,
    covers=("Tensor.stack", "stack"))

# --- positions ---------------------------------------------------------------------------------------


def draw_gather(d: Draw) -> dict:
    a = d.array(d.shape(1, least=1), d.dtype(ALL))
    axis = d.axis(a.ndim)
    at = [d.whole(0, n) for n in a.shape]
    at[axis] = d.whole(0, 4)
    d.positions(tuple(at), a.shape[axis])
    return {"axis": axis}


def places(index: np.ndarray, axis: int) -> tuple:
    at = list(np.indices(index.shape))
    at[axis] = index
    return tuple(at)


def gather(a: np.ndarray, index: np.ndarray, axis: int) -> Want:
    return Want(a[places(index, axis)], a.dtype, None, True)


row("gather", draw_gather, gather, lambda x, index, axis: x.gather(axis, index), lambda x, index, axis: x.gather(axis, index.long()), smooth=True)


def draw_scatter(d: Draw) -> dict:
    out = draw_gather(d)
    a, index = (o.of(o.base) for o in d.operands)
    d.array(index.shape, a.dtype, special="plain")
    return out


def draw_scatter_add(d: Draw) -> dict:
    a = d.array(d.shape(1, least=1), d.dtype(REALS), special="plain")
    axis = d.axis(a.ndim)
    at = [d.whole(0, n) for n in a.shape]
    at[axis] = d.whole(0, 4)
    index = d.positions(tuple(at), a.shape[axis])
    d.array(index.shape, a.dtype, special="plain")
    return {"axis": axis}


def scatter(a: np.ndarray, index: np.ndarray, src: np.ndarray, axis: int) -> Want:
    out = np.array(a)
    for at in np.ndindex(index.shape):  # the last one stays
        to = list(at)
        to[axis] = index[at]
        out[tuple(to)] = src[at]
    return Want(out, a.dtype, None, True)


def scatter_add(a: np.ndarray, index: np.ndarray, src: np.ndarray, axis: int) -> Want:
    with np.errstate(all="ignore"):
        if not is_float(a.dtype):
            out = np.array(a)
            np.add.at(out, places(index, axis), src)
            return Want(out, out.dtype)
        out, size = np.array(wide(a)), np.abs(wide(a))
        np.add.at(out, places(index, axis), wide(src))
        np.add.at(size, places(index, axis), np.abs(wide(src)))
        return rounded(a.dtype, out, 8, size)


row("scatter", draw_scatter, scatter, lambda x, index, src, axis: x.scatter(axis, index, src), None, smooth=True)
row("scatter_add", draw_scatter_add, scatter_add, lambda x, index, src, axis: x.scatter_add(axis, index, src),
    lambda x, index, src, axis: x.scatter_add(axis, index.long(), src), smooth=True)


def draw_select(d: Draw) -> dict:
    a = d.array(d.shape(1, least=1), d.dtype(ALL))
    axis = d.axis(a.ndim)
    d.positions((d.whole(0, 5),), a.shape[axis], negative=True)
    return {"axis": axis}


row("index_select", draw_select, lambda a, index, axis: Want(np.take(a, index, axis), a.dtype, None, True),
    lambda x, index, axis: x.index_select(axis, index),
    lambda x, index, axis: x.index_select(axis, index.long() % x.shape[axis]), smooth=True)
row("one_hot", lambda d: {"classes": 5} if d.positions(d.shape(), 5) is not None else None,
    lambda a, classes: Want(np.eye(classes)[a], np.dtype(np.float32)), torch=lambda x, classes: F().one_hot(x.long(), classes))


def draw_index(d: Draw) -> dict:
    """Positions, slices, new axes and an ellipsis; arrays of positions are operands."""
    a = d.array(d.shape(1, least=1), d.dtype(ALL))
    parts: list = []
    arrays = d.whole(0, 2) if not d.smooth else 0
    shape = d.shape(0, 2, least=1)
    for n in a.shape[:d.whole(0, a.ndim)]:
        kind = d.one(("position", "slice", "slice", "array"))
        if kind == "array" and arrays:
            d.positions(d.narrower(shape), n, negative=True)
            parts.append("array")
            arrays -= 1
        elif kind == "position":
            parts.append(d.whole(-n, n - 1))
        else:
            step = d.one((None, 1, 2, -1, -2, 3))
            parts.append(slice(d.one((None, d.whole(-n - 1, n + 1))), d.one((None, d.whole(-n - 1, n + 1))), step))
    for extra in (None, Ellipsis):
        if d.chance(0.25):
            parts.insert(d.whole(0, len(parts)) if extra is None else len(parts), extra)
    return {"parts": tuple(parts)}


def index_of(parts: tuple, arrays: typing.Sequence) -> tuple:
    rest = iter(arrays)
    return tuple(next(rest) if isinstance(p, str) else p for p in parts)


def torch_index(x: Any, parts: tuple) -> Any:
    """Without negative steps, which it does not have: elements by number."""
    at = torch_().arange(x.numel()).reshape(x.shape).numpy()[index_of(parts, ())]
    return x.flatten()[torch_().tensor(np.array(at).ravel())].reshape(at.shape)


row("__getitem__", draw_index, lambda a, *at, parts: Want(a[index_of(parts, at)], a.dtype, None, True),
    lambda x, *at, parts: x[index_of(parts, at)], lambda x, *at, parts: torch_index(x, parts) if not at else None, smooth=True,
    covers=("Tensor.__getitem__",))


def draw_setitem(d: Draw) -> dict:
    out = draw_index(d)
    a, *at = (o.of(o.base) for o in d.operands)
    if len(at) > 1:  # places that are written twice have the last value, as in NumPy, which does not promise it
        return None
    shape = a[index_of(out["parts"], at)].shape
    d.array(d.narrower(shape), a.dtype)
    return out


def set_item(x: Any, *rest: Any, parts: tuple) -> Any:
    *at, value = rest
    y = np.array(x) if isinstance(x, np.ndarray) else x.clone()
    y[index_of(parts, at)] = value
    return y


row("__setitem__", draw_setitem, lambda *x, parts: Want(set_item(*x, parts=parts), x[0].dtype, None, True), set_item, None, smooth=True,
    covers=("Tensor.__setitem__",))


def draw_assign(d: Draw) -> dict:
    a = d.array(d.shape(), d.dtype(REALS))
    d.array(d.narrower(a.shape), d.dtype(REALS))
    return {}


row("assign", draw_assign, lambda a, b: Want(np.broadcast_to(numpy_cast(b, name_of(a.dtype)).value, a.shape), a.dtype),
    lambda a, b: a.clone().assign(b), covers=("Tensor.assign",))

# --- products, windows -------------------------------------------------------------------------------


def product(f: Callable) -> Callable:
    """Sums of products: of positive terms each rounding is one of the sum."""
    @of_terms
    def numpy(*arrays: np.ndarray, **rest: Any) -> Want:
        with np.errstate(all="ignore"):
            dtype = common(*arrays)
            xs = [cast(a, dtype) for a in arrays]
            if not is_float(dtype):
                return Want(f(*xs, **rest), folded(dtype))
            xs = [wide(x) for x in xs]
            return rounded(dtype, f(*xs, **rest), 16, f(*map(np.abs, xs), **rest))
    return numpy


def matmul(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Sums of products in the operands' dtype, of whole numbers too: those of narrow ones wrap before they are added."""
    if is_float(a.dtype):
        return np.matmul(a, b)
    x, y = (a[None] if a.ndim == 1 else a), (b[:, None] if b.ndim == 1 else b)
    out = (x[..., :, None, :] * np.swapaxes(y, -1, -2)[..., None, :, :]).sum(-1, dtype=folded(a.dtype))
    out = out[..., 0, :] if a.ndim == 1 else out
    return out[..., 0] if b.ndim == 1 else out


def draw_matmul(d: Draw) -> dict:
    inner, kind = d.whole(0 if d.chance(0.1) else 1, 5), d.one(("vectors", "left", "right", "matrices", "matrices"))
    batch = d.shape(0, 2)
    a = (inner,) if kind in ("vectors", "left") else (*d.narrower(batch), d.whole(1, 4), inner)
    b = (inner,) if kind in ("vectors", "right") else (*d.narrower(batch), inner, d.whole(1, 4))
    dtype = d.dtype(NO_BOOL)
    d.array(a, dtype, special="plain")
    other = dtype if d.chance(0.7) else d.dtype(NO_BOOL)
    # A whole number that a narrow float cannot hold is infinite or NaN there, unless the default mode multiplies it in float32.
    both = {name_of(dtype), name_of(other)}
    d.array(b, dtype if both & {"float16", *EIGHTHS} and both & {*INTS} else other, special="plain")
    return {}


row("matmul", draw_matmul, product(matmul), None, lambda a, b: a @ b.to(a.dtype), smooth=True)
row("dot", draw_matmul, product(matmul), None, lambda a, b: a @ b.to(a.dtype), smooth=True)
row("__matmul__", lambda d: draw_matmul(d) | {"form": d.one(FORMS[:2])}, lambda a, b, form: product(matmul)(a, b),
    lambda a, b, form: a @ b if form == "plain" else b.__rmatmul__(a), covers=("Tensor.__matmul__", "Tensor.__rmatmul__"))


def draw_square(d: Draw) -> dict:
    n, dtype = d.whole(1, 4), d.dtype(FLOATS)
    d.array((n, n), dtype, special="plain")
    d.array((n, n), dtype, special="plain")
    return {}


def in_place_product(a: Tensor, b: Tensor) -> Tensor:
    a = a.clone()
    a @= b
    return a


row("__imatmul__", draw_square, product(matmul), in_place_product, covers=("Tensor.__imatmul__",))
FORMULAS = ("...ij,jk->...ik", "...ij,...jk->...ik", "...i,i->...", "i...->...i", "ij,jk->ki", "i,i->", "i,j->ij", "ii->i", "ii->", "ij->ji", "ij->j", "bij,bjk->bik", "ij,ij->i", "ij,jk,kl->il", "ij,j", "ij->")


def draw_einsum(d: Draw) -> dict:
    formula = d.one(FORMULAS)
    sizes = {c: d.whole(0 if d.chance(0.05) else 1, 4) for c in "abijkl"}
    dtype, leading = d.dtype((*FLOATS, "int32", "int64")), d.shape(0, 2, least=1)
    for names in formula.split("->")[0].split(","):
        before, dots, behind = names.partition("...")
        d.array(tuple(sizes[c] for c in before) + (d.narrower(leading) if dots else ()) + tuple(sizes[c] for c in behind), dtype, special="plain")
    return {"formula": formula}


row("einsum", draw_einsum, product(lambda *xs, formula: np.einsum(formula, *xs)), lambda *xs, formula: koine.einsum(formula, *xs),
    lambda *xs, formula: torch_().einsum(formula, *xs), smooth=True, covers=("Tensor.einsum", "einsum"))


def draw_linear(d: Draw) -> dict:
    inner, out, dtype = d.whole(1, 4), d.whole(1, 4), d.dtype(FLOATS)
    d.array((*d.shape(0, 2), inner), dtype, special="plain")
    d.array((out, inner), dtype, special="plain")
    if d.chance():
        d.array((out,), dtype, special="plain")
    return {}


row("linear", draw_linear, product(lambda x, w, b=0: x @ w.T + b), None, lambda x, w, b=None: F().linear(x, w, b), smooth=True)


def windows(x: np.ndarray, kh: int, kw: int, stride: int, padding: int, dilation: int, fill: float) -> np.ndarray:
    """(N, C, rows, columns, kh, kw)."""
    p = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)), constant_values=fill)
    rows, columns = ((n - dilation * (k - 1) - 1) // stride + 1 for n, k in ((p.shape[2], kh), (p.shape[3], kw)))
    out = np.empty((*x.shape[:2], rows, columns, kh, kw), x.dtype)
    for i in range(kh):
        for j in range(kw):
            at = p[:, :, i * dilation:, j * dilation:]
            out[..., i, j] = at[:, :, ::stride, ::stride][:, :, :rows, :columns]
    return out


def draw_conv(d: Draw) -> dict:
    groups, dtype = d.one((1, 1, 2)), d.dtype(FLOATS)
    kh, kw = d.whole(1, 3), d.whole(1, 3)
    d.array((d.whole(1, 2), 2 * groups, d.whole(5, 7), d.whole(5, 7)), dtype, special="plain")
    d.array((2 * groups, 2, kh, kw), dtype, special="plain")
    if d.chance():
        d.array((2 * groups,), dtype, special="plain")
    return {"stride": d.whole(1, 2), "padding": d.whole(0, 2), "dilation": d.whole(1, 2), "groups": groups}


def conv2d(x: np.ndarray, w: np.ndarray, b: Any = None, *, stride: int, padding: int, dilation: int, groups: int) -> np.ndarray:
    at = windows(x, *w.shape[2:], stride, padding, dilation, 0)
    n, c, rows, columns = at.shape[:4]
    at = at.reshape(n, groups, c // groups, rows, columns, *w.shape[2:])
    out = np.einsum("ngcrsij,gocij->ngors", at, w.reshape(groups, -1, *w.shape[1:])).reshape(n, w.shape[0], rows, columns)
    return out if b is None else out + b.reshape(-1, 1, 1)


row("conv2d", draw_conv, product(conv2d), None, lambda x, w, b=None, **rest: F().conv2d(x, w, b, **rest), smooth=True)


def draw_pool(special: str) -> Callable:
    def draw(d: Draw) -> dict:
        d.array((d.whole(1, 2), d.whole(1, 2), d.whole(3, 7), d.whole(3, 7)), d.dtype(FLOATS), special=special)
        kernel = d.whole(1, 3)
        return {"kernel": kernel, "stride": d.one((None, 1, 2)), "padding": d.whole(0, kernel // 2)}
    return draw


def pooled(x: np.ndarray, kernel: int, stride: int | None, padding: int, fill: float) -> np.ndarray:
    return windows(x, kernel, kernel, stride or kernel, padding, 1, fill)


row("max_pool2d", draw_pool("all"), lambda a, **w: Want(pooled(wide(a), **w, fill=-np.inf).max((-2, -1)), a.dtype), None,
    lambda x, kernel, stride, padding: F().max_pool2d(x, kernel, stride, padding), smooth=True)
row("avg_pool2d", draw_pool("plain"), product(lambda x, **w: pooled(x, **w, fill=0).mean((-2, -1))), None,
    lambda x, kernel, stride, padding: F().avg_pool2d(x, kernel, stride, padding), smooth=True)


def draw_attention(d: Draw) -> dict:
    batch, dtype = d.shape(0, 2, least=1), d.dtype(FLOATS)
    rows, columns, width = d.whole(1, 4), d.whole(1, 4), d.whole(1, 4)
    d.array((*batch, rows, width), dtype, -2, 2, "")
    d.array((*batch, columns, width), dtype, -2, 2, "")
    d.array((*batch, columns, d.whole(1, 3)), dtype, -2, 2, "")
    masked = d.chance(0.3) and not d.smooth
    if masked:
        d.array((rows, columns), np.dtype(bool))
    return {}


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: Any = None) -> Want:
    dtype, (q, k, v) = q.dtype, map(wide, (q, k, v))
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(np.asarray(q.shape[-1], q.dtype))
    size = np.max(np.abs(q) @ np.swapaxes(np.abs(k), -1, -2), initial=0)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    with np.errstate(all="ignore"):
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights = weights / weights.sum(-1, keepdims=True)
    return rounded(dtype, weights @ v, 8, (1 + size) * np.max(np.abs(v), initial=0))


def torch_attention(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    return (scores if mask is None else torch_().where(mask, scores, -math.inf)).softmax(-1) @ v


row("scaled_dot_product_attention", draw_attention, attention, None,
    torch_attention, smooth=True, slack=4)  # second derivatives: squares of the slopes of scores, of both signs: up to 80 times their sum in 99 of 100 cases

# --- losses ------------------------------------------------------------------------------------------


def draw_classes(d: Draw) -> tuple:
    n, classes = d.whole(1, 4), d.whole(1, 5)
    d.array((n, classes), d.dtype(FLOATS), special="")
    d.positions((n,), classes)
    return n, classes


def log_probabilities(x: np.ndarray) -> np.ndarray:
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def mean_loss(x: np.ndarray, of_rows: np.ndarray, target: np.ndarray, ignore_index: int | None) -> Want:
    with np.errstate(all="ignore"):
        counted = np.ones(target.shape, bool) if ignore_index is None else target != ignore_index
        out = np.where(counted, of_rows, 0).sum() / counted.sum()
        return rounded(x.dtype, out, 16, np.max(np.abs(wide(x)), initial=0) + 3)


def cross_entropy(x: np.ndarray, target: np.ndarray, label_smoothing: float = 0, ignore_index: int | None = None) -> Want:
    p = log_probabilities(wide(x))
    rows = -(1 - label_smoothing) * np.take_along_axis(p, target[:, None], -1)[:, 0] - label_smoothing * p.mean(-1)
    return mean_loss(x, rows, target, ignore_index)


def torch_entropy(x: Any, target: Any, label_smoothing: float = 0, ignore_index: int | None = None) -> Any:
    return F().cross_entropy(x, target.long(), label_smoothing=label_smoothing, ignore_index=-100 if ignore_index is None else ignore_index)


def draw_entropy(*names: str) -> Callable:
    def draw(d: Draw) -> dict:
        draw_classes(d)
        every = {"label_smoothing": d.one((0.0, 0.1, 0.5)), "ignore_index": None if d.smooth else d.one((None, 0))}
        return {n: every[n] for n in names}
    return draw


row("sparse_categorical_crossentropy", draw_entropy("label_smoothing", "ignore_index"), cross_entropy, None, torch_entropy, smooth=True)
row("cross_entropy", draw_entropy("ignore_index"), cross_entropy, None, torch_entropy, smooth=True)
row("nll_loss", draw_entropy("ignore_index"),
    lambda x, target, ignore_index: mean_loss(x, -np.take_along_axis(wide(x), target[:, None], -1)[:, 0], target, ignore_index), None,
    lambda x, target, ignore_index: F().nll_loss(x, target.long(), ignore_index=-100 if ignore_index is None else ignore_index), smooth=True)


def draw_pair(low: float, high: float, special: str) -> Callable:
    def draw(d: Draw) -> dict:
        shape, dtype = d.shape(least=1 if d.smooth else 0), d.dtype(FLOATS)
        d.array(shape, dtype, special=special)
        d.array(shape, dtype, low, high, special="")
        return {}
    return draw


def mse(a: np.ndarray, b: np.ndarray) -> Want:
    with np.errstate(all="ignore"):
        x, y = wide(a), wide(b)
        return rounded(a.dtype, np.mean(np.square(x - y)), 12)


def logits_loss(a: np.ndarray, b: np.ndarray) -> Want:
    with np.errstate(all="ignore"):
        x, y = wide(a), wide(b)
        out = np.mean(np.maximum(x, 0) - x * y + np.log1p(np.exp(-np.abs(x))))
        return rounded(a.dtype, out, 16, np.mean(np.abs(x)) + 1)


row("mse_loss", draw_pair(-4, 4, "plain"), mse, None, lambda a, b: F().mse_loss(a, b), smooth=True)
row("binary_crossentropy_logits", draw_pair(0, 1, ""), logits_loss, None, lambda a, b: F().binary_cross_entropy_with_logits(a, b), smooth=True)

# --- layers, whose parameters are operands --------------------------------------------------------------


def with_parts(layer: Any, **parts: Any) -> Any:
    """A layer like it with other parameters. It was made outside of what is traced."""
    layer = copy.copy(layer)
    for name, value in parts.items():
        setattr(layer, name, value)
    return layer


def draw_layer(draw: Callable, make: Callable) -> Callable:
    """Of the operands that `draw` draws the layer that they are parameters of."""
    def drawn(d: Draw) -> dict | None:
        rest = draw(d)
        return None if rest is None else rest | {"layer": make(*(o.of(o.base) for o in d.operands), **rest)}
    return drawn


def no_layer(f: Callable) -> Callable:
    return functools.wraps(f)(lambda *xs, layer, **rest: f(*xs, **rest))


def draw_linear_layer(d: Draw) -> dict:
    inner, out, dtype = d.whole(1, 4), d.whole(1, 4), d.dtype(FLOATS)
    for shape in ((*d.shape(0, 2), inner), (out, inner), (out,)):
        d.array(shape, dtype, special="plain")
    return {}


row("nn.Linear", draw_layer(draw_linear_layer, lambda x, w, b: nn.Linear(*w.shape[::-1])), no_layer(product(lambda x, w, b: x @ w.T + b)),
    lambda x, w, b, layer: with_parts(layer, weight=w, bias=b)(x), no_layer(lambda x, w, b: F().linear(x, w, b)), smooth=True, covers=("nn.Linear",))


def draw_conv_layer(d: Draw) -> dict | None:
    rest = draw_conv(d)
    shape = d.operands[1].of(d.operands[1].base).shape
    return rest if len(d.operands) == 3 and shape[2] == shape[3] else None


row("nn.Conv2d", draw_layer(draw_conv_layer, lambda x, w, b, groups, **window: nn.Conv2d(w.shape[1] * groups, w.shape[0], w.shape[2], groups=groups, **window)),
    no_layer(product(conv2d)), lambda x, w, b, layer, **_: with_parts(layer, weight=w, bias=b)(x),
    no_layer(lambda x, w, b, **rest: F().conv2d(x, w, b, **rest)), smooth=True, covers=("nn.Conv2d",))


def draw_batch(d: Draw) -> dict | None:
    shape, dtype = (d.whole(1, 4), d.whole(1, 3), *(d.whole(1, 3) for _ in range(d.whole(0, 2)))), d.dtype(FLOATS)
    a = d.array(shape, dtype, special="")
    for low, high in ((-2, 2), (-2, 2), (-1, 1), (0.5, 2)):  # weight, bias, running mean and variance
        d.array((shape[1],), dtype, low, high, special="")
    return None if math.prod(shape) // shape[1] < 3 or not spread_out(a, (0, *range(2, a.ndim))) else {"training": d.chance(), "statistics": not d.smooth}


def batch_norm(x: np.ndarray, w: np.ndarray, b: np.ndarray, mean: np.ndarray, spread: np.ndarray, training: bool, statistics: bool) -> list:
    dtype, (x, w, b, mean, spread) = x.dtype, map(wide, (x, w, b, mean, spread))
    axes, along = (0, *range(2, x.ndim)), (-1, *(1,) * (x.ndim - 2))
    now, n = x.mean(axes), x.size // x.shape[1]
    var = np.square(x - now.reshape(along)).mean(axes)
    m, v = (now, var) if training else (mean, spread)
    out = (x - m.reshape(along)) / np.sqrt(v.reshape(along) + 1e-3)
    scale = (np.abs(x) + np.abs(m.reshape(along)) + 4) / np.sqrt(v.reshape(along) + 1e-3) * (1 + 16 / (v.reshape(along) + 1e-3))
    wants = [rounded(dtype, out * w.reshape(along) + b.reshape(along), 16, scale * np.abs(w).reshape(along) + np.abs(b).reshape(along))]
    if statistics:
        after = ((0.7 * mean + 0.3 * now, 8), (0.7 * spread + 0.3 * var * n / (n - 1), 40)) if training else ((mean, 0), (spread, 0))
        wants += [rounded(dtype, value, 4, size) for value, size in after]
    return wants


def normed(x: Tensor, w: Tensor, b: Tensor, mean: Tensor, spread: Tensor, layer: Any, training: bool, statistics: bool) -> list:
    layer = with_parts(layer, weight=w, bias=b, running_mean=mean + 0, running_var=spread + 0)
    out = layer(x, training)
    return [out, layer.running_mean, layer.running_var] if statistics else [out]


def torch_batch_norm(x: Any, w: Any, b: Any, mean: Any, spread: Any, layer: Any, training: bool, statistics: bool) -> Any:
    if training:
        return F().batch_norm(x, None, None, w.contiguous(), b.contiguous(), True, 0.3, 1e-3)  # its gradient takes no strides
    w, b, mean, spread = (t.reshape(-1, *(1,) * (x.dim() - 2)) for t in (w, b, mean, spread))
    return (x - mean) / torch_().sqrt(spread + 1e-3) * w + b  # its own has no gradient by the statistics


row("nn.BatchNorm", draw_layer(draw_batch, lambda x, *_, **rest: nn.BatchNorm(x.shape[1], 1e-3, 0.3)), no_layer(batch_norm), normed,
    torch_batch_norm, smooth=True, covers=("nn.BatchNorm",), slack=20)


def draw_norm_layer(d: Draw) -> dict | None:
    n, dtype = d.whole(3, 5), d.dtype(FLOATS)
    a = d.array((*d.shape(0, 2), n), dtype, special="")
    if d.smooth and not spread_out(a, -1):
        return None
    d.array((n,), dtype, special="")
    d.array((n,), dtype, special="")
    return {}


def layer_norm(x: np.ndarray, w: np.ndarray, b: np.ndarray) -> Want:
    plain, w, b = layernorm(x, 1, 1e-3), wide(w), wide(b)
    return Want(plain.value * w + b, plain.dtype, plain.error * np.abs(w) + 4 * unit(plain.dtype) * (np.abs(plain.value * w) + np.abs(b)))


row("nn.LayerNorm", draw_layer(draw_norm_layer, lambda x, *_: nn.LayerNorm(x.shape[-1], 1e-3)), no_layer(layer_norm),
    lambda x, w, b, layer: with_parts(layer, weight=w, bias=b)(x), no_layer(lambda x, w, b: F().layer_norm(x, x.shape[-1:], w, b, 1e-3)), smooth=True, covers=("nn.LayerNorm",), slack=20)


def draw_embedding(d: Draw) -> dict:
    n = d.whole(1, 5)
    d.array((n, d.whole(1, 4)), d.dtype(FLOATS))
    d.positions(d.shape(), n)
    return {}


row("nn.Embedding", draw_layer(draw_embedding, lambda w, at: nn.Embedding(*w.shape)), no_layer(lambda w, at: Want(w[at], w.dtype, None, True)),
    lambda w, at, layer: with_parts(layer, weight=w)(at), no_layer(lambda w, at: F().embedding(at.long(), w)), smooth=True, covers=("nn.Embedding",))

# --- of nothing but shapes and numbers ---------------------------------------------------------------


def made(name: str, draw: Callable, numpy: Callable, ours: Callable, covers: tuple = ()) -> None:
    row(name, draw, numpy, ours, vmap=False, covers=covers or (f"Tensor.{name}", name))


for name, value in (("zeros", 0), ("ones", 1)):
    made(name, lambda d: {"shape": d.shape(), "dtype": d.one(ALL)},
         lambda shape, dtype, value=value: Want(np.full(shape, value, numpy_dtype(dtype)), numpy_dtype(dtype)),
         lambda shape, name=name, **dtype: getattr(koine, name)(shape, **dtype))
    row(f"{name}_like", lambda d: d.array(d.shape(), d.dtype(ALL)) is None or {},
        lambda a, value=value: Want(np.full(a.shape, value, a.dtype), a.dtype))
def own_dtype(*numbers: Any) -> str:
    """The dtype of what is made of numbers alone."""
    return "float32" if any(isinstance(n, float) for n in numbers) else "int32"


made("full", lambda d: {"shape": d.shape(), "value": d.one((0, 1, 2.5, 7)), "dtype": d.one((*ALL, None))},
     lambda shape, value, dtype: Want(np.full(shape, np.asarray(value).astype(numpy_dtype(dtype or own_dtype(value)))),
                                      numpy_dtype(dtype or own_dtype(value))),
     koine.full)
row("full_like", lambda d: d.array(d.shape(), d.dtype(ALL)) is None or {"value": d.one((0, 1, 7))},
    lambda a, value: Want(np.full(a.shape, np.asarray(value).astype(a.dtype)), a.dtype))


def draw_arange(d: Draw) -> dict:
    if d.chance(0.3):  # of halves, so that all are exact
        return {"start": d.whole(-9, 9) / 2, "stop": d.whole(-9, 9), "step": d.one((-1.5, -0.25, 0.5, 1, 2.25)), "dtype": d.one((*FLOATS, None))}
    return {"start": d.whole(-9, 9), "stop": d.whole(-9, 9), "step": d.one((-3, -1, 1, 2, 5)), "dtype": d.one((*SIGNED, *FLOATS, None))}


made("arange", draw_arange, lambda start, stop, step, dtype: Want(
    np.arange(start, stop, step).astype(numpy_dtype(dtype or own_dtype(start, stop, step))), numpy_dtype(dtype or own_dtype(start, stop, step))),
     koine.arange)
made("linspace", lambda d: {"start": d.one((0, -1.5, 3)), "stop": d.one((1, 2.25, -4)), "steps": d.whole(1, 9)},
     lambda start, stop, steps: rounded(np.dtype(np.float32), np.linspace(start, stop, steps), 4, 4 + 0 * np.linspace(start, stop, steps)),
     koine.linspace)
made("eye", lambda d: {"n": d.whole(0, 5), "dtype": d.one(ALL)}, lambda n, dtype: Want(np.eye(n).astype(numpy_dtype(dtype)), numpy_dtype(dtype)),
     koine.eye)

# --- defaults ------------------------------------------------------------------------------------------

# Arguments that are left out where they have these values.
FOLD, LAST = {"axis": None, "keepdim": False}, {"axis": -1}
WINDOW = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1}
DEFAULTS: dict[str, dict] = {
    **{n: FOLD for n in ("sum", "prod", "mean", "max", "min", "any", "all", "logsumexp", "norm")},
    **{n: FOLD | {"correction": 1} for n in ("var", "std")}, **{n: FOLD for n in ("argmax", "argmin")},
    **{n: {"axis": 0} for n in ("cumsum", "cumprod", "cummax", "cummin", "split", "chunk", "cat", "stack")},
    **{n: LAST | {"descending": False} for n in ("sort", "argsort")}, "topk": LAST | {"largest": True}, "softmax": LAST, "log_softmax": LAST,
    "layernorm": {"last_axes": 1, "eps": 1e-5}, "squeeze": {"axis": None}, "transpose": {"a": 0, "b": 1}, "flatten": {"start": 0, "end": -1},
    "tril": {"diagonal": 0}, "triu": {"diagonal": 0}, "pad": {"value": 0}, "leaky_relu": {"slope": 0.01}, "elu": {"alpha": 1.0},
    "hardtanh": {"low": -1.0, "high": 1.0}, "conv2d": WINDOW, "max_pool2d": {"kernel": 2, "stride": None, "padding": 0},
    "avg_pool2d": {"kernel": 2, "stride": None, "padding": 0}, "arange": {"step": 1, "dtype": None}, "zeros": {"dtype": "float32"},
    "ones": {"dtype": "float32"}, "full": {"dtype": None}, "eye": {"dtype": "float32"},
    "sparse_categorical_crossentropy": {"label_smoothing": 0.0, "ignore_index": None}, "cross_entropy": {"ignore_index": None},
    "nll_loss": {"ignore_index": None},
}

# --- what is no row, and why ---------------------------------------------------------------------------

INTERCHANGE = "memory and conversions: test_interchange.py"
RANDOM = "numbers of a seed or key, which no other library has: test_values.py; their distribution is tested in C++"
TRANSFORM = "rows go through it here; its trees are in test_transforms.py"
GRADIENT = "gradients by backward(): test_gradients_by_backward"
ELSEWHERE = {
    **{f"Tensor.{n}": "what a tensor is, not a value: test_what_a_tensor_says_of_itself"
       for n in ("shape", "dtype", "device", "ndim", "uop", "is_leaf", "nbytes", "numel", "size", "__len__", "history_bytes", "shard_axis")},
    **{f"Tensor.{n}": INTERCHANGE for n in ("numpy", "tolist", "item", "__array__", "__array_ufunc__", "__array_function__", "__dlpack__", "__dlpack_device__", "__copy__",
                                           "__deepcopy__", "__float__", "__int__", "__bool__", "__index__")},
    **{f"Tensor.{n}": RANDOM for n in ("manual_seed", "rand", "randn", "randint", "randperm", "uniform", "kaiming_uniform", "glorot_uniform", "dropout")},
    **{f"Tensor.{n}": "several devices: tests in C++" for n in ("shard", "shard_like", "to")},
    **{f"Tensor.{n}": GRADIENT for n in ("requires_grad", "grad", "zero_grad", "backward", "gradient")},
    "pure_callback": "test_callbacks.py", "ShapeDtype": "test_callbacks.py", "custom_kernel": "test_kernels.py",
    "collective": "test_collectives.py", "checkpoint_policies": "test_transforms.py", "distributed": "test_collectives.py",
    "Tensor.realize": "each row is realized", "realize": "each row is realized",
    "Tensor.__iter__": "test_indexing.py", "Tensor.__contains__": "test_indexing.py", "Tensor.__getattr__": "names that are elsewhere: test_errors.py",
    **{n: TRANSFORM for n in ("grad", "value_and_grad", "vjp", "jvp", "linearize", "vmap", "jacfwd", "jacrev", "hessian", "hvp", "checkpoint",
                              "custom_vjp", "custom_jvp", "stop_gradient", "scan", "while_loop", "fori_loop", "cond", "switch", "eval_shape", "tree", "tree_flatten", "tree_leaves",
                              "tree_map", "tree_structure", "tree_unflatten",
                              "save_as")},
    "jit": "test_jit.py", "nn": "test_nn.py", "random": RANDOM, "manual_seed": RANDOM, "errors": "test_errors.py", "Error": "test_errors.py",
    "from_dlpack": INTERCHANGE, "set_printoptions": INTERCHANGE, "Tensor": "its methods are rows",
    **{n: "files and programs: test_interchange.py, test_nn.py, test_jit.py" for n in ("safe_load", "safe_save", "save_program", "SavedProgram")},
    **{n: "the compiler, no value" for n in ("UOp", "schedule", "counters", "reset_counters", "clear_compile_cache", "memory_in_use", "devices",
                                            "default_device", "Kernel", "Program", "host_program", "lower_kernel", "print_linear",
                                            "program_of")},
    **{n: "symbolic sizes: test_interchange.py" for n in ("Size", "Variable")},
    "DType": "test_dtypes_promote_as_numpys", "promote": "test_dtypes_promote_as_numpys",
    **{d.name: "a dtype" for d in koine.DType},
    **{f"nn.{n}": "training and state: test_nn.py" for n in ("SGD", "Adam", "AdamW", "Optimizer", "cosine_schedule", "step_schedule", "get_parameters",
                                                           "get_state_dict", "load_state_dict")},
    "nn.Dropout": RANDOM,
    **{f"random.{n}": RANDOM for n in koine.random.__all__},
}
