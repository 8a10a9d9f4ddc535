"""Memory that others write, without jit: a tensor that borrows an array, or whose own memory somebody has to write to (numpy(writable=True)).

An expression means what there is when it is looked at, as in NumPy; what was computed stays what it was; a view is no computed value. So an
expression that equals an earlier one is another value once the array was written, however the earlier one is held.
"""
import numpy as np
import pytest

import koine
from koine import Tensor, jit


def borrows(a):
    return Tensor(a), a


def by_dlpack(a):
    return koine.from_dlpack(a), a


def a_memoryview(a):
    return Tensor(memoryview(a)), a


def its_own(a):
    t = Tensor(a, copy=True)
    return t, t.numpy(writable=True)


def its_own_seen_before(a):
    t = Tensor(a, copy=True)
    (t + 1).tolist()
    return t, t.numpy(writable=True)


def part_of_it(a):
    t = Tensor(np.concatenate([a, a]))
    t, shown = t[4:], t.numpy(writable=True)[4:]
    return t, shown


SOURCES = [borrows, by_dlpack, a_memoryview, its_own, its_own_seen_before, part_of_it]

# What is made of a tensor, and what NumPy makes of the array.
EXPRESSIONS = {
    "a sum": (lambda t: t + 1, lambda a: a + 1),
    "a chain": (lambda t: (t + 1) * 2, lambda a: (a + 1) * 2),
    "a longer chain": (lambda t: ((t + 1) * 2 - t).exp2(), lambda a: np.exp2((a + 1) * 2 - a)),
    "a reduce": (lambda t: t.sum(), lambda a: a.sum()),
    "of a view": (lambda t: t[1:] * 3, lambda a: a[1:] * 3),
    "of two views": (lambda t: t[1:] + t.flip(0)[:3], lambda a: a[1:] + a[::-1][:3]),
    "spread and summed": (lambda t: t.reshape(4, 1).expand(4, 4).sum(0), lambda a: np.full(4, a.sum(), a.dtype)),
    "a copy": (lambda t: t.clone(), lambda a: a.copy()),
    "contiguous": (lambda t: (t * 1).contiguous(), lambda a: a * 1),
    "another dtype": (lambda t: t.cast("int32"), lambda a: a.astype(np.int32)),
    "its bits": (lambda t: t.bitcast("int32"), lambda a: a.copy().view(np.int32)),
    "detached": (lambda t: (t * 2).detach(), lambda a: a * 2),
    "a matrix product": (lambda t: t.reshape(2, 2) @ t.reshape(2, 2), lambda a: a.reshape(2, 2) @ a.reshape(2, 2)),
    "a running sum": (lambda t: t.cumsum(), lambda a: a.cumsum()),
    "padded": (lambda t: t.pad(((1, 1),)), lambda a: np.pad(a, 1)),
    "of what was padded": (lambda t: t.pad(((1, 1),))[1:], lambda a: np.pad(a, 1)[1:]),
    "sorted": (lambda t: t.sort()[0], lambda a: np.sort(a)),
    "picked": (lambda t: t[Tensor([3, 0])], lambda a: a[[3, 0]]),
    "by way of another device": (lambda t: (t.to("CPU:1") * 2).to("CPU"), lambda a: a * 2),
    "by a function": (lambda t: koine.vmap(lambda x: x * x)(t), lambda a: a * a),
    "a derivative": (koine.grad(lambda t: (t * t * t).sum()), lambda a: 3 * a * a),
    "NumPy's function": (lambda t: np.negative(t), lambda a: -a),
}

LOOKS = {
    "realize": lambda y: y.realize(),
    "tolist": lambda y: y.tolist(),
    "numpy": lambda y: y.numpy(),
    "repr": repr,
    "with others": lambda y: koine.realize(y, y + 1),
    "as an operand": lambda y: (y.sum() * 2).item(),  # which does not compute y by itself: it is looked at behind
}


def beginning():
    return np.array([1.0, 2.0, 3.0, 4.0], np.float32)


