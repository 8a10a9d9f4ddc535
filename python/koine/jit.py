"""koine.jit: a function of tensors that is described and compiled once, then runs in one submission."""
from __future__ import annotations

import functools
import threading
from typing import Any, Callable

from . import _koine, tree
from ._koine import DType, Tensor
from .transforms import line_of, require_function, run_for

__all__ = ["jit"]

_STATIC = (bool, int, float, complex, str, bytes, DType, type(None))
_MOST_PROGRAMS = 64
_NOTHING: list = []


class _Program:
    """f for arguments of one kind."""

    __slots__ = ("captured", "structure", "single")

    def __init__(self, captured, structure):
        self.captured, self.structure = captured, structure
        self.single = structure.kind is None  # it gives a tensor

    def run(self, tensors):
        results = self.captured(tensors)
        return results[0] if self.single else tree.unflatten(self.structure, results)


class _Eager:
    """Why f runs as it is written for arguments of one kind."""

    __slots__ = ("reason",)

    def __init__(self, reason: str):
        self.reason = reason


class jit:
    """f, compiled once for each kind of arguments: `jit(f)(x)` is `f(x)`, in one submission.

    Arguments are trees of tensors; numbers and texts among them are constants, and each value has a program of its own.
    What f reads beside its arguments (globals, variables around it, objects, other functions) is held against what there
    is at each call: tensors among it are read anew, and where anything else differs, f is described again.

    Where f cannot be described (it looks at values, draws random numbers, assigns, prints, has try blocks, reads what
    cannot be followed), it runs as it is written: `explain_recompiles()` says why. So the answer is never a stale one.

    >>> double = koine.jit(lambda x: (x * 2).sum())
    >>> double(koine.Tensor([1., 2.])).item()
    6.0
    """

    def __init__(self, f: Callable):
        from . import guards  # reads code, and what it needs for that takes 10 ms to import

        require_function("jit", f)
        self._guards = guards
        functools.update_wrapper(self, f, updated=())
        self._jit_function = f
        self._lock = threading.Lock()
        self._reads: guards.Reads | None = None
        self._programs: dict = {}
        self._log: list[str] = []

    def _functions(self) -> list:
        return [self._jit_function]

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        reads = self._reads
        if reads is not None and reads.changed() is None:
            around = [get() for get in reads.tensors] if reads.tensors else _NOTHING
            found = _koine._key(args, kwargs, around)
            if found is not None:
                program = self._programs.get(found[0])
                if type(program) is _Program:
                    return program.run(found[1])
        return self._find(args, kwargs)

    def _find(self, args: tuple, kwargs: dict) -> Any:
        """The call, where its program was not found at once."""
        f = self._jit_function
        if _koine._is_tracing():  # part of what is described
            return f(*args, **kwargs)
        if _koine._finds_nan():  # whose messages need what a program no longer knows
            return f(*args, **kwargs)
        leaves, structure = tree.flatten_as_given((args, kwargs))
        tensors: list[Tensor] = []
        constants: list[Any] = []
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
        for kind in structure.classes:
            try:
                reads.include(kind)
            except self._guards.Unknown as e:
                self._say(f"runs as it is written: {e}")
                return f(*args, **kwargs)
        around = [get() for get in reads.tensors]
        found = _koine._key(args, kwargs, around)
        ids = [id(t) for t in tensors]
        key = found[0] if found else (structure, tuple(constants), tuple(ids.index(i) for i in ids),
                                      _koine._signature(tensors, around))
        program = self._programs.get(key)
        if program is None:
            program = self._describe(reads, key, leaves, structure, tensors, around)
        if type(program) is _Eager:
            return f(*args, **kwargs)
        return program.run(tensors + around)

    def explain_recompiles(self) -> list[str]:
        """Why f was described again, or runs as it is written; oldest first."""
        return list(self._log)

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

    def _describe(self, reads, key, leaves, structure, tensors, around) -> Any:
        f, line = self._jit_function, line_of(self._jit_function)
        place: dict = {}
        if len({id(t) for t in tensors}) < len(tensors):
            return self._keep(reads, key, _Eager("a tensor is given twice: the function could tell by `is`"))
        if reads.stores and any(c.mutable for part in structure.children for c in part.children):
            return self._keep(reads, key, _Eager(f"{reads.stores}, and an argument is a list, a dict or an object"))

        def described(given):
            rest = iter(given)
            inside = tree.unflatten(structure, [next(rest) if type(leaf) is Tensor else leaf for leaf in leaves])
            out = run_for(line, lambda: f(*inside[0], **inside[1]))
            results, place["structure"] = tree.flatten_as_given(out)
            for r in results:
                if type(r) is not Tensor:
                    raise self._guards.Unknown(f"the function gives a '{type(r).__name__}' beside tensors")
            return results

        try:
            program: Any = _Program(run_for(line, _koine._Captured, described, tensors, around), place["structure"])
            changed = reads.changed()
            if changed is not None:
                program = _Eager(f"it changes what it reads: {changed}")
        except self._guards.Unknown as e:
            program = _Eager(str(e))
        except Exception as e:  # raised again where f runs as it is written, if it is f's
            program = _Eager(f"{type(e).__name__}: {e}")
        return self._keep(reads, key, program)

    def _keep(self, reads, key, program) -> Any:
        if type(program) is _Eager:
            self._say(f"runs as it is written: {program.reason}")
        elif self._programs:
            self._say("arguments of another kind: other shapes, dtypes, devices, constants or aliases")
        with self._lock:
            if self._reads is reads:
                if len(self._programs) >= _MOST_PROGRAMS:
                    self._programs.pop(next(iter(self._programs)))
                self._programs[key] = program
        return program

