"""Functions of Python in graphs: what NumPy computes, wherever a graph may be run, looked at and transformed."""
import gc
import re
import threading
import weakref

import numpy as np
import pytest

import koine
from koine import ShapeDtype, Tensor, pure_callback


def double(a):
    return a * 2


def test_the_value_is_numpys_however_it_is_looked_at(rng):
    a = rng.standard_normal((3, 4)).astype(np.float32)
    x = Tensor(a)
    want = np.sort(a * 2, -1)
    for look in (lambda t: t.numpy(), lambda t: np.array(t.tolist(), np.float32), lambda t: np.stack([r.numpy() for r in t]),
                 lambda t: np.asarray(memoryview(t)), lambda t: t.clone().realize().numpy(), lambda t: np.from_dlpack(t),
                 lambda t: koine.jit(lambda v: v + 0)(t).numpy(), lambda t: Tensor.zeros(3, 4).contiguous().realize().assign(t).numpy()):
        assert (look(pure_callback(lambda v: np.sort(v, -1), x, x * 2)) == want).all()


@pytest.mark.parametrize("dtype", koine.DType)
def test_every_dtype_and_empty_arrays_go_through(dtype):
    seen = []

    def same(a):
        seen.append((a.shape, a.dtype))
        return a

    for shape in ((2, 3), (), (0, 3)):
        x = Tensor.ones(*shape).cast(dtype)
        y = pure_callback(same, ShapeDtype(shape, dtype), x)
        assert y.dtype == dtype and y.shape == shape and (y.numpy() == x.numpy()).all()
        assert seen.pop() == (shape, np.dtype(dtype.numpy))


def test_trees_and_keywords():
    x, y = Tensor([3.0, 1.0]), Tensor([4, 5])
    out = pure_callback(lambda t, k: {"sum": t["a"] + k, "pair": (t["a"] - k, t["b"])}, {"pair": (x, y), "sum": x}, {"b": y, "a": x}, k=x * 2)
    assert out["sum"].tolist() == [9.0, 3.0] and out["pair"][0].tolist() == [-3.0, -1.0] and out["pair"][1].tolist() == [4, 5]


def test_it_is_called_when_somebody_looks_and_once():
    calls = []

    def counted(a):
        calls.append(a)
        a += 1  # an array of its own
        return a

    x = Tensor([1.0, 2.0]).realize()
    y = pure_callback(counted, x, x)
    assert not calls
    assert (y + y * 2).tolist() == [6.0, 9.0] and len(calls) == 1
    assert y.tolist() == [2.0, 3.0] and y.tolist() == [2.0, 3.0] and len(calls) == 2
    assert pure_callback(counted, x, x).tolist() == [2.0, 3.0] and x.tolist() == [1.0, 2.0]
    calls[0][0] = 9.0  # kept beyond the call, and no memory of ours
    assert y.tolist() == [2.0, 3.0]


def test_in_a_jitted_function_it_is_called_in_each_run():
    f = koine.jit(lambda v: pure_callback(double, v, v * 3) + v)
    for k in range(5):
        assert f(Tensor([1.0, 2.0]) + k).tolist() == [(1 + k) * 7.0, (2 + k) * 7.0]


def test_in_loops_and_branches():
    x = Tensor([3.0, 1.0])
    assert koine.fori_loop(0, 3, lambda i, c: pure_callback(double, c, c), x).tolist() == [24.0, 8.0]
    last, each = koine.scan(lambda c, v: (pure_callback(double, c, c) + v, c), Tensor(1.0), Tensor([1.0, 2.0, 3.0]))
    assert last.item() == 19.0 and each.tolist() == [1.0, 3.0, 8.0]
    for flag in (True, False):
        assert koine.cond(Tensor(flag), lambda v: pure_callback(double, v, v), lambda v: v, x).tolist() == ([6.0, 2.0] if flag else [3.0, 1.0])


def test_symbolic_sizes_are_those_of_the_run():
    n, x = koine.Variable("n", 1, 8), Tensor.arange(8).float().realize()
    for k in (5, 3, 7):
        koine.reset_counters()
        part = x[:n.bind(k)]
        assert pure_callback(double, part, part).sum().item() == sum(range(k)) * 2
    assert koine.counters()["compiled"] == 0


def test_derivatives_are_what_custom_rules_say(rng):
    @koine.custom_vjp
    def sinh(v):
        return pure_callback(np.sinh, v, v)

    sinh.defvjp(lambda v: (sinh(v), v), lambda v, g: (g * pure_callback(np.cosh, v, v),))
    a = rng.standard_normal(5).astype(np.float32)
    np.testing.assert_allclose(koine.grad(lambda v: (sinh(v) * 2).sum())(Tensor(a)).numpy(), 2 * np.cosh(a), 1e-6)
    for transform in (lambda f: koine.grad(f)(Tensor(2.0)), lambda f: koine.jvp(f, (Tensor(2.0),), (Tensor(1.0),))):
        with pytest.raises(ValueError, match="pure_callback: 'double' has no derivative: say it with koine.custom_vjp"):
            transform(lambda v: pure_callback(double, v, v))


