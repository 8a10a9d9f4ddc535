"""Wrong uses: the exception that a Python user expects, what it says, and that all is usable behind it."""
import re

import numpy as np
import pytest

import koine
from koine import Tensor, nn

x = Tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
i = Tensor([0, 1, 2])
b = Tensor([True, False])


class Strange:
    pass


def recursive():
    out = []
    out.append(out)
    return out


WRONG = [
    # shapes
    (lambda: x.reshape(4, 2), ValueError, "reshape"),
    (lambda: x.reshape(-1, -1), ValueError, "reshape"),
    (lambda: x.expand(3, 3), ValueError, "expand"),
    (lambda: x + Tensor([1.0, 2.0]), ValueError, "broadcast"),
    (lambda: x @ x, ValueError, "matmul"),
    (lambda: x.matmul(Tensor(1.0)), ValueError, "matmul"),
    (lambda: koine.cat([x, i]), ValueError, "cat"),
    (lambda: koine.stack([x, i]), ValueError, "stack"),
    (lambda: koine.einsum("ij,jk->ik", x, x), ValueError, "einsum"),
    (lambda: koine.einsum("ij->zz", x), ValueError, "einsum"),
    (lambda: koine.einsum("i...j...->i", x), ValueError, "'...' once"),
    (lambda: koine.einsum("i..j->i", x), ValueError, "'.' is not a letter"),
    (lambda: koine.einsum("i...->i", Tensor.ones(2, 3)), ValueError, "where the axes of '...' are"),
    (lambda: koine.einsum("ijk...->i...", Tensor.ones(2, 3)), ValueError, "term 0 names 3 axes beside '...'"),
    (lambda: koine.einsum("...,...", Tensor.ones(2), Tensor.ones(3)), ValueError, "size 2 and 3"),
    (lambda: koine.einsum("i,j->i,j", x, x), ValueError, "one output"),
    (lambda: x.clip(), ValueError, "neither a low bound nor a high one"),
    (lambda: Tensor.ones(4).split([1, 2]), ValueError, r"parts of \(1, 2\) do not make up axis 0, which has 4"),
    (lambda: Tensor.ones(4).split([3, -1, 2]), ValueError, "do not make up"),
    (lambda: Tensor.ones(4).split([3, 2]), ValueError, "do not make up"),
    (lambda: Tensor.ones(2, 2).roll((1, 2, 3), (0, 1)), ValueError, "3 shifts for 2 axes"),
    (lambda: x.pad(((1, 1),)), ValueError, "pad"),
    (lambda: x.shrink(((0, 9), (0, 1))), (ValueError, IndexError), "shrink"),
    (lambda: x.assign(Tensor([1.0, 2.0])), ValueError, "assign"),
    (lambda: koine.zeros(-1), ValueError, "negative"),
    (lambda: Tensor([[1, 2], [3]]), ValueError, "lengths"),
    (lambda: Tensor([1, [2]]), ValueError, "axis|number"),
    (lambda: Tensor([[1], 2]), ValueError, "axis|number"),
    (lambda: Tensor(recursive()), ValueError, "nested"),
    (lambda: x.item(), ValueError, "item"),
    (lambda: bool(x), ValueError, "ambiguous"),
    (lambda: float(x), ValueError, "item"),
    (lambda: [1, 2][x], TypeError, "index"),
    (lambda: len(Tensor(1.0)), TypeError, "length"),
    (lambda: list(Tensor(1.0)), TypeError, "iterated"),
    # axes and positions
    (lambda: x.sum(2), IndexError, "sum"),
    (lambda: x.sum((0, 0)), ValueError, "sum"),
    (lambda: x.softmax(5), IndexError, "softmax"),
    (lambda: x.permute(0, 2), (ValueError, IndexError), "permute"),
    (lambda: x.unsqueeze(7), IndexError, "unsqueeze"),
    (lambda: x[2], IndexError, "position 2"),
    (lambda: x[0, 0, 0], IndexError, "3 axes"),
    (lambda: x[..., ...], IndexError, "more than one"),
    (lambda: x["a"], IndexError, "no index"),
    (lambda: x[1.0], IndexError, "no index"),
    (lambda: x[Tensor([1.0])], IndexError, "positions"),
    (lambda: x[True], IndexError, "True"),
    (lambda: x[np.bool_(False)], IndexError, "bool without axes"),
    (lambda: x[Tensor(False)], IndexError, "bool without axes"),
    (lambda: x.__setitem__(Tensor(False), 1.0), IndexError, "bool without axes"),
    (lambda: Tensor(np.ma.array([1.0, 2.0], mask=[0, 1])), TypeError, "masked"),
    (lambda: x[Tensor([True, False, True])], IndexError, "mask"),
    (lambda: x[::0], ValueError, "step 0"),
    (lambda: x[Tensor([0, 7])].tolist(), IndexError, "7"),
    (lambda: x[2**70], IndexError, "index"),
    (lambda: x.__setitem__(5, 0.0), IndexError, "position 5"),
    (lambda: x.__setitem__(0, [1.0, 2.0]), ValueError, "setitem|assign"),
    # dtypes and types
    (lambda: x.cast("float31"), TypeError, "float31"),
    (lambda: x.cast(np.complex64), TypeError, "complex64"),
    (lambda: Tensor(np.ones(2, "complex64")), TypeError, "complex64"),
    (lambda: Tensor(np.array(["a"])), TypeError, "Tensor"),
    (lambda: Tensor(np.array([None])), TypeError, "Tensor"),
    (lambda: Tensor(np.ones(2, ">f4")), TypeError, "Tensor"),
    (lambda: Tensor(Strange()), TypeError, "Strange"),
    (lambda: Tensor(None), TypeError, "Tensor: 'data' is None"),
    (lambda: Tensor("abc"), TypeError, "str"),
    (lambda: Tensor([1, "a"]), TypeError, "str"),
    (lambda: x + Strange(), TypeError, "Strange"),
    (lambda: Strange() - x, TypeError, "Strange"),
    (lambda: x < "a", TypeError, "str"),
    (lambda: x.maximum({}), TypeError, "maximum"),
    (lambda: x.sum(1.5), TypeError, "axis"),
    (lambda: x.sum(True), TypeError, "axis"),
    (lambda: x.reshape(2.0, 3), TypeError, "reshape"),
    (lambda: x.reshape("6"), TypeError, "reshape"),
    (lambda: x.pad(3), TypeError, "pad"),
    (lambda: x & x, TypeError, "float32"),
    (lambda: i.requires_grad(), TypeError, "int32"),
    (lambda: koine.cat(x), TypeError, "cat"),
    (lambda: x.nonsense(), AttributeError, "nonsense"),
    (lambda: x.relu(1), TypeError, "relu"),
    # numbers
    (lambda: Tensor(2**64), OverflowError, "64 bits"),
    (lambda: Tensor([-1, 2**63]), OverflowError, "integer"),
    (lambda: Tensor([300], dtype="int8"), OverflowError, "int8"),
    (lambda: Tensor([float("nan")], dtype="int8"), ValueError, "int8"),
    (lambda: Tensor.ones(2, dtype="uint8") + 300, ValueError, "uint8"),
    (lambda: koine.full((2,), -1, dtype="uint8"), ValueError, "uint8"),
    (lambda: Tensor.ones(2, dtype="float16") * 1e6, ValueError, "1000000 is not in float16"),
    (lambda: 1e300 - x, ValueError, r"1e\+300 is not in float32"),
    (lambda: koine.full((2,), 1e39), ValueError, r"full: 1e\+39 is not in float32"),
    (lambda: koine.where(x > 0, x, 1e39), ValueError, "where"),
    (lambda: x.pad([(1, 0)], 1e39), ValueError, "pad"),
    (lambda: x.gelu("erf"), ValueError, 'gelu: approximate is "none" or "tanh", got "erf"'),
    (lambda: i.__itruediv__(2), (TypeError, ValueError), "integer|idiv|int32"),
    # gradients
    (lambda: x.backward(), ValueError, "scalar"),
    (lambda: x.sum().backward(), ValueError, "requires"),
    (lambda: koine.grad(lambda t: t * 2)(x), ValueError, "scalar|element"),
    (lambda: koine.grad(lambda t: (t.sum(), t))(x), TypeError, "has_aux"),
    (lambda: koine.grad(lambda t: t.sum(), argnums=3)(x), ValueError, "argument 3"),
    (lambda: koine.grad(lambda t: t.sum(), argnums="ab")(x), TypeError, "argnums is the number of an argument, or several, not 'ab'"),
    (lambda: setattr(x, "grad", np.ones((2, 3))), TypeError, "gradient is float64, the tensor float32"),
    (lambda: setattr(x, "grad", [1.0, 2.0]), ValueError, "the gradient has shape"),
    (lambda: setattr(x, "grad", (x * 2).to("CPU:1")), koine.errors.DeviceError, "the gradient is on CPU:1, the tensor on CPU"),
    (lambda: koine.grad(7), TypeError, "function"),
    (lambda: koine.vmap(lambda t: t, in_axes=None)(x), ValueError, "vmap"),
    (lambda: koine.vmap(lambda s, t: s + t)(x, i), ValueError, "vmap"),
    (lambda: koine.vmap(lambda s: s, in_axes=(0, 0))(x), ValueError, "in_axes"),
    (lambda: koine.vmap(lambda s: s * s.sum().item())(x), ValueError, "test_errors.py"),
    (lambda: koine.jvp(lambda t: t, (x,), (x, x)), ValueError, "tangents"),
    (lambda: x.sum().gradient([1.0, 2.0]), TypeError, "gradient: takes tensors .* not a 'float'"),
    (lambda: x.sum().gradient(np.ones(3)), TypeError, "gradient: takes tensors .* not a 'ndarray'"),
    (lambda: koine.nn.LayerNorm(5)(x), ValueError, r"LayerNorm of 5 features: x of shape \(2, 3\)"),
    (lambda: koine.nn.Embedding(3, 2)(x), TypeError, r"Embedding: .* float32 of shape \(2, 3\)"),
    (lambda: Tensor.glorot_uniform(2, -3), ValueError, "glorot_uniform: the size -3 of axis 1 is negative"),
    (lambda: Tensor(np.zeros((0, 3), "float32")).argmax(), ValueError, r"argmax: shape \(0, 3\) is empty"),
    (lambda: x[0, 0, 0], IndexError, r"index of shape \(2, 3\): 3 axes"),
    (lambda: x.clone().__setitem__(5, 1.0), IndexError, r"setitem of shape \(2, 3\): position 5"),
    (lambda: x.clone().__setitem__(Tensor([0.0]), 1.0), IndexError, r"setitem of shape \(2, 3\): positions are whole numbers"),
    (lambda: koine.jvp(lambda t: t * 2.0, (i,), (x,)), TypeError, "which has no derivative, and its tangent is float32"),
    (lambda: koine.vjp(lambda t: t, i)[1](x), TypeError, "which has no derivative, and its cotangent is float32"),
    (lambda: koine.vjp(lambda t: t, x)[1]((x, x)), ValueError, "cotangents"),
    (lambda: koine.scan(lambda c, r: c, Tensor(0.0), x), TypeError, "carry"),
    (lambda: koine.cond(x, lambda: x, lambda: x), (ValueError, TypeError), "cond"),
    (lambda: koine.tree.unflatten(koine.tree.structure((1, 2)), [1]), ValueError, "leaves"),
    (lambda: koine.tree.flatten(recursive()), ValueError, "nested"),
    (lambda: koine.tree.flatten({1: 0, "a": 1}), TypeError, "keys"),
    (lambda: koine.grad(lambda t: t["a"].sum())({"a": "text"}), TypeError, "str"),
    (lambda: koine.jit(3), TypeError, "jit"),
    # devices, files, layers, variables
    (lambda: x.to("GPU:7"), RuntimeError, "GPU"),
    (lambda: Tensor([1.0], device="nowhere"), RuntimeError, "nowhere"),
    (lambda: koine.safe_load("/nonexistent/file"), OSError, "nonexistent"),
    (lambda: koine.safe_save({3: x}, "never.safetensors"), TypeError, "names"),
    (lambda: koine.safe_save({"x": x}, "/nonexistent/file"), OSError, "nonexistent"),
    (lambda: nn.Linear(0, 3), ValueError, "Linear"),
    (lambda: nn.Linear(2, 3)(x), ValueError, "linear"),
    (lambda: nn.Linear("a", 3), TypeError, "Linear: 'inputs' is a 'str'"),
    (lambda: nn.load_state_dict(nn.Linear(3, 2), None), TypeError, "load_state_dict.*NoneType"),
    (lambda: x + None, TypeError, "unsupported operand.*NoneType"),
    (lambda: None @ x, TypeError, "unsupported operand.*NoneType"),
    (lambda: koine.cat([x, None]), TypeError, "cat.*NoneType"),
    (lambda: nn.Conv2d(3, 4, 3, groups=2), ValueError, "groups"),
    (lambda: nn.load_state_dict(nn.Linear(3, 2), {}), KeyError, "weight"),
    (lambda: nn.load_state_dict(nn.Linear(3, 2, bias=False), {"weight": Tensor([1.0])}), ValueError, "weight"),
    (lambda: koine.Variable("n", 3, 1), ValueError, "n"),
    (lambda: koine.Variable("n", 1, 3).bind(9), ValueError, "9"),
    (lambda: koine.zeros(2**40, 2**10).realize(), MemoryError, "memory"),
    (lambda: koine.random.randint(koine.random.Key(0), (2,), 5, 5), ValueError, "randint"),
    (lambda: koine.Tensor([1.0, 2.0]).numpy().__setitem__(0, 1.0), ValueError, "read-only"),
]


