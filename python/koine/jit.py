"""koine.jit: a function of tensors that is described and compiled once, then runs in one submission."""
from __future__ import annotations

import builtins
import functools
import os
import re
import sys
import threading
import types
from typing import Any, Callable, Mapping, Sequence

from . import _koine, tree
from ._koine import DType, Tensor, Variable
from .errors import TypeError, ValueError, knows_keywords
from .transforms import line_of, require_function, run_for

__all__ = ["jit"]

_STATIC = (bool, int, float, complex, str, bytes, DType, type(None))
_MOST_PROGRAMS = 64
_MOST_CHANGES = 8
_missing: Any = object()
_OWN_FILES = os.path.dirname(__file__) + os.sep


def _parameters(f: Callable[..., Any]) -> dict:
    """The kind of each parameter; a layer of the module says them in words of its own."""
    import inspect

    said = getattr(getattr(type(f), "__call__", None), "__nb_signature__", None)
    if said is not None:
        return dict.fromkeys(re.findall(r", (\w+):", said[0][0]), inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return {name: p.kind for name, p in inspect.signature(f).parameters.items()}


class _Constants:
    """Which arguments are constants, by the number of a parameter or by its name; what has both is known by both, as in JAX."""

    __slots__ = ("numbers", "names")

    def __init__(self, kind: str, f: Callable[..., Any], numbers: Any, names: Any):
        def listed(given: Any, is_one: bool, fits: Callable[[Any], bool], what: str) -> list:
            if given is None:
                return []
            out = [given] if is_one or not hasattr(given, "__iter__") else list(given)
            if not all(fits(n) for n in out):
                raise TypeError(f"jit: {kind}_arg{what}s is the {what}{'ber' if what == 'num' else ''} of an argument, or several, not {given!r}")
            return out

        given_numbers = listed(numbers, isinstance(numbers, str), lambda n: hasattr(n, "__index__"), "num")
        given_names = listed(names, isinstance(names, str), lambda n: isinstance(n, str), "name")
        try:
            kinds = _parameters(f)
        except (builtins.TypeError, builtins.ValueError):
            raise TypeError(f"jit: {kind}_argnums counts parameters, and {f!r} does not say which it has: wrap it in a function") from None
        import inspect

        by_place = [n for n, k in kinds.items() if k in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)]
        any_place, any_name = inspect.Parameter.VAR_POSITIONAL in kinds.values(), inspect.Parameter.VAR_KEYWORD in kinds.values()
        for n in given_numbers:
            if not any_place and not -len(by_place) <= n < len(by_place):
                raise ValueError(f"jit: {kind}_argnums names argument {n}, and there are {len(by_place)}: {', '.join(by_place) or 'none'}")
        for name in given_names:
            if not any_name and name not in kinds:
                raise ValueError(f"jit: {kind}_argnames names '{name}', and the parameters are {', '.join(kinds) or 'none'}")
        own = {n + len(by_place) if n < 0 else int(n) for n in given_numbers}
        self.numbers = own | {by_place.index(n) for n in given_names if n in by_place and numbers is None}
        self.names = set(given_names) | {by_place[n] for n in own if n < len(by_place) and names is None}


def _constant_key(where: Any, value: Any) -> Any:
    """What tells a constant from others: types and the signs of zeros too, of a user's object what its == says."""
    try:
        if isinstance(value, Tensor):
            raise builtins.TypeError
        hash(value)
    except builtins.TypeError:
        raise ValueError(f"jit: argument {where!r} is static, and a '{type(value).__name__}' has no hash that tells its value: "
                         "static arguments are constants, such as numbers, texts, tuples of these and functions") from None
    try:
        return where, tree._frozen(value, [])
    except tree.Unfrozen:
        return where, type(value), value