@pytest.mark.parametrize("source", SOURCES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("name", EXPRESSIONS)
def test_what_was_computed_stays_and_an_equal_expression_is_new(name, source):
    ours, numpys = EXPRESSIONS[name]
    t, a = source(beginning())
    held = []
    for k in range(4):
        held.append((ours(t), numpys(a)))
        held[-1][0].numpy()
        np.testing.assert_array_equal(ours(t).numpy(), numpys(a))
        a += 10 * (k + 1)
    for y, values in held:
        np.testing.assert_array_equal(y.numpy(), values)


@pytest.mark.parametrize("look", LOOKS)
def test_whoever_looked(look):
    t, a = borrows(beginning())
    y = t + 1
    LOOKS[look](y)
    y.realize()
    a[:] = 5
    z = t + 1
    assert z.tolist() == [6] * 4 and (t + 1).tolist() == [6] * 4 and y.tolist() == [2, 3, 4, 5]
    a[:] = 7
    assert (t + 1).tolist() == [8] * 4 and z.tolist() == [6] * 4 and y.tolist() == [2, 3, 4, 5]


def test_nobody_holds_the_earlier_one():
    t, a = borrows(beginning())
    for k in range(3):
        a[:] = k
        assert (t + 1).tolist() == [k + 1] * 4


def test_what_was_not_computed_reads_what_there_is():
    t, a = borrows(beginning())
    y = t + 1
    a[:] = 5
    assert y.tolist() == [6] * 4
    a[:] = 7
    assert y.tolist() == [6] * 4


def test_what_is_made_of_a_computed_value_is_made_of_its_values():
    """Also where it was made before that was computed, or is looked at after the array was written."""
    t, a = borrows(beginning())
    y = t + 1
    before = y * 2
    y.tolist()
    after = y * 2
    a[:] = 5
    assert before.tolist() == after.tolist() == (y * 2).tolist() == [4, 6, 8, 10]
    assert ((t + 1) * 2).tolist() == [12] * 4


def test_a_part_that_was_computed_with_the_whole_is_no_part_of_a_new_one():
    t, a = borrows(beginning())
    part = t + 1
    whole = part * 2
    koine.realize(part, whole)
    a[:] = 5
    assert ((t + 1) * 2).tolist() == [12] * 4 and (t + 1).tolist() == [6] * 4
    assert part.tolist() == [2, 3, 4, 5] and whole.tolist() == [4, 6, 8, 10]


def test_two_tensors_of_one_array_are_as_one():
    a = beginning()
    y = Tensor(a) + 1
    y.tolist()
    first, second = Tensor(a), Tensor(a)
    a[:] = 5
    assert (first + second).tolist() == [10] * 4 and (second + 1).tolist() == [6] * 4 and y.tolist() == [2, 3, 4, 5]


VIEWS = {
    "a slice": (lambda t: t[1:], lambda a: a[1:]),
    "with a step": (lambda t: t[::2], lambda a: a[::2]),
    "an element": (lambda t: t[2], lambda a: a[2]),
    "reshaped": (lambda t: t.reshape(2, 2)[0], lambda a: a.reshape(2, 2)[0]),
    "transposed": (lambda t: t.reshape(2, 2).T, lambda a: a.reshape(2, 2).T),
    "without strides": (lambda t: t.reshape(2, 2).T.reshape(4), lambda a: a.reshape(2, 2).T.reshape(4)),
    "backwards": (lambda t: t.flip(0), lambda a: a[::-1]),
    "spread out": (lambda t: t.expand(3, 4), lambda a: np.broadcast_to(a, (3, 4))),
    "a view of a view": (lambda t: t[1:][1:], lambda a: a[1:][1:]),
}


@pytest.mark.parametrize("source", SOURCES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("name", VIEWS)
def test_a_view_shows_the_memory_whoever_has_looked(name, source):
    ours, numpys = VIEWS[name]
    t, a = source(beginning())
    view, looked, realized = ours(t), ours(t), ours(t).realize()
    computed = view * 2
    looked.tolist(), computed.tolist()
    was = numpys(a) * 2
    for k in range(3):
        a += 10 * (k + 1)
        for v in (view, looked, realized, ours(t)):
            np.testing.assert_array_equal(v.tolist(), numpys(a))
        np.testing.assert_array_equal((looked * 2).numpy(), numpys(a) * 2)
        np.testing.assert_array_equal(computed.numpy(), was)


def leaf():
    return Tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True)


def test_of_what_leads_to_a_leaf_too():
    """It stays a graph when it is looked at, which an equal expression does not take for its own."""
    w, (t, a) = leaf(), borrows(beginning())
    y, loss = w * t, (w * t).sum()
    assert y.tolist() == [1, 4, 9, 16] and loss.item() == 30
    a[:] = 5
    again = w * t
    assert again.tolist() == [5, 10, 15, 20] and (w * t).sum().item() == 50 and y.tolist() == [1, 4, 9, 16] and loss.item() == 30
    again.sum().backward()
    assert w.grad.tolist() == [5] * 4


def test_gradients_to_what_was_looked_at():
    w, (t, a) = leaf(), borrows(beginning())
    h = w * t
    view = h[1:]
    loss = (view * view).sum()
    h.tolist(), view.tolist(), loss.item()
    for _ in range(2):
        assert loss.gradient(h)[0].tolist() == [0, 8, 18, 32] and loss.gradient(view)[0].tolist() == [8, 18, 32]
        a[:] = 5
    p = t + 1
    square = (p * p).sum()
    p.tolist(), square.item()
    a[:] = 7
    assert square.gradient(p)[0].tolist() == [12] * 4 and square.gradient(t)[0].tolist() == [12] * 4


def test_a_training_loop_that_fills_one_array():
    """A loader's buffer: losses and outputs of before are kept, and the weights are those of a loop over copies."""
    def train(batch_of):
        w, kept = Tensor([0.5, -0.5, 0.25, 1.0], requires_grad=True), []
        step = koine.nn.SGD([w], learning_rate=0.01)
        a = np.zeros(4, np.float32)
        shared = Tensor(a)
        for k in range(5):
            a[:] = np.arange(4) + k
            x = batch_of(shared, a)
            out = w * x
            loss = (out * out).sum()
            kept += [out, loss, x * 2]
            out.tolist(), loss.item(), kept[-1].tolist()
            step.zero_grad()
            loss.backward()
            step.step()
        return [t.tolist() for t in kept] + w.tolist()

    assert train(lambda shared, a: shared) == train(lambda shared, a: Tensor(a, copy=True))


def test_assigned_and_written():
    t, a = borrows(beginning())
    first, second = Tensor.zeros(4), Tensor.zeros(4)
    first.assign(t + 1)
    first.tolist()
    third = t + 1
    third[0] = 9.0
    third.tolist()
    a[:] = 5
    second.assign(t + 1)
    fourth = t + 1
    fourth[0] = 9.0
    assert first.tolist() == [2, 3, 4, 5] and second.tolist() == [6] * 4
    assert third.tolist() == [9, 3, 4, 5] and fourth.tolist() == [9, 6, 6, 6]
    second += t
    second.tolist()
    a[:] = 7
    second += t
    assert second.tolist() == [18] * 4


KEPT = {  # of a tensor: a value that is kept of it, which is no view
    "assigned": lambda t: Tensor.zeros(4).assign(t),
    "assigned to a leaf": lambda t: leaf().assign(t),
    "assigned by setitem": lambda t: (lambda x: x.__setitem__(slice(None), t) or x)(Tensor.zeros(4)),
    "a gradient, by backward()": lambda t: (lambda w: (w * t).sum().backward() or w.grad)(leaf()),
    "a gradient, by gradient()": lambda t: (lambda w: (w * t).sum().gradient(w)[0])(leaf()),
    "a gradient, by grad()": lambda t: koine.grad(lambda w: (w * t).sum())(leaf()),
    "a gradient that was set": lambda t: (lambda w: setattr(w, "grad", t) or w.grad)(leaf()),
    "a tangent": lambda t: koine.jvp(lambda w: w * t, (leaf(),), (Tensor.ones(4),))[1],
    "a cotangent": lambda t: koine.vjp(lambda w: w * 1, leaf())[1](t)[0],
    "mapped": lambda t: koine.vmap(lambda x: x)(t),
    "scanned": lambda t: koine.scan(lambda c, x: (c, x), Tensor(0.0), t)[1],
}


@pytest.mark.parametrize("name", KEPT)
def test_what_is_kept_of_it_is_no_view(name):
    t, a = borrows(beginning())
    kept = []
    for k in range(3):
        a[:] = k
        kept.append(KEPT[name](t))
        assert kept[-1].tolist() == [k] * 4
    assert [x.tolist() for x in kept] == [[k] * 4 for k in range(3)]


def test_weights_that_were_loaded_of_it_stay_what_they_were():
    """A leaf is given nothing to compute, so a look may show the memory itself."""
    a, w = np.ones(4, np.float32), Tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True)
    w.assign(Tensor(a))
    assert w.numpy().tolist() == [1] * 4
    a[:] = 2
    assert w.numpy().tolist() == [1] * 4
    (w * w).sum().backward()
    assert w.grad.tolist() == [2] * 4


