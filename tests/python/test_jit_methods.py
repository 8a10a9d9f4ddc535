"""@koine.jit on methods of classes: one jit for each object; what of classes and modules may change."""
import copy
import dataclasses
import functools
import gc
import math
import pickle
import weakref

import numpy as np
import pytest

import koine
from koine import Tensor, jit, nn


class Scale:
    def __init__(self, by, offset=1.0):
        self.by, self.offset = Tensor(by), offset

    def raw(self, x):
        return x * self.by + self.offset

    @koine.jit
    def __call__(self, x):
        return self.inner(x) * 2

    @koine.jit
    def inner(self, x):
        return self.raw(x)


class Shifted(Scale):
    @koine.jit
    def inner(self, x):
        return super().inner(x) - 100


def x_of(*values):
    return Tensor(np.array(values, np.float32))


def test_each_object_has_a_program_that_reads_its_own_tensors():
    a, b, c = Scale([2., 3.]), Scale([10., 20.], offset=0.5), Shifted([1., 1.])
    for _ in range(3):
        assert a(x_of(1, 2)).tolist() == [6, 14]
        assert b(x_of(1, 2)).tolist() == [21, 81]
        assert c(x_of(1, 2)).tolist() == [-196, -194]
        assert a.inner(x_of(1, 2)).tolist() == [3, 7]
    for o in (a, b, c):
        assert type(o.inner) is koine.jit and o.inner is o.inner
        assert o.inner.explain_recompiles() == []
    assert a.inner is not b.inner and len(a.inner._programs) == 1
    assert type(Scale.inner) is koine.jit
    assert Scale.inner(a, x_of(1, 2)).tolist() == [3, 7]


def test_what_an_object_holds_may_change():
    a = Scale([2., 3.])
    assert a.inner(x_of(1, 2)).tolist() == [3, 7]
    a.by = Tensor([5., 5.])
    assert a.inner(x_of(1, 2)).tolist() == [6, 11]
    a.offset = 7.0
    assert a.inner(x_of(1, 2)).tolist() == [12, 17]
    a.by.assign(Tensor([0., 1.]))
    assert a.inner(x_of(1, 2)).tolist() == [7, 9]
    a.raw = lambda x: x * 0
    assert a.inner(x_of(1, 2)).tolist() == [0, 0]


def test_a_method_of_the_class_may_change():
    class Own(Scale):
        pass

    a = Own([2., 3.])
    assert a.inner(x_of(1, 2)).tolist() == [3, 7]
    Own.inner = koine.jit(lambda self, x: x + self.by)
    assert a.inner(x_of(1, 2)).tolist() == [3, 5]
    Own.inner = lambda self, x: x - self.by
    assert a.inner(x_of(1, 2)).tolist() == [-1, -1]
    a.inner = lambda x: x * 100
    assert a.inner(x_of(1, 2)).tolist() == [100, 200]


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda a: pickle.loads(pickle.dumps(a))])
def test_copies_have_jits_of_their_own(copied):
    a = Scale([2., 3.])
    assert a(x_of(1, 2)).tolist() == [6, 14]
    b = copied(a)
    b.by = Tensor([0., 0.])
    for _ in range(2):
        assert b(x_of(1, 2)).tolist() == [2, 2]
        assert a(x_of(1, 2)).tolist() == [6, 14]
    assert a.inner is not b.inner


def test_an_object_goes_when_nobody_holds_it():
    a = Scale([2., 3.])
    a(x_of(1, 2))
    gone = weakref.ref(a)
    del a
    gc.collect()
    assert gone() is None


class Trainer:
    def __init__(self):
        koine.manual_seed(3)
        self.net = nn.Linear(3, 2)
        self.optimizer = nn.Adam(nn.get_parameters(self.net), 0.1)

    def plain(self, x, y):
        loss = (self.net(x) - y).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss

    step = koine.jit(plain)


def test_a_step_of_training_is_a_method():
    jitted, written = Trainer(), Trainer()
    rng = np.random.default_rng(5)
    for _ in range(8):
        x, y = Tensor(rng.normal(size=(4, 3)).astype("f")), Tensor(rng.normal(size=(4, 2)).astype("f"))
        np.testing.assert_allclose(jitted.step(x, y).item(), written.plain(x, y).item(), rtol=1e-6)
    assert all("as it is written" not in why for why in jitted.step.explain_recompiles())
    np.testing.assert_allclose(jitted.net.weight.numpy(), written.net.weight.numpy(), rtol=1e-6)


def test_names_of_a_state_are_those_without_jit():
    t, plain = Trainer(), Trainer()
    t.step(koine.ones(4, 3), koine.ones(4, 2))
    names = list(nn.get_state_dict(plain))
    assert list(nn.get_state_dict(t)) == names and names[:2] == ["net.weight", "net.bias"]

    class Model:
        def __init__(self):
            self.forward = koine.jit(self.run)
            self.layers = [nn.Linear(2, 2)]
            self.head = koine.jit(nn.Linear(2, 1))

        def run(self, x):
            return self.head(self.layers[0](x))

    m = Model()
    m.forward(koine.ones(1, 2))
    m.head(koine.ones(1, 2))
    assert list(nn.get_state_dict(m)) == ["layers.0.weight", "layers.0.bias", "head.weight", "head.bias"]
    assert len(nn.get_parameters(m)) == 4