def _with_constants(f: Callable[..., Any], by_place: tuple, by_name: tuple) -> Callable[..., Any]:
    """f of the other arguments."""

    @functools.wraps(f, updated=())
    def bound(*args, **kwargs):
        given = list(args)
        for place, value in by_place:
            given.insert(place, value)
        return f(*given, **kwargs, **dict(by_name))

    import inspect

    known = list(inspect.signature(f).parameters.values())
    gone = {place for place, _ in by_place}, {name for name, _ in by_name}
    bound.__signature__ = inspect.Signature([p for k, p in enumerate(known) if k not in gone[0] and p.name not in gone[1]])  # type: ignore[attr-defined]
    return bound


def _dynamic_arguments(f: Callable[..., Any], dynamic: Any) -> Any:
    """`dynamic` of a jit of f, checked. Sizes are looked at in each call."""
    import inspect

    if not isinstance(dynamic, Mapping):
        raise TypeError(f"jit: dynamic is a dict such as {{'x': {{0: Variable('n', 1, 4096)}}}}, not a '{type(dynamic).__name__}'")
    try:
        parameters = _parameters(f)
    except (builtins.TypeError, builtins.ValueError):
        raise TypeError(f"jit: dynamic names parameters, and {f!r} does not say which it has: wrap it in a function") from None
    ranges: dict = {}
    for name, axes in dynamic.items():
        if name not in parameters:
            raise ValueError(f"jit: dynamic names '{name}', and the parameters are {', '.join(parameters) or 'none'}")
        if not isinstance(axes, Mapping):
            raise TypeError(f"jit: dynamic['{name}'] is a dict such as {{0: Variable('n', 1, 4096)}}, not a '{type(axes).__name__}'")
        for axis, size in axes.items():
            if type(axis) is not int:
                raise TypeError(f"jit: an axis of dynamic['{name}'] is a whole number, not a '{type(axis).__name__}'")
            if not isinstance(size, Variable):
                raise TypeError(f"jit: dynamic['{name}'][{axis}] is a Variable, not a '{type(size).__name__}'")
            if ranges.setdefault(size.name, repr(size)) != repr(size):
                raise ValueError(f"jit: dynamic has {ranges[size.name]} and {size!r}: give one of them another name")

    def of(*kinds):
        return [name for name, kind in parameters.items() if kind in kinds]

    kind = inspect.Parameter
    return _koine._DynamicArguments([(name, list(axes.items())) for name, axes in dynamic.items()],
                                    of(kind.POSITIONAL_ONLY, kind.POSITIONAL_OR_KEYWORD),
                                    "".join(of(kind.VAR_POSITIONAL)), "".join(of(kind.VAR_KEYWORD)))


def _holds_size(data: Any) -> bool:
    """Whether the data of a tree, or what they hold, are a symbolic size."""
    if isinstance(data, tree.Structure):
        return _holds_size(data.data) or any(_holds_size(c) for c in data.children)
    if isinstance(data, dict):
        return any(_holds_size(v) for v in data.values())
    return type(data) is _koine.Size or isinstance(data, (tuple, list)) and any(_holds_size(v) for v in data)


def _reason(e: Exception) -> str:
    """What went wrong, and in which line of the user's."""
    line, at = "", e.__traceback__
    while at is not None:
        file = at.tb_frame.f_code.co_filename
        if not file.startswith(_OWN_FILES):
            line = f" ({file}:{at.tb_lineno})"
        at = at.tb_next
    return f"{type(e).__name__}: {e}{line}"


class _Program:
    """f for arguments of one kind."""

    __slots__ = ("captured", "structure", "single")

    def __init__(self, captured, structure):
        self.captured, self.structure = captured, structure
        self.single = structure.kind is None  # it gives a tensor

    def run(self, tensors):
        results = self.captured(tensors)
        return results[0] if self.single else tree.unflatten(tree.copied(self.structure), results)


class _Dynamic(_Program):
    """f for arguments of any sizes along some axes."""

    __slots__ = ()

    def serves(self, tensors) -> bool:
        return self.captured.serves(tensors)


class _Stateful:
    """f for arguments of one kind, where it assigns or asks for gradients: a program for each way in which tensors are views
    of one another, require gradients and have some."""

    __slots__ = ("programs",)

    def __init__(self):
        self.programs: dict = {}

    def find(self, tensors):
        return self.programs.get(_koine._state_of(tensors))


