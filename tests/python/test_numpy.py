"""NumPy's functions, operators and printing, of tensors."""
import numpy as np
import pytest
from conftest import numbers, same

import koine
from koine import Tensor

UNARY = "absolute negative positive sign rint ceil floor trunc sqrt square exp exp2 log log2 sin cos tan tanh isnan isinf isfinite logical_not invert conjugate".split()
BINARY = ("add subtract multiply divide floor_divide remainder power maximum minimum equal not_equal less less_equal greater greater_equal logical_and logical_or "
          "logical_xor bitwise_and bitwise_or bitwise_xor left_shift right_shift").split()
DTYPES = ("bool", "int8", "int32", "int64", "uint8", "float16", "float32", "float64")
TRANSCENDENTAL = "sqrt exp exp2 log log2 sin cos tan tanh power".split()


def wanted(f, *arrays):
    """What NumPy gives; None where it refuses."""
    try:
        with np.errstate(all="ignore"):
            return f(*arrays)
    except (TypeError, ValueError):
        return None


@pytest.mark.parametrize("name", UNARY)
def test_elementwise_functions_give_tensors(name, rng):
    f = getattr(np, name)
    for dtype in ("float32", "float64"):
        a = numbers(rng, (3, 4), dtype)
        if wanted(f, a) is not None:
            assert type(f(Tensor(a))) is Tensor
            same(f(Tensor(a)), wanted(f, a), rtol=1e-5)
    if name in ("absolute", "negative", "positive", "sign", "square", "invert", "logical_not", "floor"):
        a = numbers(rng, (5,), "int32", special=False)
        same(f(Tensor(a)), wanted(f, a))
    assert f is not np.sin or koine.grad(lambda x: np.sin(x).sum())(Tensor([0.0])).tolist() == [1.0]


@pytest.mark.parametrize("name", BINARY)
def test_functions_of_two_operands_give_tensors(name, rng):
    f = getattr(np, name)
    for dtype in ("bool", "int32", "uint8", "float32", "float64"):
        a, b = numbers(rng, (3, 4), dtype, special=False), numbers(rng, (4,), dtype, special=False)
        if name in ("floor_divide", "remainder", "left_shift", "right_shift", "power") and dtype != "bool":
            a, b = np.abs(a), np.asarray(np.abs(b) % 3 + 1, dtype)
        want = wanted(f, a, b)
        if want is None or dtype == "bool" and name in ("divide", "floor_divide", "remainder", "power", "left_shift", "right_shift"):
            continue
        for x, y in ((Tensor(a), Tensor(b)), (Tensor(a), b), (a, Tensor(b))):
            made = f(x, y)
            assert type(made) is Tensor
            if name == "divide" and dtype in ("int32", "uint8"):  # in float32, as GPUs have it
                made = made.cast("float64")
                same(made, want.astype("float64"), rtol=1e-6)
            else:
                same(made, want, rtol=1e-5)
    x = Tensor([1.0, 2.0]) if name not in ("bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift") else Tensor([1, 2])
    for made, want in ((f(x, 2), f(x.numpy(), 2)), (f(2, x), f(2, x.numpy())), (f([2, 1], x), f(np.array([2, 1], x.numpy().dtype), x.numpy()))):
        assert np.array_equal(made, want)


