"""Trees of tensors: tuples, lists, dicts, namedtuples, dataclasses, layers, and types that are registered.

    leaves, shape = koine.tree.flatten({"w": w, "b": (b, None)})
    same = koine.tree.unflatten(shape, leaves)

None holds nothing; keys of a dict count in sorted order. Whatever is no tree is a leaf.
"""
from __future__ import annotations

import builtins
from typing import Any, Callable, Iterable

from .errors import TypeError, ValueError

__all__ = ["flatten", "unflatten", "leaves", "structure", "map", "register"]

_registered: dict[type, tuple[Callable[..., Any], Callable[..., Any]]] = {}


def register(kind: type, flatten: Callable[..., Any], unflatten: Callable[..., Any]) -> None:
    """Makes a type a tree: `flatten(x)` gives (children, data), `unflatten(data, children)` the value again.

    `data` is what is no tree, and compares with ==.
    """
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
    if tree is None:
        return [], None, lambda _, c: None
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return list(tree), None, lambda _, c: kind(*c)
    if hasattr(kind, "__dataclass_fields__"):
        import dataclasses  # some 10 ms, which whoever has a dataclass has paid

        names = tuple(f.name for f in dataclasses.fields(tree))
        return [getattr(tree, n) for n in names], names, lambda n, c: _dataclass(kind, n, c)
    return None


def _dataclass(kind: type, names: Iterable[str], children: Iterable) -> Any:
    out: Any = object.__new__(kind)
    for name, value in zip(names, children):
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
        return (isinstance(other, Structure) and self.kind is other.kind and self.data == other.data
                and self.children == other.children)

    def __hash__(self):
        return hash((self.kind, self.count, len(self.children)))

    def __repr__(self):
        if self.kind is None:
            return "*"
        if self.kind is dict:
            return "{" + ", ".join(f"{k!r}: {c!r}" for k, c in zip(self.data, self.children)) + "}"
        if self.kind is tuple or self.kind is list:
            inside = ", ".join(builtins.map(repr, self.children))
            if self.kind is list:
                return f"[{inside}]"
            return f"({inside},)" if len(self.children) == 1 else f"({inside})"
        if self.kind is type(None):
            return "None"
        return f"{self.kind.__name__}({', '.join(builtins.map(repr, self.children))})"


_leaf = Structure(None, None, (), None)


def flatten(tree: Any) -> tuple[list, Structure]:
    """The leaves of a tree, in order, and its structure.

    >>> koine.tree.flatten({"b": (2, None), "a": 1})
    ([1, 2], {'a': *, 'b': (*, None)})
    """
    out: list[Any] = []
    return out, _flatten(tree, out, 0, False)


def flatten_as_given(tree: Any) -> tuple[list, Structure]:
    """The same, but that dicts of another order are other trees."""
    out: list = []
    return out, _flatten(tree, out, 0, True)


def _flatten(tree: Any, out: list, depth: int, as_given: bool) -> Structure:
    if depth > 200:
        raise ValueError("a tree is nested more than 200 deep, or holds itself")
    parts = _parts(tree, as_given)
    if parts is None:
        out.append(tree)
        return _leaf
    children, data, rebuild = parts
    return Structure(type(tree), data, tuple([_flatten(c, out, depth + 1, as_given) for c in children]), rebuild)


def unflatten(structure: Structure, leaves: Iterable) -> Any:
    """The tree of a structure with these leaves. ValueError where their number differs.

    >>> koine.tree.unflatten(koine.tree.structure((0, [0])), [1, 2])
    (1, [2])
    """
    given = list(leaves)
    if len(given) != structure.count:
        raise ValueError(f"a tree of {structure.count} leaves, {structure!r}, is given {len(given)}")
    return _unflatten(structure, iter(given))


def _unflatten(structure: Structure, leaves) -> Any:
    if structure.kind is None:
        return next(leaves)
    return structure.rebuild(structure.data, [_unflatten(c, leaves) for c in structure.children])


def leaves(tree: Any) -> list:
    """The leaves of a tree, in order."""
    return flatten(tree)[0]


def structure(tree: Any) -> Structure:
    """The structure of a tree."""
    return flatten(tree)[1]


def map(f: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """f of each leaf, and of the leaves at the same place of other trees, in the structure of the first.

    >>> koine.tree.map(lambda a, b: a + b, {"x": 1, "y": [2]}, {"x": 10, "y": [20]})
    {'x': 11, 'y': [22]}
    """
    first, shape = flatten(tree)
    rest = []
    for k, other in enumerate(others):
        found, other_shape = flatten(other)
        if other_shape != shape:
            raise ValueError(f"tree.map: tree {k + 1} is {other_shape!r}, and the first {shape!r}")
        rest.append(found)
    return unflatten(shape, [f(*each) for each in zip(first, *rest)])