def test_second_derivatives_through_a_gradient_that_is_borrowed_memory():
    w, (t, a) = leaf(), borrows(beginning())
    (g,) = (w * t).sum().gradient(w)
    assert (g * g).sum().gradient(t)[0].tolist() == [2, 4, 6, 8]


def test_what_a_function_is_compiled_to_reads_what_there_is():
    """Beside values of the same expressions that are held."""
    t, a = borrows(beginning())
    y = t + 1
    y.tolist()
    around, given = jit(lambda x: x * (t + 1)), jit(lambda t: t + 1)
    kept = []
    for k in range(3):
        a[:] = k
        kept.append((around(Tensor([1.0] * 4)), given(t), t + 1))
        assert [v.tolist() for v in kept[-1]] == [[k + 1] * 4] * 3
    assert y.tolist() == [2, 3, 4, 5] and [[v.tolist() for v in three] for three in kept] == [[[k + 1] * 4] * 3 for k in range(3)]


def test_gradients_that_a_jit_leaves_stay_what_they_were():
    w, (t, a) = leaf(), borrows(beginning())

    def backward(x):
        w.zero_grad()
        (w * x).sum().backward()

    step, kept = jit(backward), []
    for k in range(3):
        a[:] = k
        step(t)
        kept.append(w.grad)
        assert kept[-1].tolist() == [k] * 4
    assert [g.tolist() for g in kept] == [[k] * 4 for k in range(3)]


