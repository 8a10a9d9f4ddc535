"""What instructions of Python's bytecode say beside each other, of Python 3.9 to 3.13: patterns that guards.py looks for."""
from __future__ import annotations

import builtins
import dis
import types
from typing import Any

_NAME_LOADS = ("LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_FAST_CHECK", "LOAD_GLOBAL", "LOAD_DEREF")

_OPERATORS = {
    "+": "add", "-": "sub", "*": "mul", "/": "truediv", "//": "floordiv", "%": "mod", "**": "pow", "@": "matmul", "&": "and", "|": "or",
    "^": "xor", "<<": "lshift", ">>": "rshift", "<": "lt", ">": "gt", "<=": "le", ">=": "ge", "==": "eq", "!=": "ne"}
_BINARY = frozenset(f"__{prefix}{name}__" for name in _OPERATORS.values() for prefix in ("", "r", "i")) | {"__divmod__", "__rdivmod__"}
_UNARY = frozenset("__neg__ __pos__ __invert__ __abs__ __round__ __bool__ __len__ __float__ __int__ __index__ __complex__".split())
_ITERATION = frozenset("__iter__ __len__ __getitem__ __contains__ __reversed__ __next__".split())
_PLACES = frozenset("__getitem__ __setitem__ __delitem__".split())
_COMPARISONS = frozenset("lt gt le ge eq ne".split())
_REFLECTED = frozenset(f"__{name}__" for name in _COMPARISONS)  # `a < b` may be b's `>`
_ALL = _BINARY | _UNARY | _ITERATION | _PLACES

# The methods that instructions call by no name, by how their names begin: the first that fits.
_OF_INSTRUCTIONS = (
    ("UNARY_NEGATIVE", frozenset(["__neg__"])), ("UNARY_INVERT", frozenset(["__invert__"])), ("UNARY_POSITIVE", frozenset(["__pos__"])),
    ("CALL_INTRINSIC", _UNARY | _ITERATION), ("UNARY_NOT", frozenset(["__bool__", "__len__"])), ("TO_BOOL", frozenset(["__bool__", "__len__"])),
    ("POP_JUMP", frozenset(["__bool__", "__len__"])), ("JUMP_IF", frozenset(["__bool__", "__len__"])),
    ("BINARY_SUBSCR", frozenset(["__getitem__"])), ("BINARY_SLICE", frozenset(["__getitem__"])), ("STORE_SUBSCR", frozenset(["__setitem__"])),
    ("STORE_SLICE", frozenset(["__setitem__"])), ("DELETE_SUBSCR", frozenset(["__delitem__"])), ("CONTAINS_OP", _ITERATION | {"__eq__"}),
    ("GET_ITER", _ITERATION), ("FOR_ITER", _ITERATION), ("UNPACK", _ITERATION), ("LIST_EXTEND", _ITERATION), ("SET_UPDATE", _ITERATION),
    ("CALL_FUNCTION_EX", _ITERATION), ("MATCH", _ITERATION), ("BINARY", _BINARY | _PLACES), ("INPLACE", _BINARY), ("COMPARE", _BINARY))

# What a builtin asks its arguments for; others may ask for anything.
_OF_BUILTINS = {getattr(builtins, name): frozenset(methods.split()) for name, methods in (
    ("isinstance", ""), ("issubclass", ""), ("type", ""), ("super", ""), ("callable", ""), ("property", ""), ("staticmethod", ""),
    ("classmethod", ""), ("object", ""), ("len", "__len__"), ("abs", "__abs__"), ("round", "__round__"), ("bool", "__bool__ __len__"),
    ("float", "__float__ __index__"), ("int", "__int__ __index__ __trunc__"), ("range", "__index__"), ("slice", "__index__"))}

_OF_MATH = frozenset("__float__ __index__ __floor__ __ceil__ __trunc__ __iter__".split())


def methods_of(instruction: dis.Instruction) -> frozenset:
    """The methods that an instruction may call by no name; of one that is not known exactly more than it calls."""
    op = instruction.opname
    if op in ("BINARY_OP", "COMPARE_OP"):
        text = instruction.argrepr.removeprefix("bool(").removesuffix(")")
        name = _OPERATORS.get(text) or _OPERATORS.get(text.removesuffix("="))  # += too
        if name is not None:
            return frozenset(f"__{prefix}{name}__" for prefix in ("", "r", "i")) | (_REFLECTED if name in _COMPARISONS else frozenset())
    return next((methods for prefix, methods in _OF_INSTRUCTIONS if op.startswith(prefix)), frozenset())


