"""Kernels written by hand, koine.custom_kernel."""
import numpy as np
import pytest

import koine
from conftest import same
from koine import ShapeDtype, Tensor, UOp, custom_kernel


def axpy(out, x, y):
    i = UOp.range(out.shape[0], 0)
    return out[i].store(2 * x[i] + y[i]).end(i)


def matmul(out, a, b):
    i, j, k = UOp.range(out.shape[0], 0), UOp.range(out.shape[1], 1), UOp.range(a.shape[1], 2, "REDUCE")
    return out[i, j].store((a[i, k] * b[k, j]).sum(k)).end(i, j).sink()


def test_a_kernel_of_views_and_lazy_values(rng):
    a, b = rng.standard_normal((2, 3, 4)).astype("float32"), rng.standard_normal((4, 3)).astype("float32")
    x, y = Tensor(a)[0].T, Tensor(b)
    same(custom_kernel(matmul, ShapeDtype((4, 3), "float32"), x + 1, (y * 2)[:3].T[:3, :3]).numpy(), (a[0].T + 1) @ (b * 2)[:3].T)
    p, q = Tensor(a[0, 0]), Tensor(a[0, 1])
    for f in (lambda u, v: custom_kernel(axpy, u, u, v) - 1, koine.jit(lambda u, v: custom_kernel(axpy, u, u, v) - 1)):
        for _ in range(2):
            same(f(p, q).numpy(), 2 * a[0, 0] + a[0, 1] - 1)