@pytest.mark.parametrize("k", range(len(WRONG)))
def test_wrong_uses_are_refused(k):
    call, kind, text = WRONG[k]
    with pytest.raises(kind) as caught:
        call()
    message = str(caught.value)
    assert re.search(text, message, re.I), message
    assert "convert.cpp" not in message and "transforms.cpp" not in message
    assert (x + 1).sum().item() == 27  # all is usable


MISFITS = [
    (lambda: nn.Linear(), "Linear: 'inputs' and 'outputs' are missing. It takes (inputs: int, outputs: int, bias: bool = True)"),
    (lambda: nn.Linear(3), "Linear: 'outputs' is missing. It takes (inputs: int, outputs: int, bias: bool = True)"),
    (lambda: nn.Linear(3, outputs=2, bais=False), "Linear: there is no 'bais'. It takes "),
    (lambda: nn.Linear(in_features=3, out_features=2),
     "Linear: there is no 'in_features', here it is 'inputs'; there is no 'out_features', here it is 'outputs'. It takes "),
    (lambda: nn.Linear(2.5, 2), "Linear: 'inputs' is a 'float'. It takes "),
    (lambda: nn.Linear(2, 2)(None), "Linear: 'x' is None. It takes (x: TensorLike)"),
    (lambda: nn.Linear(2, 2)(), "Linear: 'x' is missing. It takes "),
    (lambda: nn.Adam([Tensor([1.0], requires_grad=True)], lr=1e-3), "Adam: there is no 'lr', here it is 'learning_rate'. It takes "),
    (lambda: nn.SGD([x]), "SGD: 'learning_rate' is missing. It takes "),
    (lambda: x.matmul(None), "matmul: 'b' is None. It takes (b: TensorLike)"),
    (lambda: x.sum(dim=0), "sum: there is no 'dim', here it is 'axis'. It takes (axis: AxesLike | None = None, keepdim: bool = False)"),
    (lambda: x.sum(0, True, 3), "sum: 3 arguments, and it takes 2. It takes "),
    (lambda: x.softmax("a"), "softmax: 'axis' is a 'str'. It takes (axis: int = -1)"),
    (lambda: koine.where(x > 1, None, x), "where: 'a' is None. It takes "),
    (lambda: x.__setitem__(0, None), "setitem: 'value' is None. It takes "),
    (lambda: x.to(None), "to: 'device' is None. It takes (device: str)"),
    (lambda: koine.manual_seed("a"), "manual_seed: 'seed' is a 'str'. It takes (seed: int)"),
    (lambda: koine.manual_seed(-1), "manual_seed: an argument does not fit, or is out of range. It takes (seed: int)"),
    (lambda: koine.Variable(None, 1, 2), "Variable: 'name' is None. It takes (name: str, low: int, high: int)"),
    (lambda: Tensor(), "Tensor: 'data' is missing. It takes (data: object, "),
    (lambda: Tensor([1], dtyp="int8"), "Tensor: there is no 'dtyp'. It takes "),
    (lambda: koine.safe_load(None), "safe_load: 'path' is None. It takes "),
    (lambda: setattr(nn.Dropout(), "p", "a"), "an attribute: 'arg' is a 'str'. It takes (arg: float)"),
]


