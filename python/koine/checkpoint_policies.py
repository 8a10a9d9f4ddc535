"""What koine.checkpoint(f, policy=...) keeps of what f computed, beside its arguments: JAX's names.

    from koine import checkpoint_policies
    block = koine.checkpoint(f, policy=checkpoint_policies.dots_saveable)

`everything_saveable` keeps all, as without a checkpoint, `nothing_saveable` the arguments alone. `dots_saveable` (`checkpoint_dots`) keeps sums of
products: results of matmul, linear, einsum and, unlike JAX's, convolutions; `dots_with_no_batch_dims_saveable`
(`checkpoint_dots_with_no_batch_dims`) those of them without an axis along which both factors differ, such as `x @ w` of one w for all examples.
Values have names by koine.save_as. JAX's `offload_...` have no counterpart: nothing is moved to other memory to be kept.
"""
from __future__ import annotations

from typing import Any

from ._koine import _Keep
from .errors import TypeError

__all__ = ["checkpoint_dots", "checkpoint_dots_with_no_batch_dims", "dots_saveable", "dots_with_no_batch_dims_saveable", "everything_saveable",
           "nothing_saveable", "save_any_names_but_these", "save_anything_except_these_names", "save_from_both_policies", "save_only_these_names"]

everything_saveable, nothing_saveable = _Keep.everything(), _Keep.nothing()
dots_saveable = checkpoint_dots = _Keep.products()
dots_with_no_batch_dims_saveable = checkpoint_dots_with_no_batch_dims = _Keep.unbatched_products()


def _texts(policy: str, names: tuple) -> list[str]:
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"{policy}: names are texts, as save_as('wide', x) gives them, not {name!r}: {policy}('wide', 'deep')")
    return list(names)


def save_only_these_names(*names: str) -> Any:
    """Keeps the values of these names.

    >>> f = koine.checkpoint(lambda x: koine.save_as("s", x.sin()).sin(), policy=koine.checkpoint_policies.save_only_these_names("s"))
    >>> koine.grad(f)(0.0).item()
    1.0
    """
    return _Keep.names(_texts("save_only_these_names", names))


def save_any_names_but_these(*names: str) -> Any:
    """Keeps the values that have a name which is none of these.

    >>> f = koine.checkpoint(lambda x: koine.save_as("s", x.sin()).sin(), policy=koine.checkpoint_policies.save_any_names_but_these("t"))
    >>> koine.grad(f)(0.0).item()
    1.0
    """
    return _Keep.other_names(_texts("save_any_names_but_these", names))


def save_anything_except_these_names(*names: str) -> Any:
    """Keeps all values but those of these names.

    >>> f = koine.checkpoint(lambda x: koine.save_as("s", x.sin()).sin(), policy=koine.checkpoint_policies.save_anything_except_these_names("s"))
    >>> koine.grad(f)(0.0).item()
    1.0
    """
    return _Keep.all_but(_texts("save_anything_except_these_names", names))


def save_from_both_policies(policy: Any, other: Any) -> Any:
    """Keeps what one of two policies keeps.

    >>> policies = koine.checkpoint_policies
    >>> both = policies.save_from_both_policies(policies.dots_saveable, policies.save_only_these_names("s"))
    >>> koine.grad(koine.checkpoint(lambda x: koine.save_as("s", x.sin()).sin(), policy=both))(0.0).item()
    1.0
    """
    for given in (policy, other):
        if not isinstance(given, _Keep):
            raise TypeError(f"save_from_both_policies: takes policies such as dots_saveable, not {given!r}")
    return policy | other
