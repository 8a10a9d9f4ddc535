"""What a function reads beside its arguments, found before it runs: jit (koine.jit) holds it against what there is at each
call. Whatever cannot be followed is refused with a reason, and the function then runs as it is written.
"""
from __future__ import annotations

import abc
import builtins
import collections
import dis
import enum
import functools
import math
import operator
import types
from typing import Any, Callable

from . import _koine, bytecode, tree
from ._koine import DType, Tensor


def _is_of_package(module: str | None) -> bool:
    """Whether what is written there is followed by what it is known to do. The demo is a program like a user's."""
    return (module or "").split(".")[0] == "koine" and module != "koine.demo"


class Unknown(Exception):
    """Why a function cannot be followed."""


_OWN_FIELDS = {"f"}  # of what transforms make of functions, beside names that begin with _

# Functions without effects, whose results follow from their arguments.
_PURE = {getattr(builtins, n) for n in (
    "abs all any bool bytes complex dict divmod enumerate filter float frozenset int isinstance issubclass len list map max min "
    "pow range reversed round set slice sorted str sum tuple zip type callable super property staticmethod classmethod object "
    "ValueError TypeError IndexError KeyError RuntimeError AssertionError NotImplementedError StopIteration Exception").split()}
_CONSTANT = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), type(NotImplemented), range)
_TRUSTED_MODULES = ("koine", "math", "operator", "functools", "typing")
# What of these modules calls or reads by a name that no code shows.
_BY_NAME = frozenset("attrgetter methodcaller get_type_hints".split())
_BUILTIN_FUNCTIONS = (types.BuiltinFunctionType, types.WrapperDescriptorType, types.MethodDescriptorType,
                      types.MethodWrapperType, types.ClassMethodDescriptorType, types.GetSetDescriptorType)

# Attributes that change something outside, or that tell a placeholder from a tensor.
_FORBIDDEN = frozenset("manual_seed requires_grad set_printoptions counters reset_counters memory_in_use "
                       "clear_compile_cache history_bytes uop realize learning_rate f_locals f_globals __dict__ "
                       "__globals__ __subclasses__ __annotations__ __code__ __closure__ __defaults__ register defvjp defjvp storage_id".split())
# What may change a list or a dict. Where it is one that others see, that shows when the function is described.
_MUTATORS = frozenset("append extend insert remove pop popitem clear update setdefault add discard sort reverse "
                      "__setitem__ __delitem__ __iadd__ __imul__ __ior__".split())
_CHANGES = frozenset("STORE_SUBSCR DELETE_SUBSCR STORE_SLICE".split())
# Calls that set attributes: those of an object that is being made are its own.
_SETTERS = frozenset("__setattr__ __delattr__ __init__ __post_init__".split())
_OWN_SETTERS = ("__init__", "__post_init__")
_EFFECTS = frozenset("STORE_GLOBAL DELETE_GLOBAL IMPORT_NAME IMPORT_FROM IMPORT_STAR DELETE_DEREF LOAD_BUILD_CLASS".split())
_HANDLERS = frozenset("PUSH_EXC_INFO SETUP_FINALLY SETUP_WITH BEFORE_WITH LOAD_SPECIAL WITH_EXCEPT_START".split())
_STORES = frozenset("STORE_ATTR DELETE_ATTR".split())
_OF_DATACLASSES = ("__hash__", "__setattr__", "__delattr__")
_MAKING = frozenset("__init__ __new__ __del__ __post_init__ __class_getitem__".split())  # run where a class is called
_TEXTS = frozenset("__repr__ __str__ __format__".split())                                # run where a text is made
_TEXT_NAMES = _TEXTS | {"format", "format_map"}
_TEXT_OPS = frozenset("FORMAT_VALUE FORMAT_SIMPLE FORMAT_WITH_SPEC CONVERT_VALUE BINARY_MODULO INPLACE_MODULO".split())
_SPECIAL = frozenset("__replace__ __reduce__ __reduce_ex__ __getstate__ __setstate__ "
                     "__init_subclass__ __subclasshook__ __set_name__ __doc__ __module__ __dict__ __weakref__ "
                     "__qualname__ __annotations__ __dataclass_fields__ __dataclass_params__ __match_args__ __firstlineno__ "
                     "__static_attributes__ __annotate_func__ __annotate__ __annotations_cache__ __orig_bases__ __parameters__ "
                     "__abstractmethods__ _abc_impl __slots__".split())

