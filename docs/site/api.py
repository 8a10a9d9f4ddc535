"""Writes the reference into a folder's api/: every public name of the package with its signature and docstring.

Signatures of the compiled part are those of its stubs, which type checkers read; all else is what the imported package says of itself.
"""
import ast
import enum
import inspect
import os
import pathlib
import re
import sys

import koine
from koine import errors, nn, random, tree

folder = pathlib.Path(sys.argv[1]) / "api"
STUBS = pathlib.Path(os.environ["KOINE_BUILD"]) / "python/koine/_koine"
OPERATORS = ("+ - * / // % ** @", "& | ^ << >> ~", "< <= == != > >=", "+= -= and the like", "x[...]", "x[...] = v", "len(x)", "abs(x)")

# Headings of Tensor's methods, each before the first one below it.
TENSOR_PARTS = {"shape": "What it is", "realize": "Running, places and copies", "requires_grad": "Gradients", "zeros": "Making one",
                "reshape": "Movement", "gather": "By positions and masks", "cast": "Element by element", "sum": "Folds, orders and running folds",
                "dot": "Products and windows", "sparse_categorical_crossentropy": "Losses", "numpy": "To NumPy"}


def stub_signatures():
    """`Tensor.sum`, `nn.Linear.__init__`: a text such as `(axis: AxesLike | None = None) -> Tensor`."""
    out = {}
    for path, prefix in ((STUBS / "__init__.pyi", ""), (STUBS / "nn.pyi", "nn."), (STUBS / "random.pyi", "random.")):
        nodes = [(prefix, n) for n in ast.parse(path.read_text()).body]
        while nodes:
            where, node = nodes.pop(0)
            if isinstance(node, ast.ClassDef):
                nodes += [(f"{where}{node.name}.", n) for n in node.body]
            elif isinstance(node, ast.FunctionDef):
                node.args.args = [a for a in node.args.args if a.arg != "self"]
                node.args.posonlyargs = [a for a in node.args.posonlyargs if a.arg != "self"]
                given = f"({ast.unparse(node.args)})" + (f" -> {ast.unparse(node.returns)}" if node.returns else "")
                out.setdefault(where + node.name, re.sub(r"\b(koine\._koine|koine\.typing|builtins|typing)\.(\w+\.)?(?=\w)", "", given))
    return out


SIGNATURES = stub_signatures()


def signature(name, value):
    if "." not in name and getattr(koine.Tensor, name, None) is value:
        name = "Tensor." + name  # a function of the package that is a method without a tensor
    if name in SIGNATURES:
        return SIGNATURES[name]
    if inspect.isclass(value):
        if name + ".__init__" in SIGNATURES:
            return SIGNATURES[name + ".__init__"].split(" ->")[0]
        if value.__init__ is object.__init__ or issubclass(value, (Exception, enum.Enum)):
            return ""
    try:
        found = str(inspect.signature(value)).replace("'", "").replace('"', "").replace("typing.", "")
    except (TypeError, ValueError):
        return ""
    return re.sub(r"^\(self(, )?", "(", found)


def text_of(value):
    """A docstring without nanobind's signature."""
    overloads = getattr(value, "__nb_signature__", None)
    text = overloads[0][1] if overloads else getattr(value, "__doc__", None)
    text = inspect.cleandoc(text or "")
    return "" if text.startswith("(self)") or text == inspect.cleandoc(object.__init__.__doc__) else text


def markdown(text):
    """Paragraphs, examples with >>>, and indented code, as Markdown."""
    out = []
    for part in re.split(r"\n\s*\n", text):
        if part.startswith(">>>"):
            out.append(f"```pycon\n{part}\n```")
        elif part.startswith("    "):
            code = inspect.cleandoc("\n" + part)
            if out and out[-1].startswith("```python") and part.startswith("    "):
                out[-1] = out[-1][:-4] + f"\n\n{code}\n```"
            else:
                out.append(f"```python\n{code}\n```")
        elif part:
            spans = re.split(r"(`[^`]*`)", part)
            out.append("".join(s if s.startswith("`") else re.sub(r"[*<|\[]", r"\\\g<0>", s) for s in spans))
    return "\n\n".join(out)


def entry(kind, name, text, given=""):
    return f"::::{{py:{kind}}} {name}{given}\n{text}\n::::\n"


