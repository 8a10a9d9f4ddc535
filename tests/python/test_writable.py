"""numpy(writable=True): the memory of a tensor itself, whose tensor sees what is written; who had its value before keeps that."""
import gc

import numpy as np
import pytest

import koine
from koine import Tensor, jit

DTYPES = [d for d in koine.DType if d.numpy is not None]


def X():
    return Tensor([1.0, 2.0, 3.0, 4.0])


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
def test_the_tensor_sees_what_is_written(dtype):
    x = Tensor([[0, 1, 0], [1, 0, 1]], dtype=dtype)
    shown = x.numpy(writable=True)
    assert shown.dtype == x.numpy().dtype == np.dtype(dtype.numpy) and shown.flags.writeable and shown.shape == (2, 3)
    shown[0] = np.array([1, 0, 1]).astype(shown.dtype)
    assert x.tolist() == [[1, 0, 1], [1, 0, 1]] and (x.cast("int32") + 1).tolist() == [[2, 1, 2], [2, 1, 2]]
    assert np.shares_memory(shown, x.numpy()) and np.shares_memory(shown, x.numpy(writable=True))


def test_views_are_where_they_lie(rng):
    """Those of a base and of each other: with a step, turned, backwards."""
    for _ in range(200):
        base = Tensor(rng.standard_normal((4, 6)).astype("float32"), copy=True)
        view, want = base, base.numpy(copy=True)
        whole = want
        for kind in rng.integers(0, 4, 3):
            if kind == 0:
                view, want = view[::-1], want[::-1]
            elif kind == 1:
                view, want = view.transpose(0, 1), want.swapaxes(0, 1)
            elif kind == 2 and want.shape[0] > 1:
                view, want = view[1:], want[1:]
            else:
                view, want = view[:, ::2], want[:, ::2]
        shown = view.numpy(writable=True)
        assert shown.strides == want.strides or 1 in want.shape
        values = rng.standard_normal(want.shape).astype("float32")
        shown[...], want[...] = values, values
        np.testing.assert_array_equal(base.numpy(), whole)
        np.testing.assert_array_equal(view.numpy(), values)


def test_who_had_the_value_before_keeps_it():
    x = X()
    y, shown, other = x + 1, x.numpy(), x.detach()
    computed = (x * 2).realize()
    view = x[1:]
    x.numpy(writable=True)[:] = 9
    assert y.tolist() == [2, 3, 4, 5] and shown.tolist() == [1, 2, 3, 4] and other.tolist() == [1, 2, 3, 4] and computed.tolist() == [2, 4, 6, 8]
    assert view.tolist() == [9, 9, 9]  # a view is the same memory

    ones, more = Tensor.ones(3), Tensor.ones(3)
    ones.numpy(writable=True)[0] = 5
    assert ones.tolist() == [5, 1, 1] and more.tolist() == Tensor.ones(3).tolist() == [1, 1, 1]

    a = np.arange(3, dtype=np.float32)
    borrowed = Tensor(a)
    borrowed.numpy(writable=True)[0] = 5
    assert borrowed.tolist() == [5, 1, 2] and a.tolist() == [0, 1, 2]


def test_it_is_the_tensors_until_something_is_assigned():
    for change in (lambda x: x.assign(X() * 10), lambda x: x.__iadd__(1), lambda x: x.__setitem__(0, 7.0), lambda x: x[1:].assign(X()[1:] * 5)):
        x = X()
        shown = x.numpy(writable=True)
        shown[0] = 2
        change(x)
        values = x.tolist()
        shown[:] = 100
        assert x.tolist() == values
        again = x.numpy(writable=True)
        again[3] = -1
        assert x.tolist() == [*values[:3], -1] and shown.tolist() == [100] * 4


def test_lifetimes():
    x = X()
    shown = x[1:].numpy(writable=True)
    del x
    gc.collect()
    for _ in range(3):
        Tensor.zeros(4).realize()
    shown[0] = 5
    assert shown.tolist() == [5, 3, 4]
    del shown
    gc.collect()
    before = koine.memory_in_use()
    kept = X().realize()
    for _ in range(2000):
        kept.numpy(writable=True)[0] += 1
        X().numpy(writable=True)
    gc.collect()
    assert kept.tolist()[0] == 2001 and koine.memory_in_use() <= before + 4096


def test_no_copy_is_made_where_nobody_else_reads():
    x = X().clone().realize()
    at = x.numpy().__array_interface__["data"][0]
    assert x.numpy(writable=True).__array_interface__["data"][0] == at


def test_spec_F1_a_jit_sees_what_is_written():
    x, t = X(), X()
    lazy = t * 3
    f, g, h = jit(lambda x: x * 2), jit(lambda x: x + t), jit(lambda x: x + lazy)
    first, second = x.numpy(writable=True), t.numpy(writable=True)
    kept = h(x).tolist()
    for k in range(3):
        first[1], second[2] = k, 10 * k
        assert f(x).tolist() == [2, 2 * k, 6, 8] and g(x).tolist() == [2, k + 2, 10 * k + 3, 8]
        assert h(x).tolist() == (x + X() * 3).tolist()  # it was made of what t was before
    assert kept == [4, 8, 12, 16]

    anew = t * 3
    h = jit(lambda x: x + anew)
    for k in range(3):
        second[0] = k
        assert h(X()).tolist()[0] == 1 + 3 * k

    def add(x):
        x += 1

    step, values = jit(add), x.tolist()
    step(x)
    x.realize()
    first[:] = 100
    step(x)
    assert x.tolist() == [v + 2 for v in values]


def test_gradients_are_of_what_is_there():
    x = X()
    shown = x.numpy(writable=True)
    for k in (2.0, 5.0):
        shown[0] = k
        assert koine.grad(lambda x: (x * x).sum())(x).tolist() == [2 * k, 4, 6, 8]
    w = Tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True)
    (w * x).sum().backward()
    assert w.grad.tolist() == x.tolist()


def test_it_is_refused_where_somebody_would_be_told_nothing():
    w = Tensor([1.0, 2.0], requires_grad=True)
    y = w * 2
    for of in (w, w[:1], y, y.reshape(2, 1)):
        with pytest.raises(ValueError, match="that a gradient goes through"):
            of.numpy(writable=True)
    z = w.detach().clone()
    z.numpy(writable=True)[0] = 9
    w.assign(z)
    assert w.tolist() == [9, 2] and y.tolist() == [2, 4]
    with pytest.raises(ValueError, match="repeats elements along axis 0"):
        X().expand(3, 4).numpy(writable=True)
    with pytest.raises(ValueError, match="copy=True is an array of its own, writable=True the tensor's memory"):
        X().numpy(copy=True, writable=True)
    with pytest.raises(ValueError, match="lie in no strides"):
        X().reshape(2, 2).T.reshape(4).numpy(writable=True)
    with pytest.raises(koine.errors.DeviceError, match="CPU,CPU:1"):
        X().shard("CPU,CPU:1", 0).numpy(writable=True)
    with pytest.raises(ValueError, match="test_writable.py"):
        koine.vmap(lambda x: Tensor(x.numpy(writable=True)))(X())
    written = jit(lambda x: x * float(x.numpy(writable=True)[0]))
    assert written(X()).tolist() == [1, 2, 3, 4] and "numpy" in written.explain_recompiles()[0]
    assert Tensor.zeros(0, 3).numpy(writable=True).shape == (0, 3) and X().to("INTERP").numpy(writable=True).shape == (4,)
