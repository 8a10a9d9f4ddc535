"""Loops and branches that a program runs, over trees of tensors, with JAX's signatures. The function of a step is called
once, on placeholders, and compiled once: nothing is unrolled."""
from __future__ import annotations

import builtins
from typing import Any, Callable, Sequence

from . import _koine, tree
from ._koine import Tensor
from .errors import TypeError, ValueError, knows_keywords
from .transforms import FlatCall, as_number, number_in

__all__ = ["cond", "fori_loop", "scan", "switch", "while_loop"]


class _Promoted(builtins.Exception):
    """Numbers of the first carry, by their places, that the step gives in another dtype."""


class _Carried:
    """A carry whose numbers take the dtype of what they meet: a number that the step makes another dtype of has that from the first step
    on, and what the step gives as a number has the dtype of what it gives it for."""

    def __init__(self, call: FlatCall, first: int = 0):
        self.call, self.first = call, first

    def like(self, given: list[Tensor], out: list[Tensor]) -> list[Tensor]:
        """The carry in front of what a step gives, for one of these."""
        carried = [as_number(made, own.dtype) for own, made in zip(given, out)]
        places = range(self.first, self.first + len(given))
        promoted = {k: made.dtype for k, own, made in zip(places, given, carried) if k in self.call.numbers and made.dtype != own.dtype}
        if promoted:
            raise _Promoted(promoted)
        return carried + out[len(given):]

    def run(self, attempt: Callable[[], Any]) -> Any:
        while True:  # each time one number less is left
            try:
                return attempt()
            except _Promoted as e:
                for k, dtype in e.args[0].items():
                    self.call.inputs[k] = number_in(self.call.leaves[self.call.traced[k]], dtype)
                    self.call.numbers.discard(k)


def _carry(method: str, call: FlatCall, structure: tree.Structure) -> None:
    if call.structure != structure:
        raise ValueError(f"{method}: a step gives the carry {tree.shown(call.structure)}, and the first is {tree.shown(structure)}")


def _require_unroll(method: str, unroll: Any) -> None:
    if not hasattr(unroll, "__index__") or not isinstance(unroll, bool) and unroll < 1:
        raise ValueError(f"{method}: unroll is True, False, or a number from 1 on, not {unroll!r}")


@knows_keywords
def scan(f: Callable[..., Any], init: Any, xs: Any = None, length: int | None = None, reverse: bool = False, unroll: int | bool = 1) -> tuple[Any, Any]:
    """One step for each row of xs, with a carry: `f(carry, row)` gives (next carry, what the step adds to the results).
    Gives the last carry and these, stacked.

    `reverse`: the last row comes first, and results stand where their rows do. `unroll` is JAX's hint for its compiler, which is checked
    and does nothing here: steps are a loop of one program in any case.

    >>> last, all = koine.scan(lambda c, x: (c + x, c + x), koine.Tensor(0.0), koine.Tensor([1., 2., 3.]))
    >>> all.tolist()
    [1.0, 3.0, 6.0]
    """
    _require_unroll("scan", unroll)
    call = FlatCall("scan", f, (init, xs))
    call.parameters = ("init", "xs")
    count = call.counts[0]
    carried = _Carried(call)

    def step(tensors):
        out = call(tensors)
        shape = call.structure
        if shape.kind is not tuple or len(shape.children) != 2:
            raise TypeError(f"scan: a step gives (carry, result), not {tree.shown(shape)}")
        if shape.children[0] != call.structures[0]:
            raise ValueError(f"scan: a step gives the carry {tree.shown(shape.children[0])}, and the first is {tree.shown(call.structures[0])}")
        return carried.like(tensors[:count], out)

    return call.result(carried.run(lambda: call.run(_koine._scan, step, call.inputs[:count], call.inputs[count:], length, reverse,
                                                     call.input_name, lambda k: call.input_name(count + k))))


@knows_keywords
def fori_loop(lower: Any, upper: Any, body_fun: Callable[..., Any], init_val: Any, *, unroll: int | bool | None = None) -> Any:
    """The carry behind `body_fun(i, carry)` for each i from lower below upper. `unroll` does nothing, as in scan. A tensor as lower or
    upper, an integer of shape (), makes a while_loop of it, which has no reverse mode.

    >>> koine.fori_loop(0, 5, lambda i, c: c * 2, 1).item()
    32
    """
    if unroll is not None:
        _require_unroll("fori_loop", unroll)
    if lower is None or upper is None:
        raise TypeError("fori_loop: lower and upper are whole numbers, or tensors of one, not None")
    call = FlatCall("fori_loop", body_fun, (0, init_val))
    call.parameters = ("i", "init_val")
    carried = _Carried(call, 1)

    def step(tensors):
        out = call(tensors)
        _carry("fori_loop", call, call.structures[1])
        return carried.like(tensors[1:], out)

    loop = _koine._fori_computed if isinstance(lower, Tensor) or isinstance(upper, Tensor) else _koine._fori
    return call.like(1, carried.run(lambda: call.run(loop, lower, upper, step, call.inputs[1:],
                                                      lambda k: call.input_name(k + 1))))


