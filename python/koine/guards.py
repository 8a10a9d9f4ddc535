"""What a function reads beside its arguments, found before it runs: jit (koine.jit) holds it against what there is at each
call. Whatever cannot be followed is refused with a reason, and the function then runs as it is written.
"""
from __future__ import annotations

import builtins
import dis
import enum
import functools
import math
import types
from typing import Any, Callable

from . import _koine, tree
from ._koine import DType, Tensor


def _is_of_package(module: str | None) -> bool:
    """Whether what is written there is followed by what it is known to do. The demo is a program like a user's."""
    return (module or "").split(".")[0] == "koine" and module != "koine.demo"


class Unknown(Exception):
    """Why a function cannot be followed."""


# Functions without effects, whose results follow from their arguments.
_PURE = {getattr(builtins, n) for n in (
    "abs all any bool bytes complex dict divmod enumerate filter float frozenset int isinstance issubclass len list map max min "
    "pow range reversed round set slice sorted str sum tuple zip type callable super property staticmethod classmethod object "
    "ValueError TypeError IndexError KeyError RuntimeError AssertionError NotImplementedError StopIteration Exception").split()}
_CONSTANT = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), type(NotImplemented), slice, range)
_TRUSTED_MODULES = ("koine", "math", "operator", "functools", "typing", "builtins")
_BUILTIN_FUNCTIONS = (types.BuiltinFunctionType, types.WrapperDescriptorType, types.MethodDescriptorType,
                      types.MethodWrapperType, types.ClassMethodDescriptorType, types.GetSetDescriptorType)

# Attributes that change something outside, or that tell a placeholder from a tensor.
_FORBIDDEN = frozenset("manual_seed requires_grad set_printoptions counters reset_counters memory_in_use "
                       "clear_compile_cache history_bytes uop realize learning_rate f_locals f_globals __dict__ "
                       "__globals__ __code__ __closure__ __defaults__ register defvjp defjvp storage_id".split())
_MUTATORS = frozenset("append extend insert remove pop popitem clear update setdefault add discard sort reverse appendleft popleft "
                      "difference_update intersection_update __setitem__ __setattr__ __delitem__".split())
_EFFECTS = frozenset("STORE_GLOBAL DELETE_GLOBAL IMPORT_NAME IMPORT_FROM IMPORT_STAR DELETE_DEREF LOAD_BUILD_CLASS".split())
_HANDLERS = frozenset("PUSH_EXC_INFO SETUP_FINALLY SETUP_WITH BEFORE_WITH LOAD_SPECIAL WITH_EXCEPT_START".split())
_STORES = frozenset("STORE_ATTR DELETE_ATTR STORE_SUBSCR DELETE_SUBSCR STORE_SLICE".split())
_SPECIAL = frozenset("__init__ __new__ __repr__ __str__ __format__ __del__ __reduce__ __reduce_ex__ __getstate__ __setstate__ "
                     "__class_getitem__ __init_subclass__ __subclasshook__ __set_name__ __doc__ __module__ __dict__ __weakref__ "
                     "__qualname__ __annotations__ __dataclass_fields__ __dataclass_params__ __match_args__ __firstlineno__ "
                     "__static_attributes__ __annotate_func__ __annotate__ __annotations_cache__ __orig_bases__ __parameters__ "
                     "__abstractmethods__ _abc_impl __slots__".split())

_SIZES = frozenset("Size present smallest largest".split())  # what an int has not

_missing = object()


