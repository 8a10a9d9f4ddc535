"""Python's numbers take the dtype of what they meet, also where a function is traced with them: the dtypes are those without a transform."""
import numpy as np
import pytest

import koine
from koine import Tensor

H, I8 = Tensor([2.0, 3.0], dtype="float16"), Tensor([2, 3], dtype="int8")
ONE = Tensor(2.0, dtype="float16")


def dtypes(tree):
    return [t.dtype.name for t in koine.tree.leaves(tree)]


FUNCTIONS = [lambda x, n: x * n, lambda x, n: n - x, lambda x, n: x * (n * 2 + 1), lambda x, n: x + (-n) * n, lambda x, n: koine.where(x > n, x, n), lambda x, n: x.maximum(n),
             lambda x, n: {"a": x / n, "b": [x * 2]}, lambda x, n: x * n ** 2]


@pytest.mark.parametrize("f", FUNCTIONS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_results_have_the_dtypes_of_the_function_itself(f, dtype):
    x = Tensor([2.0, 3.0], dtype=dtype)
    for n in (2.0, 3, True):
        if n is True and f in (FUNCTIONS[1], FUNCTIONS[3]):
            continue  # bool has no difference
        want = f(x, n)
        names = dtypes(want)
        assert dtypes(koine.jvp(f, (x, n), (x, 0 if type(n) is not float else 1.0))) == names * 2
        value, pullback = koine.vjp(f, x, n)
        assert dtypes(value) == names and dtypes(pullback(koine.tree.map(koine.Tensor.ones_like, want))[0]) == [dtype]
        value, push = koine.linearize(f, x, n)
        assert dtypes(value) == names and dtypes(push(x, 0 if type(n) is not float else 1.0)) == names
        assert dtypes(koine.cond(Tensor(True), f, f, x, n)) == dtypes(koine.switch(1, [f, f], x, n)) == names
        assert dtypes(koine.custom_jvp(f).defjvp(lambda p, t: (f(*p), f(*t)))(x, n)) == names  # noqa: B023
        assert dtypes(koine.vmap(f, (0, None))(x, n)) == names and dtypes(koine.checkpoint(f)(x, n)) == names and dtypes(koine.eval_shape(f, x, n)) == names
        for made, own in zip(koine.tree.leaves(value), koine.tree.leaves(want)):
            np.testing.assert_array_equal(made.cast("float64").numpy(), own.cast("float64").numpy())


def test_directions_that_are_numbers_have_the_dtype_of_what_they_are_for():
    value, tangent = koine.jvp(lambda x: x * x, (ONE,), (1.0,))
    assert dtypes((value, tangent)) == ["float16"] * 2 and tangent.item() == 4
    assert dtypes(koine.vjp(lambda x, y: x * y, ONE, 2.0)[1](1.0)) == ["float16", "float32"]
    assert koine.linearize(lambda x, y: x * y, ONE, 2.0)[1](1.0, 1.0).item() == 4
    assert koine.hvp(lambda x: x * x * x, ONE, 1.0).dtype == koine.float16
    exact = koine.jvp(lambda x: x * 1, (Tensor(1.0, dtype="float64"),), (0.1,))[1]
    assert exact.item() == 0.1
    with pytest.raises(ValueError, match="both must be equal"):
        koine.jvp(lambda x: x, (H,), (1.0,))
    with pytest.raises(ValueError, match="both must be equal"):
        koine.jvp(lambda x: x, (ONE,), (Tensor(1.0),))


def test_gradients_by_numbers_are_those_of_a_float32():
    by_x, by_n = koine.grad(lambda x, n: x * n, (0, 1))(ONE, 3.0)
    assert (by_x.dtype, by_n.dtype, by_x.item(), by_n.item()) == (koine.float16, koine.float32, 3, 2)
    assert koine.value_and_grad(lambda n: n * ONE)(3.0)[0].dtype == koine.float16
    assert dtypes(koine.jacfwd(lambda x, n: x * n, (0, 1))(H, 2.0)) == ["float16", "float16"]
    assert koine.grad(lambda n: (n.sin() * H).sum())(0.0).item() == 5


def test_branches_that_are_numbers():
    for taken in (True, False):
        flag = Tensor(taken)
        made = koine.cond(flag, lambda x: x, lambda x: 1.0, ONE)
        assert (made.dtype, made.item()) == (koine.float16, 2 if taken else 1)
        made = koine.cond(flag, lambda x: 3, lambda x: (x * 1).cast("int8"), ONE)
        assert (made.dtype, made.item()) == (koine.int8, 3 if taken else 2)
        tree = koine.cond(flag, lambda x, n: {"a": n, "b": x}, lambda x, n: {"a": x * n, "b": 0}, ONE, 5.0)
        assert dtypes(tree) == ["float16", "float16"] and tree["a"].item() == (5 if taken else 10)
        assert koine.cond(flag, lambda: 1.5, lambda: 2).item() == (1.5 if taken else 2)
    for k in range(3):
        made = koine.switch(k, [lambda x: 1, lambda x: 0.5, lambda x: x], ONE)
        assert (made.dtype, made.item()) == (koine.float16, [1, 0.5, 2][k])
    calls = []
    koine.cond(Tensor(True), lambda x: calls.append(1) or x, lambda x: calls.append(2) or x * 2.0, ONE)
    assert len(calls) == 2
    with pytest.raises(ValueError, match="both must be equal"):
        koine.cond(Tensor(True), lambda x: x, lambda x: Tensor(1.0), ONE)
    g = koine.grad(lambda x: koine.cond(x > 1, lambda x: x * x, lambda x: 1.0, x))
    assert g(ONE).dtype == koine.float16 and g(ONE).item() == 4 and g(Tensor(0.5, dtype="float16")).item() == 0


def test_carries_that_are_numbers():
    last, rows = koine.scan(lambda c, x: (c * x, c), 1.0, H)
    assert dtypes((last, rows)) == ["float16"] * 2 and last.item() == 6 and rows.tolist() == [1, 2]
    assert dtypes(koine.scan(lambda c, x: (c * x, 1.0), ONE, H)) == ["float16", "float32"]
    last, _ = koine.scan(lambda c, x: ((c[0] + x, c[1] * c[0], c[2] + 1), None), (0, 1.0, 0), H)
    assert dtypes(last) == ["float16", "float16", "int32"] and last[2].item() == 2
    last, _ = koine.scan(lambda c, x: (c + x, None), 0, Tensor([1.5, 2.5], dtype="float64"))
    assert last.dtype == koine.float64 and last.item() == 4
    last, _ = koine.scan(lambda c, x: (0, None), I8[0], I8)
    assert last.dtype == koine.int8
    assert koine.fori_loop(0, 3, lambda i, c: c * ONE, 1.0).dtype == koine.float16 and koine.fori_loop(0, 3, lambda i, c: c * 2.0, ONE).item() == 16
    assert koine.fori_loop(0, 3, lambda i, c: c + i, ONE).dtype == koine.float16 and koine.fori_loop(0, 3, lambda i, c: c + i, I8).tolist() == [5, 6]
    assert koine.fori_loop(0, 3, lambda i, c: c + i, 0).dtype == koine.int32
    a, b = koine.while_loop(lambda c: c[0] < 10, lambda c: (c[0] * 2, c[1] * c[0]), (ONE, 1.0))
    assert dtypes((a, b)) == ["float16"] * 2 and (a.item(), b.item()) == (16, 64)
    assert koine.while_loop(lambda c: c < 100, lambda c: c * 2, 1).dtype == koine.int32
    assert koine.while_loop(lambda n: n * ONE < 100, lambda n: n * 2, 1.0).item() == 64
    g = koine.grad(lambda w: koine.scan(lambda c, x: (c * w + x, None), 0.0, H)[0])(ONE)
    assert g.dtype == koine.float16 and g.item() == 2
    with pytest.raises(ValueError, match="both must be equal"):
        koine.scan(lambda c, x: (c * Tensor(1.0, dtype="float64"), None), ONE, H)


def test_rules_of_functions_of_numbers():
    by_jvp = koine.custom_jvp(lambda x, n: x * n).defjvp(lambda p, t: (p[0] * p[1], t[0] * p[1] + t[1] * p[0]))
    by_vjp = koine.custom_vjp(lambda x, n: x * n).defvjp(lambda x, n: (x * n, (x, n)), lambda s, g: (g * s[1], g * s[0]))
    for f in (by_jvp, by_vjp):
        assert f(ONE, 3.0).dtype == koine.float16 and f(ONE, 3).item() == 6
        assert [(t.dtype, t.item()) for t in koine.grad(f, (0, 1))(ONE, 3.0)] == [(koine.float16, 3), (koine.float32, 2)]
        assert koine.jvp(f, (ONE, 3.0), (1.0, 1.0))[1].item() == 5
        assert koine.vmap(lambda x: f(x, 3.0))(H).dtype == koine.float16  # noqa: B023
        assert koine.jit(koine.grad(lambda x: f(x, 3.0)))(ONE).item() == 3  # noqa: B023
    constant = koine.custom_jvp(lambda x: x * 2).defjvp(lambda p, t: (p[0] * 2, 7.0))
    assert koine.jvp(constant, (ONE,), (1.0,))[1].dtype == koine.float16


def test_numbers_beyond_the_dtype_and_what_is_no_number():
    assert koine.jvp(lambda x, n: x * n, (Tensor([1.0]), np.float64(2)), (Tensor([1.0]), np.float64(1)))[0].dtype == koine.float64  # NumPy's have a dtype
    assert koine.vjp(lambda x, n: x * n.cast("float64"), Tensor([1.0]), 2.0)[0].dtype == koine.float64
    assert koine.vjp(lambda x, n: x * n, I8, 2)[0].dtype == koine.int8
    assert koine.vjp(lambda x, n: x * n, I8, 2.5)[0].tolist() == [5, 7.5] and koine.vjp(lambda x, n: x * n, I8, 2.5)[0].dtype == koine.float32


def test_numbers_stay_numbers_through_several_transforms():
    f = lambda x, n: koine.cond(n > 0, lambda x, n: x * n, lambda x, n: x, x, n)  # noqa: E731
    assert koine.jvp(f, (ONE, 3.0), (1.0, 1.0))[1].dtype == koine.float16
    inner = lambda x, n: koine.scan(lambda c, _: (c * x, None), n, length=2)[0]  # noqa: E731
    value, tangent = koine.jvp(inner, (ONE, 3.0), (1.0, 1.0))
    assert dtypes((value, tangent)) == ["float16"] * 2 and (value.item(), tangent.item()) == (12, 16)
    assert koine.vjp(lambda x, n: koine.jvp(lambda n: x * n, (n,), (1.0,))[1], ONE, 3.0)[0].dtype == koine.float16
    assert dtypes(koine.grad(lambda n: koine.grad(lambda m: ONE * m * m)(n))(3.0)) == ["float32"]


def test_bools_are_compared_with_any_number():
    b = Tensor([False, True])
    for number in (1e300, -1e300, 0.5, 1.0, 2, -1, 2 ** 40, float("inf"), float("nan")):
        for made, want in ((b > number, b.numpy() > number), (b <= number, b.numpy() <= number), (b == number, b.numpy() == number), (number != b, number != b.numpy())):
            assert made.tolist() == want.tolist(), number