@knows_keywords
def while_loop(cond_fun: Callable[..., Any], body_fun: Callable[..., Any], init_val: Any) -> Any:
    """The first carry of which cond_fun, a bool of shape (), does not hold, body_fun after body_fun.

    >>> koine.while_loop(lambda c: c < 100, lambda c: c * 2, 1).item()
    128
    """
    test, call = FlatCall("while_loop", cond_fun, (init_val,)), FlatCall("while_loop", body_fun, (init_val,))
    call.parameters = ("init_val",)
    carried = _Carried(call)
    test.numbers = call.numbers

    def holds(tensors):
        out = test(tensors)
        if test.structure.kind is not None:
            raise ValueError(f"while_loop: cond_fun must give one bool of shape (), not {test.structure!r}")
        return out

    def step(tensors):
        out = call(tensors)
        _carry("while_loop", call, call.structures[0])
        return carried.like(tensors, out)

    return call.like(0, carried.run(lambda: call.run(_koine._while, holds, step, call.inputs, call.input_name)))


class _Branches:
    """The functions of a branch, whose results that are numbers take the dtype of the others' at their place."""

    def __init__(self, method: str, calls: Sequence[FlatCall]):
        self.method, self.calls = method, calls
        self.given: dict[int, list[tuple[Any, bool]]] = {}  # by branch: of each result its dtype, and whether it is a number
        self.wanted: list[Any] = []  # of each result the dtype, where it is known

    def function(self, k: int) -> Callable[[list[Tensor]], list[Tensor]]:
        def branch(tensors):
            out = self.calls[k](tensors)
            first, own = self.calls[0].structure, self.calls[k].structure
            if own != first:
                raise ValueError(f"{self.method}: {self.name(k)} gives {tree.shown(own)}, and {self.name(0)} gives {tree.shown(first)}: all give the same structure")
            self.given[k] = [(t.dtype, _koine._is_number(t)) for t in out]
            return [as_number(t, dtype) if dtype is not None else t for t, dtype in zip(out, self.wanted or [None] * len(out))]

        return branch

    def name(self, k: int) -> str:
        return f"branch {k}" if self.method == "switch" else ("false_fun", "true_fun")[k]

    def learns(self) -> bool:
        """Whether more is known of the dtypes than before."""
        known = [next((dtype for dtype, number in column if not number), None) or next((dtype for dtype, _ in column if dtype.is_float), None)
                 for column in zip(*self.given.values())]
        before, self.wanted = self.wanted, known
        return known != before and any(dtype is not None for dtype in known)


def _branch(method: str, which: Any, is_condition: bool, branches: Sequence[Callable[..., Any]], operands: Sequence[Any]) -> Any:
    calls = [FlatCall(method, f, operands) for f in branches]
    all_of = _Branches(method, calls)
    functions = [all_of.function(k) for k in range(len(calls))]
    while True:
        try:
            made = calls[0].run(_koine._branch, method, which, is_condition, functions, calls[0].inputs, calls[0].result_name)
            break
        except ValueError:
            if not all_of.learns():
                raise
    return calls[0].result(made)


@knows_keywords
def cond(pred: Any, true_fun: Callable[..., Any], false_fun: Callable[..., Any], *operands: Any) -> Any:
    """true_fun(*operands) where pred, a bool of shape (), holds, else false_fun(*operands): one of both runs.

    >>> x = koine.Tensor(4.0)
    >>> koine.cond(x > 1, lambda x: x.sqrt(), lambda x: x * 1, x).item()
    2.0
    """
    return _branch("cond", pred, True, [false_fun, true_fun], operands)


@knows_keywords
def switch(index: Any, branches: Sequence[Callable[..., Any]], *operands: Any) -> Any:
    """branches[index](*operands), with an index that is computed and clamped to those that exist.

    >>> koine.switch(1, [lambda x: x + 1, lambda x: x * 10], 2).item()
    20
    """
    if not isinstance(branches, Sequence):
        raise TypeError(f"switch: branches is a list of functions, not a '{type(branches).__name__}'")
    if not branches:
        raise ValueError("switch: there are no branches")
    return _branch("switch", index, False, list(branches), operands)