def test_every_operation_is_numpys(rng):
    a, b = rng.uniform(0.5, 3, 64).astype("float32"), rng.uniform(0.5, 3, 64).astype("float32")
    m, n = rng.integers(-40, 40, 64).astype("int32"), rng.integers(1, 9, 64).astype("int32")
    floats = [(lambda x, y: x + y, a + b), (lambda x, y: x - y, a - b), (lambda x, y: x * y, a * b), (lambda x, y: x / y, a / b),
              (lambda x, y: 1 - x, 1 - a), (lambda x, y: 1 / x, 1 / a), (lambda x, y: x % y, a % b), (lambda x, y: -x, -a),
              (lambda x, y: x.exp(), np.exp(a)), (lambda x, y: x.exp2(), np.exp2(a)), (lambda x, y: x.log(), np.log(a)),
              (lambda x, y: x.log2(), np.log2(a)), (lambda x, y: x.sin(), np.sin(a)), (lambda x, y: x.cos(), np.cos(a)),
              (lambda x, y: x.sqrt(), np.sqrt(a)), (lambda x, y: x.reciprocal(), 1 / a), (lambda x, y: x.maximum(y), np.maximum(a, b)),
              (lambda x, y: x.minimum(0.75), np.minimum(a, np.float32(0.75))), (lambda x, y: (x < y).where(x, 0.5), np.where(a < b, a, np.float32(0.5))),
              (lambda x, y: (x >= 1).where(1.0, y), np.where(a >= 1, np.float32(1), b)), (lambda x, y: x.eq(y).where(x, y), b),
              (lambda x, y: ((x > 1) & ~(y > 1)).where(x, y), np.where((a > 1) & ~(b > 1), a, b)),
              (lambda x, y: ((x > 1) | (y <= 1)).where(x, y), np.where((a > 1) | (b <= 1), a, b)),
              (lambda x, y: (x.bitcast("int32") & 0x7FFFFF).cast("float32"), (a.view("int32") & 0x7FFFFF).astype("float32"))]
    whole = [(lambda x, y: x // y, m // n), (lambda x, y: x % y, m % n), (lambda x, y: x << y, m << n), (lambda x, y: x >> y, m >> n),
             (lambda x, y: x ^ y, m ^ n), (lambda x, y: x & 7, m & 7), (lambda x, y: 7 | x, 7 | m), (lambda x, y: 100 // y, 100 // n),
             (lambda x, y: x.ne(y).where(x, -1), np.where(m != n, m, -1))]
    for (left, right), cases in (((a, b), floats), ((m, n), whole)):
        for k, (f, want) in enumerate(cases):
            def kernel(out, x, y, f=f):
                i = UOp.range(64, 0)
                return out[i].store(f(x[i], y[i])).end(i)

            got = custom_kernel(kernel, ShapeDtype((64,), left.dtype.name), left, right).numpy()
            np.testing.assert_allclose(got, want, rtol=2e-6, atol=2e-6, err_msg=str(k))


def test_several_results_folds_and_places(rng):
    a = rng.standard_normal((5, 7)).astype("float32")

    def statistics(out, x):
        i, k, l, n = UOp.range(5, 0), UOp.range(7, 1, "REDUCE"), UOp.range(7, 2, "REDUCE"), UOp.range(7, 3, "REDUCE")
        return [out["sum"][i].store(x[i, k].sum(k)).end(i), out["max"][i].store(x[i, l].max(l)).end(i), out["prod"][i].store(x[i, n].prod(n)).end(i)]

    row = ShapeDtype((5,), "float32")
    got = custom_kernel(statistics, {"sum": row, "max": row, "prod": row}, Tensor(a))
    for name in got:
        np.testing.assert_allclose(got[name].numpy(), getattr(a, name)(1), rtol=1e-5, err_msg=name)

    def shifted(out, x):  # out of bounds reads 0; the first element is stored by nobody
        i = UOp.range(4, 0)
        return out[i + 1].store(x[i + 1] + i.cast("float32")).end(i)

    assert custom_kernel(shifted, ShapeDtype((5,), "float32"), Tensor([1.0, 2.0, 3.0])).tolist() == [0.0, 2.0, 4.0, 2.0, 3.0]


def of(f, *like):
    """The value of one kernel out[i] = f(i, ...) over vectors."""

    def kernel(out, *params):
        i = UOp.range(out.shape[0], 0)
        return out[i].store(f(i, *params)).end(i)

    return custom_kernel(kernel, like[0], *like).numpy()


def test_numbers_of_numpy_and_of_64_bits():
    x, u, m = Tensor([1.5, 2.0]), Tensor([1, 2]).cast("uint64"), Tensor([5, -3])
    for half in (np.float32(0.5), np.float16(0.5), np.float64(0.5), 0.5):
        assert of(lambda i, p: p[i] + half, x).tolist() == of(lambda i, p: half + p[i], x).tolist() == [2.0, 2.5]  # noqa: B023
    assert of(lambda i, p: p[i] + (2**63 + 1), u).tolist() == [2**63 + 2, 2**63 + 3]
    assert of(lambda i, p: UOp.const(2**64 - 1, "uint64"), u).tolist() == [2**64 - 1] * 2
    assert of(lambda i, p: p[i] * 2**70, x).tolist() == [1.5 * 2.0**70, 2.0**71]
    assert of(lambda i, p: ~p[i], m).tolist() == [-6, 2] and of(lambda i, p: ~p[i], u).tolist() == [2**64 - 2, 2**64 - 3]
    assert of(lambda i, p: p[i] + np.int8(3), m).tolist() == [8, 0]


def test_sums_that_go_on():
    def total(out, x):
        i = UOp.range(x.shape[0], 0)
        here = out.after(i)
        return here[0].store(here[0] + x[i]).end(i)

    assert custom_kernel(total, ShapeDtype((1,), "float32"), Tensor([1.0, 2.0, 4.0])).tolist() == [7.0]


@pytest.mark.parametrize("n", [1, 2, 3, 20])
def test_triangles(n, rng):
    a = rng.integers(-9, 9, (n, n)).astype("float32")

    def lower(out, x):
        i = UOp.range(n, 0)
        k = UOp.range(1 + i, 1, "REDUCE")
        return out[i].store(x[i, k].sum(k)).end(i)

    def upper(out, x):
        i = UOp.range(n, 0)
        j = UOp.range(n - i, 1)
        return out[i, j + i].store(x[i, j + i]).end(i, j)

    row = ShapeDtype((n,), "float32")
    assert custom_kernel(lower, row, Tensor(a)).tolist() == np.tril(a).sum(1).tolist()
    assert custom_kernel(upper, Tensor(a), Tensor(a)).tolist() == np.triu(a).tolist()


def test_equal_trees_that_differ_are_told_apart():
    import dataclasses

    @dataclasses.dataclass
    class P:
        t: object

        def __post_init__(self):
            self.factor = 1.0

    def dict_kernel(out, d):
        a, b = d.values()
        i = UOp.range(3, 0)
        return out[i].store(a[i] - b[i]).end(i)

    def two(out, x):
        first, second = out.values()
        i, j = UOp.range(3, 0), UOp.range(3, 1)
        return [first[i].store(x[i]).end(i), second[j].store(-x[j]).end(j)]

    def scaled(out, p):
        i = UOp.range(3, 0)
        return out[i].store(p.t[i] * p.factor).end(i)

    x, y = Tensor([1.0, 2.0, 3.0]), Tensor([10.0, 20.0, 30.0])
    for _ in range(2):
        assert custom_kernel(dict_kernel, x, {"a": x, "b": y}).tolist() == [-9, -18, -27]
        assert custom_kernel(dict_kernel, x, {"b": x, "a": y}).tolist() == [-9, -18, -27]
        assert custom_kernel(two, {"p": x, "m": x}, x)["p"].tolist() == [1, 2, 3]
        assert custom_kernel(two, {"m": x, "p": x}, x)["p"].tolist() == [-1, -2, -3]
        p = P(x)
        assert custom_kernel(scaled, x, p).tolist() == [1, 2, 3]
        p.factor = 5.0
        assert custom_kernel(scaled, x, p).tolist() == [5, 10, 15]


class Equal:
    """All of these are equal, and compute other things."""

    def __init__(self, factor):
        self.factor = factor

    def __eq__(self, other):
        return isinstance(other, Equal)

    def __hash__(self):
        return 1

    def __call__(self, out, x):
        i = UOp.range(3, 0)
        return out[i].store(x[i] * self.factor).end(i)


def test_a_function_is_known_by_its_identity():
    x = Tensor([1.0, 2.0, 3.0])
    first, second = Equal(2.0), Equal(5.0)
    for _ in range(2):
        assert custom_kernel(first, x, x).tolist() == [2, 4, 6] and custom_kernel(second, x, x).tolist() == [5, 10, 15]
    assert custom_kernel(first.__call__, x, x).tolist() == [2, 4, 6]  # a method, another object at each look
    assert koine.pure_callback(lambda a: a * 2, x, x).tolist() == [2, 4, 6]
    assert koine.vmap(lambda v: custom_kernel(axpy, v, v, v, vmap_method="sequential"))(Tensor.zeros(0, 3)).shape == (0, 3)


def test_transforms(rng):
    @koine.custom_vjp
    def f(x, y):
        return custom_kernel(axpy, x, x, y, vmap_method="sequential")

    f.defvjp(lambda x, y: (f(x, y), None), lambda _, g: (2 * g, g))
    a, b = rng.standard_normal((3, 4)).astype("float32"), rng.standard_normal((3, 4)).astype("float32")
    gx, gy = koine.grad(lambda x, y: (f(x, y) * y).sum(), argnums=(0, 1))(Tensor(a[0]), Tensor(b[0]))
    same(gx.numpy(), 2 * b[0])
    same(gy.numpy(), 2 * a[0] + 2 * b[0])
    same(koine.vmap(f)(Tensor(a), Tensor(b)).numpy(), 2 * a + b)

    def of_any_rank(out, x, y):
        at = tuple(UOp.range(n, k) for k, n in enumerate(out.shape))
        return out[at].store(2 * x[at] + y[at]).end(*at)

    for method in ("sequential", "broadcast_all"):
        g = koine.vmap(lambda x, y: custom_kernel(of_any_rank, ShapeDtype((4,), "float32"), x, y, vmap_method=method), in_axes=(0, None))
        same(g(Tensor(a), Tensor(b[0])).numpy(), 2 * a + b[0])


def one(f):
    def kernel(out, x):
        i = UOp.range(4, 0)
        return f(out, x, i)
    return lambda: custom_kernel(kernel, ShapeDtype((4,), "float32"), Tensor([1.0, 2.0, 3.0, 4.0])).numpy()


@pytest.mark.parametrize("wrong, kind, words", [
    (one(lambda out, x, i: None), TypeError, "gives a 'NoneType'"),
    (one(lambda out, x, i: x[i]), ValueError, "stores nothing"),
    (one(lambda out, x, i: x[i].store(out[i]).end(i)), ValueError, "stor"),
    (one(lambda out, x, i: out[i].store(x[i])), ValueError, "no kernel"),
    (one(lambda out, x, i: out[i].store(x[i] + i).end(i)), TypeError, "__add__: of float32 and index"),
    (one(lambda out, x, i: out[i].store(i).end(i)), TypeError, "store: a index into memory of float32"),
    (one(lambda out, x, i: out[i, i].store(1.0).end(i)), IndexError, "2 places in a Param of shape \\(4,\\)"),
    (one(lambda out, x, i: out[1.5].store(1.0).end(i)), TypeError, "place"),
    (one(lambda out, x, i: out[i].store("a").end(i)), TypeError, "'str' a"),
    (one(lambda out, x, i: out[i].store(x[i] if x[i] > 1 else 0.0).end(i)), TypeError, "no value yet"),
    (one(lambda out, x, i: out[i].store(x[i].sum(i)).end(i)), ValueError, "sum: folds loops of type REDUCE, and 0 is LOOP"),
    (one(lambda out, x, i: out[i].store(x[i].sum()).end(i)), TypeError, "over which loops"),
    (one(lambda out, x, i: out[i].store((x[i] // 2)).end(i)), TypeError, "//"),
    (one(lambda out, x, i: out[i].store((i / 2).cast("float32")).end(i)), TypeError, "// rounds down"),
    (one(lambda out, x, i: out[i].store(i.sin()).end(i)), TypeError, "sin: of a index"),
    (one(lambda out, x, i: out[i].store(1.0).end(x)), TypeError, "end: takes loops"),
    (one(lambda out, x, i: out[i].store(UOp.range(4, 1, "SPIRAL").cast("float32")).end(i)), ValueError, "SPIRAL.*LOOP"),
    (one(lambda out, x, i: out[i].store(UOp.range(4, -1).cast("float32")).end(i)), ValueError, "from 0 to 1048575, not -1"),
    (one(lambda out, x, i: out[i].store(Tensor(1.0)).end(i)), TypeError, "store: a tensor is no part of a kernel"),
    (one(lambda out, x, i: out[i].store(sum(x)).end(i)), TypeError, "not iterable"),
    (one(lambda out, x, i: out[i].store(x[i] == 3).end(i)), TypeError, "a.eq\\(3\\) compares values"),
    (one(lambda out, x, i: out[i].store(x[i] == x[i + 1]).end(i)), TypeError, "store: a bool of Python's: == asks"),
    (one(lambda out, x, i: out[i].store((x[i] > 1).where(True, x[i])).end(i)), TypeError, "where: a bool of Python's"),
    (one(lambda out, x, i: out[i].store(UOp.range(x[i], 1).cast("float32")).end(i)), TypeError, "range: it ends at a place"),
    (lambda: UOp.const(-1, "uint64"), ValueError, "uint64 does not hold -1"),
    (lambda: UOp.const(2**64, "uint64"), ValueError, "uint64 does not hold 18446744073709551616"),
    (lambda: UOp.const(300, "int8"), ValueError, "int8 does not hold 300"),
    (lambda: UOp.const(-1, "uint8"), ValueError, "uint8 does not hold -1"),
    (lambda: custom_kernel(3, ShapeDtype((4,), "float32")), TypeError, "custom_kernel"),
    (lambda: custom_kernel(axpy, (4,), Tensor([1.0])), TypeError, "ShapeDtype"),
    (lambda: custom_kernel(axpy, ShapeDtype((1,), "float32"), Tensor([1.0]), Tensor([2.0]), vmap_method="expand_dims"), ValueError, "'sequential', 'broadcast_all'"),
    (lambda: koine.grad(lambda x: custom_kernel(axpy, x, x, x).sum())(Tensor([1.0])), ValueError, "'axpy' has no derivative.*custom_vjp"),
    (lambda: koine.vmap(lambda x: custom_kernel(axpy, x, x, x))(Tensor([[1.0]])), ValueError, "'axpy' under vmap.*vmap_method"),
])
def test_what_is_no_kernel_is_refused(wrong, kind, words):
    with pytest.raises(kind, match=words):
        wrong()
    assert custom_kernel(axpy, ShapeDtype((2,), "float32"), Tensor([1.0, 2.0]), Tensor([3.0, 4.0])).tolist() == [5.0, 8.0]
