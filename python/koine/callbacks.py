"""Functions of Python and kernels by hand in a graph: koine.pure_callback, with JAX's signature, and koine.custom_kernel."""
from __future__ import annotations

import collections
import itertools
import types
from typing import Any, Callable

from . import _koine, tree
from ._koine import Tensor, UOp
from .errors import TypeError, ValueError, knows_keywords
from .transforms import require_function, tensors_of

# Those used last. Others are known as long as there are values of them, and programs that call them.
_known: collections.OrderedDict[tuple[Any, ...], "_Called"] = collections.OrderedDict()
_MOST_KNOWN = 256
_numbers = itertools.count()


def _described(error: BaseException) -> str:
    """What a user's function raised and in which of its lines, for the error of the program that called it."""
    text, trace = f"{type(error).__name__}: {error}", error.__traceback__
    while trace and trace.tb_frame.f_globals.get("__package__") == __package__:
        trace = trace.tb_next
    return f"{text}, raised at {trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace else text


class _Called:
    """What a graph calls by a name, for arguments of one structure. `wanted`: shapes and dtypes of results, where vmap may ask."""

    function: str  # of ours that makes it
    at_once: tuple[str, ...]  # how vmap may call it once for all examples
    flatten_results = staticmethod(tree.flatten)

    def __init__(self, f: Callable[..., Any], arguments: tree.Structure, results: tree.Structure, vmap_method: str | None, wanted: list[Any]):
        self.f, self.arguments, self.results, self.vmap_method, self.wanted = f, arguments, results, vmap_method, wanted
        self.called = getattr(f, "__name__", type(f).__name__)
        self.name = f"{self.called}#{next(_numbers)}"
        _koine._register_rules(self.name, self.gradient, self.over_examples)

    def __call__(self, tensors: list[Tensor], wanted: list[Any]) -> list[Tensor]:
        raise NotImplementedError

    def gradient(self, *_: Any) -> Any:
        raise ValueError(f"{self.function}: '{self.called}' has no derivative: say it with koine.custom_vjp or koine.custom_jvp")

    def over_examples(self, tensors: list[Tensor], mapped: list[bool], examples: Any) -> list[Tensor]:
        if self.vmap_method is None:
            raise ValueError(f"{self.function}: '{self.called}' under vmap: say vmap_method='sequential' (a call for each example), "
                             f"or {' or '.join(map(repr, self.at_once))} (one call for all, with an axis in front)")
        if self.vmap_method == "sequential" and examples == 0:
            return [Tensor.zeros(0, *shape, dtype=dtype) for shape, dtype in self.wanted]
        if self.vmap_method == "sequential":
            each = [self.of([t[i] if m else t for t, m in zip(tensors, mapped)], self.wanted) for i in range(examples)]
            return [Tensor.stack(parts) for parts in zip(*each)]
        size = examples if self.vmap_method == "broadcast_all" else 1
        given = [t if m else t.unsqueeze(0).expand(size, *t.shape) for t, m in zip(tensors, mapped)]
        return self.of(given, [((examples, *shape), dtype) for shape, dtype in self.wanted])

    def of(self, tensors: list[Tensor], wanted: list[Any]) -> list[Tensor]:
        return _call(type(self), self.f, self.arguments, self.results, self.vmap_method, wanted, tensors)


def _same(f: Callable[..., Any]) -> Any:
    """A function is the one that it was before, and a method the same of the same object, whatever they say of themselves."""
    return (id(f.__self__), id(f.__func__)) if isinstance(f, types.MethodType) else id(f)


def _exactly(structure: tree.Structure) -> Any:
    try:
        return tree.frozen(structure, [])
    except tree.Unfrozen:  # data that only compare
        return structure


def _call(kind: type[_Called], f: Callable[..., Any], arguments: tree.Structure, results: tree.Structure, vmap_method: str | None,
          wanted: list[Any], tensors: list[Tensor]) -> list[Tensor]:
    key = (kind, _same(f), _exactly(arguments), _exactly(results), vmap_method, vmap_method and repr(wanted))
    known = _known.get(key)
    if known is not None:
        _known.move_to_end(key)
    else:
        while len(_known) >= _MOST_KNOWN:
            _koine._let_go(_known.popitem(last=False)[1].name)
        known = _known[key] = kind(f, tree.copied(arguments), tree.copied(results), vmap_method, wanted)
    return known(tensors, wanted)


def _wanted(function: str, specs: list[Any]) -> list[Any]:
    for spec in specs:
        if not isinstance(getattr(spec, "shape", None), (tuple, list)) or not hasattr(spec, "dtype"):
            raise TypeError(f"{function}: result_shape_dtypes holds a '{type(spec).__name__}' without a shape and a dtype; "
                            "koine.ShapeDtype((2, 3), 'float32') is one")
    return [(tuple(s.shape), s.dtype) for s in specs]