def members(full, short, cls, parts=()):
    """Public attributes and methods of a class, in the order in which they are bound."""
    out = ""
    for name in vars(cls):
        if name.startswith("_") or (parts and name not in parts):
            continue
        value = inspect.getattr_static(cls, name)
        if isinstance(value, property):
            kind = SIGNATURES.get(f"{short}.{name}", "").partition("-> ")[2]
            out += entry("property", f"{full}.{name}", (f":type: {kind}\n\n" if kind else "") + markdown(text_of(value)))
        elif callable(getattr(cls, name)):
            value = getattr(cls, name)
            kind = "staticmethod" if type(value).__name__ == "nb_func" else "method"
            out += entry(kind, f"{full}.{name}", markdown(text_of(value)), signature(f"{short}.{name}", value))
    return out


def class_entry(full, short, cls):
    texts = [markdown(text_of(cls)), markdown(text_of(cls.__init__)) if "__init__" in vars(cls) else ""]
    if f"{short}.__call__" in SIGNATURES:
        texts.append(f"It is called: `{SIGNATURES[f'{short}.__call__']}`.")
    return entry("class", full, "\n\n".join(t for t in texts if t), signature(short, cls))


def class_page(full, short, cls):
    return class_entry(full, short, cls) + members(full, short, cls)


def tensor_page():
    cls, names = koine.Tensor, [n for n in vars(koine.Tensor) if not n.startswith("_")]
    text = "# koine.Tensor\n\n```{py:currentmodule} koine\n```\n" + class_entry("Tensor", "Tensor", cls)
    text += "\n\n**Operators**: " + ", ".join(f"`{o}`" for o in OPERATORS) + ". Numbers, lists and arrays are operands too.\n"
    starts = [names.index(n) for n in TENSOR_PARTS]
    assert starts == sorted(starts) and starts[0] == 0, [names[k] for k in starts]
    for title, first, last in zip(TENSOR_PARTS.values(), starts, [*starts[1:], len(names)]):
        text += f"\n## {title}\n\n" + members("Tensor", "Tensor", cls, names[first:last])
    return text


def module_page(title, prefix, module, names, short=""):
    text = f"# {title}\n\n" + (markdown(inspect.cleandoc(module.__doc__ or "")) if module is not koine else "") + "\n\n"
    functions = [n for n in names if not isinstance(getattr(module, n), type)]
    for name in names:
        value = getattr(module, name)
        if functions and functions[0] == name and names[0] not in functions:
            text += "## Functions\n\n"
        if isinstance(value, type):
            text += f"## {name}\n\n" + class_page(f"{prefix}.{name}", short + name, value)
        else:
            text += entry("function", f"{prefix}.{name}", markdown(text_of(value)), signature(short + name, value))
    return text


CLASSES = ["DType", "Variable", "Size", "Kernel", "Program", "SavedProgram", "UOp"]
LAYERS = ["Linear", "Conv2d", "Embedding", "LayerNorm", "BatchNorm", "Dropout", "Optimizer", "SGD", "Adam", "AdamW"]
TRANSFORMS = ["grad", "value_and_grad", "jvp", "vjp", "linearize", "jacfwd", "jacrev", "hessian", "hvp", "vmap", "checkpoint", "save_as", "stop_gradient",
              "scan", "fori_loop", "while_loop", "cond", "switch", "eval_shape", "jit", "custom_vjp", "custom_jvp"]
ELSEWHERE = {*CLASSES, *TRANSFORMS, "Tensor", "Error", "errors", "nn", "random", "tree", *(d.name for d in koine.DType)}
functions = [n for n in koine.__all__ if n not in ELSEWHERE]
raised = [n for n, v in vars(errors).items() if isinstance(v, type) and issubclass(v, Exception)]

pages = {
    "tensor": tensor_page(),
    "transforms": module_page("Transforms, loops and jit", "koine", koine, TRANSFORMS),
    "functions": module_page("Functions", "koine", koine, functions),
    "nn": module_page("koine.nn", "koine.nn", nn, LAYERS + [n for n in nn.__all__ if n not in LAYERS], "nn."),
    "random": module_page("koine.random", "koine.random", random, random.__all__, "random."),
    "tree": module_page("koine.tree", "koine.tree", tree, tree.__all__),
    "errors": module_page("koine.errors", "koine.errors", errors, raised),
    "classes": module_page("Other classes", "koine", koine, CLASSES),
}
folder.mkdir(exist_ok=True)
for name, text in pages.items():
    (folder / f"{name}.md").write_text(text)
(folder / "index.md").write_text("# Reference\n\nFrom the docstrings of the package; every example is run by the tests.\n\n"
                                 "dtypes are named in the package: `koine.float32`, `koine.int64` and so on ([dtypes](../dtypes.md)). `koine.typing` has\n"
                                 "the names of annotations: `TensorLike` is a tensor, a number, lists, or an array of others.\n\n"
                                 "```{toctree}\n" + "\n".join(pages) + "\n```\n")