def test_computed_once_as_long_as_it_is_held():
    t, _ = borrows(beginning())
    y = t + 1
    y.tolist()
    koine.reset_counters()
    assert y.tolist() == [2, 3, 4, 5] and y.sum().item() == 14
    assert koine.counters()["kernels"] == 1  # of the sum


def test_many_that_are_held():
    """One array that is filled again and again, and every result kept: all of them are equal expressions."""
    t, a = borrows(beginning())
    w = leaf()
    kept = []
    for k in range(2000):
        a[:] = k
        kept.append((w * t, t * 2))
        kept[-1][0].tolist(), kept[-1][1].tolist()
    assert all(y.tolist() == [k, 2 * k, 3 * k, 4 * k] and z.tolist() == [2 * k] * 4 for k, (y, z) in enumerate(kept))
    del kept
    assert (t * 2).tolist() == [2 * 1999] * 4


def test_programs_at_random(rng):
    """Expressions that are looked at when they are made, views that are looked at whenever, and writes between."""
    names, views = list(EXPRESSIONS), list(VIEWS)
    for case in range(40):
        t, a = SOURCES[case % len(SOURCES)](beginning())
        w, held, shown = leaf(), [], []
        for _ in range(12):
            kind = rng.integers(0, 4)
            if kind == 0:
                a[rng.integers(0, 4)] = rng.integers(0, 8)
            elif kind == 1:
                name = views[rng.integers(0, len(views))]
                shown.append((VIEWS[name][0](t), VIEWS[name][1]))
            else:
                ours, numpys = EXPRESSIONS[names[rng.integers(0, len(names))]]
                y, values = (ours(t), numpys(a)) if kind == 2 else (w * t + w, (a + 1) * [1, 2, 3, 4])
                looks = [v for k, v in LOOKS.items() if k != "as an operand"]
                looks[rng.integers(0, len(looks))](y)
                held.append((y, values))
            for view, numpys in shown:
                if rng.integers(0, 2) == 0:
                    np.testing.assert_array_equal(view.tolist(), numpys(a))
            for y, values in held:
                np.testing.assert_array_equal(y.tolist(), values)
