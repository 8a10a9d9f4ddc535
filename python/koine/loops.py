"""Loops and branches that a program runs, over trees of tensors, with JAX's signatures. The function of a step is called
once, on placeholders, and compiled once: nothing is unrolled."""
from __future__ import annotations

from typing import Any, Callable, Sequence

from . import _koine, tree
from .errors import TypeError, ValueError, knows_keywords
from .transforms import FlatCall

__all__ = ["cond", "fori_loop", "scan", "switch", "while_loop"]


def _carry(method: str, call: FlatCall, structure: tree.Structure) -> None:
    if call.structure != structure:
        raise ValueError(f"{method}: a step gives the carry {call.structure!r}, and the first is {structure!r}")


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
    carried = call.counts[0]

    def step(tensors):
        out = call(tensors)
        shape = call.structure
        if shape.kind is not tuple or len(shape.children) != 2:
            raise TypeError(f"scan: a step gives (carry, result), not {shape!r}")
        if shape.children[0] != call.structures[0]:
            raise ValueError(f"scan: a step gives the carry {shape.children[0]!r}, and the first is {call.structures[0]!r}")
        return out

    return call.result(call.run(_koine._scan, step, call.inputs[:carried], call.inputs[carried:], length, reverse))


@knows_keywords
def fori_loop(lower: int, upper: int, body_fun: Callable[..., Any], init_val: Any, *, unroll: int | bool | None = None) -> Any:
    """The carry behind `body_fun(i, carry)` for each i from lower below upper. `unroll` does nothing, as in scan.

    >>> koine.fori_loop(0, 5, lambda i, c: c * 2, 1).item()
    32
    """
    if unroll is not None:
        _require_unroll("fori_loop", unroll)
    first = FlatCall("fori_loop", body_fun, (init_val,))
    call = FlatCall("fori_loop", body_fun, (0, init_val))

    def step(tensors):
        out = call(tensors)
        _carry("fori_loop", call, first.structures[0])
        return out

    return first.like(0, call.run(_koine._fori, lower, upper, step, first.inputs))


@knows_keywords
def while_loop(cond_fun: Callable[..., Any], body_fun: Callable[..., Any], init_val: Any) -> Any:
    """The first carry of which cond_fun, a bool of shape (), does not hold, body_fun after body_fun.

    >>> koine.while_loop(lambda c: c < 100, lambda c: c * 2, 1).item()
    128
    """
    test, call = FlatCall("while_loop", cond_fun, (init_val,)), FlatCall("while_loop", body_fun, (init_val,))

    def step(tensors):
        out = call(tensors)
        _carry("while_loop", call, call.structures[0])
        return out

    return call.like(0, call.run(_koine._while, test, step, call.inputs))


def _branch(method: str, which: Any, is_condition: bool, branches: Sequence[Callable[..., Any]], operands: Sequence[Any]) -> Any:
    calls = [FlatCall(method, f, operands) for f in branches]
    made = calls[0].run(_koine._branch, method, which, is_condition, calls, calls[0].inputs)
    for k, call in enumerate(calls):
        if call.structure != calls[0].structure:
            raise ValueError(f"{method}: branch {k} gives {call.structure!r}, and the first {calls[0].structure!r}")
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
    if not branches:
        raise ValueError("switch: there are no branches")
    return _branch("switch", index, False, list(branches), operands)
