"""Every public name says what it is, and shows it."""
import pytest

import koine
from koine import collective, distributed, errors, nn, random, tree

CLASSES = [koine.Tensor, koine.DType, koine.Kernel, koine.Program, koine.SavedProgram, koine.Size, koine.UOp, koine.Variable, koine.jit,
           koine.custom_jvp, koine.custom_vjp, random.Key, *[v for v in map(nn.__dict__.get, nn.__all__) if isinstance(v, type)]]
DTYPES = {d.name for d in koine.DType}


def public_names():
    """(name, object) of what the package exports, and of the attributes and methods of its classes."""
    for module in (koine, collective, distributed, nn, random, tree):
        for name in module.__all__:
            if name not in DTYPES:
                yield f"{module.__name__}.{name}", getattr(module, name)
    for name, value in vars(errors).items():
        if isinstance(value, type):
            yield f"koine.errors.{name}", value
    for cls in CLASSES:
        for name in vars(cls):
            if not name.startswith("_") and name not in DTYPES:
                yield f"{cls.__module__}.{cls.__name__}.{name}", vars(cls)[name] if isinstance(vars(cls)[name], property) else getattr(cls, name)


NAMES = dict(public_names())


def text_of(value):
    """A docstring without nanobind's signature."""
    overloads = getattr(value, "__nb_signature__", None)
    text = "\n".join(o[1] or "" for o in overloads) if overloads else getattr(value, "__doc__", None) or ""
    return "" if text.startswith("(self)") else text.strip()


def test_every_public_name_is_documented():
    assert len(NAMES) > 300
    assert sorted(name for name, value in NAMES.items() if not text_of(value)) == []


# What an example would not show better: exceptions, and modules.
WITHOUT_EXAMPLE = {"koine.Error", *(f"koine.{module}" for module in ("checkpoint_policies", "collective", "distributed", "errors", "nn", "random", "tree"))}


def test_each_has_an_example():
    """Of the package, its tensors and layers; test_docs.py runs them."""
    prefixes = ("koine._koine.Tensor.", "koine.", "koine.nn.", "koine.collective.", "koine.distributed.")
    without = [n for n, v in NAMES.items() for p in prefixes
               if n.startswith(p) and "." not in n[len(p):] and ">>>" not in text_of(v) and n not in WITHOUT_EXAMPLE]
    assert without == []