@pytest.mark.parametrize("k", range(len(MISFITS)))
def test_a_call_that_does_not_fit_says_what_does_not(k):
    call, text = MISFITS[k]
    with pytest.raises(TypeError) as caught:
        call()
    assert isinstance(caught.value, koine.Error) and caught.value.__cause__ is None
    assert str(caught.value).startswith(text)


def test_what_a_users_function_raises_in_a_call_is_not_touched():
    def f(t):
        raise TypeError("f(): incompatible with me")

    with pytest.raises(TypeError, match="^f\\(\\): incompatible with me$") as caught:
        koine.vmap(f)(x)
    assert not isinstance(caught.value, koine.Error)


def test_deep_and_endless_things_end_in_words():
    deep = 1.0
    for _ in range(5000):
        deep = [deep]
    for wrong in (lambda: Tensor(deep), lambda: koine.tree.flatten(deep), lambda: koine.jit(lambda a: a)(deep)):
        with pytest.raises(ValueError, match="nested"):
            wrong()

    def endless(t):
        return endless(t)

    for transformed in (koine.jit(endless), koine.grad(endless), koine.vmap(endless)):
        with pytest.raises(RecursionError):
            transformed(x)
    y = Tensor([1.0, 2.0])
    for _ in range(20_000):
        y = y + 1
    assert y.tolist() == [20_001.0, 20_002.0]
    w = Tensor([1.0, 2.0], requires_grad=True)
    z = w
    for _ in range(2000):
        z = z * 1.001
    z.sum().backward()
    np.testing.assert_allclose(w.grad.numpy(), 1.001**2000, rtol=1e-3)


