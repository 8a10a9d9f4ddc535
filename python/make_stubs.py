"""Writes the stubs of koine._koine beside it: nanobind's, where names of classes' members hide builtins, and with the types of what C++
gives as a Python object. make_stubs.py PACKAGE STUBGEN: the folder of the package, and nanobind's stubgen.py."""
import pathlib
import re
import subprocess
import sys

folder = pathlib.Path(sys.argv[1])
subprocess.run([sys.executable, sys.argv[2], "-q", "-i", str(folder.parent), "-m", "koine._koine", "-r", "-P", "-O", str(folder)], check=True)

# Operators give NotImplemented for strangers, which is no type of theirs; these methods give the tensor back.
operators = "add sub mul truediv floordiv mod pow matmul and or xor lshift rshift lt le gt ge eq ne"
given = {"numpy": "typing.Any", "tolist": "typing.Any", "item": "typing.Any", "numel": "typing.Any", "size": "typing.Any",
         "__iter__": "typing.Iterator[Tensor]"}
stars = {"*shape": "koine.typing.ShapeLike", "*axes": "koine.typing.AxesLike", "*targets": "Tensor", "*operands": "koine.typing.TensorLike",
         "*tensors": "typing.Any", "*buffers": "typing.Any", "**variables": "int"}
elements = {"tuple": "tuple[typing.Any, ...]", "list": "list[typing.Any]", "dict": "dict[str, typing.Any]"}
names = [f"__{r}{o}__" for o in operators.split() for r in ("", "r", "i")] + ["realize", "assign", "requires_grad"]
for path in sorted((folder / "_koine").glob("*.pyi")):
    text = path.read_text().replace("    __class__: getset_descriptor = ...\n\n", "")
    # In a class with a member `float` or `bool` that name is the member.
    text = re.sub(r"(?<=[:\[|>=(,] )(float|bool)\b|(?<=\[)(float|bool)\b", lambda m: "builtins." + m[0], text)
    for name in names:
        text = re.sub(rf"(def {name}\(self(?:, \w+: )?)object( \| None)?(\)| = True\))?( -> )object",
                      lambda m: f"{m[1]}koine.typing.TensorLike{m[3] or ''}{m[4]}Tensor", text)
        text = re.sub(rf"(def {name}\(self[^)]*\) -> )object", r"\1Tensor", text)
    for name, kind in given.items():
        text = re.sub(rf"(def {name}\(self[^)]*\) -> )object", lambda m: m[1] + kind, text)
    for name, kind in stars.items():
        text = re.sub(rf"(?<=[( ]){re.escape(name)}(?=[,)])", f"{name}: {kind}", text)
    text = re.sub(r"((?:: |-> |\| ))(tuple|list|dict)(?=[,): ])", lambda m: m[1] + elements[m[2]], text)
    text = re.sub(r"(def __(?:eq|ne)__.* -> Tensor: \.\.\.)", r"\1  # type: ignore[override]", text)
    for module in ("typing", "builtins"):
        if re.search(rf"(?<![.\w]){module}\.", text) and f"import {module}\n" not in text:
            text = re.sub(r'\A("""(?:.|\n)*?"""\n+)?', lambda m: (m[0] or "") + f"import {module}\n", text, count=1)
    path.write_text(text)
