"""NumPy's functions of tensors. What Koine has too is a value in a graph, as Koine's own is; of others the elementwise ones are refused in
words, and the rest is computed by NumPy of the tensor's elements, and gives arrays. NumPy is imported by whoever calls its functions."""
from __future__ import annotations

from typing import Any, Callable

from . import _koine
from ._koine import DType, Tensor
from .errors import TypeError


def _binary(name: str, reflected: str) -> Callable[[Any, Any], Any]:
    def of(a: Any, b: Any) -> Any:
        return getattr(a, name)(b) if isinstance(a, Tensor) else getattr(b, reflected)(a)

    return of


def _logical(name: str) -> Callable[[Any, Any], Any]:
    def truth(a: Any) -> Any:
        return _koine._operand(a, f"np.logical_{name}") != 0

    return lambda a, b: getattr(truth(a), f"__{name}__")(truth(b))


_UFUNCS: dict[str, Callable[..., Any]] = {
    **{name: _binary(f"__{own}__", f"__r{own}__") for name, own in (
        ("add", "add"), ("subtract", "sub"), ("multiply", "mul"), ("divide", "truediv"), ("floor_divide", "floordiv"), ("remainder", "mod"),
        ("power", "pow"), ("matmul", "matmul"), ("divmod", "divmod"), ("bitwise_and", "and"), ("bitwise_or", "or"), ("bitwise_xor", "xor"),
        ("left_shift", "lshift"), ("right_shift", "rshift"))},
    **{name: _binary(f"__{own}__", f"__{mirrored}__") for name, own, mirrored in (
        ("equal", "eq", "eq"), ("not_equal", "ne", "ne"), ("less", "lt", "gt"), ("less_equal", "le", "ge"), ("greater", "gt", "lt"),
        ("greater_equal", "ge", "le"))},
    **{name: _binary(name, name) for name in ("maximum", "minimum")},
    **{f"logical_{name}": _logical(name) for name in ("and", "or", "xor")},
    **{name: getattr(Tensor, own) for name, own in (
        ("absolute", "abs"), ("negative", "neg"), ("positive", "__pos__"), ("conjugate", "__pos__"), ("invert", "__invert__"), ("rint", "round"))},
    **{name: getattr(Tensor, name) for name in (
        "ceil cos exp exp2 floor isfinite isinf isnan log log2 logical_not sign sin sqrt square tan tanh trunc").split()},
}


_FLOATS = frozenset("cos exp exp2 log log2 sin sqrt tan tanh divide".split())  # of floats alone
_TRUTHS = frozenset("equal not_equal less less_equal greater greater_equal logical_and logical_or logical_xor logical_not isfinite isinf isnan".split())
_DEFAULTS = {"casting": "same_kind", "order": "K", "subok": True}


def _plain(name: str, kwargs: dict[str, Any]) -> None:
    """Refuses keywords that say something else than what holds without them."""
    for key, value in kwargs.items():
        if key not in _DEFAULTS or value != _DEFAULTS[key]:
            raise TypeError(f"{name}: of the keywords of NumPy's elementwise functions Koine has out and dtype, not {key}: "
                            f"{name}(np.asarray(x), {key}=...) computes it with NumPy")


def _of_dtype(name: str, operand: Any, dtype: Any) -> Any:
    """An operand as NumPy's dtype= asks for it: cast before anything is computed."""
    if not hasattr(operand, "dtype"):  # a number takes the dtype of the others
        return operand
    own = _koine._operand(operand, name)
    if own.dtype.is_float and not dtype.is_float or own.dtype is not DType.bool and dtype is DType.bool:
        raise TypeError(f"{name}: dtype is {dtype.name}, and an operand is {own.dtype}, which would lose what it says: cast it first, as in x.cast({dtype.name!r})")
    return own.cast(dtype)