def methods_asked_by(f: Any) -> frozenset:
    """The methods that a builtin may call of its arguments."""
    module, name = getattr(f, "__module__", None) or "", getattr(f, "__name__", "").strip("_")
    if module.split(".")[0] == "koine":
        return frozenset()
    if module == "math":
        return _OF_MATH
    if module == "_operator" and f"__{name}__" in _ALL:
        return frozenset(f"__{prefix}{name}__" for prefix in ("", "r", "i")) | (_REFLECTED if name in _COMPARISONS else frozenset())
    return _OF_BUILTINS.get(f, _ALL)


def last_loaded(instruction: dis.Instruction) -> Any:
    """The local variable that is on top of the stack behind an instruction; None: something else."""
    if "LOAD_FAST" not in instruction.opname:
        return None
    return instruction.argval[-1] if isinstance(instruction.argval, tuple) else instruction.argval


def is_super(before: list) -> bool:
    """Whether these instructions end with super()."""
    ops = [i for i in before[-4:] if i.opname not in ("PRECALL", "PUSH_NULL")]
    return len(ops) > 1 and ops[-1].opname in ("CALL", "CALL_FUNCTION") and ops[-1].arg == 0 and ops[-2].argval == "super"


def is_raised(code: list, at: int) -> bool:
    """Whether what an instruction makes is for an exception alone: where there is one, the function runs as it is written."""
    for after in code[at + 1:]:
        if after.opname == "RAISE_VARARGS":
            return True
        if after.is_jump_target or "JUMP" in after.opname or after.opname.startswith(("STORE", "RETURN", "YIELD", "FOR_", "POP_TOP")):
            return False
    return False


def _behind_name(code: list, at: int) -> int:
    """Of a function at a place, whose first argument begins with a name: the place behind that name; 0: it does not."""
    k = at + 1
    if k < len(code) and code[k].opname == "PUSH_NULL":
        k += 1
    return k + 1 if k < len(code) and code[k].opname in _NAME_LOADS else 0


def only_asked_for(code: list, at: int) -> int:
    """Of an `isinstance` at a place: the place of its call, where what it asks for are names; 0: elsewhere."""
    k = _behind_name(code, at)
    if k == 0:
        return 0
    while k < len(code) and code[k].opname == "LOAD_ATTR":
        k += 1
    first = k
    while k < len(code) and code[k].opname in ("LOAD_GLOBAL", "LOAD_DEREF"):
        k += 1
    many = k - first
    if k < len(code) and code[k].opname == "BUILD_TUPLE" and code[k].arg == many:
        k, many = k + 1, 1
    if k < len(code) and code[k].opname == "PRECALL":
        k += 1
    return k if many == 1 and k < len(code) and code[k].opname in ("CALL", "CALL_FUNCTION") and code[k].arg == 2 else 0


def is_named_only(code: list, at: int) -> bool:
    """Whether a class that is on the stack is asked for its name, or compared."""
    if at >= len(code):
        return False
    if code[at].opname == "LOAD_GLOBAL":  # compared with another
        return at + 1 < len(code) and code[at + 1].opname in ("IS_OP", "COMPARE_OP")
    return code[at].opname in ("IS_OP", "COMPARE_OP") or code[at].opname == "LOAD_ATTR" and code[at].argval in ("__name__", "__qualname__")


def end_of_type_of(code: list, at: int) -> int:
    """Of a `type` at a place: the place behind its call, where it is that of a name or an attribute; 0: elsewhere."""
    k = _behind_name(code, at)
    if k == 0:
        return 0
    while k < len(code) and code[k].opname in ("LOAD_ATTR", "PRECALL"):
        k += 1
    return k + 1 if k < len(code) and code[k].opname in ("CALL", "CALL_FUNCTION") and code[k].arg == 1 else 0


def is_self(code: types.CodeType, instructions: list, k: int) -> bool:
    """Whether an instruction gives the first parameter, which is never another one."""
    first = code.co_varnames[0] if code.co_argcount else None
    stored = [i.argval if isinstance(i.argval, tuple) else (i.argval,) for i in instructions if i.opname.startswith("STORE_FAST")]
    return first is not None and last_loaded(instructions[k]) == first and not any(first in names for names in stored)


def is_not_called(name: str, instructions: list, k: int) -> bool:
    """Whether only an attribute or the name of a class is asked for."""
    if name == "type":  # the builtin: _global() knows
        end = end_of_type_of(instructions, k)
        return end > 0 and is_named_only(instructions, end)
    after = instructions[k + 1] if k + 1 < len(instructions) else None
    return (after is not None and after.opname in ("LOAD_ATTR", "LOAD_METHOD") and after.argval != "mro"
            and not after.argval.startswith("__"))
