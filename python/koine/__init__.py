"""Koine: a tensor compiler and deep-learning library.

    import koine
    from koine import Tensor

    x = Tensor([[1.0, 2.0], [3.0, 4.0]])
    w = Tensor.ones(2, 2).requires_grad()
    (x @ w).softmax().square().sum().backward()
    print(w.grad)

Nothing runs before somebody looks at a value. docs/python.md tells the rest.
"""
import typing as _typing

from . import errors, tree  # errors first: the module below raises them
from . import _koine, _numpy, _pickle
from ._koine import (DType, Kernel, Program, SavedProgram, Size, Tensor, UOp, Variable, clear_compile_cache, counters, default_device,
                     devices, from_dlpack, host_program, lower_kernel, memory_in_use, print_linear, program_of, promote, realize,
                     reset_counters, safe_load, safe_save, save_as, save_program, schedule, set_printoptions, stop_gradient)
from .callbacks import custom_kernel, pure_callback
from .custom import custom_jvp, custom_vjp
from .errors import Error
from .jit import jit
from .loops import cond, fori_loop, scan, switch, while_loop
from .transforms import (ShapeDtype, checkpoint, eval_shape, grad, hessian, hvp, jacfwd, jacrev, jvp, linearize,
                         value_and_grad, vjp, vmap)
from . import checkpoint_policies, collective, distributed, nn, random

__version__ = "0.1.0"

_koine._name_lines(__file__[:-len("__init__.py")])  # messages name the line of the user's that made a value

# `bool` is koine.bool, and `import *` leaves Python's alone.
bool = DType.bool
int8, int16, int32, int64 = DType.int8, DType.int16, DType.int32, DType.int64
uint8, uint16, uint32, uint64 = DType.uint8, DType.uint16, DType.uint32, DType.uint64
float8e4m3, float8e5m2, bfloat16 = DType.float8e4m3, DType.float8e5m2, DType.bfloat16
float16, float32, float64 = DType.float16, DType.float32, DType.float64

# What Tensor makes of no other tensor.
arange, cat, einsum, eye, full, linspace = Tensor.arange, Tensor.cat, Tensor.einsum, Tensor.eye, Tensor.full, Tensor.linspace
manual_seed, ones, stack, zeros = Tensor.manual_seed, Tensor.ones, Tensor.stack, Tensor.zeros
where = Tensor.where

# As JAX's users write them.
tree_flatten, tree_leaves, tree_map, tree_structure, tree_unflatten = tree.flatten, tree.leaves, tree.map, tree.structure, tree.unflatten

__all__ = ["DType", "Error", "Kernel", "Program", "SavedProgram", "ShapeDtype", "Size", "Tensor", "UOp", "Variable", "arange", "bfloat16", "cat",
           "checkpoint", "checkpoint_policies", "clear_compile_cache", "collective", "cond", "counters", "custom_jvp", "custom_kernel", "custom_vjp",
           "default_device", "devices", "distributed", "einsum", "errors", "eval_shape", "eye", "float16", "float32",
           "float64", "float8e4m3", "float8e5m2", "fori_loop", "from_dlpack", "full", "grad", "hessian", "host_program",
           "hvp", "int16", "int32", "int64", "int8", "jacfwd", "jacrev", "jit", "jvp", "linearize",
           "linspace", "lower_kernel", "manual_seed", "memory_in_use", "nn", "ones", "print_linear", "program_of", "promote", "pure_callback", "random",
           "realize", "reset_counters", "safe_load", "safe_save", "save_as", "save_program", "scan", "schedule", "set_printoptions",
           "stack", "stop_gradient", "switch", "tree", "tree_flatten", "tree_leaves", "tree_map", "tree_structure", "tree_unflatten",
           "uint16", "uint32", "uint64", "uint8", "value_and_grad", "vjp", "vmap", "where",
           "while_loop", "zeros"]


if not _typing.TYPE_CHECKING:  # which would take every name for one of ours

    def __getattr__(name):
        if name in ("compat", "typing"):
            import importlib
            return importlib.import_module("." + name, __name__)
        raise errors.missing("module 'koine'", name, errors.of_package)

    def _of_tensors(self, name):
        raise errors.missing("'Tensor' object", name, errors.of_tensors)

    Tensor.__getattr__ = _of_tensors