@pytest.mark.parametrize("method, calls", [("sequential", 4), ("expand_dims", 1), ("broadcast_all", 1)])
def test_vmap(method, calls, rng):
    seen = []

    def weighted(a, w):
        seen.append((a.shape, w.shape))
        return np.sort(a, -1) * w

    a, w = rng.standard_normal((4, 3)).astype(np.float32), rng.standard_normal(3).astype(np.float32)
    one = lambda v, u: pure_callback(weighted, v, v, u, vmap_method=method)  # noqa: E731
    assert (koine.vmap(one, in_axes=(0, None))(Tensor(a), Tensor(w)).numpy() == np.sort(a, -1) * w).all()
    assert len(seen) == calls
    assert seen[0] == {"sequential": ((3,), (3,)), "expand_dims": ((4, 3), (1, 3)), "broadcast_all": ((4, 3), (4, 3))}[method]
    twice = koine.vmap(koine.vmap(one, in_axes=(0, None)), in_axes=(0, None))(Tensor(np.stack([a, -a])), Tensor(w))
    assert (twice.numpy() == np.sort(np.stack([a, -a]), -1) * w).all()


def test_many_threads():
    failed = []

    def work(n):
        x = Tensor([float(n), 1.0]).realize()
        for k in range(30):
            if pure_callback(double, x, x + k).tolist() != [(n + k) * 2.0, (1 + k) * 2.0]:
                failed.append((n, k))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failed


def test_it_may_compute_tensors():
    x = Tensor([1.0, 2.0])
    assert pure_callback(lambda a: (Tensor(a) * 3).numpy(), x, x + 1).tolist() == [6.0, 9.0]


def test_what_it_raises_is_an_error_and_all_stays_usable():
    def look_up(key):
        raise KeyError(key)

    def fails(a):
        look_up("no such row")

    x = Tensor([1.0, 2.0]).realize()
    y = pure_callback(fails, x, x)
    held = Tensor([5.0, 6.0]).realize()
    for look in (y.tolist, (y + 1).numpy, lambda: held.assign(held + y).realize()):
        with pytest.raises(ValueError, match="function 'fails' failed: KeyError: 'no such row', raised at (.*):(.*)$") as raised:
            look()
        file, line = re.search(r"raised at (\S+):(\d+)$", str(raised.value)).groups()
        assert file == __file__ and int(line) == fails.__code__.co_firstlineno + 1
    assert (x * 2).tolist() == [2.0, 4.0]


@pytest.mark.parametrize("f, message", [
    (lambda a: a[:1], r"result 0 is float32 \(1,\), and float32 \(2,\) was said"),
    (lambda a: a.astype(np.float64), r"result 0 is float64 \(2,\), and float32 \(2,\) was said"),
    (lambda a: (a, a), r"it gives \(\*, \*\), and \* was said"),
    (lambda a: None, "it gives None"),
    (lambda a: "text", "result 0 is <U4"),
])
def test_results_that_differ_from_what_was_said(f, message):
    x = Tensor([1.0, 2.0])
    with pytest.raises(ValueError, match=message):
        pure_callback(f, x, x).tolist()


class Times:
    """Equal to others, and without a hash."""

    __hash__ = None

    def __init__(self, factor):
        self.factor = factor

    def __eq__(self, other):
        return isinstance(other, Times)

    def __call__(self, a):
        return a * np.float32(self.factor)


def test_a_function_is_known_by_its_identity():
    x, two, three = Tensor([1.0, 2.0]), Times(2), Times(3)
    for _ in range(2):
        assert pure_callback(two, x, x).tolist() == [2.0, 4.0] and pure_callback(three, x, x).tolist() == [3.0, 6.0]


def test_dicts_are_given_in_their_order():
    x, y = Tensor([1.0, 2.0]), Tensor([10.0, 20.0])
    for _ in range(2):
        first = pure_callback(lambda d: next(iter(d.values())), x, {"b": x, "a": y})
        assert first.tolist() == [1.0, 2.0] and pure_callback(lambda d: next(iter(d.values())), x, {"a": y, "b": x}).tolist() == [10.0, 20.0]

    def back(d):
        return {"q": d["a"], "p": d["b"]}

    out = pure_callback(back, {"p": x, "q": x}, {"a": x, "b": y})
    assert out["q"].tolist() == [1.0, 2.0] and list(out) == ["p", "q"]