def test_operators_of_arrays_give_tensors(rng):
    a, b = rng.standard_normal((3, 3)), rng.standard_normal((3, 3))
    x = Tensor(b)
    for made, want in ((a + x, a + b), (a - x, a - b), (a * x, a * b), (a / x, a / b), (a @ x, a @ b), (a < x, a < b), (a == x, a == b),
                       (np.float64(2) * x, 2 * b), (np.float32(2) ** Tensor([1.0, 2.0]), np.array([2, 4])), (divmod(np.abs(a), abs(x))[0], np.abs(a) // abs(b))):
        assert type(made) is Tensor and np.allclose(made, want)
    assert np.matmul(x, a).shape == (3, 3) and np.divmod(x, 2.0)[1].shape == (3, 3)
    assert (np.float32(2) * Tensor([1.0], dtype="float16")).dtype == koine.float32


def test_memory_of_numpy_takes_results():
    a = np.ones(3)
    kept = a
    a += Tensor([1.0, 2.0, 3.0])
    assert a is kept and a.tolist() == [2, 3, 4]
    assert np.add(Tensor([1.0]), 1, out=np.zeros(1)).tolist() == [2]
    with pytest.raises(TypeError, match="np.add: out is a tensor, whose memory nobody writes to"):
        np.add(np.ones(1), 1, out=Tensor([1.0]))


def test_elementwise_functions_that_koine_has_not_are_refused():
    x = Tensor([1.0, 2.0])
    for call, message in [(lambda: np.cbrt(x), r"np.cbrt: Koine has no such function of tensors: np.cbrt\(np.asarray\(x\)\) computes it with NumPy"),
                          (lambda: np.arctan2(x, 1), "np.arctan2: Koine has no such function"),
                          (lambda: np.subtract.reduce(x), "np.subtract.reduce: Koine has reductions of add, multiply, maximum, .* alone"),
                          (lambda: np.maximum.accumulate(x), "np.maximum.accumulate: Koine has it of add and multiply alone"),
                          (lambda: np.add.reduceat(x, [0, 1]), "np.add.reduceat: .* Koine has reduce, accumulate, outer"),
                          (lambda: np.add.at(x, 0, 1), r"np.add.at: writes to memory of NumPy's: x\[i\] = v writes to a tensor"),
                          (lambda: np.add(x, x, dtype="int32"), r"np.add: dtype is int32, and an operand is float32, .* as in x.cast\('int32'\)"),
                          (lambda: np.add(Tensor([1]), 1, dtype="bool"), "np.add: dtype is bool, and an operand is int32"),
                          (lambda: np.sin(x, dtype="int32"), "np.sin: is of floating point numbers, and dtype is int32"),
                          (lambda: np.less(x, 2, dtype="float32"), r"np.less: gives truth values, and dtype is float32: cast the result"),
                          (lambda: np.add(x, 1, casting="unsafe"), "np.add: .* Koine has out and dtype, not casting"),
                          (lambda: np.sin(x, where=np.array([True, False])), r"np.sin: where is given without out, .* as in mask.where\(np.sin\(x\), 0\)"),
                          (lambda: np.mean(x, where=np.array([True, False])), "np.mean: Koine has no 'where'"), (lambda: np.sum(x, out=np.zeros(())), "np.sum: out is given"),
                          (lambda: np.add(x, object()), "returned NotImplemented")]:
        with pytest.raises(TypeError, match=message):
            call()


def test_keywords_and_methods_of_elementwise_functions(rng):
    """Those with one meaning: dtype=, where= with out=, reduce(), accumulate(), outer()."""
    x, mask = rng.standard_normal((3, 4)).astype("float32"), rng.random((3, 4)) < 0.5
    whole = rng.integers(-5, 5, (3, 4)).astype("int16")

    def check(f, *arrays):
        made, want = f(*[Tensor(a) for a in arrays]), np.asarray(f(*arrays))
        assert type(made) is Tensor
        same(made, want)

    for dtype in ("float64", np.float32):
        check(lambda a, b: np.add(a, b, dtype=dtype), whole, x)
        check(lambda a: np.sin(a, dtype=dtype), whole)
        check(lambda a: np.divide(a, 3, dtype=dtype), whole)
        check(lambda a: np.multiply.outer(a, a, dtype=dtype), whole)
        check(lambda a: np.add.reduce(a, axis=None, dtype=dtype), whole)
    check(lambda a: np.multiply(a, 300, dtype="int32"), whole)  # no overflow: it is cast before
    check(lambda a, b: np.less(a, b, dtype=bool, casting="same_kind", where=True), x, x[::-1])
    for ufunc in (np.add, np.multiply, np.maximum, np.minimum):
        for given in ({}, {"axis": 1, "keepdims": True}, {"axis": (0, 1)}, {"axis": None, "initial": 2}, {"axis": -1, "initial": 0.5, "where": mask}, {"initial": 1, "where": mask[:1]}):
            check(lambda a: ufunc.reduce(a, **given), x)
    for f in (np.sum, np.prod, np.max, np.min):
        check(lambda a: f(a, axis=1, initial=0.25, where=mask), x)
    check(lambda a, m: np.sum(a, where=m), x, mask)
    for ufunc in (np.logical_and, np.logical_or):
        check(lambda a: ufunc.reduce(a, axis=1, where=mask), x > 0)
    for ufunc in (np.add, np.multiply):
        check(lambda a: ufunc.accumulate(a), x)
        check(lambda a: ufunc.accumulate(a, axis=1, dtype="float64"), x)
    for ufunc in (np.subtract, np.greater):
        check(lambda a, b: ufunc.outer(a, b), x, x[0])
    out = np.zeros((3, 4), "float32")
    assert np.sin(Tensor(x), out=out, where=Tensor(mask)) is out and np.array_equal(out != 0, mask)
    assert koine.grad(lambda x: np.add.reduce(x, where=mask[0]))(Tensor(x[0])).tolist() == mask[0].tolist()
    with pytest.raises(ValueError, match="np.maximum.reduce: where is given without initial, and a max of no elements is none: give initial"):
        np.maximum.reduce(Tensor(x), where=mask)


def test_reductions_of_numpy_give_tensors(rng):
    a = rng.standard_normal((3, 4, 2))
    x = Tensor(a)
    for name in ("sum", "prod", "max", "min", "mean", "std", "var", "amax", "amin"):
        f = getattr(np, name)
        for given in ({}, {"axis": 1}, {"axis": (0, 2), "keepdims": True}, {"axis": -1}):
            made = f(x, **given)
            assert type(made) is Tensor
            same(made, np.asarray(f(a, **given)), rtol=1e-9)
    same(np.std(x, ddof=1), np.asarray(np.std(a, ddof=1)))
    same(np.sum(x, 0, np.float32), np.sum(a, 0, np.float32), rtol=1e-5)
    assert np.sum(a=x).item() == pytest.approx(a.sum()) and type(np.sum(a=x)) is Tensor
    assert np.any(x > 0).item() and not np.all(x > 0).item() and np.all(x > 0, axis=(0, 1), keepdims=True).shape == (1, 1, 2)
    assert koine.grad(lambda x: np.mean(x))(Tensor([1.0, 2.0])).tolist() == [0.5, 0.5]
    assert np.shape(x) == (3, 4, 2) and np.ndim(x) == 3 and np.squeeze(x[:1], 0).shape == (4, 2) and np.flip(x, 1)[0, 0, 0].item() == a[0, -1, 0]
    assert type(np.flip(x)) is Tensor and np.array_equal(np.flip(x), np.flip(a))


def test_other_functions_of_numpy_are_computed_of_the_elements(rng):
    a = rng.standard_normal((3, 3))
    x = Tensor(a)
    for made, want in ((np.concatenate([x, a]), np.concatenate([a, a])), (np.where(x > 0, x, 0), np.where(a > 0, a, 0)), (np.sort(x), np.sort(a)), (np.dot(x, x), a @ a),
                       (np.linalg.inv(x), np.linalg.inv(a)), (np.einsum("ij,jk", x, a), a @ a), (np.cumsum(x, axis=0), a.cumsum(0)), (np.percentile(x, 50), np.percentile(a, 50)),
                       (np.unique(Tensor([1, 1, 2])), np.array([1, 2])), (np.interp(1.5, Tensor([1.0, 2.0]), Tensor([3.0, 4.0])), 3.5)):
        assert not isinstance(made, Tensor) and np.allclose(made, want)
    np.testing.assert_allclose(x, a)
    assert np.allclose(x, a) and np.array_equal(x, a)
    b = np.zeros((3, 3))
    np.copyto(b, x)
    assert np.array_equal(a, b)


def test_numbers_are_rounded_to_digits(rng):
    for dtype in ("float16", "float32", "float64"):
        a = np.asarray(numbers(rng, (200,), dtype, special=False) * 100, dtype)
        for digits in (0, 1, 2, -1, -2):
            with np.errstate(over="ignore"):
                same(round(Tensor(a), digits), np.round(a, digits), signs=True)
                same(np.round(Tensor(a), digits), np.round(a, digits), signs=True)
    assert round(Tensor([0.25, 0.35, -1.55, np.nan, np.inf]), 1).dtype == koine.float32
    whole = np.array([14, 15, 25, -25, 149], np.int32)
    for digits in (0, 3, -1, -2):
        same(round(Tensor(whole), digits), np.round(whole, digits))
    assert round(Tensor([1.5, 2.5])).tolist() == round(Tensor([1.5, 2.5]), None).tolist() == [2, 2]
    assert koine.grad(lambda x: (round(x, 1) + x).sum())(Tensor([1.0])).tolist() == [1.0]


def test_numbers_are_printed_as_numpy_prints_them(rng):
    for case in range(600):
        dtype = ("float16", "float32", "float64")[case % 3]
        size = rng.integers(1, 6)
        a = rng.standard_normal(size) * 10.0 ** rng.uniform(-3, {"float16": 4.7, "float32": 9, "float64": 18}[dtype], size if case % 2 else 1)
        if case % 5 == 0:
            a = np.round(a)
        if case % 7 == 0:
            a[0] = rng.choice([np.nan, np.inf, -np.inf, 0.0, -0.0])
        with np.errstate(over="ignore"):
            a = a.astype(dtype)
        for array in (a, a[0:1].reshape(())):
            text = np.array2string(array, separator=", ", max_line_width=200)
            shown = repr(Tensor(array)).replace("\n       ", "")
            assert shown == f"Tensor({text}, dtype={dtype}, device=CPU)", (dtype, array.tolist())
    assert repr(Tensor([-0.015625], dtype="float16")) == "Tensor([-0.01563], dtype=float16, device=CPU)"
    assert repr(Tensor([1000.0], dtype="float16")) == "Tensor([1.e+03], dtype=float16, device=CPU)"
    assert repr(Tensor([1e7, 1.0])) == "Tensor([1.e+07, 1.e+00], dtype=float32, device=CPU)"