_SLOTS = (types.GetSetDescriptorType, types.MemberDescriptorType, types.WrapperDescriptorType)
_UNFOLLOWED = ("__getattribute__", "__subclasshook__")
_LABELS = ("__name__", "__qualname__", "__doc__", "__module__")  # of functions and classes, which no list of what they hold has
_DICT_READS = frozenset("__getitem__ __contains__ __iter__ __len__ get keys values items".split())
_DICTS = (collections.OrderedDict, collections.defaultdict)
_SIZES = frozenset("Size present smallest largest".split())  # what an int has not

_missing = object()


def _module_of(f: Any) -> str | None:
    """Where code was written: functools.wraps() gives a function the __module__ of another."""
    return getattr(f, "__globals__", {}).get("__name__") or getattr(f, "__module__", None)


def _is_put_into(value: Any, module: types.ModuleType) -> bool:
    """Whether a function of a trusted module is somebody else's."""
    return isinstance(value, types.FunctionType) and (_module_of(value) or "").split(".")[0] != module.__name__.split(".")[0]


def _is_of_user(value: Any) -> bool:
    """Whether an attribute of a class of this package is none that it came with."""
    f = getattr(value, "fget", None) or getattr(value, "__func__", value)
    if isinstance(f, types.FunctionType):
        return not _is_of_package(_module_of(f))
    return type(f).__module__ != "nanobind" and type(f) not in _SLOTS


def _differ(now: list, before: list) -> bool:
    return len(now) != len(before) or not all(map(operator.is_, now, before))


