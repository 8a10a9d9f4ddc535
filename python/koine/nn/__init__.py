"""Layers, optimisers and the state of models.

A model is any object that holds layers, tensors and lists or dicts of them:

    class Net:
        def __init__(self):
            self.hidden, self.out = nn.Linear(4, 16), nn.Linear(16, 3)
        def __call__(self, x):
            return self.out(self.hidden(x).relu())

    net = Net()
    optimizer = nn.Adam(nn.get_parameters(net))
"""
from __future__ import annotations

import copy
import types
from typing import Any, Mapping

from .. import _koine, tree
from .._koine import Tensor
from .._koine.nn import (SGD, Adam, AdamW, BatchNorm, Conv2d, Dropout, Embedding, LayerNorm, Linear, Optimizer, cosine_schedule,
                         step_schedule)
from ..errors import KeyError, TypeError, ValueError

__all__ = ["SGD", "Adam", "AdamW", "BatchNorm", "Conv2d", "Dropout", "Embedding", "LayerNorm", "Linear", "Optimizer", "cosine_schedule",
           "get_parameters", "get_state_dict", "load_state_dict", "step_schedule"]


def _filled(data: Any, tensors: list) -> Any:
    layer, names = data.layer, data.names
    out = copy.copy(layer)
    for name, t in zip(names, tensors):
        setattr(out, name, t)
    return out


class _Layer:
    """What is no tensor in a layer; equal ones compute the same of the same tensors."""

    __slots__ = ("layer", "names")

    def __init__(self, layer, names):
        self.layer, self.names = layer, names

    def _told_by(self):
        return type(self.layer), self.names, self.layer._config()

    def __eq__(self, other):
        return isinstance(other, _Layer) and type(self.layer) is type(other.layer) and self.names == other.names \
            and self.layer._config() == other.layer._config()


def _parts(layer: Any) -> tuple:
    state = layer._state()
    return [t for _, t, _ in state], _Layer(layer, [name for name, _, _ in state])


for _kind in (Linear, Conv2d, BatchNorm, LayerNorm, Embedding):
    tree.register(_kind, _parts, _filled)


def _visit(value: Any, prefix: str, out: list, seen: set) -> None:
    if isinstance(value, Tensor):
        out.append((prefix.rstrip("."), value, None))
        return
    if value is None or isinstance(value, (str, bytes, int, float)) or id(value) in seen:
        return
    seen.add(id(value))
    if hasattr(type(value), "_state"):
        out.extend((prefix + name, t, trainable) for name, t, trainable in value._state())
        for k, v in getattr(value, "__dict__", {}).items():  # of a class of the user's
            _visit(v, f"{prefix}{k}.", out, seen)
    elif hasattr(type(value), "_functions"):  # a jit of a layer has the names of the layer
        for f in value._functions():
            if not isinstance(f, (types.FunctionType, types.MethodType)):
                _visit(f, prefix, out, seen)
    elif isinstance(value, Mapping):
        for k, v in value.items():
            _visit(v, f"{prefix}{k}.", out, seen)
    elif isinstance(value, (list, tuple)):
        names = getattr(value, "_fields", range(len(value)))
        for k, v in zip(names, value):
            _visit(v, f"{prefix}{k}.", out, seen)
    elif hasattr(value, "__dict__") and not isinstance(value, type) and not callable(getattr(value, "__code__", None)):
        for k, v in vars(value).items():
            _visit(v, f"{prefix}{k}.", out, seen)


def _state(model: Any) -> list:
    out: list = []
    _visit(model, "", out, set())
    return out


def _require_model(method: str, model: Any) -> None:
    if isinstance(model, (type(None), bool, int, float, str, bytes)):
        raise TypeError(f"{method}: takes a layer, a model or what holds tensors, not a '{type(model).__name__}'")


def get_state_dict(model: Any) -> dict[str, Tensor]:
    """All tensors of a model by name: "hidden.weight". Names are those of its attributes. Of an optimizer what it remembers from
    step to step.

    >>> list(koine.nn.get_state_dict([koine.nn.Linear(2, 3), koine.nn.BatchNorm(3)]))
    ['0.weight', '0.bias', '1.weight', '1.bias', '1.running_mean', '1.running_var']
    """
    _require_model("get_state_dict", model)
    return {name: t for name, t, _ in _state(model)}


def get_parameters(model: Any) -> list[Tensor]:
    """The tensors that are trained, each once: parameters of layers and other tensors, where they require a gradient.

    >>> [w.shape for w in koine.nn.get_parameters(koine.nn.Linear(2, 3))]
    [(3, 2), (3,)]
    """
    _require_model("get_parameters", model)
    found: dict[int, Tensor] = {}
    for _, t, trainable in _state(model):
        if trainable is not False and t.is_leaf:
            found.setdefault(_koine._storage_id(t), t)
    return list(found.values())


def load_state_dict(model: Any, state: Mapping[str, Any], strict: bool = True) -> None:
    """Copies a state into the tensors of a model. KeyError for names that are missing (and, if strict, for others that
    there are), ValueError for a shape that differs: then nothing is changed.

    >>> a, b = koine.nn.Linear(2, 3), koine.nn.Linear(2, 3)
    >>> koine.nn.load_state_dict(a, koine.nn.get_state_dict(b))
    >>> (a.weight == b.weight).all().item()
    True
    """
    if not isinstance(state, Mapping):
        raise TypeError(f"load_state_dict: takes tensors by their names, as get_state_dict() gives them, not a '{type(state).__name__}'")
    _require_model("load_state_dict", model)
    own = get_state_dict(model)
    missing = [n for n in own if n not in state]
    unknown = [n for n in state if n not in own] if strict else []
    if missing or unknown:
        raise KeyError(f"load_state_dict: missing {missing}, unknown {unknown}; the model has {list(own)}")
    given = {n: state[n] if isinstance(state[n], Tensor) else Tensor(state[n]) for n in own}
    for name, t in own.items():
        if given[name].shape != t.shape:
            raise ValueError(f"load_state_dict: '{name}' has shape {given[name].shape}, and the model's {t.shape}")
    for name, t in own.items():
        t.assign(given[name].detach())


def __getattr__(name: str) -> Any:
    from .. import errors

    raise errors.missing("module 'koine.nn'", name, errors.of_nn)
