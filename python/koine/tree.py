"""Trees of tensors: tuples, lists, dicts and classes of such, namedtuples, dataclasses, layers, and types that are registered.

    leaves, shape = koine.tree.flatten({"w": w, "b": (b, None)})
    same = koine.tree.unflatten(shape, leaves)

None holds nothing; keys of a dict count in sorted order, of an OrderedDict in theirs. Fields of a dataclass are data, no leaves, where they hold
texts, enums, dtypes or functions, and where they say so: `dataclasses.field(metadata={"static": True})`. Whatever is no tree is a leaf.
"""
from __future__ import annotations

import builtins
import collections
import collections.abc
import enum
import functools
import types
from typing import Any, Callable, Iterable

from . import _koine
from .errors import TypeError, ValueError, knows_keywords

__all__ = ["flatten", "unflatten", "leaves", "structure", "map", "register"]

# What is a tree, or a leaf, of itself.
_OWN_KINDS = (_koine.Tensor, bool, int, float, complex, str, bytes, type(None), tuple, list, dict, collections.OrderedDict, collections.defaultdict)
_registered: dict[type, tuple[Callable[..., Any], Callable[..., Any]]] = {}


def register(kind: type, flatten: Callable[..., Any], unflatten: Callable[..., Any]) -> None:
    """Makes a type a tree: `flatten(x)` gives (children, data), `unflatten(data, children)` the value again.

    `data` is what is no tree, and compares with ==. Of constants, lists, dicts, sets, arrays, functions and classes koine.jit
    knows when they are others than before; a function that is given other data runs as it is written.
    """
    if not isinstance(kind, type):
        raise TypeError(f"tree.register: takes a class, not a '{builtins.type(kind).__name__}'")
    for given in (flatten, unflatten):
        if not callable(given):
            raise TypeError(f"tree.register: of {kind.__name__}, flatten and unflatten are functions, not a '{builtins.type(given).__name__}'")
    if kind in _OWN_KINDS:
        raise ValueError(f"tree.register: what {kind.__name__} is in a tree is known, and is not changed")
    _registered[kind] = (flatten, unflatten)


def _by_key(tree: dict) -> tuple:
    try:
        keys = tuple(sorted(tree))
    except builtins.TypeError:
        raise TypeError("a dict in a tree has keys that do not compare with each other: sort them as texts or numbers") from None
    return [tree[k] for k in keys], keys


def _in_order(order: tuple) -> Callable[..., Any]:
    """Makes a dict of sorted keys in the order that it had."""

    def rebuild(keys, children):
        found = dict(zip(keys, children))
        return {k: found[k] for k in order}

    return rebuild


def _dict_parts(tree: dict, as_given: bool):
    """_parts of a class of dicts."""
    kind, order = type(tree), tuple(tree)
    ordered = as_given or isinstance(tree, collections.OrderedDict)
    names = _Names(order if ordered else _by_key(tree)[1])
    names.rest = dict(getattr(tree, "__dict__", {}))
    if isinstance(tree, collections.defaultdict):
        names.static = {"default_factory": tree.default_factory}
    into = collections.OrderedDict if isinstance(tree, collections.OrderedDict) else dict

    def rebuild(names, children):
        out, found = kind.__new__(kind), dict(zip(names, children))
        for key in order:
            into.__setitem__(out, key, found[key])
        for name, value in [*names.static.items(), *names.rest.items()]:
            object.__setattr__(out, name, value)
        return out

    return [dict.__getitem__(tree, k) for k in names], names, rebuild


def _parts(tree: Any, as_given: bool = False):
    """(children, data, rebuild) of a node; None of a leaf. `as_given`: keys of a dict in their order, not sorted."""
    kind = type(tree)
    if kind in _registered:
        flat, rebuild = _registered[kind]
        children, data = flat(tree)
        return list(children), data, lambda d, c: rebuild(d, c)
    if kind is tuple:
        return list(tree), None, lambda _, c: tuple(c)
    if kind is list:
        return list(tree), None, lambda _, c: list(c)
    if kind is dict:
        if as_given:
            return list(tree.values()), tuple(tree), lambda k, c: dict(zip(k, c))
        children, keys = _by_key(tree)
        return children, keys, _in_order(tuple(tree))
    if isinstance(tree, dict):
        return _dict_parts(tree, as_given)
    if tree is None:
        return [], None, lambda _, c: None
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return list(tree), None, lambda _, c: kind(*c)
    if hasattr(kind, "__dataclass_fields__"):
        import dataclasses  # some 10 ms, which whoever has a dataclass has paid

        fields = dataclasses.fields(tree)
        static = {f.name: getattr(tree, f.name) for f in fields if f.metadata.get("static") or _is_static(getattr(tree, f.name))}
        names = _Names(f.name for f in fields if f.name not in static)
        names.static, names.rest = static, _beside(tree, [f.name for f in fields])
        return [getattr(tree, n) for n in names], names, lambda n, c: _dataclass(kind, n, c)
    return None