class Reads:
    """All that a function reads beside its arguments: checks, and tensors."""

    def __init__(self, f: Callable):
        self.slots: list = []      # (a dict, a key, what is there)
        self.cells: list = []      # (a cell, what is in it)
        self.contents: list = []   # (a function that lists what something holds, that list, a function that puts it back or None)
        self.tensors: list = []    # functions that each give a tensor
        self.groups: list = []     # functions that each give a list of tensors
        self.objects: list = []    # what is mutable
        self._seen: dict = {}      # by id; keeps what was seen alive
        self._codes: list = []
        self._names: set = set()   # attributes that some code reads
        self._classes: dict = {}   # by id: (a class, what of it was followed)
        self._made: set = set()    # of classes that the code may call, the ids
        self._makes_all = False    # whether it may call the class of any object
        self._makes_texts = False
        self._modules: dict = {}   # by id: (a module, what of it was looked at)
        self._own: dict = {}       # by id: (a class of this package, what of it was looked at)
        self._refused: str | None = None  # why include() refused something
        self._included: dict = {}
        self._stores: str | None = None
        self._own_stores: str | None = None  # into an object that is being made, unless __new__ gives one of before
        self._has_new = False
        self._changes = False
        self._asks_classes = False
        self._token: Any = None    # counts the calls of register() of abstract classes, where some are asked for
        self._labelled: set = set()  # of functions and classes whose labels are held against what they were: (id, label)
        self._own_class(Tensor)
        self._visit(f, lambda: f, getattr(f, "__name__", "the function"))
        self._follow()

    def include(self, part: Any) -> None:
        """A class of a tree among the arguments, or what its data hold: the methods read what they like."""
        if id(part) in self._included:
            return
        if self._refused:  # what was seen on the way there is not followed again
            raise Unknown(self._refused)
        try:
            if part in tree._registered:
                self._registered(part)
            if isinstance(part, type):
                self._seen[id(part)] = part
                self._class(part, f"the class '{part.__name__}' of an argument")
            else:
                self._visit(part, lambda: part, "what an argument holds")
            self._follow()
        except Unknown as e:
            self._refused = str(e)
            raise
        self._included[id(part)] = part

    def _registered(self, kind: type) -> None:
        """The functions that make a type a tree: what they store is their own."""
        stores, functions = self._stores, tree._registered[kind]
        self.slots.append((tree._registered, kind, functions))
        for f in functions:
            self._visit(f, lambda f=f: f, f"what makes '{kind.__name__}' a tree")
        self._stores = stores

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
    def changes(self) -> bool:
        """Whether it may change what a list, dict or object holds."""
        return self._changes

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
        for listed, value, _ in self.contents:
            if _differ(listed(), value):
                return "a list, dict, object or class that it reads holds others than before"
        if self._token is not None and self._token != abc.get_cache_token():
            return "an abstract class has got another subclass by register()"
        return None

    def put_back(self) -> None:
        """Makes lists, dicts and objects hold what they held."""
        for listed, value, back in self.contents:
            if back is not None and _differ(listed(), value):
                back()

    # --- code ------------------------------------------------------------------------------------

    def _code(self, code: types.CodeType, namespace: dict, name: str, own: bool = False) -> None:
        """`own`: it sets attributes of an object that is being made."""
        free = set(code.co_freevars)
        where = f"{name} ({code.co_filename}:{code.co_firstlineno})"
        instructions = list(dis.get_instructions(code))
        asked_until = 0
        for k, instruction in enumerate(instructions):
            op, arg = instruction.opname, instruction.argval
            if op in _EFFECTS:
                raise Unknown(f"{where} changes or imports what is global ({op})")
            if op in _HANDLERS:
                raise Unknown(f"{where} has a try or with block, which a trace would run through in its own way")
            if op == "STORE_DEREF" and arg in free:
                raise Unknown(f"{where} assigns to '{arg}' of an enclosing function")
            self._names |= bytecode.methods_of(instruction)
            self._asks_classes = self._asks_classes or op.startswith("MATCH_")
            if (op in _TEXT_OPS or op == "BINARY_OP" and instruction.argrepr.startswith("%")) and not bytecode.is_raised(instructions, k):
                self._makes_texts = True
            self._changes = (self._changes or op in _CHANGES or op in _STORES or op.startswith("INPLACE_")
                             or op == "BINARY_OP" and instruction.argrepr.endswith("="))
            if op in _STORES:
                text = f"{where} stores into an object ({op})"
                if own and bytecode.is_self(code, instructions, k - 1) and not instruction.is_jump_target:
                    self._own_stores = self._own_stores or text
                else:
                    self._stores = self._stores or text
            if op in ("LOAD_GLOBAL", "LOAD_NAME"):
                if arg == "isinstance" and arg not in namespace:
                    asked_until = max(asked_until, bytecode.only_asked_for(instructions, k))
                self._global(arg, namespace, name, k < asked_until or bytecode.is_not_called(arg, instructions, k))
            elif op in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR") or op.startswith("STORE_ATTR"):
                self._attribute(code, instructions, k, where, own)
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self._code(constant, namespace, name)

    def _attribute(self, code: types.CodeType, instructions: list, k: int, where: str, own: bool) -> None:
        instruction = instructions[k]
        attribute = instruction.argval
        if attribute in _FORBIDDEN:
            raise Unknown(f"{where} uses .{attribute}, which is not the same while the function is described")
        if attribute in _SETTERS and not (own and self._sets_own(code, instructions, k)):
            self._changes = True
            self._stores = self._stores or f"{where} calls .{attribute}()"
        self._changes = self._changes or attribute in _MUTATORS
        if attribute in _TEXT_NAMES:
            self._makes_texts = True
        if attribute == "__class__" and not bytecode.is_named_only(instructions, k + 1):
            self._makes_all = True
        self._names.add(attribute)

    def _sets_own(self, code: types.CodeType, instructions: list, k: int) -> bool:
        """Whether a call in __init__ sets attributes of the object that is being made."""
        if instructions[k].argval in _OWN_SETTERS:
            of_super = instructions[k].opname == "LOAD_SUPER_ATTR" or bytecode.is_super(instructions[:k])
            return of_super or bytecode.is_self(code, instructions, k - 1)
        of_object = k > 0 and instructions[k - 1].argval == "object" and k + 1 < len(instructions)
        return code.co_filename == "<string>" or of_object and bytecode.is_self(code, instructions, k + 1)  # of a frozen dataclass

    def _global(self, name: str, namespace: dict, where: str, asked: bool) -> None:
        """`asked`: as a class it is not called."""
        if name in namespace:
            value = namespace[name]
            self.slots.append((namespace, name, value))
            if asked and isinstance(value, type) and name != "type":
                self._class(value, f"the global '{name}'")
                return
            self._visit(value, lambda: namespace[name], f"the global '{name}'")
        elif hasattr(builtins, name):
            value = getattr(builtins, name)
            self.slots.append((namespace, name, _missing))
            self.slots.append((vars(builtins), name, value))
            if value is not type or not asked:
                self._visit(value, lambda: value, f"the builtin '{name}'")
        else:
            raise Unknown(f"{where} reads '{name}', which has no value")

    # --- values ----------------------------------------------------------------------------------

    def _visit(self, value: Any, get: Callable, name: str) -> None:
        if type(value) is Tensor:
            self.tensors.append(get)
            return
        if isinstance(getattr(type(value), "__getattribute__", None), types.FunctionType):
            raise Unknown(f"{name} is a '{type(value).__name__}', which has a __getattribute__ of its own")
        if isinstance(value, Tensor):
            raise Unknown(f"{name} is a '{type(value).__name__}', a tensor with methods of the user's")
        if isinstance(value, types.FunctionType) and value.__name__ in _OWN_SETTERS:  # not called to make an object
            self._stores = self._stores or f"{name} sets attributes"
        if type(value) in _CONSTANT or id(value) in self._seen and not isinstance(value, type):
            return
        self._seen[id(value)] = value
        if isinstance(value, enum.Enum):
            self._member(value, name)
        elif isinstance(value, types.FunctionType):
            self._function(value, name)
        elif isinstance(value, types.MethodType):
            self._visit(value.__self__, lambda: get().__self__, name)
            self._visit(value.__func__, lambda: get().__func__, name)
        elif isinstance(value, functools.partial):
            self.contents.append((lambda: [value.func, value.args, value.keywords], [value.func, value.args, value.keywords], None))
            self._dict(vars(value), lambda: vars(value), f"what {name} has as attributes")
            self._visit((value.func, value.args, value.keywords), lambda: (get().func, get().args, get().keywords), name)
        elif isinstance(value, types.ModuleType):
            self._module(value, name)
        elif isinstance(value, type):
            self._makes_texts = self._makes_texts or value is str
            self._makes_all = self._makes_all or value is type
            self._names |= bytecode.methods_asked_by(value)
            self._class(value, name, True)
        elif isinstance(value, _BUILTIN_FUNCTIONS):
            self._builtin(value, name)
        elif type(value) in (tuple, list):
            self._sequence(value, get, name)
        elif type(value) is slice:
            self._sequence((value.start, value.stop, value.step), lambda: (value.start, value.stop, value.step), name)
        elif type(value) is dict:
            self._dict(value, get, name)
        elif type(value) in (set, frozenset):
            raise Unknown(f"{name} is a set, whose order is not fixed")
        else:
            self._object(value, get, name)

    def _fields(self, fields: dict, listed: Callable) -> None:
        """A dict, or what an object has as one; `listed` gives what it holds."""
        was = dict(fields)

        def back():
            fields.clear()
            fields.update(was)

        self.contents.append((listed, listed(), back))

    def _member(self, member: enum.Enum, name: str) -> None:
        """A member of an enum: the value of each is an object like others, and may have fields."""
        fields = vars(member)
        self._class(type(member), f"the class of {name}")
        self._fields(fields, lambda: [*fields.keys(), *fields.values()])
        for k, item in list(fields.items()):
            if k != "__objclass__":
                self._visit(item, lambda k=k: fields[k], f"{name}.{k}")

    def _function(self, f: types.FunctionType, name: str, own: bool = False) -> None:
        if f.__code__.co_flags & 0x2A0:  # a generator or coroutine
            raise Unknown(f"{name} is a generator or a coroutine")
        if self._is_own(f):
            return
        name = f"{f.__qualname__}()"
        fields = f.__dict__
        self._fields(fields, lambda: [f.__code__, f.__defaults__, f.__kwdefaults__, *fields.keys(), *fields.values()])
        for k, item in fields.items():
            self._visit(item, lambda k=k: fields[k], f"{name}.{k}")
        self._visit(f.__defaults__, lambda: f.__defaults__, f"a default of {name}")
        self._visit(f.__kwdefaults__, lambda: f.__kwdefaults__, f"a default of {name}")
        self._code(f.__code__, f.__globals__, name, own)
        for variable, cell in zip(f.__code__.co_freevars, f.__closure__ or ()):
            try:
                inside = cell.cell_contents
            except builtins.ValueError:
                raise Unknown(f"'{variable}' of {name} has no value yet") from None
            self.cells.append((cell, inside))
            if isinstance(inside, type) and self._is_only_asked(f.__code__, variable, f.__globals__):
                self._class(inside, f"the class of {name}")
            else:
                self._visit(inside, lambda cell=cell: cell.cell_contents, f"'{variable}' of {name}")

    def _is_only_asked(self, code: types.CodeType, variable: str, namespace: dict) -> bool:
        """Whether a class in an enclosing variable is not called: it serves isinstance(), super() and its attributes."""
        instructions = list(dis.get_instructions(code))
        asked_until = 0
        for k, instruction in enumerate(instructions):
            if instruction.opname == "LOAD_GLOBAL" and instruction.argval == "isinstance" and "isinstance" not in namespace:
                asked_until = max(asked_until, bytecode.only_asked_for(instructions, k))
            if instruction.argval != variable or "DEREF" not in instruction.opname:
                continue
            serves_super = any(i.opname.startswith("LOAD_SUPER") for i in instructions[k + 1:k + 3])
            if not (k < asked_until or serves_super or bytecode.is_not_called("", instructions, k)):
                return False
        inner = [c for c in code.co_consts if isinstance(c, types.CodeType) and variable in c.co_freevars]
        return all(self._is_only_asked(c, variable, namespace) for c in inner)

    def _is_own(self, f: Any) -> bool:
        """Whether it is a function of this package: these are what transforms are made of."""
        if not _is_of_package(_module_of(f)):
            return False
        if hasattr(f, "__wrapped__"):  # a transform of the user's
            self._bare(f, "a function that is transformed")
            self._visit(f.__wrapped__, lambda: f.__wrapped__, "a function that is transformed")
        self._closure_of_own(f)
        return True

    @staticmethod
    def _bare(value: Any, name: str) -> None:
        """What this package made of a function; attributes that somebody put there are none of its own."""
        if any(key not in _OWN_FIELDS and not key.startswith("_") for key in getattr(value, "__dict__", ())):
            raise Unknown(f"{name} has attributes of the user's")

    def _closure_of_own(self, f: types.FunctionType) -> None:
        for cell in f.__closure__ or ():
            inside = cell.cell_contents
            self.cells.append((cell, inside))
            self._visit(inside, lambda cell=cell: cell.cell_contents, "what is transformed")

    def _builtin(self, f: Any, name: str) -> None:
        bound = getattr(f, "__self__", None)
        self._asks_classes = self._asks_classes or f is isinstance or f is issubclass
        self._names |= bytecode.methods_asked_by(f)
        if isinstance(bound, types.ModuleType) or bound is None:
            module = getattr(f, "__module__", None) or getattr(bound, "__name__", None) or ""
            self._changes = self._changes or module == "_operator"  # setitem and its like
            if f in _PURE or module.split(".")[0] in ("koine", "math", "_operator", "_functools"):
                return
        if isinstance(bound, type) and bound in _PURE and f.__name__ == "__new__":
            return
        if getattr(f, "__objclass__", None) is dict and f.__name__ in _DICT_READS:
            return
        if isinstance(bound, Tensor):
            raise Unknown(f"{name} is a method that is bound to a tensor")
        raise Unknown(f"{name} is {f!r}, of which nobody knows what it reads or changes")

    def _module(self, module: types.ModuleType, name: str) -> None:
        if module is not builtins and module.__name__.split(".")[0] not in _TRUSTED_MODULES:
            raise Unknown(f"{name} is the module '{module.__name__}', which may read or change anything")
        self._changes = self._changes or module.__name__ == "operator"
        self._modules[id(module)] = module, set()

    def _class(self, kind: type, name: str, made: bool = False) -> None:
        """`made`: the code may call it."""
        if kind in _PURE or _is_of_package(kind.__module__) or (kind.__module__ or "").split(".")[0] in ("builtins", "typing", "enum"):
            if kind.__module__ == "builtins" and kind not in _PURE:
                raise Unknown(f"{name} is {kind!r} of the module builtins, to which classes of exec() belong where its globals have "
                              "no __name__")
            return
        if type(kind) not in (type, enum.EnumMeta) and type(kind).__name__ != "ABCMeta":
            raise Unknown(f"{name} is a class with a metaclass")
        if made:
            self._made.update(map(id, kind.__mro__))
        if id(kind) in self._classes:
            return
        self.contents.append((lambda: list(kind.__mro__), list(kind.__mro__), None))
        for base in kind.__mro__:
            if base is object or base.__module__ in ("builtins", "typing", "abc", "enum") or base in _DICTS:
                continue
            if not base.__flags__ & (1 << 9):  # not of Python
                raise Unknown(f"{name} is the class {base.__name__}, which is not written in Python")
            for key in _UNFOLLOWED:
                if key in vars(base) and base.__module__ not in ("collections.abc", "typing"):
                    raise Unknown(f"{name} is the class {base.__name__}, which has a {key} of its own")
            if id(base) not in self._classes:
                self._attributes(base)
                self._classes[id(base)] = base, set()
        for member in getattr(kind, "__members__", {}).values() if isinstance(kind, enum.EnumMeta) else ():
            self._visit(member, lambda member=member: member, f"a member of {kind.__name__}")

    def _attributes(self, kind: type) -> None:
        """What a class holds."""
        was = dict(vars(kind))

        def back():
            for key in [k for k in vars(kind) if k not in was]:
                type.__delattr__(kind, key)
            for key in [k for k, v in was.items() if vars(kind).get(k, _missing) is not v]:
                type.__setattr__(kind, key, was[key])

        self.contents.append((lambda: list(vars(kind).values()), list(was.values()), back))

    def _follow(self) -> None:
        """What of classes and modules some code names, until nothing is new."""
        again = True
        while again:
            again = self._follow_modules()
            for base, done in list(self._classes.values()):
                for key, value in list(vars(base).items()):
                    if key in done or not self._is_followed(base, key):
                        continue
                    done.add(key)
                    again = True
                    self._of_class(base, key, value)
        for kind, done in self._own.values():
            for key in self._names - done:
                done.add(key)
                value = vars(kind).get(key, _missing)
                if value is not _missing and key not in _SPECIAL and _is_of_user(value):
                    raise Unknown(f"somebody has put '{key}' into {kind.__name__}")
                if value is not _missing:
                    self.slots.append((vars(kind), key, value))
        self._follow_labels()
        if self._asks_classes and self._token is None and any(type(kind) is abc.ABCMeta for kind, _ in self._classes.values()):
            self._token = abc.get_cache_token()
        if self._has_new:
            self._stores = self._stores or self._own_stores
        if self._stores and self.objects:
            raise Unknown(f"{self._stores}, and it can reach {self.objects[0]}: that may change what others see. "
                          "Give back what is new instead")

    def _follow_labels(self) -> None:
        """What functions and classes are called, where some code asks for it or makes texts."""
        labels = [label for label in _LABELS if label in self._names or self._makes_texts]
        for part in [*self._seen.values(), *(kind for kind, _ in self._classes.values())] if labels else ():
            if not isinstance(part, types.FunctionType) and not (isinstance(part, type) and part.__flags__ & (1 << 9)) or _is_of_package(_module_of(part)):
                continue
            for label in labels:
                if (id(part), label) not in self._labelled:
                    self._labelled.add((id(part), label))
                    self.contents.append((lambda part=part, label=label: [getattr(part, label)], [getattr(part, label)], None))

    def _own_class(self, kind: type) -> None:
        for base in kind.__mro__:
            if _is_of_package(base.__module__):
                self._own.setdefault(id(base), (base, set()))

    def _follow_modules(self) -> bool:
        """Whether something was new."""
        again = False
        for module, done in list(self._modules.values()):
            for key in self._names - done:
                done.add(key)
                value = vars(module).get(key)
                if value is None:
                    continue
                self.slots.append((vars(module), key, value))
                if isinstance(value, _BUILTIN_FUNCTIONS):
                    self._names |= bytecode.methods_asked_by(value)
                if module is not builtins and not isinstance(value, types.ModuleType) and not _is_put_into(value, module):
                    if key in _BY_NAME and not _is_of_package(module.__name__):
                        raise Unknown(f"{module.__name__}.{key} reads by names that are told when it runs")
                else:
                    again = True
                    self._visit(value, lambda value=value: value, f"{module.__name__}.{key}")
        return again

    def _is_followed(self, base: type, key: str) -> bool:
        if key in _MAKING:
            return (self._makes_all or id(base) in self._made) and not isinstance(base, enum.EnumMeta)
        if key in _TEXTS:
            return self._makes_texts
        special = key not in _SPECIAL and (key.startswith("__") and key.endswith("__") or key == "_missing_")
        return special or key in self._names

    def _of_class(self, base: type, key: str, value: Any) -> None:
        name = f"{base.__name__}.{key}"
        self._makes_all = self._makes_all or isinstance(value, classmethod) and key != "__class_getitem__"
        if isinstance(value, (staticmethod, classmethod)):
            value = value.__func__
        if key == "__repr__" and "__dataclass_params__" in vars(base):  # it shows the fields
            value = getattr(value, "__wrapped__", value)
        if key in _OF_DATACLASSES and "__dataclass_params__" in vars(base) and isinstance(value, types.FunctionType):
            if value.__code__.co_filename == "<string>":  # the hash of a tuple of the fields; what raises, as nothing is set
                return
        for part in (value.fget, value.fset, value.fdel) if isinstance(value, property) else (value,):
            if isinstance(part, functools.cached_property):
                raise Unknown(f"{name} is a cached property")
            if isinstance(part, types.FunctionType) and _module_of(part) == "enum":
                continue
            if key in _OWN_SETTERS and isinstance(part, types.FunctionType) and id(part) not in self._seen:
                self._seen[id(part)] = part
                self._function(part, name, True)
                continue
            self._has_new = self._has_new or key == "__new__" and not hasattr(base, "_fields")
            self._visit(part, lambda part=part: part, name)

    def _sequence(self, value: Any, get: Callable, name: str) -> None:
        if type(value) is list:
            was = list(value)

            def back():
                value[:] = was

            self.contents.append((lambda: list(value), was, back))
        for k, item in enumerate(value):
            self._visit(item, lambda k=k: get()[k], f"{name}[{k}]")

    def _dict(self, value: dict, get: Callable, name: str) -> None:
        self._fields(value, lambda: [*value.keys(), *value.values()])
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
        self._fields(fields, lambda: [type(value), *fields.keys(), *fields.values()])
        for k, item in fields.items():
            self._visit(item, lambda k=k: vars(get())[k], f"{name}.{k}")

    def _own_object(self, value: Any, get: Callable, name: str) -> None:
        if isinstance(value, _koine.nn.Optimizer):
            self.groups.append(value._tensors)
            return
        if hasattr(value, "_state"):
            self._own_class(type(value))
            self._names.add("__call__")
            if getattr(value, "__dict__", None):
                raise Unknown(f"{name} is a layer with attributes of the user's")
            layer = self._layer(value)
            self.objects.append(name)
            self.contents.append((lambda: [] if self._layer(value) != layer else [value], [value], None))
            if layer[1]:
                self.groups.append(lambda: [tensor for _, tensor, _ in value._state()])
            return
        if hasattr(value, "_functions"):  # a jit, or a function with a derivative of its own
            self._bare(value, name)
            self.objects.append(name)
            parts = value._functions()
            self.contents.append((value._functions, parts, None))
            for k, part in enumerate(parts):
                self._visit(part, lambda k=k: value._functions()[k], name)
            return
        if isinstance(value, _koine.random.Key):
            self.tensors.append(lambda: get().bits)
            return
        raise Unknown(f"{name} is a '{type(value).__name__}', of which nobody knows what it holds")

    @staticmethod
    def _layer(value: Any) -> tuple:
        """What is no tensor in a layer, and the names of its tensors."""
        return (value._config() if hasattr(value, "_config") else (value.p,)), [n for n, _, _ in value._state()]