def _call(name: str, ufunc: str, inputs: Any, dtype: Any = None, where: Any = True, **kwargs: Any) -> Any:
    """The elementwise function itself."""
    if where is not True:
        raise TypeError(f"{name}: where is given without out, and then NumPy leaves the other elements undefined: "
                        f"say what they are, as in mask.where({name}(x), 0)")
    _plain(name, kwargs)
    f = _UFUNCS.get(ufunc)
    if f is None:
        raise TypeError(f"{name}: Koine has no such function of tensors: {name}(np.asarray(x)) computes it with NumPy")
    dtype = None if dtype is None else _koine.promote(dtype, dtype)
    if dtype is None or ufunc in _TRUTHS and dtype is DType.bool:
        return f(*inputs)
    if ufunc in _TRUTHS:
        raise TypeError(f"{name}: gives truth values, and dtype is {dtype.name}: cast the result, as in {name}(x).cast({dtype.name!r})")
    if ufunc in _FLOATS and not dtype.is_float:
        raise TypeError(f"{name}: is of floating point numbers, and dtype is {dtype.name}: cast the result, as in {name}(x).cast({dtype.name!r})")
    return f(*[_of_dtype(name, operand, dtype) for operand in inputs])


# Of the binary functions that have them: the reduction, what it gives of nothing, and how much it has summed up to each place.
_REDUCTIONS = {"add": ("sum", 0, "cumsum"), "multiply": ("prod", 1, "cumprod"), "maximum": ("max", None, None), "minimum": ("min", None, None),
               "logical_and": ("all", True, None), "logical_or": ("any", False, None)}


def _reduced(name: str, reduction: str, binary: str, a: Tensor, axis: Any, dtype: Any, keepdims: Any, initial: Any = None, where: Any = True) -> Any:
    """A reduction of the elements where a mask holds, from a first value on."""
    x = a if dtype is None else a.cast(dtype)
    nothing = _REDUCTIONS[binary][1]
    if where is not True:
        if nothing is None and initial is None:
            raise ValueError(f"{name}: where is given without initial, and a {reduction} of no elements is none: give initial")
        x = (_koine._operand(where, name) != 0).where(x, initial if nothing is None else nothing)
    made = getattr(x, reduction)(axis, keepdim=bool(keepdims))
    return made if initial is None else _UFUNCS[binary](made, initial)


def _reduce(name: str, ufunc: str, x: Any, axis: Any = 0, dtype: Any = None, out: Any = None, keepdims: Any = False, initial: Any = None, where: Any = True) -> Any:
    if ufunc not in _REDUCTIONS:
        raise TypeError(f"{name}: Koine has reductions of add, multiply, maximum, minimum, logical_and and logical_or alone: {name}(np.asarray(x)) computes it with NumPy")
    return _reduced(name, _REDUCTIONS[ufunc][0], ufunc, _koine._operand(x, name), axis, dtype, keepdims, initial, where)


def _accumulate(name: str, ufunc: str, x: Any, axis: Any = 0, dtype: Any = None, out: Any = None) -> Any:
    sums = _REDUCTIONS.get(ufunc, (None, None, None))[2]
    if sums is None:
        raise TypeError(f"{name}: Koine has it of add and multiply alone (cumsum and cumprod): {name}(np.asarray(x)) computes it with NumPy")
    own = _koine._operand(x, name)
    return getattr(own if dtype is None else own.cast(dtype), sums)(axis)


def _outer(name: str, ufunc: str, a: Any, b: Any, **kwargs: Any) -> Any:
    one, other = _koine._operand(a, name), _koine._operand(b, name)
    return _call(name, ufunc, (one.reshape(*one.shape, *[1] * other.ndim), other), **kwargs)


_METHODS: dict[str, Callable[..., Any]] = {"reduce": _reduce, "accumulate": _accumulate, "outer": _outer}


