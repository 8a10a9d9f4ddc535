"""Functions with a derivative of their own: koine.custom_vjp and koine.custom_jvp, with JAX's signatures."""
from __future__ import annotations

import builtins
import collections
import functools
import operator
from typing import Any, Callable, Sequence

from . import _koine, tree
from .errors import TypeError, ValueError, knows_keywords
from .transforms import FlatCall, as_number, line_of, require_function, tensors_of

__all__ = ["custom_jvp", "custom_vjp"]

# Rules used last, by name. Others are known as long as there are values of them.
_known: collections.OrderedDict[str, None] = collections.OrderedDict()
_MOST_KNOWN = 256
_MOST_RULES = 64  # of one function, for arguments of other structures and other constants


def _keep(name: str) -> None:
    while len(_known) >= _MOST_KNOWN:
        _koine._let_go_rule(_known.popitem(last=False)[0])
    _known[name] = None


class _Custom:
    @knows_keywords
    def __init__(self, f: Callable[..., Any], nondiff_argnums: int | Sequence[int] = (), nondiff_argnames: str | Sequence[str] = ()):
        require_function(type(self).__name__, f)
        functools.update_wrapper(self, f)  # type: ignore[arg-type]
        self.f = f
        self._rules: dict = {}
        self._constants = self._constant_places(nondiff_argnums, nondiff_argnames)

    def _constant_places(self, numbers: Any, names: Any) -> tuple[int, ...]:
        """The places of the arguments that are none to the rule."""
        method = type(self).__name__
        try:
            places = [operator.index(n) for n in ([numbers] if hasattr(numbers, "__index__") else numbers)]
        except builtins.TypeError:
            raise TypeError(f"{method}: nondiff_argnums is the number of an argument, or several, not {numbers!r}") from None
        names = [names] if isinstance(names, str) else list(names)
        if not places and not names:
            return ()
        import inspect

        parameters = list(inspect.signature(self.f).parameters)
        for name in names:
            if name not in parameters:
                raise ValueError(f"{method}: nondiff_argnames names {name!r}, and the parameters are {', '.join(parameters) or 'none'}")
        return tuple(sorted({p + len(parameters) if p < 0 else p for p in places} | {parameters.index(n) for n in names}))

    def _rule(self, call: FlatCall, constants: Sequence[Any], place: dict) -> Callable[..., Any]:
        raise NotImplementedError

    def _functions(self) -> list:
        return [self.f] + [v for k, v in vars(self).items() if k in ("_fwd", "_bwd", "_jvp")]

    def _by_place(self, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        """By position what has one, as rules count arguments."""
        import inspect

        try:
            bound = inspect.signature(self.f).bind(*args, **kwargs)
        except (builtins.TypeError, builtins.ValueError):  # the call says what does not fit
            return args, kwargs
        if self._constants:
            bound.apply_defaults()
        return bound.args, bound.kwargs

    def _merged(self, constants: Sequence[Any], args: Sequence[Any]) -> list:
        """All arguments of f."""
        out = list(args)
        for place, value in zip(self._constants, constants):
            out.insert(place, value)
        return out

    def _flat(self, method: str, constants: Sequence[Any], args: Sequence[Any], kwargs: dict) -> FlatCall:
        """A call of f by what is no constant."""
        def varied(*some, **named):
            return self.f(*self._merged(constants, some), **named)

        try:
            call = FlatCall(method, varied if constants else self.f, args, kwargs)
        except TypeError as e:
            raise TypeError(f"{e}: where it is a constant, name its argument by nondiff_argnums") from None
        call.line = line_of(self.f)
        return call

    def _called(self, method: str, known: Callable[..., Any], args, kwargs) -> Any:
        if kwargs or self._constants:
            args, kwargs = self._by_place(args, kwargs)
        if self._constants and self._constants[-1] >= len(args):
            raise ValueError(f"{method}: argument {self._constants[-1]} of {len(args)}, which nondiff_argnums names, does not exist")
        constants = [args[k] for k in self._constants]
        rest = [a for k, a in enumerate(args) if k not in self._constants]
        call = self._flat(method, constants, rest, kwargs)
        place: dict = {}

        def described(tensors):
            out = call(tensors)
            place["structure"] = call.structure
            return out

        try:
            key = tuple([tree.frozen(s, []) for s in call.structures]), tree.frozen(call.names, []), tree._frozen(constants, [])
        except tree.Unfrozen:
            key = None
        rule = self._rules.get(key)
        if rule is not None and rule[0] in _known:
            del _known[rule[0]]  # while it is used, so that rules inside of f cannot push it out
        else:
            call.structures, call.names = [tree.copied(s) for s in call.structures], tree.copied(call.names)
            rule = (known(getattr(self.f, "__name__", method), self._rule(call, constants, place)), place)
            if key is not None:
                while len(self._rules) >= _MOST_RULES:
                    self._rules.pop(next(iter(self._rules)))
                self._rules[key] = rule
        try:
            results = call.run(_koine._with_rule, rule[0], described, call.inputs)
        finally:
            _keep(rule[0])
        rule[1].update(place)
        call.leaves, call.inputs = [None] * len(call.leaves), []  # which the rule would keep
        return call.result(results)


def _pair(rule: str, given: Any, what: str) -> Any:
    if not isinstance(given, (list, tuple)) or len(given) != 2:
        raise ValueError(f"{rule} gives a pair, {what}, not {given!r}")
    return given


def _like_result(rule: str, given: Any, place: dict, results: list) -> list:
    """The leaves of what a rule gives beside f's result, or for it: of the same structure and shapes."""
    leaves, structure = tree.flatten(given)
    if structure != place["structure"]:
        raise ValueError(f"{rule} gives {structure!r} for the result {place['structure']!r}")
    for one, result in zip(leaves, results):
        shape = getattr(one, "shape", ())
        if tuple(shape) != tuple(result.shape):
            raise ValueError(f"{rule} gives shape {tuple(shape)} for a result of shape {tuple(result.shape)}")
    return [as_number(one, result.dtype) for one, result in zip(tensors_of(rule, leaves), results)]


class _Misfit(builtins.Exception):
    """A cotangent of another structure than its argument's."""


def _cotangents(given: Any, structure: tree.Structure) -> list:
    """One for each leaf of an argument; None stands for all of a part."""
    if given is None:
        return [None] * structure.count
    parts = tree._parts(given)
    if structure.kind is None:
        if parts is not None:
            raise _Misfit
        return [given]
    if parts is None or type(given) is not structure.kind or len(parts[0]) != len(structure.children) or not tree._are_equal(structure.kind, parts[1], structure.data):
        raise _Misfit
    return [leaf for child, inner in zip(parts[0], structure.children) for leaf in _cotangents(child, inner)]


class custom_vjp(_Custom):
    """f with a gradient of its own, as JAX's.

    >>> @koine.custom_vjp
    ... def root(x):
    ...     return x.sqrt()
    >>> _ = root.defvjp(lambda x: (x.sqrt(), x.sqrt()), lambda saved, g: (g / (2 * saved),))
    >>> koine.grad(root)(4.0).item()
    0.25

    `fwd` takes f's arguments and gives (result, what is saved); `bwd` takes what is saved and the cotangent of the result,
    and gives a tuple of those of the arguments, None for none.

    Arguments whose numbers are among `nondiff_argnums`, or whose names are among `nondiff_argnames`, are no tensors but texts,
    functions and the like. `bwd` gets them first, and gives no cotangents of them.
    """

    def defvjp(self, fwd: Callable[..., Any], bwd: Callable[..., Any]) -> "custom_vjp":
        """Gives the function its gradient; gives the function back."""
        require_function("defvjp", fwd)
        require_function("defvjp", bwd)
        self._fwd, self._bwd = fwd, bwd
        self._rules = {}
        return self

    def __call__(self, *args, **kwargs):
        if not hasattr(self, "_bwd"):
            raise ValueError("custom_vjp: the function has no gradient yet: give one with defvjp(fwd, bwd)")
        return self._called("custom_vjp", _koine._known_vjp, args, kwargs)

    def _rule(self, call: FlatCall, constants: Sequence[Any], place: dict) -> Callable[..., Any]:
        fwd, bwd = self._fwd, self._bwd

        def rule(arguments, results, gradients):
            args, kwargs = call.arguments(arguments)
            again, saved = _pair("custom_vjp: fwd", fwd(*self._merged(constants, args), **kwargs), "f's result and what is saved")
            _like_result("custom_vjp: fwd", again, place, results)
            found = bwd(*constants, saved, tree.unflatten(place["structure"], gradients))
            if not isinstance(found, (list, tuple)) or len(found) != len(args):
                raise ValueError(f"custom_vjp: bwd gives a tuple of {len(args)} cotangents, not {found!r}")
            out: list = []
            for k, (one, structure) in enumerate(zip(found, call.structures)):
                try:
                    out += _cotangents(one, structure)
                except _Misfit:
                    raise ValueError(f"custom_vjp: bwd gives {tree.structure(one)!r} for argument {k}, which is {structure!r}") from None
            out = [one if one is None or k not in call.numbers else tensors_of("custom_vjp", [one])[0].cast(arguments[k].dtype) for k, one in enumerate(out)]
            return out + [None] * (len(arguments) - len(out))  # of keywords, and of what the function has captured

        return rule


class custom_jvp(_Custom):
    """f with a derivative of its own: `f.defjvp(rule)`, where `rule(primals, tangents)` gives (result, its tangent).

    >>> steep = koine.custom_jvp(lambda x: x * 1).defjvp(lambda primals, tangents: (primals[0] * 1, tangents[0] * 10))
    >>> koine.grad(steep)(2.0).item()
    10.0

    Arguments whose numbers are among `nondiff_argnums`, or whose names are among `nondiff_argnames`, are no tensors but texts,
    functions and the like. The rule gets them first: `rule(*those, primals, tangents)`.
    """

    def defjvp(self, rule: Callable[..., Any]) -> "custom_jvp":
        """Gives the function its derivative; gives the function back."""
        require_function("defjvp", rule)
        self._jvp = rule
        self._rules = {}
        return self

    def __call__(self, *args, **kwargs):
        if not hasattr(self, "_jvp"):
            raise ValueError("custom_jvp: the function has no derivative yet: give one with defjvp(rule)")
        return self._called("custom_jvp", _koine._known_jvp, args, kwargs)

    def _rule(self, call: FlatCall, constants: Sequence[Any], place: dict) -> Callable[..., Any]:
        given = self._jvp

        def rule(arguments, results, tangents):
            primals, _ = call.arguments(arguments)
            moved, _ = call.arguments(tangents)
            _, tangent = _pair("custom_jvp: the rule", given(*constants, tuple(primals), tuple(moved)), "f's result and its tangent")
            return _like_result("custom_jvp: the rule", tangent, place, results)

        return rule
