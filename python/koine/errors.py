"""What Koine raises. Each is a `koine.Error` and the exception that a Python user expects of such a mistake:

    try:
        x.reshape(3, 5)
    except ValueError as e:   # or koine.Error
        print(e)

The process, and every tensor, stays usable after one.
"""
import builtins
import functools
from typing import Any, Callable, TypeVar

_F = TypeVar("_F", bound=Callable[..., Any])


class Error(Exception):
    """A mistake in a call: what, where, with which shapes and values, and how to mend it."""


class ValueError(Error, builtins.ValueError):
    """Shapes that do not fit, numbers out of range, a function that cannot be traced."""


class TypeError(Error, builtins.TypeError):
    """A dtype or a Python type that an operation does not take."""


class IndexError(Error, builtins.IndexError):
    """A position or an axis that does not exist."""


class KeyError(Error, builtins.KeyError):
    """A name that is not known, such as one that a state dict lacks."""

    __str__ = Exception.__str__  # KeyError would put the message in quotes


class OverflowError(Error, builtins.OverflowError):
    """A Python number that no dtype, or not the one asked for, holds."""


class MemoryError(Error, builtins.MemoryError):
    """More memory than there is, or than KOINE_MEMORY_LIMIT allows."""


class DeviceError(Error, builtins.RuntimeError):
    """A device that does not exist, or cannot do what is asked."""


class FileError(Error, builtins.OSError):
    """A file that cannot be read or written, or is not what it should be."""

    __str__ = Exception.__str__


class InternalError(builtins.RuntimeError):
    """A mistake of Koine's own, with the graph that shows it. Please report it."""


# --- calls whose arguments do not fit ------------------------------------------------------------

# What others call our parameters.
_ELSEWHERE = {"dim": "axis", "dims": "axis", "axes": "axis", "keepdims": "keepdim", "lr": "learning_rate", "params": "parameters",
              "in_features": "inputs", "out_features": "outputs", "in_channels": "inputs", "out_channels": "outputs",
              "kernel_size": "kernel", "num_features": "features", "normalized_shape": "features", "num_embeddings": "vocabulary",
              "embedding_dim": "width", "min": "low", "max": "high", "other": "b", "type": "dtype"}
_TAKES = {"int": {"int", "bool"}, "float": {"float", "int", "bool"}, "bool": {"bool"}, "str": {"str"}, "None": {"NoneType"}}


def _parts(text: str) -> list[str]:
    """What commas divide, but for those in brackets and quotes."""
    out, depth, quoted = [""], 0, False
    for c in text:
        quoted ^= c == "'"
        depth += (c in "([{") - (c in ")]}")
        if c == "," and depth == 0 and not quoted:
            out.append("")
        else:
            out[-1] += c
    return [part.strip() for part in out if part.strip()]


def _fits(given: str, kind: str) -> bool:
    for one in kind.split(" | "):
        takes = _TAKES.get(one, {one.rsplit(".", 1)[-1]})
        if given.rsplit(".", 1)[-1] in takes or (given != "NoneType" and (one == "object" or one.startswith("koine.typing."))):
            return True
    return False


def _misfit(text: str) -> str:
    """nanobind's account of such a call, in the user's words: what does not fit, and what it takes."""
    import re
    name, signatures = text.split("(): ", 1)[0], re.findall(r"^ +\d+\. (.*)$", text, re.M)
    given = _parts(text.rsplit("Invoked with types:", 1)[-1])
    named = dict(part.split(": ", 1) for part in _parts(given.pop()[len("kwargs = {"):-1])) if given and given[-1].startswith("kwargs =") else {}
    parameters = [p for p in _parts(signatures[0][signatures[0].index("(") + 1:signatures[0].rindex(") ->")]) if p != "/"]
    if parameters[:1] == ["self"]:
        parameters = parameters[1:]
        owner = given.pop(0).rsplit(".", 1)[-1] if given else ""
        name = owner if name in ("__init__", "__call__") else name
    name = name.strip("_") or "an attribute"
    shown = re.sub(r"koine\.(typing|_koine)\.(\w+\.)?", "", ", ".join(parameters))
    reasons = []
    if len(signatures) == 1:
        by_place = parameters[:parameters.index("*")] if "*" in parameters else parameters
        rest = [p for p in parameters if p != "*"]
        kinds = {p.split(":")[0]: p.split(": ", 1)[-1].split(" = ")[0] for p in rest}
        names = list(kinds)
        for unknown in [n for n in named if n not in kinds]:
            ours = _ELSEWHERE.get(unknown)
            reasons.append(f"there is no '{unknown}'" + (f", here it is '{ours}'" if ours in kinds else ""))
        needed = [p.split(":")[0] for p in rest if " = " not in p]
        missing = [n for n in needed if n not in named and names.index(n) >= len(given)]
        if missing and not reasons:
            reasons.append(" and ".join(f"'{n}'" for n in missing) + (" is missing" if len(missing) == 1 else " are missing"))
        if len(given) > len(by_place) and not any(p.startswith("*") for p in by_place):
            reasons.append(f"{len(given)} arguments, and it takes {len(by_place)}")
        starred = next((k for k, n in enumerate(names) if n.startswith("*")), len(names))  # takes all that is given from there on
        for n, kind in [*zip(names[:starred], given), *((n, named[n]) for n in named if n in kinds)]:
            if not _fits(kind, kinds[n]):
                reasons.append(f"'{n}' is None" if kind == "NoneType" else f"'{n}' is a '{kind.rsplit('.', 1)[-1]}'")
    return f"{name}: {'; '.join(reasons) or 'an argument does not fit, or is out of range'}. It takes ({shown})"


