"""Functions of Python in a graph, with JAX's signature."""
from __future__ import annotations

import builtins
import itertools
from typing import Any, Callable

from . import _koine, tree
from ._koine import Tensor
from .errors import TypeError, ValueError
from .transforms import require_function, tensors_of

_METHODS = (None, "sequential", "expand_dims", "broadcast_all")
_known: dict[tuple[Any, ...], "_Callback"] = {}  # for the life of the process, as a compiled program may call each
_numbers = itertools.count()


class _Callback:
    """A function for arguments of one structure: what C++ calls by name. `wanted`: shapes and dtypes of results, where vmap may ask."""

    def __init__(self, f: Callable[..., Any], arguments: tree.Structure, results: tree.Structure, vmap_method: str | None, wanted: list[Any]):
        self.f, self.arguments, self.results, self.vmap_method, self.wanted = f, arguments, results, vmap_method, wanted
        self.called = getattr(f, "__name__", type(f).__name__)
        self.name = f"{self.called}#{next(_numbers)}"
        _koine._register_function(self.name, self.run)
        _koine._register_rules(self.name, self.gradient, self.over_examples)

    def run(self, given: list[Any], out: list[Any]) -> None:
        """Fills `out`, which is memory of the program's, as `given` is: the function gets arrays of its own."""
        import numpy as np  # which whoever has a function of arrays has

        args, kwargs = tree.unflatten(self.arguments, [np.array(a) for a in given])
        results, structure = tree.flatten(self.f(*args, **kwargs))
        if structure != self.results:
            raise TypeError(f"it gives {structure!r}, and {self.results!r} was said")
        for k, (result, to) in enumerate(zip(results, out)):
            array = np.asarray(result)
            if array.shape != to.shape or array.dtype != to.dtype:
                raise ValueError(f"result {k} is {array.dtype} {array.shape}, and {to.dtype} {to.shape} was said")
            to[...] = array

    def gradient(self, *_: Any) -> Any:
        raise ValueError(f"pure_callback: '{self.called}' has no derivative: say it with koine.custom_vjp or koine.custom_jvp")

    def over_examples(self, tensors: list[Tensor], mapped: list[bool], examples: Any) -> list[Tensor]:
        if self.vmap_method is None:
            raise ValueError(f"pure_callback: '{self.called}' under vmap: say vmap_method='sequential' (a call for each example), "
                             "or 'expand_dims' or 'broadcast_all' (one call for all, with an axis in front)")
        if self.vmap_method == "sequential":
            each = [self.of([t[i] if m else t for t, m in zip(tensors, mapped)], self.wanted) for i in range(examples)]
            return [Tensor.stack(parts) for parts in zip(*each)]
        size = examples if self.vmap_method == "broadcast_all" else 1
        given = [t if m else t.unsqueeze(0).expand(size, *t.shape) for t, m in zip(tensors, mapped)]
        return self.of(given, [((examples, *shape), dtype) for shape, dtype in self.wanted])

    def of(self, tensors: list[Tensor], wanted: list[Any]) -> list[Tensor]:
        return _call(self.f, self.arguments, self.results, self.vmap_method, wanted, tensors)


def _call(f: Callable[..., Any], arguments: tree.Structure, results: tree.Structure, vmap_method: str | None, wanted: list[Any],
          tensors: list[Tensor]) -> list[Tensor]:
    key = (f, arguments, results, vmap_method, vmap_method and repr(wanted))
    try:
        known = _known.get(key)
    except builtins.TypeError:
        raise TypeError(f"pure_callback: the '{type(f).__name__}' has no hash, by which Koine would know it again") from None
    if known is None:
        known = _known[key] = _Callback(f, arguments, results, vmap_method, wanted)
    return _koine._call_function(known.name, wanted, tensors)


def pure_callback(callback: Callable[..., Any], result_shape_dtypes: Any, *args: Any, vmap_method: str | None = None, **kwargs: Any) -> Any:
    """What a function of NumPy arrays gives, as part of a graph: it is called when somebody looks at the result.

    `result_shape_dtypes`: a tree of what has a shape and a dtype, such as koine.ShapeDtype or a tensor; the function gives a tree of arrays
    of just these. It has to be pure: equal arguments give equal results, so equal calls run once, and one whose result nobody reads does
    not run. It may run in any thread. Koine keeps it for the life of the process: make it once, not in a loop. What it raises is a
    ValueError that names it. It has a derivative once koine.custom_vjp says so. vmap needs a `vmap_method`: "sequential" calls it for each
    example; "expand_dims" and "broadcast_all" once, with an axis in front of each array, which is of size 1, or of as many as there are
    examples, where an argument is the same for all.

    >>> import numpy as np
    >>> x = koine.Tensor([3.0, 1.0, 2.0])
    >>> median = koine.pure_callback(lambda a: np.median(a), koine.ShapeDtype((), "float32"), x)
    >>> (median * 10).item()
    20.0
    """
    require_function("pure_callback", callback)
    if vmap_method not in _METHODS:
        raise ValueError(f"pure_callback: vmap_method {vmap_method!r} is none of {_METHODS}")
    given, arguments = tree.flatten((args, kwargs))
    specs, results = tree.flatten(result_shape_dtypes)
    for spec in specs:
        if not isinstance(getattr(spec, "shape", None), (tuple, list)) or not hasattr(spec, "dtype"):
            raise TypeError(f"pure_callback: result_shape_dtypes holds a '{type(spec).__name__}' without a shape and a dtype; "
                            "koine.ShapeDtype((2, 3), 'float32') is one")
    wanted = [(tuple(s.shape), s.dtype) for s in specs]
    return tree.unflatten(results, _call(callback, arguments, results, vmap_method, wanted, tensors_of("pure_callback", given)))