def test_huge_sizes_end_in_words():
    for call, kind in [(lambda: koine.zeros(10**13).realize(), MemoryError), (lambda: koine.zeros(2**63), ValueError),
                       (lambda: koine.zeros(2**40, 2**40), ValueError), (lambda: Tensor.rand(10**6, 10**6, 10**3).realize(), MemoryError),
                       (lambda: Tensor([1.0]).expand(10**12).contiguous().realize(), MemoryError), (lambda: x.reshape(2**62, 3), ValueError),
                       (lambda: nn.Linear(10**7, 10**7).weight.realize(), MemoryError), (lambda: koine.arange(10**13), ValueError)]:
        with pytest.raises(kind) as caught:
            call()
        assert isinstance(caught.value, koine.Error)
    assert koine.zeros(3).tolist() == [0, 0, 0]


def test_all_of_koines_exceptions_are_one_kind():
    for name in ["ValueError", "TypeError", "IndexError", "KeyError", "OverflowError", "MemoryError", "DeviceError", "FileError"]:
        assert issubclass(getattr(koine.errors, name), koine.Error)
    with pytest.raises(koine.Error):
        x.reshape(5)
    with pytest.raises(koine.Error) as caught:
        nn.load_state_dict(nn.Linear(1, 1), {})
    assert str(caught.value).startswith("load_state_dict: missing")
    assert not issubclass(koine.errors.InternalError, koine.Error)


