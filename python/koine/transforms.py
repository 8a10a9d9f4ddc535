"""Transforms of functions over trees of tensors, with JAX's signatures.

Arguments and results are trees (koine.tree) of tensors; numbers and arrays among them become tensors. A function
that is transformed is called once, on placeholders: it describes its result and may not look at values.
"""
from __future__ import annotations

import builtins
import functools
import itertools
import operator
import re
from typing import Any, Callable, Sequence

from . import _koine, tree
from ._koine import Tensor
from .errors import Error, TypeError, ValueError, knows_keywords

__all__ = ["checkpoint", "eval_shape", "grad", "hessian", "hvp", "jacfwd", "jacrev", "jvp", "linearize",
           "value_and_grad", "vjp", "vmap"]


def line_of(f: Callable[..., Any]) -> str:
    """Where a function was written, for messages."""
    while isinstance(f, functools.partial):
        f = f.func
    code = getattr(getattr(f, "__wrapped__", f), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else repr(f)


# Where the module traces a function.
_own_line = re.compile(r"[^ ]*src/(transforms|loops|captured)\.cpp:\d+|[^ ]*captured\.hpp:\d+")


def run_for(line: str, f: Callable[..., Any], *given: Any) -> Any:
    """f(*given). An error that names where this package traces a function names the user's line instead."""
    try:
        return f(*given)
    except Error as e:
        e.args = (_own_line.sub(lambda _: line, str(e)),)
        raise


def require_function(method: str, f: Any) -> None:
    if not callable(f):
        raise TypeError(f"{method}: takes a function, not a '{type(f).__name__}'")


def tensors_of(method: str, leaves: Sequence[Any]) -> list[Tensor]:
    """Each leaf as a tensor."""
    return [leaf if isinstance(leaf, Tensor) else _koine._operand(leaf, method) for leaf in leaves]


def _is_number(leaf: Any) -> bool:
    """Whether it takes the dtype of what it meets."""
    return type(leaf) in (bool, int, float) or type(leaf) is Tensor and _koine._is_number(leaf)


def number_in(number: Any, dtype: Any) -> Tensor:
    return number.cast(dtype) if type(number) is Tensor else Tensor(number, dtype=dtype)


def _rank(dtype: Any) -> int:
    """Of bools, whole numbers and floats."""
    return 2 if dtype.is_float else 0 if dtype.name == "bool" else 1


def as_number(tensor: Tensor, dtype: Any) -> Tensor:
    """What is a number as it is written, or is computed of such alone, in a dtype of its kind or a wider one; others as they are."""
    fits = tensor.dtype != dtype and _rank(tensor.dtype) <= _rank(dtype)
    return tensor.cast(dtype) if fits and _koine._is_number(tensor) else tensor


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) or hasattr(leaf, "__array__") or hasattr(leaf, "__dlpack__")


def parameters_of(f: Callable[..., Any]) -> list[str]:
    """The names of a function's parameters, as far as each stands for one argument."""
    import inspect

    try:
        given = list(inspect.signature(f).parameters.values())
    except (builtins.TypeError, builtins.ValueError):  # what is no function of Python's
        return []
    positional = itertools.takewhile(lambda p: p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD), given)
    return [p.name for p in positional]


def keyword_path(path: str) -> str:
    """The path of a leaf of a dict of keywords: "['x'][0]" is x[0]."""
    return re.sub(r"^\['(\w+)'\]", r"\1", path)