def test_dynamic_axes_of_a_method():
    class Rows:
        def __init__(self):
            self.scale = Tensor(3.0)

        @koine.jit(dynamic={"x": {0: koine.Variable("n", 1, 64)}})
        def centred(self, x):
            return (x - x.mean(0)) * self.scale

    r = Rows()
    for n in (5, 64, 33):
        x = np.random.default_rng(n).normal(size=(n, 2)).astype("f")
        np.testing.assert_allclose(r.centred(Tensor(x)).numpy(), (x - x.mean(0)) * 3, rtol=1e-4, atol=1e-5)
    assert len(r.centred._programs) == 1
    assert r.centred.explain_recompiles() == []


def test_trees_share_the_programs_of_their_class():
    @dataclasses.dataclass
    class State:
        w: Tensor

        @koine.jit
        def next(self, x):
            return State(self.w + x)

    s = State(Tensor([0., 0.]))
    for _ in range(5):
        s = s.next(x_of(1, 2))
    assert s.w.tolist() == [5, 10]
    assert len(State.next._programs) == 1


def test_objects_without_a_dict_run_as_written():
    class Slots:
        __slots__ = ("by",)

        @koine.jit
        def run(self, x):
            return x * self.by

    s = Slots()
    s.by = Tensor([2., 3.])
    assert s.run(x_of(1, 2)).tolist() == [2, 6]
    s.by = Tensor([0., 1.])
    assert s.run(x_of(1, 2)).tolist() == [0, 2]


def test_methods_under_transforms_and_of_parts():
    class Outer:
        def __init__(self):
            self.part = Scale([2., 3.])

        @koine.jit
        def loss(self, x):
            return self.part(x).square().sum()

    o = Outer()
    g = koine.grad(o.loss)
    assert g(x_of(1, 2)).tolist() == [48, 168]
    assert o.loss(x_of(1, 2)).item() == 232
    assert o.part(x_of(1, 2)).tolist() == [6, 14]
    for _ in range(2):
        assert o.loss(x_of(1, 2)).item() == 232
    assert koine.vmap(o.part.inner)(Tensor([[1., 2.], [3., 4.]])).tolist() == [[3, 7], [7, 13]]
    o.part = Scale([0., 0.])
    assert o.loss(x_of(1, 2)).item() == 8


class Holder:
    def __init__(self):
        self.layer = nn.Linear(2, 2)
        self.fast = koine.jit(self.layer)


@koine.jit
def doubled(x):
    return x * 2


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_jit_in_an_attribute_is_copied_with_what_it_calls(copied):
    model, x = Holder(), Tensor([[1.0, 2.0]])
    before = model.fast(x).numpy()
    other = copied(model)
    assert other.fast is not model.fast and (other.fast(x).numpy() == before).all()
    other.layer.weight.assign(other.layer.weight * 0)  # the layer of the copy
    assert (other.fast(x).numpy() == other.layer(x).numpy()).all() and (model.fast(x).numpy() == before).all()


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda f: pickle.loads(pickle.dumps(f))])
def test_a_jit_with_a_name_is_copied_as_functions_are(copied):
    assert copied(doubled) is doubled


def test_spec_F1_what_others_put_into_modules_is_seen(monkeypatch):
    """Functions of modules whose own ones are followed by what they are known to do."""
    offset = [1.0]
    a = Tensor([1.0, 2.0])
    by_module, by_package = jit(lambda a: a * math.floor(2.5)), jit(lambda a: koine.where(a > 1, a, 0.0))
    for f, before in ((by_module, [2, 4]), (by_package, [0, 2])):
        assert f(a).tolist() == before
    monkeypatch.setattr(math, "floor", lambda v: v + offset[0])
    monkeypatch.setattr(koine, "where", lambda condition, b, c: b * offset[0])
    assert by_module(a).tolist() == [3.5, 7] and by_package(a).tolist() == [1, 2]
    offset[0] = 2.0
    assert by_module(a).tolist() == [4.5, 9] and by_package(a).tolist() == [2, 4]
    monkeypatch.undo()
    for f, before in ((by_module, [2, 4]), (by_package, [0, 2])):
        assert f(a).tolist() == before
        assert not any("as it is written" in r for r in f.explain_recompiles())


def test_spec_F1_bases_of_a_class_and_parts_of_a_partial_may_change():
    class One:
        def go(self, a):
            return a + 1

    class Two:
        def go(self, a):
            return a + 2

    class Derived(One):
        pass

    scaled = functools.partial(lambda a, by: a * by, by=2.0)
    a, of_class, of_partial = Tensor([1.0, 2.0]), jit(lambda a: Derived().go(a)), jit(lambda a: scaled(a))
    assert of_class(a).tolist() == [2, 3] and of_partial(a).tolist() == [2, 4]
    Derived.__bases__ = (Two,)
    scaled.__setstate__((scaled.func, (), {"by": 5.0}, {}))
    assert of_class(a).tolist() == [3, 4] and of_partial(a).tolist() == [5, 10]
