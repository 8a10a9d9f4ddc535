"""NumPy's functions of tensors. What Koine has too is a value in a graph, as Koine's own is; of others the elementwise ones are refused in
words, and the rest is computed by NumPy of the tensor's elements, and gives arrays. NumPy is imported by whoever calls its functions."""
from __future__ import annotations

from typing import Any, Callable

from . import _koine
from ._koine import Tensor
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


def array_ufunc(self: Tensor, ufunc: Any, method: str, *inputs: Any, out: Any = None, **kwargs: Any) -> Any:
    """An elementwise function of NumPy's, of operands of which one is a tensor."""
    name = f"np.{ufunc.__name__}"
    if out is not None:  # memory of NumPy's, as in `array += tensor`
        import numpy as np

        if any(isinstance(o, Tensor) for o in out):
            raise TypeError(f"{name}: out is a tensor, whose memory nobody writes to: assign the result to it, as in x[...] = {name}(x)")
        return getattr(ufunc, method)(*[np.asarray(a) if isinstance(a, Tensor) else a for a in inputs], out=out, **kwargs)
    if method != "__call__":
        raise TypeError(f"{name}.{method}: of NumPy's elementwise functions Koine has the call alone: a tensor has methods such as sum() and "
                        f"cumsum(), and {name}.{method}(np.asarray(x)) is NumPy's")
    if kwargs:
        raise TypeError(f"{name}: of the keywords of NumPy's elementwise functions Koine has out alone, not {', '.join(kwargs)}")
    f = _UFUNCS.get(ufunc.__name__)
    if f is None:
        raise TypeError(f"{name}: Koine has no such function of tensors: {name}(np.asarray(x)) computes it with NumPy")
    return f(*inputs)


def _reduction(name: str, **known: Any) -> Callable[..., Any]:
    """A reduction with NumPy's keywords; `known`: those that it has beside the usual ones, and Koine's names for them."""
    def of(a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = False, **rest: Any) -> Any:
        if out is not None:
            raise TypeError(f"np.{name}: out is given, and the result is a tensor")
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