class FlatCall:
    """A call of a function on trees, as one on a list of tensors.

    `given` says of each leaf of the arguments whether the function gets it as it is where it is no array: a number that
    it asks about, a text, a function. Other leaves become tensors; what stands for a number takes the dtype of what it meets, as the
    number does.
    """

    def __init__(self, method: str, f: Callable[..., Any], args: Sequence[Any], kwargs: dict | None = None,
                 given: Callable[["FlatCall"], Sequence[bool]] = lambda call: [False] * len(call.leaves)):
        require_function(method, f)
        self.method, self.f, self.line = method, f, line_of(f)
        flat = [tree.flatten(a) for a in args]
        named, self.names = tree.flatten(kwargs or {})
        self.parameters: Sequence[str] = ()  # what messages call the arguments; the others by the function's own parameters
        self.structures = [s for _, s in flat]
        self.counts = [len(leaves) for leaves, _ in flat]
        self.leaves = [leaf for leaves, _ in flat for leaf in leaves] + named
        self.traced = [i for i, as_it_is in enumerate(given(self)) if not as_it_is or _is_array(self.leaves[i])]
        self.inputs = tensors_of(method, [self.leaves[i] for i in self.traced])
        self.numbers = {k for k, i in enumerate(self.traced) if _is_number(self.leaves[i])}
        self.structure: tree.Structure | None = None  # of the result, once the function has run

    def arguments(self, tensors: Sequence[Tensor]) -> tuple[list, dict]:
        """The trees of the first of these; behind them may be what a function has captured."""
        leaves, args, at = list(self.leaves), [], 0
        for k, (i, tensor) in enumerate(zip(self.traced, tensors)):
            leaves[i] = _koine._standing_for_number(tensor) if k in self.numbers else tensor
        for structure, count in zip(self.structures, self.counts):
            args.append(tree.unflatten(structure, leaves[at:at + count]))
            at += count
        return args, tree.unflatten(self.names, leaves[at:])

    def __call__(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        args, kwargs = self.arguments(tensors)
        result = run_for(self.line, lambda: self.f(*args, **kwargs))
        leaves, self.structure = tree.flatten(result)
        return tensors_of(self.method, leaves)

    def argument_name(self, argument: int) -> str:
        """What a message calls an argument: by its parameter, where the function tells."""
        if argument < len(self.parameters):
            return self.parameters[argument]
        parameters = parameters_of(self.f)
        return parameters[argument] if argument < len(parameters) else f"argument {argument}"

    def input_name(self, k: int) -> str:
        """What a message calls an input: "x['w'][0]"."""
        if k >= len(self.traced):  # of vmap
            return "axis_size"
        leaf = self.traced[k]
        for argument, (structure, count) in enumerate(zip(self.structures, self.counts)):
            if leaf < count:
                return self.argument_name(argument) + tree.paths(structure)[leaf]
            leaf -= count
        return keyword_path(tree.paths(self.names)[leaf])

    def result_name(self, k: int) -> str:
        """What a message calls a tensor of the result."""
        return "the result" + (tree.paths(self.structure)[k] if self.structure is not None else "")

    def run(self, primitive: Callable[..., Any], *given: Any) -> Any:
        return run_for(self.line, primitive, *given)

    def result(self, tensors: Sequence[Tensor]) -> Any:
        assert self.structure is not None
        return tree.unflatten(self.structure, tensors)

    def _leaves_of(self, argument: int) -> range:
        first = sum(self.counts[:argument])
        return range(first, first + self.counts[argument])

    def positions(self, argument: int) -> list[int]:
        """Those of an argument's tensors among all inputs."""
        own = self._leaves_of(argument)
        return [k for k, i in enumerate(self.traced) if i in own]

    def all_but(self, arguments: Sequence[int]) -> list[bool]:
        """Of each leaf whether it is of none of these arguments."""
        own = {i for a in arguments for i in self._leaves_of(a)}
        return [i not in own for i in range(len(self.leaves))]

    def number(self, argnum: int) -> int:
        n = len(self.counts)
        if not -n <= argnum < n:
            raise ValueError(f"{self.method}: argument {argnum} of {n} does not exist")
        return argnum % n

    def like(self, argument: int, tensors: Sequence[Tensor]) -> Any:
        return tree.unflatten(self.structures[argument], tensors)


# --- many examples ---------------------------------------------------------------------------------


def _axes_of_leaves(what: str, name: Callable[[], str], spec: Any, structure: tree.Structure) -> list:
    """An axis (or None) for each leaf of a tree, from one of all or a tree of them. `what` and `name`: for messages, in_axes or out_axes,
    and whose."""
    if spec is None or isinstance(spec, int) and not isinstance(spec, bool):
        return [spec] * structure.count
    if structure.kind is None:
        raise TypeError(f"vmap: {what} of {name()}, which is one tensor, is a number or None, not {spec!r}")
    if isinstance(spec, dict) and issubclass(structure.kind, dict) and spec.keys() == set(structure.data):
        parts = [spec[k] for k in structure.data]
    elif type(spec) is structure.kind and hasattr(structure.kind, "__dataclass_fields__"):
        parts = [getattr(spec, name) for name in structure.data]
    elif type(spec) is structure.kind and hasattr(structure.data, "names"):  # a layer that holds numbers; what it lacks is None
        children, data, _ = tree._parts(spec)
        own = dict(zip(data.names, [c.item() if isinstance(c, Tensor) and c.ndim == 0 else c for c in children]))
        parts = [own.get(name) for name in structure.data.names]
    elif isinstance(spec, (list, tuple)) and len(spec) == len(structure.children) and not issubclass(structure.kind, dict):
        parts = list(spec)
    else:
        raise ValueError(f"vmap: {what} of {name()} is {spec!r}, and that is the tree {structure!r}: give one number or None for all of it, or a "
                         "tree of that structure")
    return [axis for k, (part, child) in enumerate(zip(parts, structure.children))
            for axis in _axes_of_leaves(what, lambda k=k: name() + tree.steps(structure)[k], part, child)]


@knows_keywords
def vmap(f: Callable[..., Any], in_axes: Any = 0, out_axes: Any = 0, axis_name: Any = None, axis_size: int | None = None) -> Callable[..., Any]:
    """f for many examples at once: `vmap(f)(xs)` is f of each xs[i], stacked, in one program.

    `in_axes`: for each argument the axis along which its tensors hold the examples, None where it is equal in all (then
    it may be anything); one number is for all, and a tree of an argument's structure says it for each tensor. `out_axes`: where the examples go
    in the result: one number, or a tree of its structure, in which a number (or None) stands for all of a part. `axis_size`: how many
    examples there are, which it has to be told where no argument holds some. There are no collectives over examples, so an
    `axis_name` is refused: compute what all examples have in common outside, along the axis of the result.

    >>> koine.vmap(lambda a, b: (a * b).sum(), in_axes=(0, None))(koine.Tensor([[1., 2.], [3., 4.]]), koine.Tensor([1., 1.])).tolist()
    [3.0, 7.0]
    """
    require_function("vmap", f)
    if axis_name is not None:
        raise ValueError(f"vmap: axis_name={axis_name!r}: no function of Koine's computes over all examples by the name of their axis; "
                         "compute what they have in common outside of vmap, along that axis of the result")
    if axis_size is not None and (isinstance(axis_size, bool) or not hasattr(axis_size, "__index__") or operator.index(axis_size) < 0):
        raise ValueError(f"vmap: axis_size is how many examples there are, not {axis_size!r}")

    @functools.wraps(f)
    def mapped(*args, **kwargs):
        axes: list = []

        def equal_in_all(call):
            if isinstance(in_axes, (list, tuple)) and len(in_axes) != len(args):
                raise ValueError(f"vmap: in_axes has {len(in_axes)} entries for {len(args)} arguments")
            specs = in_axes if isinstance(in_axes, (list, tuple)) else [in_axes] * len(args)
            for k, (spec, structure) in enumerate(zip(specs, call.structures)):
                axes.extend(_axes_of_leaves("in_axes", lambda k=k: call.argument_name(k), spec, structure))
            axes.extend([0] * call.names.count)
            return [a is None for a in axes]

        call = FlatCall("vmap", f, args, kwargs, equal_in_all)
        axes = [axes[i] for i in call.traced]
        inputs, described = call.inputs, call
        if axis_size is not None:  # as a further argument, which f does not get
            _require_examples(operator.index(axis_size), call, axes)
            inputs, axes = [*inputs, Tensor.zeros(operator.index(axis_size))], [*axes, 0]

            def described(tensors):
                return call(tensors[:-1])

        def axes_of_result():  # whose they are is known once f has run
            return _axes_of_leaves("out_axes", lambda: "the result", out_axes, call.structure)

        return call.result(call.run(_koine._vmap, described, inputs, axes, axes_of_result, call.input_name, call.result_name))

    return mapped


def _require_examples(size: int, call: FlatCall, axes: Sequence[int | None]) -> None:
    for k, (t, axis) in enumerate(zip(call.inputs, axes)):
        if axis is not None and -t.ndim <= axis < t.ndim and t.shape[axis] != size:
            raise ValueError(f"vmap: axis_size is {size}, and {call.input_name(k)} of shape {t.shape} has {t.shape[axis]} examples along axis {axis}")


# --- derivatives -----------------------------------------------------------------------------------


def _call_by(method: str, f: Callable[..., Any], args, kwargs, argnums: int | Sequence[int]) -> tuple[FlatCall, list[int], bool]:
    """A call, by which of its arguments it is differentiated, and whether that is one by itself."""
    single = hasattr(argnums, "__index__")
    try:
        numbers = [operator.index(a) for a in ([argnums] if single else argnums)]
    except builtins.TypeError:
        raise TypeError(f"{method}: argnums is the number of an argument, or several, not {argnums!r}") from None
    call = FlatCall(method, f, args, kwargs, lambda call: call.all_but([call.number(a) for a in numbers]))
    return call, [call.number(a) for a in numbers], single


def _require_floats(method: str, call: FlatCall, by: Sequence[int]) -> None:
    for a in by:
        for p in call.positions(a):
            if not call.inputs[p].dtype.is_float:
                raise TypeError(f"{method}: gradients need floating point inputs, and argument {a}, {call.input_name(p)}, is "
                                f"{call.inputs[p].dtype.name}: cast it to a float, as in 3.0 for 3, or name other arguments by argnums")


def _with_aux(method: str, call: FlatCall, values: Sequence[Any]) -> tuple[Any, Any]:
    """(result, aux) of the leaves that the function gave, the result's first."""
    shape = call.structure
    assert shape is not None
    if not (shape.kind is tuple and len(shape.children) == 2):
        raise TypeError(f"{method}: with has_aux the function gives (result, aux), not {tree.shown(shape)}")
    of_result, of_aux = shape.children
    return tree.unflatten(of_result, values[:of_result.count]), tree.unflatten(of_aux, values[of_result.count:])


@knows_keywords
def value_and_grad(f: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Callable[..., Any]:
    """f's value, a scalar, and its gradient by an argument (by several: a tuple), in that argument's structure.

    With `has_aux` f gives (value, aux), and so does this: ((value, aux), gradient). Of the other arguments f gets numbers,
    texts and the like as they are.

    >>> koine.value_and_grad(lambda w: (w * w).sum())(koine.Tensor([1., 2.]))[1].tolist()
    [2.0, 4.0]
    """
    require_function("value_and_grad", f)
    return _value_and_grad("value_and_grad", f, argnums, has_aux)


def _value_and_grad(method: str, f: Callable[..., Any], argnums: int | Sequence[int], has_aux: bool) -> Callable[..., Any]:
    """value_and_grad as a part of what the user called."""

    @functools.wraps(f)
    def derived(*args, **kwargs):
        call, by, single = _call_by(method, f, args, kwargs, argnums)
        _require_floats(method, call, by)

        def first(tensors):
            results = call(tensors)
            shape = call.structure
            if has_aux and not (shape.kind is tuple and len(shape.children) == 2 and shape.children[0].kind is None):
                raise TypeError(f"{method}: with has_aux the function gives (value, aux), not {tree.shown(shape)}")
            if not has_aux and shape.kind is not None:
                raise TypeError(f"{method}: the function gives {shape!r}, and a gradient is that of one scalar: give has_aux=True")
            return results

        values, found = call.run(_koine._value_and_grad, first, call.inputs, [p for a in by for p in call.positions(a)], method)
        gradients, at = [], 0
        for a in by:
            gradients.append(call.like(a, found[at:at + call.counts[a]]))
            at += call.counts[a]
        return call.result(values), gradients[0] if single else tuple(gradients)

    return derived


@knows_keywords
def grad(f: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Callable[..., Any]:
    """The gradient of f, a scalar, by an argument (by several: a tuple); with `has_aux` (gradient, aux).

    >>> koine.grad(lambda x: x ** 3)(2.0).item()
    12.0
    """
    require_function("grad", f)
    return _grad("grad", f, argnums, has_aux)


def _grad(method: str, f: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Callable[..., Any]:
    """grad as a part of what the user called."""
    both = _value_and_grad(method, f, argnums, has_aux)

    @functools.wraps(f)
    def derived(*args, **kwargs):
        value, gradient = both(*args, **kwargs)
        return (gradient, value[1]) if has_aux else gradient

    return derived


def _directions(method: str, like: Any, tensors: Sequence[Tensor], given: Any, what: str, of: str) -> list[Tensor]:
    """Tangents or cotangents in the structure of `like`, whose tensors these are; numbers in their dtypes. `what` and `of`: what messages
    call them and what they belong to."""
    leaves, structure = tree.flatten(given)
    wanted = tree.structure(like)
    if structure != wanted:
        raise ValueError(f"{method}: the {what} are {tree.shown(structure)}, and should be {tree.shown(wanted)}")
    out = [number_in(leaf, t.dtype) if _is_number(leaf) and t.dtype.is_float and t.ndim == 0 else tensors_of(method, [leaf])[0]
           for leaf, t in zip(leaves, tensors)]
    for k, (own, t) in enumerate(zip(out, tensors)):
        if t.dtype.is_float and (own.dtype != t.dtype or own.shape != t.shape):
            path = tree.paths(wanted)[k]
            raise ValueError(f"{method}: {what}{path} is {own.dtype.name} of shape {own.shape}, and {of}{path} {t.dtype.name} of shape {t.shape}: "
                             "both must be equal")
    return out


@knows_keywords
def jvp(f: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any], has_aux: bool = False) -> tuple[Any, ...]:
    """f's result, and how it changes where the arguments change by their tangents.

    With `has_aux` f gives (result, aux), and this (result, tangent, aux).

    >>> [t.item() for t in koine.jvp(lambda x: x * x, (3.0,), (1.0,))]
    [9.0, 6.0]
    """
    if not isinstance(primals, (list, tuple)) or not isinstance(tangents, (list, tuple)):
        raise TypeError("jvp: primals and tangents are tuples, with an entry for each argument")
    return _jvp("jvp", f, primals, tangents, has_aux)


def _jvp(method: str, f: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any], has_aux: bool) -> tuple[Any, ...]:
    """jvp as a part of what the user called."""
    call = FlatCall(method, f, primals)
    moved = _directions(method, list(primals), call.inputs, list(tangents), "tangents", "primals")
    values, out = call.run(_koine._jvp, call, call.inputs, moved)
    if not has_aux:
        return call.result(values), call.result(out)
    result, aux = _with_aux(method, call, values)
    return result, _with_aux(method, call, out)[0], aux


@knows_keywords
def vjp(f: Callable[..., Any], *primals: Any, has_aux: bool = False) -> tuple[Any, ...]:
    """f's result, and its pullback: of a cotangent of the result, a tuple of those of the arguments.

    With `has_aux` f gives (result, aux), and this (result, pullback, aux).

    >>> value, pullback = koine.vjp(lambda x: x * x, 3.0)
    >>> pullback(1.0)[0].item()
    6.0
    """
    call = FlatCall("vjp", f, primals)
    values, pull = call.run(_koine._vjp, call, call.inputs)
    result, aux = _with_aux("vjp", call, values) if has_aux else (call.result(values), None)
    rest = [v.zeros_like() for v in values]

    def pullback(cotangent):
        given = _directions("vjp", result, values, cotangent, "cotangents", "the result")
        found = pull(given + rest[len(given):])
        return tuple(call.like(a, [found[p] for p in call.positions(a)]) for a in builtins.range(len(primals)))

    return (result, pullback, aux) if has_aux else (result, pullback)


@knows_keywords
def linearize(f: Callable[..., Any], *primals: Any, has_aux: bool = False) -> tuple[Any, ...]:
    """f's result, and its derivative as a linear function: of tangents of the arguments, the tangent of the result.

    With `has_aux` f gives (result, aux), and this (result, derivative, aux).

    >>> value, derivative = koine.linearize(lambda x: x * x, 3.0)
    >>> derivative(1.0).item()
    6.0
    """
    call = FlatCall("linearize", f, primals)
    values, push = call.run(_koine._linearize, call, call.inputs)

    def derivative(*tangents):
        moved = push(_directions("linearize", list(primals), call.inputs, list(tangents), "tangents", "primals"))
        return _with_aux("linearize", call, moved)[0] if has_aux else call.result(moved)

    if not has_aux:
        return call.result(values), derivative
    result, aux = _with_aux("linearize", call, values)
    return result, derivative, aux


def _units(like: Tensor) -> Tensor:
    """One unit vector for each element."""
    n = like.numel()
    return Tensor.eye(n, dtype=like.dtype).reshape(n, *like.shape)


def _jacobian(method: str, f: Callable[..., Any], argnums: int | Sequence[int], has_aux: bool, forward: bool) -> Callable[..., Any]:
    require_function(method, f)

    @functools.wraps(f)
    def derived(*args, **kwargs):
        call, by, single = _call_by(method, f, args, kwargs, argnums)
        _require_floats(method, call, by)
        places = [p for a in by for p in call.positions(a)]
        if not places:
            raise TypeError(f"{method}: there is no tensor in what to differentiate by")
        own = [call.inputs[p] for p in places]

        def by_own(tensors):
            given = list(call.inputs)
            for p, t in zip(places, tensors):
                given[p] = t
            return call(given)

        values, linear = call.run(_koine._linearize if forward else _koine._vjp, by_own, own)
        if has_aux:
            _with_aux(method, call, values)
        count = call.structure.children[0].count if has_aux else call.structure.count
        if count == 0:
            raise TypeError(f"{method}: the function gives {call.structure!r}, in which there is no tensor")
        if not all(v.dtype.is_float for v in values[:count]):
            raise TypeError(f"{method}: the function must give one float tensor, or a tree of such")

        def along(zeros, k, axis):
            """The linear function of each unit vector in the place of one of what it takes."""
            def of_unit(unit):
                return linear([*zeros[:k], unit[0], *zeros[k + 1:]])

            return _koine._vmap(of_unit, [_units(zeros[k])], [0], lambda: axis, str, str)

        def block(made, result, x):
            return made.reshape(*result.shape, *x.shape)

        if forward:
            zeros = [x.zeros_like() for x in own]
            columns = [along(zeros, k, -1) for k in range(len(own))]
            blocks = [[block(columns[k][r], values[r], x) for k, x in enumerate(own)] for r in range(count)]
        else:
            zeros = [v.zeros_like() for v in values]
            blocks = [[block(made, values[r], x) for made, x in zip(along(zeros, r, 0), own)] for r in range(count)]

        def in_structure(row):
            parts, at = [], 0
            for a in by:
                parts.append(call.like(a, row[at:at + call.counts[a]]))
                at += call.counts[a]
            return parts[0] if single else tuple(parts)

        found = [in_structure(row) for row in blocks]
        return _with_aux(method, call, [*found, *values[count:]]) if has_aux else call.result(found)

    return derived


@knows_keywords
def jacfwd(f: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Callable[..., Any]:
    """The derivative of f's result by an argument: the axes of the result, then those of the argument. Of trees: for each
    tensor of the result the argument's structure (by several arguments: a tuple). Costs f once for each element of them. With
    `has_aux` f gives (result, aux), and this (derivative, aux).

    >>> koine.jacfwd(lambda x: x * x)(koine.Tensor([1.0, 2.0])).tolist()
    [[2.0, 0.0], [0.0, 4.0]]
    """
    return _jacobian("jacfwd", f, argnums, has_aux, True)


@knows_keywords
def jacrev(f: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Callable[..., Any]:
    """The same as jacfwd. Costs f once for each element of the result.

    >>> koine.jacrev(lambda x: x.sum(keepdim=True))(koine.Tensor([1.0, 2.0])).tolist()
    [[1.0, 1.0]]
    """
    return _jacobian("jacrev", f, argnums, has_aux, False)


@knows_keywords
def hessian(f: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Callable[..., Any]:
    """The second derivatives of a scalar function by an argument: for each of its tensors its structure (by several
    arguments: a tuple of tuples). With `has_aux` f gives (value, aux), and this (second derivatives, aux).

    >>> koine.hessian(lambda x: (x ** 3).sum())(koine.Tensor([1.0, 2.0])).tolist()
    [[6.0, 0.0], [0.0, 12.0]]
    """
    require_function("hessian", f)
    return _jacobian("hessian", _grad("hessian", f, argnums, has_aux), argnums, has_aux, True)


@knows_keywords
def hvp(f: Callable[..., Any], x: Any, vector: Any) -> Any:
    """The product of f's Hessian with a vector, without the Hessian.

    >>> koine.hvp(lambda x: (x ** 3).sum(), koine.Tensor([1.0, 2.0]), koine.Tensor([1.0, 1.0])).tolist()
    [6.0, 12.0]
    """
    require_function("hvp", f)
    return _jvp("hvp", _grad("hvp", f), (x,), (vector,), False)[1]


# --- memory ----------------------------------------------------------------------------------------


@knows_keywords
def checkpoint(f: Callable[..., Any], keep: Sequence[str] | str = (), policy: Any = None) -> Callable[..., Any]:
    """f, which its gradient computes again from its arguments instead of keeping what it computed.

    `keep`: names of values (koine.save_as) that are kept all the same, "products" for results of matmul and its like. `policy`: one of
    koine.checkpoint_policies, with JAX's names, which is kept beside them.

    >>> block = koine.checkpoint(lambda x: x.sin().sin())
    >>> koine.grad(block)(0.0).item()
    1.0
    """
    require_function("checkpoint", f)
    if not isinstance(keep, (str, list, tuple, set, frozenset)) or not all(isinstance(name, str) for name in keep):
        raise TypeError(f"checkpoint: keep is a name of koine.save_as, or several, not {keep!r}")
    names = [keep] if isinstance(keep, str) else list(keep)
    kept = _koine._Keep.names([n for n in names if n != "products"])
    if "products" in names:
        kept |= _koine._Keep.products()
    if policy is not None:
        if not isinstance(policy, _koine._Keep):
            raise TypeError(f"checkpoint: policy is one of koine.checkpoint_policies, such as dots_saveable or save_only_these_names('wide'), not {policy!r}")
        kept |= policy

    @functools.wraps(f)
    def again(*args, **kwargs):
        call = FlatCall("checkpoint", f, args, kwargs, lambda call: call.all_but([]))
        return call.result(call.run(_koine._checkpoint, call, call.inputs, kept))

    return again


class ShapeDtype:
    """What eval_shape gives for a tensor and takes in place of one, and what pure_callback is told.

    >>> koine.ShapeDtype((2, 3), "float32")
    ShapeDtype(shape=(2, 3), dtype=float32)
    """

    __slots__ = ("shape", "dtype")

    def __init__(self, shape, dtype):
        sizes = shape if isinstance(shape, (tuple, list)) else (shape,)
        if not all(hasattr(n, "__index__") for n in sizes):
            raise TypeError(f"ShapeDtype: a shape is a whole number, or several, not {shape!r}")
        if any(type(n) is int and n < 0 for n in sizes):
            raise ValueError(f"ShapeDtype: the shape {shape!r} has a negative size")
        _koine._require_dtype(dtype, "ShapeDtype")
        self.shape, self.dtype = shape, dtype

    def __repr__(self):
        return f"ShapeDtype(shape={self.shape}, dtype={self.dtype})"

    def _key(self):
        return tuple(self.shape) if isinstance(self.shape, (tuple, list)) else (self.shape,), _koine.promote(self.dtype, self.dtype)

    def __eq__(self, other):
        return self._key() == other._key() if isinstance(other, ShapeDtype) else NotImplemented

    def __hash__(self):
        return hash(self._key())


def eval_shape(f: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The shapes and dtypes of f's result, without computing it. Where an argument is none yet, ShapeDtype says what it is.

    >>> koine.eval_shape(lambda x, y: x @ y, koine.Tensor.ones(2, 3), koine.ShapeDtype((3, 5), "float32")).shape
    (2, 5)
    """
    args, kwargs = tree.map(lambda leaf: Tensor.zeros(leaf.shape, dtype=leaf.dtype) if isinstance(leaf, ShapeDtype) else leaf, (args, kwargs))
    call = FlatCall("eval_shape", f, args, kwargs, lambda call: call.all_but([]))
    results = call.run(_koine._checkpoint, call, call.inputs, _koine._Keep.nothing())
    return tree.map(lambda t: ShapeDtype(t.shape, t.dtype), call.result(results))