def _is_static(value: Any) -> bool:
    """Whether a field of a dataclass holds what is no leaf unless it says so."""
    return isinstance(value, (str, bytes, enum.Enum, _koine.DType, functools.partial, *_identical)) or type(value).__module__ == "nanobind"


class _Names(tuple):
    """Names of a dataclass's fields, or keys of a class of dicts; `static`: what is compared beside them; `rest`: attributes that are not."""

    static: dict = {}
    rest: dict = {}

    def __eq__(self, other):
        return tuple.__eq__(self, other) and self.static == getattr(other, "static", {})

    def __ne__(self, other):
        return not self == other

    __hash__ = tuple.__hash__


def _beside(tree: Any, names: list) -> dict:
    def is_cached(name):  # a property of the fields, which others have
        return isinstance(getattr(type(tree), name, None), functools.cached_property)

    held = getattr(tree, "__dict__", {})
    return {k: v for k, v in held.items() if k not in names and not is_cached(k)} if len(held) > len(names) else {}


def _dataclass(kind: type, names: Any, children: Iterable) -> Any:
    out: Any = object.__new__(kind)
    for name, value in [*zip(names, children), *names.static.items(), *names.rest.items()]:
        object.__setattr__(out, name, value)
    return out


_fixed = (None, tuple, type(None))
_plain = (None, tuple, list, dict, type(None))


class Structure:
    """A tree without its leaves. Equal structures compare equal."""

    __slots__ = ("kind", "data", "children", "rebuild", "count", "classes", "mutable")

    def __init__(self, kind, data, children, rebuild):
        self.kind = kind  # None: a leaf
        self.data = data
        self.children = children
        self.rebuild = rebuild
        self.count = 1 if kind is None else sum([c.count for c in children])
        self.mutable = kind not in _fixed or any([c.mutable for c in children])
        own = () if kind in _plain or kind.__module__.split(".")[0] == "koine" else (kind,)
        self.classes = tuple(dict.fromkeys([*own, *[k for c in children for k in c.classes]]))

    def __eq__(self, other):
        return (isinstance(other, Structure) and self.kind is other.kind and _are_equal(self.kind, self.data, other.data)
                and self.children == other.children)

    def __hash__(self):
        return hash((self.kind, self.count, len(self.children)))

    def __repr__(self):
        if self.kind is None:
            return "*"
        if issubclass(self.kind, dict):
            return ("" if self.kind is dict else self.kind.__name__) + "{" + ", ".join(f"{k!r}: {c!r}" for k, c in zip(self.data, self.children)) + "}"
        if self.kind is tuple or self.kind is list:
            inside = ", ".join(builtins.map(repr, self.children))
            if self.kind is list:
                return f"[{inside}]"
            return f"({inside},)" if len(self.children) == 1 else f"({inside})"
        if self.kind is type(None):
            return "None"
        return f"{self.kind.__name__}({', '.join(builtins.map(repr, self.children))})"