@pytest.mark.parametrize("call, kind, message", [
    (lambda x: pure_callback(3, x, x), TypeError, "takes a function, not a 'int'"),
    (lambda x: pure_callback(double, (2,), x), TypeError, "holds a 'int' without a shape and a dtype; koine.ShapeDtype"),
    (lambda x: pure_callback(double, ShapeDtype(None, "float32"), x), TypeError, "ShapeDtype: a shape is a whole number, or several, not None"),
    (lambda x: pure_callback(double, ShapeDtype((2,), "float31"), x), TypeError, "'float31' is no dtype"),
    (lambda x: pure_callback(double, ShapeDtype((-2,), "float32"), x), ValueError, r"the shape \(-2,\)"),
    (lambda x: pure_callback(double, x, "text"), TypeError, "pure_callback: takes tensors"),
    (lambda x: pure_callback(double, x, x, vmap_method="all"), ValueError, "vmap_method 'all' is none of"),
    (lambda x: koine.vmap(lambda v: pure_callback(double, v, v))(x), ValueError, "'double' under vmap: say vmap_method='sequential'"),
    (lambda x: pure_callback(double, x, x.shard("CPU,CPU:1", 0)), koine.errors.DeviceError, r"runs on one device.*to\(\)"),
    (lambda x: koine.save_program({"y": pure_callback(double, x, x)}, {"x": x}, "p.koine"), ValueError, "save_program: 'y' needs the function 'double' of Python, which no file holds"),
])
def test_misuse_is_refused(call, kind, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(kind, match=message):
        call(Tensor([1.0, 2.0]).realize())


def a_rule_by_vjp():
    f = koine.custom_vjp(lambda x: x * 2)
    f.defvjp(lambda x: (f(x), x), lambda saved, g: (g * saved,))  # noqa: B023
    return f, koine.grad(lambda x: f(x).sum())(Tensor([1.0, 2.0]))


def a_rule_by_jvp():
    f = koine.custom_jvp(lambda x: x * 2)
    f.defjvp(lambda p, t: (f(p[0]), t[0] * p[0]))
    return f, koine.vmap(koine.grad(lambda x: f(x)))(Tensor([1.0, 2.0]))


def a_callback():
    f = lambda a: a * 1  # noqa: E731
    return f, koine.pure_callback(f, koine.ShapeDtype((2,), "float32"), Tensor([1.0, 2.0]))


def a_kernel():
    def f(out, x):
        i = koine.UOp.range(out.shape[0], 0)
        return out[i].store(x[i]).end(i)

    return f, koine.custom_kernel(f, koine.ShapeDtype((2,), "float32"), Tensor([1.0, 2.0]))


@pytest.mark.parametrize("make", [a_rule_by_vjp, a_rule_by_jvp, a_callback, a_kernel])
def test_functions_that_nobody_has_any_more_are_let_go(make):
    made = []
    for _ in range(600 if make is not a_kernel else 300):
        f, value = make()
        assert value.tolist() == [1, 2]
        made.append(weakref.ref(f))
    del f, value
    for kind in (a_callback, a_rule_by_vjp):  # so that of these none is among those used last
        for _ in range(256):
            kind()
    koine.clear_compile_cache()
    gc.collect()
    (Tensor([1.0]) + 1).realize()  # lets go what was given up without the lock of the interpreter
    gc.collect()
    assert sum(f() is not None for f in made) <= 4


def test_values_keep_the_functions_they_are_of(rng):
    a = rng.standard_normal(3)
    x = Tensor(a)
    leaf = Tensor(a).requires_grad()
    slope = koine.custom_vjp(lambda x: x * 2)
    slope.defvjp(lambda x: (x * 2, None), lambda _, g: (g * 7,))
    later, lazily = slope(leaf).sum(), koine.pure_callback(lambda v: v * 3, x, x)
    scaled = Tensor(np.float64(5))
    compiled = koine.jit(lambda v: koine.pure_callback(triple, koine.ShapeDtype((3,), "float64"), v) * scaled)
    first = compiled(x).tolist()
    pullback = koine.vjp(slope, x)[1]
    mapped = koine.vmap(slope)(leaf).sum()
    for _ in range(300):
        a_rule_by_vjp()
        a_callback()
    koine.clear_compile_cache()
    gc.collect()
    assert np.allclose(lazily.numpy(), 3 * a) and np.allclose(compiled(x).numpy(), 15 * a) and compiled(x).tolist() == first
    assert compiled.explain_recompiles() == []
    later.backward()
    assert leaf.grad.tolist() == [7, 7, 7]
    mapped.backward()
    assert leaf.grad.tolist() == [14, 14, 14]
    assert pullback(Tensor(np.ones(3)))[0].tolist() == [7, 7, 7]
    assert koine.grad(lambda x: slope(x).sum())(x).tolist() == [7, 7, 7]


def triple(v):
    return v * 3
