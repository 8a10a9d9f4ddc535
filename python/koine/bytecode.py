"""What instructions of Python's bytecode say beside each other, of Python 3.9 to 3.13: patterns that guards.py looks for."""
from __future__ import annotations

import dis
import types
from typing import Any

_NAME_LOADS = ("LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_FAST_CHECK", "LOAD_GLOBAL", "LOAD_DEREF")


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