def _are_equal(kind: Any, one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except builtins.ValueError:  # arrays, which compare element by element
        pass
    try:
        return _frozen(one, []) == _frozen(other, [])
    except Unfrozen:
        raise TypeError(f"the data of a '{kind.__name__}' in a tree do not compare with ==: "
                        "koine.tree.register wants some that do") from None


class Unfrozen(builtins.TypeError):
    """What cannot be told from what it was before."""


_identical = (type, types.FunctionType, types.BuiltinFunctionType)


def _is_constant_object(data: Any) -> bool:
    """Whether it is a frozen dataclass that holds no more than a dict."""
    parameters = getattr(type(data), "__dataclass_params__", None)
    return parameters is not None and parameters.frozen and hasattr(data, "__dict__") and not isinstance(data, type)


def _frozen(data: Any, met: list) -> Any:
    """What tells data from others, of now and of later: types and the signs of zeros too. `met`: functions and classes."""
    kind = type(data)
    if kind in (bool, int, str, bytes, type(None), _koine.DType):
        return kind, data
    if kind in (float, complex):
        return kind, repr(data)
    if kind in (tuple, list, set, frozenset):
        return kind, tuple([_frozen(d, met) for d in data])
    if isinstance(data, tuple) and hasattr(kind, "_fields") or _is_constant_object(data):
        met.append(kind)
        return kind, tuple([_frozen(d, met) for d in (data if isinstance(data, tuple) else vars(data).items())])
    if kind is functools.partial:
        return kind, _frozen((data.func, data.args, data.keywords), met)
    if kind is _Names:
        return kind, tuple([_frozen(d, met) for d in data]), _frozen(data.static, met), _frozen(data.rest, met)
    if kind is dict:
        return kind, tuple([(_frozen(k, met), _frozen(v, met)) for k, v in data.items()])
    if isinstance(data, (*_identical, enum.Enum)) or kind.__module__ == "nanobind":
        met.append(data)
        return kind, id(data) if isinstance(data, enum.Enum) else data
    if isinstance(data, Structure):
        return frozen(data, met)
    if hasattr(kind, "_told_by"):
        return kind, _frozen(data._told_by(), met)
    if kind.__module__ == "numpy" and hasattr(data, "tobytes") and not data.dtype.hasobject:
        return kind, str(data.dtype), data.shape, data.tobytes()
    raise Unfrozen(f"the data of a tree hold a '{kind.__name__}'")


def frozen(structure: Structure, met: list) -> Any:
    """A structure as a key that stays when data change. Raises Unfrozen. `met` lists functions, classes and enums in data."""
    if structure.kind is None:
        return None
    return structure.kind, _frozen(structure.data, met), tuple([frozen(c, met) for c in structure.children])


def copied(structure: Structure) -> Structure:
    """A structure with data of its own."""
    if not structure.classes:  # of tuples, lists and dicts
        return structure
    children, data = tuple([copied(c) for c in structure.children]), _copied(structure.data)
    if data is structure.data and all([a is b for a, b in zip(children, structure.children)]):  # nothing in it can change
        return structure
    return Structure(structure.kind, data, children, structure.rebuild)


def _copied(data: Any) -> Any:
    if isinstance(data, _Names) and not data.rest and not data.static:
        return data
    if isinstance(data, _Names):
        names = _Names(data)
        names.static, names.rest = _copied(data.static), _copied(data.rest)
        return names
    if isinstance(data, tuple):
        parts = [_copied(d) for d in data]
        if all(a is b for a, b in zip(parts, data)):  # nothing in it can change
            return data
        return type(data)(*parts) if hasattr(data, "_fields") else tuple(parts)
    if _is_constant_object(data):
        fields = {k: _copied(v) for k, v in vars(data).items()}
        if all(fields[k] is v for k, v in vars(data).items()):
            return data
        out = object.__new__(type(data))
        vars(out).update(fields)
        return out
    if type(data) in (list, set):
        return type(data)([_copied(d) for d in data])
    if type(data) is dict:
        return {_copied(k): _copied(v) for k, v in data.items()}
    return data.copy() if type(data).__module__ == "numpy" and hasattr(data, "tobytes") else data


def held(tree: Any, kept: list, inside: bool = False) -> list:
    """What each list, dict and object of a tree holds, to see later whether it is the same. `kept` keeps it alive.
    `inside` of a registered type, whose containers may be made for this."""
    kind = type(tree)
    parts = None if kind.__module__.split(".")[0] == "koine" else _parts(tree, True)
    kept.append(tree)
    if parts is None:
        return [id(tree)]
    children, data, _ = parts
    kept += [children, data]
    by_identity = kind in (list, dict) and not inside
    told = tuple([id(k) for k in data]) if kind is dict else None if kind in _plain else _frozen(data, [])
    out = [(kind, id(tree) if by_identity else 0, len(children), told)]
    for child in children:
        out += held(child, kept, inside or kind in _registered)
    return out


_leaf = Structure(None, None, (), None)


@knows_keywords
def flatten(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> tuple[list, Structure]:
    """The leaves of a tree, in order, and its structure. What `is_leaf` says is one, is one.

    >>> koine.tree.flatten({"b": (2, None), "a": 1})
    ([1, 2], {'a': *, 'b': (*, None)})
    >>> koine.tree.flatten({"b": (2, None), "a": 1}, is_leaf=lambda part: type(part) is tuple)
    ([1, (2, None)], {'a': *, 'b': *})
    """
    out: list[Any] = []
    return out, _flatten(tree, out, 0, False, is_leaf)


def flatten_as_given(tree: Any) -> tuple[list, Structure]:
    """The same, but that dicts of another order are other trees."""
    out: list = []
    return out, _flatten(tree, out, 0, True)


def _flatten(tree: Any, out: list, depth: int, as_given: bool, is_leaf: Callable[[Any], bool] | None = None) -> Structure:
    if depth > 200:
        raise ValueError("a tree is nested more than 200 deep, or holds itself")
    parts = _parts(tree, as_given) if is_leaf is None or not is_leaf(tree) else None
    if parts is None:
        out.append(tree)
        return _leaf
    children, data, rebuild = parts
    return Structure(type(tree), data, tuple([_flatten(c, out, depth + 1, as_given, is_leaf) for c in children]), rebuild)


def unflatten(structure: Structure, leaves: Iterable) -> Any:
    """The tree of a structure with these leaves. ValueError where their number differs.

    >>> koine.tree.unflatten(koine.tree.structure((0, [0])), [1, 2])
    (1, [2])
    """
    if not isinstance(structure, Structure):
        raise TypeError(f"tree.unflatten: takes what structure() gives, and leaves, not a '{type(structure).__name__}'")
    if not isinstance(leaves, collections.abc.Iterable):
        raise TypeError(f"tree.unflatten: takes a list of leaves, not a '{type(leaves).__name__}'")
    given = list(leaves)
    if len(given) != structure.count:
        raise ValueError(f"tree.unflatten: a tree of {structure.count} leaves, {structure!r}, is given {len(given)}")
    return _unflatten(structure, iter(given))


def _unflatten(structure: Structure, leaves) -> Any:
    if structure.kind is None:
        return next(leaves)
    return structure.rebuild(structure.data, [_unflatten(c, leaves) for c in structure.children])


@knows_keywords
def leaves(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> list:
    """The leaves of a tree, in order. What `is_leaf` says is one, is one.

    >>> koine.tree.leaves({"b": (2, None), "a": 1})
    [1, 2]
    """
    return flatten(tree, is_leaf)[0]


@knows_keywords
def structure(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> Structure:
    """The structure of a tree. What `is_leaf` says is a leaf, is one.

    >>> koine.tree.structure({"b": (2, None), "a": 1})
    {'a': *, 'b': (*, None)}
    """
    return flatten(tree, is_leaf)[1]


def shown(structure: Structure) -> str:
    """A structure in a message."""
    return "one value" if structure.kind is None else repr(structure)


def paths(structure: Structure) -> list[str]:
    """How to get from a tree to each of its leaves, as Python would write it: "['w'][0]"."""
    if structure.kind is None:
        return [""]
    return [step + rest for step, child in zip(steps(structure), structure.children) for rest in paths(child)]


def steps(structure: Structure) -> list[str]:
    """What leads from a node to its children."""
    kind, children = structure.kind, structure.children
    if isinstance(structure.data, _Names) and hasattr(kind, "__dataclass_fields__"):
        return [f".{name}" for name in structure.data]
    if issubclass(kind, dict):
        return [f"[{key!r}]" for key in structure.data]
    if kind not in _registered and hasattr(kind, "_fields"):
        return [f".{name}" for name in kind._fields]
    named = getattr(structure.data, "names", None)  # of a layer
    if isinstance(named, (list, tuple)) and len(named) == len(children):
        return [f".{name}" for name in named]
    if kind in _registered and len(children) == 1:  # what is no more than a name for its only part
        return [""]
    return [f"[{k}]" for k in builtins.range(len(children))]


class _Differs(builtins.Exception):
    """A tree that does not begin with the structure of another."""


def _parts_at_leaves(structure: Structure, tree: Any, out: list) -> None:
    """What a tree holds where a structure has its leaves."""
    if structure.kind is None:
        out.append(tree)
        return
    parts = _parts(tree)
    if (parts is None or type(tree) is not structure.kind or len(parts[0]) != len(structure.children)
            or not _are_equal(structure.kind, structure.data, parts[1])):
        raise _Differs
    for inner, part in zip(structure.children, parts[0]):
        _parts_at_leaves(inner, part, out)


@knows_keywords
def map(f: Callable[..., Any], tree: Any, *others: Any, is_leaf: Callable[[Any], bool] | None = None) -> Any:
    """f of each leaf, and of what other trees hold at the same place, in the structure of the first. What `is_leaf` says of the first is
    a leaf, is one.

    >>> koine.tree.map(lambda a, b: a + b, {"x": 1, "y": [2]}, {"x": 10, "y": [20]})
    {'x': 11, 'y': [22]}
    >>> koine.tree.map(len, {"x": [1, 2], "y": []}, is_leaf=lambda part: type(part) is list)
    {'x': 2, 'y': 0}
    """
    if not callable(f):
        raise TypeError(f"tree.map: takes a function, not a '{type(f).__name__}'")
    first, shape = flatten(tree, is_leaf)
    rest: list[list] = []
    for k, other in enumerate(others):
        rest.append([])
        try:
            _parts_at_leaves(shape, other, rest[-1])
        except _Differs:
            raise ValueError(f"tree.map: tree {k + 1} is {structure(other)!r}, and the first {shape!r}") from None
    return unflatten(shape, [f(*each) for each in zip(first, *rest)])
