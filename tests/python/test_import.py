"""What `import koine` brings along, and what the first uses do: counted, since times differ from machine to machine."""
import json
import subprocess
import sys

# Of the standard library, by the first part of their names: what any program has, or all but has.
CHEAP = set("__future__ abc atexit builtins codecs collections contextlib copy copyreg enum functools genericpath io itertools keyword operator os posixpath re reprlib "
            "stat sys threading types typing warnings weakref zipimport".split())


def modules_of(*programs):
    """For each program what it imports beyond those before it."""
    lines = ["import sys, json", "seen, out = set(sys.modules), []"]
    for program in programs:
        lines += [program, "out.append(sorted(set(sys.modules) - seen))", "seen |= set(sys.modules)"]
    done = subprocess.run([sys.executable, "-c", "\n".join([*lines, "print(json.dumps(out))"])], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return [[name for name in found if not name.split(".")[0].startswith("_")] for found in json.loads(done.stdout.splitlines()[-1])]


def test_import_brings_little_along():
    (found,) = modules_of("import koine")
    others = [name for name in found if name.split(".")[0] != "koine"]
    assert {name.split(".")[0] for name in others} <= CHEAP
    assert "koine.guards" not in found and "koine.compat" not in found and "koine.demo" not in found
    assert len(others) <= 40 and len(found) - len(others) <= 24


def test_computing_imports_nothing():
    _, *uses = modules_of("import koine", "x = koine.Tensor([[1., 2.], [3., 4.]]); y = (x @ x).softmax().sum().item(); repr(x); x.tolist()",
                          "koine.grad(lambda x: (x * x).sum())(x).tolist(); koine.vmap(lambda r: r.sum())(x).tolist()",
                          "koine.custom_vjp(lambda x: x * 2).defvjp(lambda x: (x * 2, None), lambda _, g: (g,))(x).tolist()",
                          "net = koine.nn.Linear(2, 1); optimizer = koine.nn.SGD(koine.nn.get_parameters(net), 0.1); net(x).sum().backward(); optimizer.step()",
                          "koine.scan(lambda c, r: (c + r, c), x[0], x)[0].tolist(); memoryview(x)")
    assert uses == [[]] * len(uses)


def test_numpy_comes_with_whoever_asks_for_it():
    before, after, jitted = modules_of("import koine; x = koine.Tensor([1., 2.]); x.tolist()", "x.numpy()", "koine.jit(lambda x: x * 2)(x).tolist()")
    roots = {name.split(".")[0] for name in before}
    assert not roots & {"numpy", "ml_dtypes", "torch", "jax", "inspect", "dis", "dataclasses"}
    assert "numpy" in after and "koine.guards" in jitted