class Reads:
    """All that a function reads beside its arguments: checks, and tensors."""

    def __init__(self, f: Callable):
        self.slots: list = []      # (a dict, a key, what is there)
        self.cells: list = []      # (a cell, what is in it)
        self.contents: list = []   # (a function that lists what something holds, that list)
        self.tensors: list = []    # functions that each give a tensor
        self.groups: list = []     # functions that each give a list of tensors
        self.objects: list = []    # what is mutable
        self._seen: dict = {}      # by id; keeps what was seen alive
        self._codes: list = []
        self._names: set = set()   # attributes that some code reads
        self._classes: list = []
        self._stores: str | None = None
        self._visit(f, lambda: f, getattr(f, "__name__", "the function"))
        self._follow_classes()
        if self._stores and self.objects:
            raise Unknown(f"{self._stores}, and it can reach {self.objects[0]}: that may change what others see")

    def include(self, kind: type) -> None:
        """A class of a tree among the arguments: its methods read what they like."""
        if id(kind) not in self._seen:
            self._visit(kind, lambda: kind, f"the class '{kind.__name__}' of an argument")
            self._follow_classes()

    def around(self) -> list:
        """The tensors of now that it may read."""
        out = [get() for get in self.tensors]
        for get in self.groups:
            out += get()
        return out

    @property
    def stores(self) -> str | None:
        """Where it stores into some object; None: nowhere."""
        return self._stores

    @property
    def tells_sizes(self) -> bool:
        """Whether it may tell a symbolic size from an int: isinstance() does not."""
        return not _SIZES.isdisjoint(self._names) or any(value is type or value is _koine.Size for _, _, value in self.slots)

    def changed(self) -> str | None:
        """What is no longer as it was; None: nothing."""
        for where, key, value in self.slots:
            if where.get(key, _missing) is not value:
                return f"'{key}' is another object than before"
        for cell, value in self.cells:
            try:
                if cell.cell_contents is not value:
                    return "a variable of an enclosing function is another object than before"
            except builtins.ValueError:
                return "a variable of an enclosing function has no value"
        for listed, value in self.contents:
            now = listed()
            if len(now) != len(value) or any(a is not b for a, b in zip(now, value)):
                return "a list, dict, object or class that it reads holds others than before"
        return None

    # --- code ------------------------------------------------------------------------------------

    def _code(self, code: types.CodeType, namespace: dict, name: str) -> None:
        free = set(code.co_freevars)
        for instruction in dis.get_instructions(code):
            op, arg = instruction.opname, instruction.argval
            line = f"{code.co_filename}:{code.co_firstlineno}"
            if op in _EFFECTS:
                raise Unknown(f"{name} ({line}) changes or imports what is global ({op})")
            if op in _HANDLERS:
                raise Unknown(f"{name} ({line}) has a try or with block, which a trace would run through in its own way")
            if op == "STORE_DEREF" and arg in free:
                raise Unknown(f"{name} ({line}) assigns to '{arg}' of an enclosing function")
            if op in _STORES:
                self._stores = self._stores or f"{name} ({line}) stores into an object ({op})"
            if op in ("LOAD_GLOBAL", "LOAD_NAME"):
                self._global(arg, namespace, name)
            elif op in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR") or op.startswith("STORE_ATTR"):
                self._attribute(arg, f"{name} ({line})")
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self._code(constant, namespace, name)

    def _attribute(self, attribute: str, where: str) -> None:
        if attribute in _FORBIDDEN:
            raise Unknown(f"{where} uses .{attribute}, which is not the same while the function is described")
        if attribute in _MUTATORS:
            self._stores = self._stores or f"{where} calls .{attribute}()"
        self._names.add(attribute)

    def _global(self, name: str, namespace: dict, where: str) -> None:
        if name in namespace:
            value = namespace[name]
            self.slots.append((namespace, name, value))
            self._visit(value, lambda: namespace[name], f"the global '{name}'")
        elif hasattr(builtins, name):
            value = getattr(builtins, name)
            self.slots.append((namespace, name, _missing))
            self.slots.append((vars(builtins), name, value))
            self._visit(value, lambda: value, f"the builtin '{name}'")
        else:
            raise Unknown(f"{where} reads '{name}', which has no value")

    # --- values ----------------------------------------------------------------------------------

    def _visit(self, value: Any, get: Callable, name: str) -> None:
        if type(value) is Tensor:
            self.tensors.append(get)
            return
        if isinstance(value, Tensor):
            raise Unknown(f"{name} is a '{type(value).__name__}', a tensor with methods of the user's")
        if type(value) in _CONSTANT or id(value) in self._seen:
            return
        if isinstance(value, enum.Enum):
            self._class(type(value), f"the class of {name}")
            return
        self._seen[id(value)] = value
        if isinstance(value, types.FunctionType):
            self._function(value, name)
        elif isinstance(value, types.MethodType):
            self._visit(value.__self__, lambda: get().__self__, name)
            self._visit(value.__func__, lambda: get().__func__, name)
        elif isinstance(value, functools.partial):
            self._visit((value.func, value.args, value.keywords), lambda: (get().func, get().args, get().keywords), name)
        elif isinstance(value, types.ModuleType):
            self._module(value, name)
        elif isinstance(value, type):
            self._class(value, name)
        elif isinstance(value, _BUILTIN_FUNCTIONS):
            self._builtin(value, name)
        elif type(value) in (tuple, list):
            self._sequence(value, get, name)
        elif type(value) is dict:
            self._dict(value, get, name)
        elif type(value) in (set, frozenset):
            raise Unknown(f"{name} is a set, whose order is not fixed")
        else:
            self._object(value, get, name)

    def _function(self, f: types.FunctionType, name: str) -> None:
        if f.__code__.co_flags & 0x2A0:  # a generator or coroutine
            raise Unknown(f"{name} is a generator or a coroutine")
        if self._is_own(f):
            return
        name = f"{f.__qualname__}()"
        self.contents.append((lambda: [f.__code__, f.__defaults__, f.__kwdefaults__], [f.__code__, f.__defaults__, f.__kwdefaults__]))
        if f.__dict__:
            fields = f.__dict__
            self.contents.append((lambda: [*fields.keys(), *fields.values()], [*fields.keys(), *fields.values()]))
            for k, item in fields.items():
                self._visit(item, lambda k=k: fields[k], f"{name}.{k}")
        self._visit(f.__defaults__, lambda: f.__defaults__, f"a default of {name}")
        self._visit(f.__kwdefaults__, lambda: f.__kwdefaults__, f"a default of {name}")
        self._code(f.__code__, f.__globals__, name)
        for variable, cell in zip(f.__code__.co_freevars, f.__closure__ or ()):
            try:
                inside = cell.cell_contents
            except builtins.ValueError:
                raise Unknown(f"'{variable}' of {name} has no value yet") from None
            self.cells.append((cell, inside))
            self._visit(inside, lambda cell=cell: cell.cell_contents, f"'{variable}' of {name}")

    def _is_own(self, f: Any) -> bool:
        """Whether it is a function of this package: these are what transforms are made of."""
        if not _is_of_package(getattr(f, "__module__", None)):
            return False
        if hasattr(f, "__wrapped__"):  # a transform of the user's
            self._visit(f.__wrapped__, lambda: f.__wrapped__, "a function that is transformed")
            self._closure_of_own(f)
        elif getattr(f, "__closure__", None):
            self._closure_of_own(f)
        return True

    def _closure_of_own(self, f: types.FunctionType) -> None:
        for cell in f.__closure__ or ():
            inside = cell.cell_contents
            self.cells.append((cell, inside))
            self._visit(inside, lambda cell=cell: cell.cell_contents, "a transform")

    def _builtin(self, f: Any, name: str) -> None:
        bound = getattr(f, "__self__", None)
        if isinstance(bound, types.ModuleType) or bound is None:
            module = getattr(f, "__module__", None) or getattr(bound, "__name__", None) or ""
            if f in _PURE or module.split(".")[0] in ("koine", "math", "_operator", "_functools"):
                return
        if isinstance(bound, Tensor):
            raise Unknown(f"{name} is a method that is bound to a tensor")
        raise Unknown(f"{name} is {f!r}, of which nobody knows what it reads or changes")

    def _module(self, module: types.ModuleType, name: str) -> None:
        if module.__name__.split(".")[0] not in _TRUSTED_MODULES:
            raise Unknown(f"{name} is the module '{module.__name__}', which may read or change anything")

    def _class(self, kind: type, name: str) -> None:
        if kind in _PURE or _is_of_package(kind.__module__) or (kind.__module__ or "").split(".")[0] in ("builtins", "typing", "enum"):
            if kind.__module__ == "builtins" and kind not in _PURE:
                raise Unknown(f"{name} is {kind!r} of the module builtins, to which classes of exec() belong where its globals have no __name__")
            return
        if type(kind) not in (type, enum.EnumMeta) and type(kind).__name__ != "ABCMeta":
            raise Unknown(f"{name} is a class with a metaclass")
        for base in kind.__mro__:
            if base is object or base.__module__ in ("builtins", "typing", "abc", "enum"):
                continue
            if not base.__flags__ & (1 << 9):  # not of Python
                raise Unknown(f"{name} is the class {base.__name__}, which is not written in Python")
            self.contents.append((lambda base=base: list(vars(base).values()), list(vars(base).values())))
            self._classes.append((base, set()))

    def _follow_classes(self) -> None:
        """What of classes some code names, until nothing is new."""
        again = True
        while again:
            again = False
            for base, done in list(self._classes):
                for key, value in list(vars(base).items()):
                    special = key.startswith("__") and key.endswith("__")
                    if key in done or key in _SPECIAL or not (special or key in self._names):
                        continue
                    done.add(key)
                    again = True
                    if isinstance(value, (staticmethod, classmethod)):
                        value = value.__func__
                    parts = (value.fget,) if isinstance(value, property) else (value,)
                    for part in parts:
                        if isinstance(part, functools.cached_property):
                            raise Unknown(f"{base.__name__}.{key} is a cached property")
                        self._visit(part, lambda part=part: part, f"{base.__name__}.{key}")

    def _sequence(self, value: Any, get: Callable, name: str) -> None:
        if type(value) is list:
            self.objects.append(name)
            self.contents.append((lambda: list(value), list(value)))
        for k, item in enumerate(value):
            self._visit(item, lambda k=k: get()[k], f"{name}[{k}]")

    def _dict(self, value: dict, get: Callable, name: str) -> None:
        self.objects.append(name)
        self.contents.append((lambda: [*value.keys(), *value.values()], [*value.keys(), *value.values()]))
        for k, item in value.items():
            self._visit(k, lambda k=k: k, f"a key of {name}")
            self._visit(item, lambda k=k: get()[k], f"{name}[{k!r}]")

    def _object(self, value: Any, get: Callable, name: str) -> None:
        kind = type(value)
        if kind.__module__ == "nanobind" and str(getattr(value, "__module__", "")).split(".")[0] == "koine":
            return
        if kind.__name__ in ("_tuplegetter", "member_descriptor", "getset_descriptor"):
            return
        if _is_of_package(kind.__module__):
            self._own_object(value, get, name)
            return
        fields = getattr(value, "__dict__", None)
        if fields is None or any("__slots__" in vars(b) and vars(b)["__slots__"] for b in kind.__mro__):
            raise Unknown(f"{name} is a '{kind.__name__}', of which nobody knows what it holds")
        self._class(kind, f"the class of {name}")
        if isinstance(value, (list, dict, tuple, set)):
            raise Unknown(f"{name} is a '{kind.__name__}', which is also a {kind.__mro__[-2].__name__}")
        self.objects.append(name)
        self.contents.append((lambda: [type(value), *fields.keys(), *fields.values()], [kind, *fields.keys(), *fields.values()]))
        for k, item in fields.items():
            self._visit(item, lambda k=k: vars(get())[k], f"{name}.{k}")

    def _own_object(self, value: Any, get: Callable, name: str) -> None:
        if isinstance(value, _koine.nn.Optimizer):
            self.groups.append(value._tensors)
            return
        if hasattr(value, "_state"):
            if getattr(value, "__dict__", None):
                raise Unknown(f"{name} is a layer with attributes of the user's")
            config = (value._config() if hasattr(value, "_config") else (value.p,))
            state = [n for n, _, _ in value._state()]
            self.contents.append((lambda: [] if self._layer(value) != (config, state) else [value], [value]))
            if state:
                self.groups.append(lambda: [tensor for _, tensor, _ in value._state()])
            return
        if hasattr(value, "_functions"):  # a jit, or a function with a derivative of its own
            parts = value._functions()
            self.contents.append((value._functions, parts))
            for k, part in enumerate(parts):
                self._visit(part, lambda k=k: value._functions()[k], name)
            return
        if isinstance(value, _koine.random.Key):
            self.tensors.append(lambda: get().bits)
            return
        raise Unknown(f"{name} is a '{type(value).__name__}', of which nobody knows what it holds")

    @staticmethod
    def _layer(value: Any) -> tuple:
        return (value._config() if hasattr(value, "_config") else (value.p,)), [n for n, _, _ in value._state()]