def _made(kind: type[_Called], f: Callable[..., Any], result_shape_dtypes: Any, given: Any, vmap_method: str | None) -> Any:
    methods = (None, "sequential", *kind.at_once)
    if vmap_method not in methods:
        raise ValueError(f"{kind.function}: vmap_method {vmap_method!r} is none of {methods}")
    leaves, arguments = tree.flatten_as_given(given)
    specs, results = kind.flatten_results(result_shape_dtypes)
    tensors = tensors_of(kind.function, leaves)
    return tree.unflatten(results, _call(kind, f, arguments, results, vmap_method, _wanted(kind.function, specs), tensors))


class _Callback(_Called):
    """A function of NumPy arrays."""

    function = "pure_callback"
    at_once = ("expand_dims", "broadcast_all")

    def __init__(self, *what: Any):
        super().__init__(*what)
        _koine._register_function(self.name, self.run)

    def __call__(self, tensors: list[Tensor], wanted: list[Any]) -> list[Tensor]:
        return _koine._call_function(self.name, wanted, tensors)

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


def pure_callback(callback: Callable[..., Any], result_shape_dtypes: Any, *args: Any, vmap_method: str | None = None, **kwargs: Any) -> Any:
    """What a function of NumPy arrays gives, as part of a graph: it is called when somebody looks at the result.

    `result_shape_dtypes`: a tree of what has a shape and a dtype, such as koine.ShapeDtype or a tensor; the function gives a tree of arrays
    of just these. It has to be pure: equal arguments give equal results, so equal calls run once, and one whose result nobody reads does
    not run. It may run in any thread. Make it once, not in a loop: another function is another program. What it raises is a
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
    return _made(_Callback, callback, result_shape_dtypes, (args, kwargs), vmap_method)


class _Kernel(_Called):
    """A kernel by hand."""

    function = "custom_kernel"
    at_once = ("broadcast_all",)  # axes of size 1, as "expand_dims" makes them, it would read out of bounds
    flatten_results = staticmethod(tree.flatten_as_given)  # the kernel sees it

    def __call__(self, tensors: list[Tensor], wanted: list[Any]) -> list[Tensor]:
        return _koine._custom_kernel(self.name, wanted, tensors, self.build)

    def build(self, *params: UOp) -> UOp:
        count = len(self.wanted)
        made = self.f(tree.unflatten(self.results, params[:count]), *tree.unflatten(self.arguments, params[count:]))
        if isinstance(made, (list, tuple)) and made and all(isinstance(e, UOp) for e in made):
            made = made[0].sink(*made[1:])
        if not isinstance(made, UOp):
            raise TypeError(f"custom_kernel: '{self.called}' gives a '{type(made).__name__}': a kernel is the node that out[i].store(x).end(i) "
                            "gives, or several of these")
        return made if made.op == "Sink" else made.sink()


@knows_keywords
def custom_kernel(kernel: Callable[..., Any], result_shape_dtypes: Any, *args: Any, vmap_method: str | None = None) -> Any:
    """What a kernel written by hand gives, as part of a graph.

    `kernel` is called with the tree of results and with each argument, where a node is in the place of each tensor: it has a shape, and
    `p[i, j]` is an element. It gives its loops around stores into elements of the results; what is stored nowhere is 0, what lies out of bounds reads 0.
    A kernel whose loops visit each element of its results once gets vectors, tiles and threads as others do; another one runs as
    it is written. It has a derivative once koine.custom_vjp says so. vmap needs a `vmap_method`: "sequential" calls it for each
    example; "broadcast_all" once for all, where the kernel goes by the shapes it is given: with an axis in front, and without.
    `result_shape_dtypes` is a tree of what has a shape and a dtype, and an argument is a tree of tensors. Make the function once, not in a
    loop: another function is another program.

    >>> def axpy(out, x, y):
    ...     i = koine.UOp.range(out.shape[0], 0)
    ...     return out[i].store(2 * x[i] + y[i]).end(i)
    >>> x, y = koine.Tensor([1.0, 2.0]), koine.Tensor([10.0, 20.0])
    >>> koine.custom_kernel(axpy, x, x, y).tolist()
    [12.0, 24.0]

    Loops have numbers of their own, and one of type REDUCE is folded:

    >>> def matmul(out, a, b):
    ...     i, j, k = koine.UOp.range(3, 0), koine.UOp.range(2, 1), koine.UOp.range(4, 2, "REDUCE")
    ...     return out[i, j].store((a[i, k] * b[k, j]).sum(k)).end(i, j)
    >>> koine.custom_kernel(matmul, koine.ShapeDtype((3, 2), "float32"), koine.ones(3, 4), koine.ones(4, 2)).tolist()
    [[4.0, 4.0], [4.0, 4.0], [4.0, 4.0]]
    """
    require_function("custom_kernel", kernel)
    return _made(_Kernel, kernel, result_shape_dtypes, args, vmap_method)