class _Eager:
    """Why f runs as it is written for arguments of one kind."""

    __slots__ = ("reason",)

    def __init__(self, reason: str):
        self.reason = reason


class _Methods:
    """The jits of the methods of one object, which keeps them: `@koine.jit` on a method of a class is one for each object.
    Copies of the object have none."""

    __slots__ = ("owner", "of")
    NAME = "_koine_jits"

    def __init__(self, owner: Any = None):
        self.owner = owner
        self.of: dict = {}  # by the jit of the class

    def _functions(self) -> list:
        return []

    def __reduce__(self):
        return _Methods, ()


class jit:
    """f, compiled once for each kind of arguments: `jit(f)(x)` is `f(x)`, in one submission.

    Arguments are trees of tensors; numbers and texts among them are constants, and each value has a program of its own.
    What f reads beside its arguments (globals, variables around it, objects, other functions) is held against what there
    is at each call: tensors among it are read anew, and where anything else differs, f is described again.

    What f assigns to tensors, the gradients that it leaves and the random numbers that it draws are those of f: a step of
    training, with backward() and an optimizer's step(), is one program.

    Where f cannot be described (it looks at values, stores into objects, prints, has try blocks, reads what cannot be
    followed), it runs as it is written: `explain_recompiles()` says why. So the answer is never a stale one.

    >>> double = koine.jit(lambda x: (x * 2).sum())
    >>> double(koine.Tensor([1., 2.])).item()
    6.0

    `dynamic` names axes of arguments, `{parameter: {axis: Variable}}`, whose size differs from call to call: one program
    serves all sizes in the Variable's range. Of a tree it holds for each tensor in it. What asks for such a size (`if
    x.shape[0] > 3`, `range(len(x))`) makes f run as it is written, unless the range decides. Another size than the range's is
    a ValueError.

    >>> rows = koine.jit(lambda x: x - x.mean(0), dynamic={"x": {0: koine.Variable("n", 1, 512)}})
    >>> [rows(koine.ones(n, 3)).shape for n in (5, 7, 100)]
    [(5, 3), (7, 3), (100, 3)]
    >>> rows.explain_recompiles()
    []

    `static_argnums` and `static_argnames` are JAX's: such an argument is a constant, as numbers and texts are without being named. It may be
    any object with a hash, such as a configuration; objects that are equal are one constant, and each constant has programs of its own.

    >>> scaled = koine.jit(lambda x, axes: x.sum(axes), static_argnums=1)
    >>> scaled(koine.ones(2, 3), (0, 1)).item()
    6.0

    `donate_argnums` and `donate_argnames` are accepted and checked, and change nothing: the memory of a tensor is free once nobody holds it, so
    `state = step(state)` needs no more than both states, and arguments that were donated stay valid.

    As a decorator it is `@koine.jit` or `@koine.jit(dynamic=...)`. Of a method of a class there is one jit for each object,
    which the object keeps.
    """

    @knows_keywords
    def __new__(cls, f: Any = _missing, dynamic: Any = None, *, static_argnums: Any = None, static_argnames: Any = None,
                donate_argnums: Any = None, donate_argnames: Any = None) -> Any:
        if f is not _missing:
            return object.__new__(cls)
        return functools.partial(cls, dynamic=dynamic, static_argnums=static_argnums, static_argnames=static_argnames,
                                 donate_argnums=donate_argnums, donate_argnames=donate_argnames)

    def __init__(self, f: Callable[..., Any], dynamic: Mapping[str, Mapping[int, Variable]] | None = None, *,
                 static_argnums: int | Sequence[int] | None = None, static_argnames: str | Sequence[str] | None = None,
                 donate_argnums: int | Sequence[int] | None = None, donate_argnames: str | Sequence[str] | None = None):
        from . import guards  # reads code, and what it needs for that takes 10 ms to import

        require_function("jit", f)
        self._guards = guards
        functools.update_wrapper(self, f, updated=())
        self._jit_function = f
        self._given = {"dynamic": dynamic, "static_argnums": static_argnums, "static_argnames": static_argnames,
                       "donate_argnums": donate_argnums, "donate_argnames": donate_argnames}
        self._constants: _Constants | None = None
        if static_argnums is not None or static_argnames is not None:
            self._constants = _Constants("static", f, static_argnums, static_argnames)
        if donate_argnums is not None or donate_argnames is not None:
            donated = _Constants("donate", f, donate_argnums, donate_argnames)
            both = self._constants and (donated.numbers & self._constants.numbers or donated.names & self._constants.names)
            if both:
                raise ValueError(f"jit: argument {min(both)!r} is static, so it cannot be donated")
        self._dynamic = _dynamic_arguments(f, dynamic) if dynamic is not None else None
        if self._constants and dynamic and self._constants.names & set(dynamic):
            raise ValueError(f"jit: argument {min(self._constants.names & set(dynamic))!r} is static, so it has no dynamic axes")
        self._of_constants: dict = {}  # the jits of f with its constants
        self._lock = threading.Lock()
        self._reads: guards.Reads | None = None
        self._programs: dict = {}
        self._log: list[str] = []
        self._changing = 0  # how often in a row f changed what it reads or is given

    def _functions(self) -> list:
        return [self._jit_function]

    def __reduce__(self) -> Any:
        """As a function, by its name, where that is this; else a new jit of a copy of what it calls."""
        name = getattr(self, "__qualname__", "")
        found: Any = sys.modules.get(getattr(self, "__module__", None) or "")
        for part in name.split("."):
            found = getattr(found, part, None)
        return name if found is self else (functools.partial(jit, **self._given), (self._jit_function,))

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self
        fields = getattr(instance, "__dict__", None)
        if type(fields) is not dict or _koine._is_tracing() or tree._parts(instance) is not None:  # the tensors of a tree are arguments
            return functools.partial(self, instance)
        methods = fields.get(_Methods.NAME)
        if methods is None or methods.owner is not instance:
            methods = fields[_Methods.NAME] = _Methods(instance)
        bound = methods.of.get(self)
        if bound is None:
            bound = methods.of[self] = jit(types.MethodType(self._jit_function, instance), **self._without_self())
        return bound

    def _without_self(self) -> dict:
        """What was given to this jit, for the method of an object."""
        def counted(numbers, first):
            places = [numbers] if hasattr(numbers, "__index__") else numbers
            return None if numbers is None else [n - 1 if n > 0 else n for n in places if n != 0 and n != -first]

        def named(names, own):
            return None if names is None else [n for n in ([names] if isinstance(names, str) else names) if n != own]

        if self._given["static_argnums"] is None and self._given["donate_argnums"] is None and self._constants is None:
            return self._given
        parameters = list(_parameters(self._jit_function))
        return {key: counted(value, len(parameters)) if key.endswith("argnums") else named(value, parameters[0]) if key.endswith("argnames") else value
                for key, value in self._given.items()}

    def _called_with_constants(self, args: tuple, kwargs: dict) -> Any:
        constants = self._constants
        assert constants is not None
        by_place = tuple([(k, a) for k, a in enumerate(args) if k in constants.numbers])
        by_name = tuple([(n, a) for n, a in kwargs.items() if n in constants.names])
        key = tuple([_constant_key(where, value) for where, value in by_place + by_name])
        of = self._of_constants.get(key)
        if of is None:
            if self._of_constants:
                self._say("static arguments of other values")
            dynamic = self._given["dynamic"]
            of = jit(_with_constants(self._jit_function, by_place, by_name), dynamic)
            with self._lock:
                if len(self._of_constants) >= _MOST_PROGRAMS:
                    self._of_constants.pop(next(iter(self._of_constants)))
                of = self._of_constants.setdefault(key, of)
        return of(*[a for k, a in enumerate(args) if k not in constants.numbers], **{n: a for n, a in kwargs.items() if n not in constants.names})

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._constants is not None:
            return self._jit_function(*args, **kwargs) if _koine._is_tracing() else self._called_with_constants(args, kwargs)
        reads = self._reads
        if reads is not None and reads.changed() is None:
            around = reads.around()
            found = _koine._key(args, kwargs, around, self._dynamic)
            if found is not None:
                program = self._programs.get(found[0])
                if type(program) is _Stateful:
                    program = program.find(found[1])
                if type(program) is _Program or type(program) is _Dynamic and program.serves(found[1]):
                    return program.run(found[1])
        return self._find(args, kwargs, self._dynamic)

    def _find(self, args: tuple, kwargs: dict, dynamic: Any) -> Any:
        """The call, where its program was not found at once."""
        f = self._jit_function
        if _koine._is_tracing():  # part of what is described
            return f(*args, **kwargs)
        if _koine._finds_nan():  # whose messages need what a program no longer knows
            return f(*args, **kwargs)
        if self._changing > _MOST_CHANGES:  # to describe it again and again is of no use
            return f(*args, **kwargs)
        leaves, structure = tree.flatten_as_given((args, kwargs))
        tensors: list[Tensor] = []
        constants: list[Any] = []
        axes = self._axes(dynamic, leaves, structure) if dynamic is not None else []
        for leaf in leaves:
            kind = type(leaf)
            if kind is Tensor:
                tensors.append(leaf)
                constants.append(Tensor)
            elif kind in _STATIC:
                constants.append((kind, repr(leaf) if kind is float or kind is complex else leaf))
            else:
                self._say(f"an argument is a '{kind.__name__}', neither a tensor nor a constant")
                return f(*args, **kwargs)
        reads = self._current_reads()
        if reads is None:
            return f(*args, **kwargs)
        try:
            met: list = []
            shape = tree.frozen(structure, met)
            for part in [*structure.classes, *met]:
                reads.include(part)
        except (self._guards.Unknown, tree.Unfrozen) as e:
            self._say(f"runs as it is written: {e}")
            return f(*args, **kwargs)
        around = reads.around()
        found = _koine._key(args, kwargs, around, dynamic)
        ids = [id(t) for t in tensors]
        key = found[0] if found else (shape, tuple(constants), tuple(ids.index(i) for i in ids),
                                      _koine._signature(tensors, around, axes))
        program = self._programs.get(key)
        if type(program) is _Stateful:
            program = program.find(tensors + around)
        if program is None:
            program = self._describe(reads, key, leaves, structure, tensors, around, axes)
        if type(program) is _Eager:
            return f(*args, **kwargs)
        if type(program) is _Dynamic and not program.serves(tensors + around):
            return self._find(args, kwargs, None)
        return program.run(tensors + around)

    @staticmethod
    def _axes(dynamic, leaves, structure) -> list:
        """The dynamic axes of the tensors among the arguments."""
        places, names = structure.children
        owners = [dynamic.at(k) for k, part in enumerate(places.children) for _ in range(part.count)]
        owners += [dynamic.at(name) for name, part in zip(names.data, names.children) for _ in range(part.count)]
        held = [(leaf, owner) for leaf, owner in zip(leaves, owners) if type(leaf) is Tensor]
        return dynamic.axes_of([leaf for leaf, _ in held], [owner for _, owner in held])

    def explain_recompiles(self) -> list[str]:
        """Why f was described again, or runs as it is written; oldest first."""
        return self._log + [reason for of in self._of_constants.values() for reason in of.explain_recompiles()]

    def _say(self, reason: str) -> None:
        if reason not in self._log[-8:]:
            self._log = (self._log + [reason])[-100:]

    def _current_reads(self) -> Any:
        """What f reads, as it is now; None: it cannot be followed."""
        reads = self._reads
        changed = reads.changed() if reads is not None else None
        if reads is not None and changed is None:
            return reads
        if changed is not None:
            self._say(changed)
        try:
            reads = self._guards.Reads(self._jit_function)
        except self._guards.Unknown as e:
            self._say(f"runs as it is written: {e}")
            return None
        with self._lock:
            self._reads, self._programs = reads, {}
        return reads

    def _describe(self, reads, key, leaves, structure, tensors, around, axes) -> Any:
        f, line = self._jit_function, line_of(self._jit_function)
        place: dict = {}
        if len({id(t) for t in tensors}) < len(tensors):
            return self._keep(reads, key, _Eager("a tensor is given twice: the function could tell by `is`"))
        values = [t.uop for t in around]
        if values and any(t.uop in values for t in tensors):
            return self._keep(reads, key, _Eager("an argument is a tensor that it reads beside its arguments: it could tell by `is`"))
        mutable = any(c.mutable for part in structure.children for c in part.children)
        if reads.stores and mutable:
            return self._keep(reads, key, _Eager(f"{reads.stores}, and an argument is a list, a dict or an object"))

        if axes and reads.tells_sizes:
            return self._keep(reads, key, _Eager("it asks for types, and a dynamic size has one of its own"))

        def described(given):
            rest = iter(given)
            inside = tree.unflatten(tree.copied(structure), [next(rest) if type(leaf) is Tensor else leaf for leaf in leaves])
            alive: list = []
            held = tree.held(inside, alive) if mutable else None
            out = run_for(line, lambda: f(*inside[0], **inside[1]))
            if mutable and held != tree.held(inside, alive):
                place["changing"] = True
                raise self._guards.Unknown("it changes a list, a dict or an object among its arguments. Give back what is new instead")
            results, place["structure"] = self._results(out, axes)
            return results

        try:
            captured = run_for(line, _koine._Captured, described, tensors, around, axes)
            program: Any = (_Dynamic if axes else _Program)(captured, place["structure"])
        except (self._guards.Unknown, tree.Unfrozen) as e:
            program = _Eager(str(e))
        except Exception as e:  # raised again where f runs as it is written, if it is f's
            program = _Eager(_reason(e))
        finally:
            changed = reads.changed()
            if changed is not None and reads.changes:  # f does it when it runs
                reads.put_back()
        self._changing = self._changing + 1 if changed is not None or "changing" in place else 0
        if changed is not None:
            program = _Eager(f"it changes what it reads: {changed}. Give back what is new instead")
        for t in tensors + around if type(program) is not _Eager else ():
            if _koine._reads_borrowed(t):
                self._say(f"a tensor of shape {t.shape} is computed in each call, since it borrows memory that may change: realize() it once")
        return self._keep(reads, key, program, tensors + around)

    def _results(self, out: Any, axes: list) -> tuple:
        """The tensors of a result, and its structure with data of its own."""
        results, structure = tree.flatten_as_given(out)
        for r in results:
            if type(r) is not Tensor:
                raise self._guards.Unknown(f"the function gives a '{type(r).__name__}' beside tensors")
        if axes and _holds_size(structure):
            raise self._guards.Unknown("the function gives a tree whose data hold a size")
        tree.frozen(structure, [])
        return results, tree.copied(structure)

    def _keep(self, reads, key, program, tensors=()) -> Any:
        if type(program) is _Eager:
            self._say(f"runs as it is written: {program.reason}")
        elif key in self._programs:
            self._say("tensors of another state: other views, or gradients that they require or have")
        elif self._programs:
            self._say("arguments of another kind: other shapes, dtypes, devices, constants or aliases")
        with self._lock:
            if self._reads is reads:
                known = self._programs.get(key)
                if known is None and len(self._programs) >= _MOST_PROGRAMS:
                    self._programs.pop(next(iter(self._programs)))
                if type(known) is _Stateful or type(program) is not _Eager and program.captured.has_state():
                    stateful = known if type(known) is _Stateful else _Stateful()
                    if len(stateful.programs) >= _MOST_PROGRAMS:
                        stateful.programs.pop(next(iter(stateful.programs)))
                    stateful.programs[_koine._state_of(tensors)] = program
                    self._programs[key] = stateful
                else:
                    self._programs[key] = program
        return program