def array_ufunc(self: Tensor, ufunc: Any, method: str, *inputs: Any, out: Any = None, **kwargs: Any) -> Any:
    """An elementwise function of NumPy's, of operands of which one is a tensor."""
    name = f"np.{ufunc.__name__}" + ("" if method == "__call__" else f".{method}")
    if out is not None:  # memory of NumPy's, as in `array += tensor`
        import numpy as np

        if any(isinstance(o, Tensor) for o in out):
            raise TypeError(f"{name}: out is a tensor, whose memory nobody writes to: assign the result to it, as in x[...] = {name}(x)")
        return getattr(ufunc, method)(*_as_arrays(inputs), out=out, **_as_arrays(kwargs))
    if method == "__call__":
        return _call(name, ufunc.__name__, inputs, **kwargs)
    if method == "at":
        raise TypeError(f"{name}: writes to memory of NumPy's: x[i] = v writes to a tensor, and x.scatter_add(0, i, v) adds up what meets at one place")
    if method not in _METHODS:
        raise TypeError(f"{name}: of the methods of NumPy's elementwise functions Koine has {', '.join(_METHODS)}: {name}(np.asarray(x), ...) computes it with NumPy")
    if ufunc.nin != 2:
        raise TypeError(f"{name}: {ufunc.__name__} is of {ufunc.nin} operands, and only what is of two has {method}")
    return _METHODS[method](name, ufunc.__name__, *inputs, **kwargs)


_BINARY_OF = {own[0]: ufunc for ufunc, own in _REDUCTIONS.items()}


def _reduction(name: str, **known: Any) -> Callable[..., Any]:
    """A reduction with NumPy's keywords; `known`: those that it has beside the usual ones, and Koine's names for them."""
    def of(a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = False, **rest: Any) -> Any:
        if out is not None:
            raise TypeError(f"np.{name}: out is given, and the result is a tensor")
        if name in _BINARY_OF and rest and rest.keys() <= {"initial", "where"}:
            return _reduced(f"np.{name}", name, _BINARY_OF[name], a, axis, dtype, keepdims, **rest)
        for key in rest:
            if key not in known:
                raise TypeError(f"np.{name}: Koine has no '{key}': np.{name}(np.asarray(x), {key}=...) computes it with NumPy")
        given = {own: rest.get(key, default) for key, (own, default) in known.items()}
        return getattr(a if dtype is None else a.cast(dtype), name)(axis, keepdim=bool(keepdims), **given)

    return of


_correction = {"ddof": ("correction", 0)}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: _reduction(name) for name in ("sum", "prod", "max", "min", "mean", "any", "all")},
    "amax": _reduction("max"), "amin": _reduction("min"), "std": _reduction("std", **_correction), "var": _reduction("var", **_correction),
    "shape": lambda a: a.shape, "ndim": lambda a: a.ndim, "squeeze": lambda a, axis=None: a.squeeze(axis),
    "flip": lambda m, axis=None: m.flip(tuple(range(m.ndim)) if axis is None else axis), "round": lambda a, decimals=0: round(a, decimals),
    "around": lambda a, decimals=0: round(a, decimals),
}


def _as_arrays(given: Any) -> Any:
    if isinstance(given, Tensor):
        return given.numpy()
    if type(given) in (list, tuple):
        return type(given)([_as_arrays(part) for part in given])
    return {key: _as_arrays(part) for key, part in given.items()} if type(given) is dict else given


def array_function(self: Tensor, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
    """Any other function of NumPy's that is given a tensor."""
    import numpy as np

    if not all(issubclass(t, (Tensor, np.ndarray)) for t in types):
        return NotImplemented
    own = _FUNCTIONS.get(function.__name__)
    if own is not None and getattr(np, function.__name__, None) is function and isinstance(args[0] if args else kwargs.get("a"), Tensor):
        return own(*args, **kwargs)
    return function(*_as_arrays(args), **_as_arrays(kwargs))


Tensor.__array_ufunc__, Tensor.__array_function__ = array_ufunc, array_function  # type: ignore[method-assign, assignment, attr-defined]