# --- keywords ------------------------------------------------------------------------------------


def _takes(f: Callable[..., Any]) -> str:
    """The parameters of a function as a call names them."""
    import inspect

    shown = []
    for p in inspect.signature(f).parameters.values():
        if p.name in ("self", "cls"):
            continue
        if p.kind is p.KEYWORD_ONLY and "*" not in shown and not any(s.startswith("*") for s in shown):
            shown.append("*")
        star = "*" if p.kind is p.VAR_POSITIONAL else ""
        shown.append(f"{star}{p.name}" + ("" if p.default is p.empty or type(p.default) is object else f"={p.default!r}"))
    return ", ".join(shown)


def knows_keywords(f: _F) -> _F:
    """f, which says of a keyword that it does not know which it knows."""
    code = f.__code__
    known = frozenset(code.co_varnames[:code.co_argcount + code.co_kwonlyargcount])

    @functools.wraps(f)
    def called(*args: Any, **kwargs: Any) -> Any:
        if not known.issuperset(kwargs):
            name = {"__init__": type(args[0]).__name__, "__new__": getattr(args[0], "__name__", "")}.get(f.__name__, f.__name__)
            unknown = " and no ".join([repr(k) for k in kwargs if k not in known])
            raise TypeError(f"{name}: there is no {unknown}. It takes ({_takes(f)})")
        return f(*args, **kwargs)

    return called  # type: ignore[return-value]


# What users of JAX and PyTorch look for in the package, its nn and its tensors, and what is here instead.
of_package = {
    "lax": "scan, cond, switch, while_loop, fori_loop and stop_gradient are in koine itself, and collectives in koine.collective",
    "numpy": "koine.Tensor has the functions of jax.numpy as methods, and np.sum(x), np.sin(x) of a tensor are tensors",
    "pmap": "x.shard(devices, axis) splits a tensor over several devices, and what is computed of it runs on all of them",
    "psum": "axes have no names: sum along the axis outside of vmap, or koine.collective.all_reduce(parts) over devices",
    "device_put": "x.to(device) moves a tensor, and x.shard(devices, axis) splits it",
    "block_until_ready": "x.realize() computes a tensor",
    "checkpoint_name": "koine.save_as(name, x) names a value",
    "remat": "it is koine.checkpoint(f)",
    "ShapeDtypeStruct": "it is koine.ShapeDtype(shape, dtype)",
    "make_jaxpr": "print(x.uop) shows the graph of a tensor, and koine.schedule(x) its kernels",
    "Array": "it is koine.Tensor",
    "no_grad": "gradients are kept of tensors with requires_grad() alone, x.detach() lets none through, and koine.grad is of functions",
    "tensor": "it is koine.Tensor(...)",
    "randn": "it is koine.Tensor.randn(...)",
    "rand": "it is koine.Tensor.rand(...)",
    "device": "devices are texts, such as 'CPU': Tensor(..., device='CPU') and x.to('CPU')",
    "compile": "it is koine.jit(f)",
    "save": "koine.safe_save(state, file) writes tensors by name",
    "load": "koine.safe_load(file) reads them",
}
of_nn = {
    "Module": "a model is any class that holds layers and tensors, and has a __call__: koine.nn.get_parameters(model) finds them",
    "Sequential": "a list of layers: for layer in layers: x = layer(x)",
    "functional": "these functions are methods of koine.Tensor: x.relu(), x.softmax(), x.cross_entropy(y)",
    "Parameter": "a tensor that requires a gradient: koine.Tensor(...).requires_grad()",
    "ReLU": "it is the method x.relu() of koine.Tensor",
    "CrossEntropyLoss": "it is the method x.cross_entropy(y) of koine.Tensor",
}
of_tensors = {
    "cuda": "x.to(device) moves a tensor, and koine.devices() lists what there is",
    "cpu": "x.to('CPU') moves a tensor",
    "type": "x.cast(dtype) changes the dtype",
    "dim": "it is x.ndim",
    "mm": "it is x @ y",
    "clamp": "it is x.clip(low, high)",
    "swapaxes": "it is x.transpose(0, 1)",
    "new_zeros": "it is koine.zeros(*shape, dtype=x.dtype)",
    "requires_grad_": "it is x.requires_grad()",
    "zero_": "it is x.assign(x.zeros_like()), of a gradient x.zero_grad()",
    "add_": "it is x += y",
    "mul_": "it is x *= y",
    "copy_": "it is x.assign(y)",
    "data": "it is x.detach()",
    "at": "x[i] = v assigns a part in place: x = x.clone() before keeps the old tensor",
    "block_until_ready": "it is x.realize()",
    "nonzero": "the shape would depend on the values: np.nonzero(x) gives NumPy's arrays",
}


def missing(of: str, name: str, hints: dict[str, str]) -> AttributeError:
    """The error for an attribute that is not there, which says what is instead."""
    return AttributeError(f"{of} has no attribute {name!r}" + (f": {hints[name]}" if name in hints else ""))
