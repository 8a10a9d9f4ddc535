"""Memory that a tensor borrows from NumPy, which is written between the calls: koine.jit answers as the function as it is written does.

What has been computed stays as it is (test_borrowed.py). What has not been reads what there is, and a jit is no third case: what it computes
of borrowed memory is computed in each call.
"""
import numpy as np
import pytest

import koine
from koine import Tensor, jit, nn


def X():
    return Tensor([1.0, 2.0, 3.0, 4.0])


def beside(make):
    """A function that reads a tensor around it, which is made of the array."""
    def program(a, wrap):
        h = make(a)
        return wrap(lambda x: x[:h.shape[-1]] + h), lambda: (X(),)
    return program


def given(make):
    """The same as an argument."""
    def program(a, wrap):
        h = make(a)
        return wrap(lambda h: h * 2), lambda: (h,)
    return program


LAZY = {
    "itself": lambda a: Tensor(a),
    "realized": lambda a: Tensor(a).realize(),
    "a product": lambda a: Tensor(a) * 2,
    "a sum": lambda a: Tensor(a).sum(keepdim=True),
    "a slice": lambda a: Tensor(a)[1:],
    "backwards": lambda a: Tensor(a).flip(0),
    "every other": lambda a: Tensor(a)[::2],
    "spread out": lambda a: Tensor(a).reshape(4, 1).expand(4, 4),
    "padded": lambda a: Tensor(a)[:2].pad(((1, 1),)),
    "another dtype": lambda a: Tensor(a).cast("int32"),
    "detached": lambda a: (Tensor(a) + 1).detach(),
    "to be copied": lambda a: Tensor(a).clone(),
    "contiguous": lambda a: (Tensor(a) * 1).contiguous(),
    "two of it": lambda a: Tensor(a) * 2 + Tensor(a).exp(),
    "by way of another device": lambda a: Tensor(a).to("CPU:1").to("CPU"),
    "by DLPack": lambda a: koine.from_dlpack(a) + 1,
    "a memoryview": lambda a: Tensor(memoryview(a)) + 1,
    "looked at": lambda a: (lambda h: h.tolist() and h)(Tensor(a) * 2),  # has its values for good
    "a copy": lambda a: Tensor(a, copy=True) * 2,
}


def assigned(a, wrap):
    layer = nn.Linear(4, 4)
    layer.weight.assign(Tensor.ones(4, 4))
    layer.bias.assign(Tensor(a))  # computed with the first look at what reads it
    return wrap(lambda x: layer(x)), lambda: (X(),)


def of_what_was_assigned(a, wrap):
    t = X()
    t.assign(Tensor(a) * 2)
    h = t + Tensor(a)
    return wrap(lambda x: x + h), lambda: (X(),)


def written_to(a, wrap):
    t, other = Tensor(a), Tensor(a)

    def f(x):
        t[0] = x[1]
        return t + other
    return wrap(f), lambda: (X(),)


def added_to(a, wrap):
    t = Tensor(a)

    def f(x):
        x += 1
        return x * 1
    return wrap(f), lambda: (t,)


def in_a_list(a, wrap):
    held = [Tensor(a) * 2, {"k": Tensor(a)}]
    return wrap(lambda x: x + held[0] + held[1]["k"]), lambda: (X(),)


def gradient(a, wrap):
    t = Tensor(a) * 2
    return wrap(koine.grad(lambda x: (x * x * t).sum())), lambda: (X(),)


def mapped(a, wrap):
    t = Tensor(a) * 2
    return wrap(koine.vmap(lambda x: x + t)), lambda: (X(),)


def nested(a, wrap):
    t = Tensor(a) * 2
    inner = wrap(lambda x: x + t)
    return wrap(lambda x: inner(x) * t), lambda: (X(),)


def places(a, wrap):
    t = (Tensor(a) % 4).cast("int32")
    return wrap(lambda x: x[t]), lambda: (X(),)


def given_back(a, wrap):
    t, kept = Tensor(a) + 1, []
    f = wrap(lambda x: (x, x[1:]))

    def keeps(x):
        kept.append(f(x))
        return list(kept[-1])
    return keeps, lambda: (t,)


def made_inside(a, wrap):
    return wrap(lambda x: x + Tensor(a) + a), lambda: (X(),)


def an_array(a, wrap):
    return wrap(lambda n: Tensor(n) * 2), lambda: (a,)


PROGRAMS = {f"{name} {how.__name__}": how(make) for name, make in LAZY.items() for how in (beside, given)}
PROGRAMS |= {f.__name__: f for f in (assigned, of_what_was_assigned, written_to, added_to, in_a_list, gradient, mapped, nested, places, given_back,
                                     made_inside, an_array)}


def answers(program, wrap):
    a = np.arange(4, dtype=np.float32)
    f, args = program(a, wrap)
    out, held = [], []
    for k in range(4):
        held.append(koine.tree.leaves(f(*args())))
        out.append([t.tolist() for t in held[-1]])
        a += 10 * (k + 1)
    return out


@pytest.mark.parametrize("name", PROGRAMS)
def test_spec_F1_what_numpy_writes_is_seen_as_without_jit(name):
    assert answers(PROGRAMS[name], jit) == answers(PROGRAMS[name], lambda f: f)


@pytest.mark.parametrize("make", [Tensor, lambda a: Tensor(a) + 0.5], ids=["itself", "lazy"])
def test_each_result_of_a_jit_stays_what_it_was_computed_to(make):
    """A loader that fills one array again and again: the results of before are kept, and nobody has looked at them."""
    a = np.zeros(3, np.float32)
    t = make(a)
    f, kept, wanted = jit(lambda x: (x * 2, (x + 1).sum())), [], []
    for k in range(4):
        a[:] = k
        kept.append(f(t))
        wanted.append([(t * 2).tolist(), (t + 1).sum().item()])
    assert [[first.tolist(), second.item()] for first, second in kept] == wanted


def test_gradients_go_through_results_over_borrowed_memory():
    w, t = Tensor([3.0, 4.0], requires_grad=True), Tensor(np.array([1.0, 2.0], np.float32))
    y = jit(lambda x: (x * x * w).sum())(t)
    assert y.gradient(t)[0].tolist() == [6, 16]
    y.backward()
    assert w.grad.tolist() == [1, 4]


def test_gradients_know_what_was_computed_of_borrowed_memory():
    """What leads to a leaf stays as it was looked at, and its gradient with it."""
    a = np.array([1.0, 2.0], np.float32)
    w = Tensor([3.0, 4.0], requires_grad=True)
    y = w * Tensor(a)
    assert y.tolist() == [3, 8]
    koine.reset_counters()
    assert y.tolist() == [3, 8] and koine.counters()["kernels"] == 0
    y.sum().backward()
    assert w.grad.tolist() == [1, 2]


def test_a_jit_says_what_it_computes_in_each_call():
    a = np.arange(4, dtype=np.float32)
    lazy, held = Tensor(a) / 2, (Tensor(a) / 2).realize()
    f = jit(lambda x: x + lazy)
    f(X())
    assert len(f.explain_recompiles()) == 1 and "of shape (4,) is computed in each call, since it borrows memory" in f.explain_recompiles()[0]
    assert "realize() it once" in f.explain_recompiles()[0]
    g = jit(lambda x, y: x + y)
    g(X(), held)
    g(held, Tensor(a))
    assert g.explain_recompiles() == []
    koine.reset_counters()
    g(X(), held).realize()
    assert koine.counters()["kernels"] == 1