def test_an_exception_of_the_users_comes_through_a_trace_as_it_is():
    class Own(Exception):
        pass

    def f(t):
        raise Own("mine")

    for transformed in [koine.vmap(f), koine.grad(f), koine.jit(f), koine.checkpoint(f)]:
        with pytest.raises(Own, match="mine"):
            transformed(x)
    assert koine.grad(lambda t: t.sum())(x).shape == (2, 3)


def test_a_trace_that_looks_names_the_users_line():
    def looks(t):
        return t * t.sum().item()

    with pytest.raises(koine.Error) as caught:
        koine.vmap(looks)(x)
    assert f"test_errors.py:{looks.__code__.co_firstlineno}" in str(caught.value)


def test_a_failed_assignment_changes_nothing():
    y = Tensor([1.0, 2.0])
    with pytest.raises(IndexError):
        y[Tensor([5])] = 3
        y.realize()
    assert y.tolist() == [1, 2]


@pytest.mark.parametrize("of, name", [*(("koine", n) for n in koine.errors.of_package), *(("nn", n) for n in koine.errors.of_nn),
                                      *(("x", n) for n in koine.errors.of_tensors)])
def test_names_of_jax_and_pytorch_that_are_elsewhere(of, name):
    """The message says what is here instead, and the names in it exist."""
    owner = {"koine": koine, "nn": nn, "x": x}[of]
    assert not hasattr(owner, name)
    with pytest.raises(AttributeError, match=f"has no attribute '{name}': ") as e:
        getattr(owner, name)
    for start, part in re.findall(r"\b(koine|x)((?:\.[A-Za-z_]\w*)+)", str(e.value)):
        here = koine if start == "koine" else x
        for key in part.split(".")[1:]:
            here = getattr(here, key)
    with pytest.raises(AttributeError, match="has no attribute 'unheard_of'$"):
        owner.unheard_of
