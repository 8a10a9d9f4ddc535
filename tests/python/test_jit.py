"""koine.jit: the same answer as without it, always; and one submission where it can."""
import builtins
import collections
import dataclasses
import enum
import functools
import gc
import math
import operator
import pickle
import threading

import numpy as np
import pytest

import koine
from koine import Tensor, jit, nn

scale = 2.0
weight = Tensor([1.0, 2.0, 3.0]).realize()
settings = {"power": 2, "list": [1, 2]}


def launches(call):
    """Kernels compiled and launched by a call."""
    koine.reset_counters()
    out = call()
    return out, koine.counters()


def test_replays_compile_nothing_and_launch_the_same():
    f = jit(lambda a, b: ((a @ b).softmax() * 2).sum(0))
    x, y = koine.Tensor.rand(8, 8).realize(), koine.Tensor.rand(8, 8).realize()
    first = f(x, y).numpy()
    eager = ((x @ y).softmax() * 2).sum(0).numpy()
    np.testing.assert_allclose(first, eager, rtol=1e-6)
    out, counted = launches(lambda: f(y, x))
    assert counted["compiled"] == 0 and counted["kernels"] > 0
    np.testing.assert_allclose(out.numpy(), ((y @ x).softmax() * 2).sum(0).numpy(), rtol=1e-6)
    assert f.explain_recompiles() == []


def test_arguments_change_places():
    f = jit(lambda a, b: (a - b) * 2)
    a, b = Tensor([5.0]).realize(), Tensor([3.0]).realize()
    for _ in range(3):
        assert f(a, b).item() == 4 and f(b, a).item() == -4 and f(a, a + 0).item() == 0
    assert f(a, a).item() == 0


def test_results_are_tensors_of_their_own():
    f = jit(lambda x: x * 2)
    x = Tensor([1.0, 2.0]).realize()
    first, second = f(x), f(x)
    first += 100
    third = f(Tensor([7.0, 7.0]))
    assert first.tolist() == [102, 104] and second.tolist() == [2, 4] and third.tolist() == [14, 14]
    assert x.tolist() == [1, 2]
    shown = second.numpy()
    for k in range(3):
        f(Tensor([float(k), 0.0]))
    assert shown.tolist() == [2, 4]


def test_shapes_dtypes_and_constants_have_programs_of_their_own():
    f = jit(lambda x, p=1, name="a": (x * p).sum() if name == "a" else x.max())
    for x in [Tensor([1.0, 2.0]), Tensor([[1.0, 2.0, 3.0]]), Tensor([1, 2]), koine.zeros(0), Tensor([1.0, 2.0]).cast("float64")]:
        for p in [1, 2, 2.0, True]:
            want = (x * p).sum()
            got = f(x, p)
            assert got.dtype == want.dtype and got.tolist() == want.tolist()
    assert f(Tensor([1.0, 5.0]), name="b").item() == 5
    zero = jit(lambda x, c: x * c)
    assert math.copysign(1, zero(Tensor([1.0]), 0.0).item()) == 1 and math.copysign(1, zero(Tensor([1.0]), -0.0).item()) == -1


def test_spec_F1_trees_go_in_and_out():
    f = jit(lambda p, *, q: {"sum": p["a"] + q[0], "pair": (p["b"] * 2, None)})
    out = f({"a": Tensor([1.0]), "b": Tensor([2.0])}, q=[Tensor([3.0])])
    assert out["sum"].item() == 4 and out["pair"][0].item() == 4 and out["pair"][1] is None
    f({"a": Tensor([5.0]), "b": Tensor([2.0])}, q=[Tensor([3.0])])
    _, counted = launches(lambda: f({"a": Tensor([5.0]), "b": Tensor([2.0])}, q=[Tensor([3.0])]))
    assert counted["compiled"] == 0


def test_dicts_of_another_order_are_other_arguments():
    f = jit(lambda d: {"z": koine.stack(list(d.values())), "a": d["b"] - d["a"]})
    x, y, z = (Tensor([v]).realize() for v in (1.0, 2.0, 2.0))
    for _ in range(3):
        for given in [{"b": x, "a": y}, {"a": x, "b": y}, {"b": y, "a": x}]:
            out = f(given)
            assert list(out) == ["z", "a"]
            assert out["z"].tolist() == [v.tolist() for v in given.values()]
            assert out["a"].item() == given["b"].item() - given["a"].item()
    g = jit(lambda d: d["b"] - d["a"])

    Pair = collections.namedtuple("Pair", "first second")
    h = jit(lambda p, scale: (p.first["b"] - p.first["a"]) * scale + p.second)
    for _ in range(3):  # not by the key of bytes
        assert g({1: 0, "b": x, "a": y}).item() == -1
        assert h(Pair({"b": x, "a": y}, z), 2.0).item() == 0 and h(Pair({"a": x, "b": y}, z), 2.0).item() == 4
    assert h.explain_recompiles() == ["arguments of another kind: other shapes, dtypes, devices, constants or aliases"]


def test_lazy_views_and_borrowed_arguments():
    f = jit(lambda x: x.sum(0) + 1)
    base = Tensor([[1.0, 2.0], [3.0, 4.0]])
    for x in [base, base.T, base + 1, base[::-1], Tensor(np.ones((2, 2), "float32")), koine.ones(2, 2), base[:, :1].expand(2, 2)]:
        assert f(x).tolist() == (x.sum(0) + 1).tolist()
        assert f(x).tolist() == (x.sum(0) + 1).tolist()
    base[0, 0] = 100
    assert f(base).tolist() == [104, 7] and f(base.T).tolist() == [103, 8]


def test_gradients_go_through():
    f = jit(lambda w, x: (w * x).square().sum())
    w, x = Tensor([1.0, 2.0]).requires_grad(), Tensor([3.0, 4.0]).realize()
    for _ in range(2):
        w.zero_grad()
        loss = f(w, x)
        assert loss.item() == 73
        loss.backward()
        assert w.grad.tolist() == [18, 64]
    y = Tensor([1.0, 2.0]).realize()
    assert f(y, x).gradient(y)[0].tolist() == [18, 64]
    g = jit(koine.grad(lambda w, x: (w * x).square().sum()))
    assert g(y, x).tolist() == [18, 64] and g(x, y).tolist() == [6, 32]
    assert koine.grad(lambda w: f(w, x))(y).tolist() == [18, 64]
    assert koine.vmap(jit(lambda a: a.sum()))(Tensor([[1.0, 2.0], [3.0, 4.0]])).tolist() == [3, 7]
    assert jit(koine.vmap(lambda a: a.sum()))(Tensor([[1.0, 2.0], [3.0, 4.0]])).tolist() == [3, 7]


# --- what a function reads beside its arguments -------------------------------------------------------


def check(make, change, times=2):
    """A function, called before and after a change, with jit and without: equal answers, from equal states."""
    plain, jitted = make(), make()
    f, g = plain["f"], jit(jitted["f"])
    for _ in range(times):
        assert g(*jitted["args"]()).tolist() == f(*plain["args"]()).tolist()
    change(plain)
    change(jitted)
    for _ in range(times):
        assert g(*jitted["args"]()).tolist() == f(*plain["args"]()).tolist()
    return g


def x():
    return (Tensor([1.0, 2.0, 3.0]),)


def test_globals_of_any_kind():
    global scale, weight
    old = scale, weight
    f = jit(lambda a: a * scale + weight)
    try:
        assert f(*x()).tolist() == [3, 6, 9]
        scale = 10.0
        assert f(*x()).tolist() == [11, 22, 33]
        weight = Tensor([0.0, 0.0, 1.0])
        assert f(*x()).tolist() == [10, 20, 31]
        weight += 1
        assert f(*x()).tolist() == [11, 21, 32]
        weight[0] = 100
        assert f(*x()).tolist() == [110, 21, 32]
        weight = 5
        assert f(*x()).tolist() == [15, 25, 35]
    finally:
        scale, weight = old


def test_tensors_around_are_read_anew_without_a_recompile():
    w = Tensor([1.0, 1.0, 1.0]).realize()
    f = jit(lambda a: (a * w.exp()).sum())
    assert f(*x()).item() == pytest.approx(6 * math.e)
    w.assign([0.0, 0.0, 0.0]).realize()
    _, counted = launches(lambda: f(*x()))
    assert f(*x()).item() == 6 and counted["compiled"] == 0 and f.explain_recompiles() == []
    lit = Tensor(2.0)
    g = jit(lambda a: a * lit)
    assert g(*x()).tolist() == [2, 4, 6]
    lit.assign(3.0)
    assert g(*x()).tolist() == [3, 6, 9]
    lazy = w + 1
    h = jit(lambda a: a * lazy + w)
    assert h(*x()).tolist() == [1, 2, 3]
    w.assign([1.0, 1.0, 1.0])
    assert h(*x()).tolist() == [2, 3, 4]


def test_closures_lists_dicts_and_defaults():
    def make():
        state = {"list": [1.0, 2.0], "n": 3.0}
        return {"state": state, "f": lambda a: a * state["n"] + sum(state["list"]), "args": x}

    def grow(made):
        made["state"]["list"].append(10.0)
        made["state"]["n"] = 7.0

    assert check(make, grow).explain_recompiles()

    def with_cell():
        n = 1.0

        def f(a):
            return a * n

        def change():
            nonlocal n
            n += 1

        return {"f": f, "args": x, "change": change}

    check(with_cell, lambda made: made["change"]())

    def with_default():
        def f(a, b=2.0):
            return a * b

        return {"f": f, "args": x}

    def new_default(made):
        made["f"].__defaults__ = (5.0,)

    check(with_default, new_default)

    def with_mutable_default():
        def f(a, b=[2.0]):
            return a * sum(b)

        return {"f": f, "args": x}

    check(with_mutable_default, lambda made: made["f"].__defaults__[0].append(1.0))


def test_spec_F1_one_tensor_given_twice_is_one():
    f = jit(lambda a, b: a * 2 if a is b else a * b)
    a, b = Tensor([3.0]).realize(), Tensor([5.0]).realize()
    for _ in range(2):
        assert f(a, b).item() == 15 and f(a, a).item() == 6 and f(a, a.detach()).item() == 9


class Model:
    kind = 1.0

    def __init__(self):
        self.layer, self.bias, self.training, self.parts = nn.Linear(3, 2), Tensor([1.0, 1.0]), True, [nn.LayerNorm(2)]
        self.layer.weight = Tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]])
        self.layer.bias = Tensor([0.0, 0.0])

    @property
    def factor(self):
        return 2.0 if self.training else 1.0

    def __call__(self, a):
        return self.helper(self.layer(a) * self.factor) * self.kind

    def helper(self, y):
        return y + self.bias


CHANGES = {
    "an attribute": lambda m: setattr(m, "training", False),
    "a tensor of an attribute": lambda m: setattr(m, "bias", Tensor([7.0, 8.0])),
    "a tensor in place": lambda m: m.bias.assign([3.0, 4.0]),
    "a tensor of a layer": lambda m: setattr(m.layer, "weight", koine.ones(2, 3)),
    "a layer's tensor in place": lambda m: m.layer.weight.assign(koine.ones(2, 3)),
    "a layer without its bias": lambda m: setattr(m.layer, "bias", None),
    "a layer": lambda m: setattr(m, "layer", m.parts and (lambda a: a[:2] * 5)),
    "a method of the object": lambda m: setattr(m, "helper", lambda y: y - 1),
    "an attribute of the class": lambda m: setattr(type(m), "kind", 3.0),
    "a method of the class": lambda m: setattr(type(m), "helper", lambda self, y: y * 100),
    "another class": lambda m: setattr(m, "__class__", type("Other", (type(m),), {"__call__": lambda self, a: a[:2]})),
}


@pytest.mark.parametrize("what", CHANGES)
def test_spec_F1_objects(what):
    def make():
        kind = type("Model", (Model,), {})
        model = kind()
        return {"model": model, "f": model if what != "another class" else (lambda a: model(a)), "args": x}

    check(make, lambda made: CHANGES[what](made["model"]))
    model = make()["model"]
    f = jit(model.__call__)
    assert f(*x()).tolist() == model(*x()).tolist()


FACTOR = 1.0


@dataclasses.dataclass
class Scaled:
    weight: Tensor
    by: float

    def __call__(self, a):
        return a * self.weight * (self.by * FACTOR)


def test_dataclasses_and_the_methods_of_arguments():
    global FACTOR
    given = Scaled(Tensor([1.0, 1.0, 1.0]), 2.0)
    around, argument = jit(given), jit(lambda s, a: s(a))
    changes = [lambda: None, lambda: setattr(given, "by", 3.0), lambda: setattr(given, "weight", Tensor([2.0, 2.0, 2.0])),
               lambda: given.weight.assign([0.0, 1.0, 2.0])]
    try:
        for change in changes:
            change()
            for FACTOR in (1.0, 5.0):
                want = given(*x()).tolist()
                assert around(*x()).tolist() == want and argument(given, *x()).tolist() == want
    finally:
        FACTOR = 1.0
    assert not any("as it is written" in r for r in around.explain_recompiles() + argument.explain_recompiles())


def test_training_beside_a_jit(rng):
    def model():
        layer = nn.Linear(3, 1)
        layer.weight, layer.bias = Tensor([[1.0, 2.0, 3.0]]).requires_grad(), Tensor([0.5]).requires_grad()
        return layer, nn.Adam([layer.weight, layer.bias], 0.1)

    (one, first), (two, second) = model(), model()
    loss = jit(lambda a: two(a).square().sum())
    for _ in range(4):
        a = Tensor(rng.standard_normal((4, 3)).astype("float32"))
        first.zero_grad()
        second.zero_grad()
        want, got = one(a).square().sum(), loss(a)
        want.backward()
        got.backward()
        first.step()
        second.step()
        assert got.item() == pytest.approx(want.item(), rel=1e-5)
    assert loss.explain_recompiles() == []


def test_transforms_inside_and_views_of_what_is_around():
    base = Tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    view = base[1]
    f = jit(lambda a: koine.grad(lambda t: (t * t * view).sum())(a) + base[0])
    for change in [lambda: None, lambda: base.__setitem__(0, 9.0), lambda: view.assign([7.0, 7.0, 7.0]), lambda: base.assign(base * 2)]:
        change()
        np.testing.assert_allclose(f(*x()).numpy(), 2 * np.array([1, 2, 3]) * view.numpy() + base[0].numpy())
    assert f.explain_recompiles() == []


def test_a_model_compiles_once():
    model = Model()
    f = jit(model)
    f(*x())
    _, counted = launches(lambda: f(Tensor([4.0, 5.0, 6.0])))
    assert counted["compiled"] == 0 and f.explain_recompiles() == []


def test_other_functions_and_partials():
    def inner(a):
        return a + scale

    def make():
        return {"f": functools.partial(lambda c, a: inner(a) * c, 3.0), "args": x}

    global scale
    old = scale

    def change(made):
        global scale
        scale = 50.0

    try:
        check(make, change)
    finally:
        scale = old
    f = jit(jit(lambda a: a * scale))
    assert f(*x()).tolist() == [2, 4, 6]


def test_enums_and_classes():
    class Mode(enum.Enum):
        DOUBLE, TRIPLE = 2, 3

        def of(self, a):
            return a * self.value

    class Holder:
        mode = Mode.DOUBLE

    f = jit(lambda a: Holder.mode.of(a))
    assert f(*x()).tolist() == [2, 4, 6]
    Holder.mode = Mode.TRIPLE
    assert f(*x()).tolist() == [3, 6, 9]


def follows(f, change, *args):
    """A function with a program that follows a change of what it reads."""
    g = jit(f)
    for _ in range(2):
        for _ in range(2):
            assert g(*args).tolist() == f(*args).tolist()
        change()
    assert not any("as it is written" in r for r in g.explain_recompiles()), g.explain_recompiles()


@pytest.mark.parametrize("kind", [enum.Enum, enum.IntEnum])
def test_members_of_enums_around(kind):
    Mode = kind("Mode", {"TRAIN": 1, "EVAL": 2})
    mode = Mode.TRAIN

    def other():
        nonlocal mode
        mode = Mode.EVAL

    follows(lambda a: a * (2 if mode is Mode.TRAIN else 1), other, *x())


def test_values_and_fields_of_enums_around():
    class Mode(enum.Enum):
        TRAIN = [1]
        EVAL = [2]

    mode = Mode.TRAIN
    follows(lambda a: a * mode.value[0], lambda: mode.value.__setitem__(0, 5), *x())
    follows(lambda a: a * sum([m.value[0] for m in Mode]), lambda: Mode.EVAL.value.append(Mode.EVAL.value.pop() + 1), *x())
    mode.factor = 2.0
    follows(lambda a: a * mode.factor, lambda: setattr(mode, "factor", 3.0), *x())


COUNT = 1


class Counted:
    def __init__(self):
        self.k = COUNT

    def __str__(self):
        return "s" * COUNT

    def __repr__(self):
        return "r" * COUNT

    def __class_getitem__(cls, i):
        return i * COUNT

    @classmethod
    def made(cls):
        return cls()


@dataclasses.dataclass
class WithFactory:
    k: int = dataclasses.field(default_factory=lambda: COUNT)


@dataclasses.dataclass(frozen=True)
class Frozen:
    k: int

    def __post_init__(self):
        object.__setattr__(self, "twice", self.k * COUNT)


counted = Counted()
HIDDEN = {
    "__init__": lambda a: a * Counted().k,
    "__init__ by type()": lambda a: a * type(counted)().k,
    "__init__ by __class__": lambda a: a * counted.__class__().k,
    "__init__ in a class method": lambda a: a * Counted.made().k,
    "str": lambda a: a * len(str(counted)),
    "a text": lambda a: a * len(f"{counted}"),
    "a text of repr": lambda a: a * len(f"{counted!r}"),
    "%": lambda a: a * len("%s" % counted),
    "format": lambda a: a * len("{}".format(counted)),
    "__class_getitem__": lambda a: a * Counted[2],
    "default_factory": lambda a: a * WithFactory().k,
    "__post_init__": lambda a: a * Frozen(3).twice,
}


@pytest.mark.parametrize("what", HIDDEN)
def test_what_classes_run_unasked(what):
    def change():
        global COUNT
        COUNT += 1

    follows(HIDDEN[what], change, *x())


def test_classes_that_are_not_called_may_read_anything():
    class Base:
        def __init__(self):
            self.text = str(threading.get_ident())

        def __repr__(self):
            try:
                return self.text
            except AttributeError:
                return "none"

        def factor(self):
            return 2.0

    class Derived(Base):
        def factor(self):
            return super().factor() * 3

    thing = Derived()

    def f(a):
        if not isinstance(thing, (Base, Derived)) or type(thing).__name__ == "Base":
            raise TypeError(f"no {thing}")
        return a * thing.factor()

    follows(f, lambda: setattr(Base, "factor", lambda self: 5.0), *x())


def test_modules_of_builtins_are_no_way_around():
    class Held:
        @property
        def factor(self):
            return COUNT

    held, by_name = Held(), operator.attrgetter("factor")

    def change():
        global COUNT
        COUNT += 1

    for f in (lambda a: a * builtins.globals()["COUNT"], lambda a: a * builtins.eval("COUNT"), lambda a: a * by_name(held),
              lambda a: a * operator.attrgetter("factor")(held), lambda a: a * operator.methodcaller("__add__", 1)(COUNT)):
        g = jit(f)
        for _ in range(2):
            assert g(*x()).tolist() == f(*x()).tolist() == g(*x()).tolist()
            change()
        eager_because(g, "as it is written")
    follows(lambda a: operator.add(a, builtins.len([1])), lambda: None, *x())


def test_objects_that_new_gives_again():
    class Only:
        one = None

        def __new__(cls):
            return cls.one or object.__new__(cls)

        def __init__(self):
            self.k = COUNT

    def f(a):
        before = Only.one.k
        Only()
        return a * before

    global COUNT
    Only.one = Only()
    g, now = jit(f), Only.one.k
    for _ in range(3):
        COUNT += 1
        assert g(*x()).tolist() == [now, now * 2, now * 3]
        now = COUNT


def test_what_makes_a_type_a_tree_is_read_too():
    class Held:
        def __init__(self, t):
            self.t = t

    global COUNT
    koine.tree.register(Held, lambda h: ([h.t], None), lambda _, c: Held(c[0] * COUNT))
    g = jit(lambda h: h.t * 1)
    for COUNT in (1, 3):
        assert g(Held(*x())).tolist() == [COUNT, 2 * COUNT, 3 * COUNT]
    koine.tree.register(Held, lambda h: ([h.t], None), lambda _, c: Held(c[0] * 10))
    assert g(Held(*x())).tolist() == [10, 20, 30]
    assert not any("as it is written" in r for r in g.explain_recompiles())


def test_an_argument_that_is_also_around():
    w, layer = Tensor([5.0, 6.0]).realize(), nn.Linear(2, 2)
    of_layer = layer.weight
    for f, other in ((lambda a: a * 2 if a is w else a * 3, w), (lambda a: a * 2 if a is layer.weight else a * 3, of_layer)):
        g = jit(f)
        for given in (other, other + 0, other, other + 0):
            assert g(given).tolist() == f(given).tolist()
        eager_because(g, "beside its arguments")


class Box:
    def __init__(self, t, config):
        self.t, self.config = t, config


koine.tree.register(Box, lambda b: ([b.t], b.config), lambda config, c: Box(c[0], config))


@dataclasses.dataclass(frozen=True)
class Config:
    by: int
    more: dict

    def factor(self):
        return self.by * COUNT


def test_data_of_trees_are_constants():
    def by_key(d):
        return [v * (10 if type(k) is float else 20 if type(k) is bool else 30) + math.copysign(1, k) for k, v in d.items()][0]

    g = jit(by_key)
    for key in (1, 1.0, True, 0.0, -0.0):
        assert g({key: x()[0]}).tolist() == by_key({key: x()[0]}).tolist()

    def change():
        global COUNT
        COUNT += 1

    box = Box(*x(), {"k": 2, "list": [1]})
    follows(lambda b: b.t * b.config["k"], lambda: box.config.__setitem__("k", 7), box)
    follows(lambda b: b.t * b.config["list"][0], lambda: box.config["list"].__setitem__(0, 7), box)
    array = Box(*x(), np.arange(3.0))
    follows(lambda b: b.t * float(b.config.sum()), lambda: array.config.__setitem__(0, 7), array)
    follows(lambda b: b.config["f"](b.t), change, Box(*x(), {"f": lambda t: t * COUNT}))
    frozen = Box(*x(), Config(2, {"a": 1}))
    follows(lambda b: b.t * b.config.factor(), change, frozen)
    follows(lambda b: b.t * b.config.more["a"], lambda: frozen.config.more.__setitem__("a", 5), frozen)
    unknown = jit(lambda b: b.t * 2)
    assert unknown(Box(*x(), object())).tolist() == [2, 4, 6]
    eager_because(unknown, "'object'")
    again = jit(lambda b: Box(b.t * 2, b.config))
    again(box).config["k"] = 99
    assert again(box).config["k"] == 7 and again.explain_recompiles() == []

    def appends(b):
        b.config["list"].append(1)
        return b.t * len(b.config["list"])

    assert [jit(appends)(box).tolist()[0] for _ in range(3)] == [2, 3, 4]


def test_dataclasses_with_more_than_their_fields():
    one = Scaled(Tensor([1.0, 1.0, 1.0]), 2.0)
    one.extra = {"by": 5.0}
    follows(lambda s: s.weight * s.extra["by"], lambda: one.extra.__setitem__("by", 7.0), one)

    @dataclasses.dataclass
    class Norm:
        weight: Tensor
        factor = 1.0

        @functools.cached_property
        def squared(self):
            return (self.weight * self.weight).sum()

    norm = Norm(*x())
    follows(lambda n: n.weight * n.factor, lambda: setattr(norm, "factor", 5.0), norm)
    assert norm.squared.item() == 14
    g = koine.grad(lambda n: n.squared * n.factor)(norm)
    assert g.weight.tolist() == [10, 20, 30] and g.factor == 5


@pytest.mark.parametrize("derivative", [koine.grad, koine.value_and_grad])
def test_derivatives_by_trees_of_parameters_are_programs(derivative):
    global scale
    old = scale
    trees = [[x()[0], x()[0]], {"a": x()[0], "b": x()[0]}, {"a": [x()[0], {"c": x()[0]}], "b": (x()[0],)}]

    def loss(p):
        return sum([(t * t).sum() for t in koine.tree.leaves(p)]) * scale

    try:
        for given in trees:
            for f in (derivative(loss), koine.vmap(derivative(loss))):
                g = jit(f)
                for scale in (2.0, 3.0):
                    want = [t.tolist() for t in koine.tree.leaves(f(given))]
                    for _ in range(2):
                        got, counted = launches(lambda: g(given))
                        assert [t.tolist() for t in koine.tree.leaves(got)] == want
                    assert counted["compiled"] == 0
                    assert len(g.explain_recompiles()) == (scale == 3.0), g.explain_recompiles()
    finally:
        scale = old


def test_lists_and_dicts_of_its_own_may_change():
    class Deep:
        def __init__(self):
            self.layers = [nn.Linear(3, 3), nn.Linear(3, 3)]

        def __call__(self, a):
            seen, named = [], {}
            for layer in self.layers:
                a = layer(a)
                seen.append(a)
            named["last"] = a
            out = a * 1
            out[out < 0] = 0
            out[0] = seen[0][1]
            out += named["last"]
            return out

    follows(Deep(), lambda: None, *x())


# --- what cannot be described runs as it is written ------------------------------------------------------


def eager_because(f, text):
    assert any(text in reason for reason in f.explain_recompiles()), f.explain_recompiles()


def test_values_that_are_looked_at():
    f = jit(lambda a: a * 2 if a.sum().item() > 3 else a * 10)
    assert f(Tensor([1.0])).tolist() == [10] and f(Tensor([5.0])).tolist() == [10] and f(Tensor([0.5])).tolist() == [5]
    eager_because(f, "test_jit.py")
    g = jit(lambda a: a[a > 1])
    assert g(Tensor([1.0, 2.0])).tolist() == [2] and g(Tensor([3.0, 2.0])).tolist() == [3, 2]
    h = jit(lambda a: a * float(a.max().numpy()))
    assert h(Tensor([2.0])).tolist() == [4] and h(Tensor([3.0])).tolist() == [9]


def test_random_numbers_advance_as_without_it():
    def numbers(wrap):
        koine.manual_seed(3)
        f = wrap(lambda a: a + Tensor.rand(3))
        g = wrap(lambda a: a.dropout(0.5))
        out = []
        for _ in range(3):
            out += [f(*x()).tolist(), g(*x()).tolist(), Tensor.rand(2).tolist()]
        return out

    assert numbers(jit) == numbers(lambda f: f)
    key = koine.random.Key(7)
    f = jit(lambda k, a: a + koine.random.rand(k, 3))
    assert f(key, *x()).tolist() == (x()[0] + koine.random.rand(key, 3)).tolist()
    assert f(key.fold_in(1), *x()).tolist() != f(key, *x()).tolist()


def test_assignments_happen_each_time():
    total = Tensor([0.0]).realize()

    def adds(a):
        total.assign(total + a.sum())
        return a * 2

    f = jit(adds)
    for k in range(3):
        f(*x())
    assert total.item() == 18

    def writes(a):
        a[0] = 100
        return a + 1

    g = jit(writes)
    for _ in range(2):
        mine = Tensor([1.0, 2.0, 3.0])
        assert g(mine).tolist() == [101, 3, 4] and mine.tolist() == [100, 2, 3]

    def grows(a):
        a += 1
        return a * 2

    h = jit(grows)
    mine = Tensor([1.0])
    assert [h(mine).item() for _ in range(3)] == [4, 6, 8]
    w = Tensor([1.0]).requires_grad()
    optimizer = nn.SGD([w], 0.5)

    def step(a):
        optimizer.zero_grad()
        (w * a).sum().backward()
        optimizer.step()
        return w * 1

    s = jit(step)
    assert [s(Tensor([1.0])).item() for _ in range(3)] == [0.5, 0.0, -0.5]


def test_effects_of_python_happen_each_time(capsys):
    seen, counts = [], {"n": 0}

    class Counter:
        n = 0

    counter = Counter()

    def appends(a):
        seen.append(1)
        return a * 2

    def counts_up(a):
        counts["n"] += 1
        return a * counts["n"]

    def sets(a):
        counter.n += 1
        return a * counter.n

    def prints(a):
        print("called")
        return a

    def sets_global(a):
        global scale
        scale = scale + 1
        return a * scale

    calls = 0

    def sets_outer(a):
        nonlocal calls
        calls += 1
        return a * calls

    def given(a, extra):
        extra.append(a)
        return a * len(extra)

    global scale
    old = scale
    one = Tensor([1.0])
    for f in (appends, counts_up, sets, prints, sets_global, sets_outer):
        g = jit(f)
        for _ in range(3):
            g(one)
        assert g.explain_recompiles(), f
    scale = old
    assert len(seen) == 3 and counts["n"] == 3 and counter.n == 3 and calls == 3
    assert capsys.readouterr().out == "called\n" * 3
    extra = []
    g = jit(given)
    assert [g(one, extra).item() for _ in range(3)] == [1, 2, 3] and len(extra) == 3


def iadd(values, a):
    values += [2.0]


def times(values, a):
    values *= 2


def first(values, a):
    values[0] += 1


def removes(values, a):
    del values[0]


def looks(values, a):
    values.append(a)
    float(a.sum().item())


CONTAINERS = [iadd, times, first, removes, looks, lambda v, a: v.append(1.0), lambda v, a: operator.iadd(v, [1.0]),
              lambda v, a: v.__iadd__([1.0]),
              lambda v, a: operator.setitem(v, 0, v[0] + 1), lambda v, a: operator.delitem(v, 0), lambda v, a: v.__delitem__(0)]


@pytest.mark.parametrize("change", CONTAINERS)
def test_lists_of_others_change_once(change):
    a, around = Tensor([1.0]).realize(), [1.0] * 9
    given, wanted = [1.0] * 9, [1.0] * 9

    def f(values, a):
        change(values, a)
        return a * len(values)

    g, h = jit(f), jit(lambda a: f(around, a))
    for _ in range(3):
        want = f(wanted, a).item()
        assert g(given, a).item() == want and h(a).item() == want
        for values in (given, around):
            assert len(values) == len(wanted) and all(v is w or v == w for v, w in zip(values, wanted) if not isinstance(v, Tensor))
            assert all(v is a for v in values if isinstance(v, Tensor))
    assert g.explain_recompiles() and h.explain_recompiles()


def test_dicts_and_classes_of_others_change_once():
    a, around, given = Tensor([1.0]).realize(), {"a": 1}, {"a": 1}

    class Made:
        n = 0

        def __init__(self):
            Made.n += 1

    def joins(d, a):
        d |= {len(d): 1}
        return a * len(d)

    def makes(a):
        Made()
        return a * Made.n

    g, h, m = jit(joins), jit(lambda a: joins(around, a)), jit(makes)
    for k in range(3):
        assert g(given, a).item() == h(a).item() == len(given) == len(around) == k + 2
        assert m(a).item() == Made.n == k + 1


def test_a_function_that_always_changes_something_is_not_described_for_ever():
    state, values = {"n": 0}, []

    def f(s, a):
        s["n"] += 1
        values.append(s["n"])
        return a * s["n"]

    g = jit(f)
    assert [g(state, Tensor([1.0])).item() for _ in range(20)] == list(range(1, 21)) == values
    before = g.explain_recompiles()
    g(state, Tensor([1.0, 2.0]))
    assert g.explain_recompiles() == before and state["n"] == len(values) == 21


def test_a_function_that_fills_a_cache_is_a_program_from_then_on():
    class Cached:
        def __init__(self):
            self.weight, self.known = Tensor([1.0, 2.0, 3.0]), {}

        def __call__(self, a):
            if "w" not in self.known:
                self.known["w"] = self.weight * 2
            return a * self.known["w"]

    f = jit(Cached())
    for _ in range(3):
        assert f(*x()).tolist() == [2, 8, 18]
    _, counted = launches(lambda: f(*x()))
    assert counted["compiled"] == 0 and len(f.explain_recompiles()) == 2


def test_what_cannot_be_followed():
    def tries(a):
        try:
            return a * a.sum().item()
        except koine.Error:
            return a * 0

    assert jit(tries)(Tensor([2.0])).tolist() == [4]

    def imports(a):
        import math as m
        return a * m.pi

    def numpys(a):
        return a * np.random.rand()

    def given_back(a):
        return a

    def views(a):
        return a[0], a

    def text(a):
        return a * 2, f"{a}"

    for f in (imports, numpys, given_back, views, text):
        g = jit(f)
        g(Tensor([1.0, 2.0]))
        assert g.explain_recompiles(), f
    a = Tensor([1.0, 2.0])
    assert jit(given_back)(a) is a
    view, _ = jit(views)(a)
    view.assign(9.0)
    assert a.tolist() == [9, 2]
    assert jit(text)(a)[1] == f"{a}"
    array = jit(lambda a: a * 2)
    assert isinstance(array(np.ones(2)), np.ndarray)
    eager_because(array, "ndarray")


def test_tensors_and_layers_with_methods_of_ones_own():
    class Own(Tensor):
        def scaled(self):
            return self * scale

    class Layer(nn.Linear):
        factor = 2.0

        def __call__(self, a):
            return super().__call__(a) * self.factor

    global scale
    old, own, layer = scale, Own([1.0, 1.0, 1.0]), Layer(3, 1)
    f, g = jit(lambda a: a * own.scaled()), jit(layer)
    try:
        for scale in (2.0, 5.0):
            assert f(*x()).tolist() == (x()[0] * scale).tolist()
            layer.factor = scale
            assert g(*x()).tolist() == layer(*x()).tolist()
            layer.weight = Tensor([[scale, 0.0, 0.0]])
            assert g(*x()).tolist() == layer(*x()).tolist()
    finally:
        scale = old


def test_exceptions_are_those_of_the_function():
    def f(a, n):
        if n > 2:
            raise KeyError("too many")
        return a.reshape(n, -1)

    g = jit(f)
    assert g(koine.arange(4), 2).shape == (2, 2)
    with pytest.raises(KeyError, match="too many"):
        g(koine.arange(4), 3)
    with pytest.raises(koine.errors.ValueError, match="reshape"):
        jit(lambda a: a.reshape(3))(koine.arange(4))
    picks = jit(lambda a, i: a[i])
    assert picks(koine.arange(4), Tensor([1])).tolist() == [1]
    with pytest.raises(IndexError, match="9"):
        picks(koine.arange(4), Tensor([9])).tolist()
    assert picks(koine.arange(4), Tensor([2])).tolist() == [2]


def test_threads_get_their_own_answers():
    f = jit(lambda a, n: (a * 2 + n).sum())
    wrong = []

    def work(k):
        for n in range(40):
            a = Tensor([float(k), float(n)])
            if f(a, 1).item() != 2 * (k + n) + 2:
                wrong.append((k, n))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_replays_leave_memory_flat():
    f = jit(lambda a, b: (a * b).sum(0))
    a, b = koine.ones(64, 64).realize(), koine.ones(64, 64).realize()
    f(a, b)
    gc.collect()
    before = koine.memory_in_use()
    for _ in range(2000):
        f(a, b)
    gc.collect()
    assert koine.memory_in_use() <= before + 4096


class Activated:
    def __init__(self, factor, activation):
        self.factor, self.activation = factor, activation


def test_static_arguments_are_constants():
    def scaled(x, config, *, mode="plain"):
        return config.activation(x * config.factor) if mode == "plain" else x * 1

    f = koine.jit(scaled, static_argnames=("config", "mode"))
    x, config = Tensor([1.0, -2.0]), Activated(3, Tensor.relu)
    for _ in range(2):
        assert f(x, config).tolist() == [3, 0] and f(x, config, mode="other").tolist() == [1, -2] and f(x, config=config).tolist() == [3, 0]
    assert f(x, Activated(3, Tensor.neg)).tolist() == [-3, 6]
    assert f.explain_recompiles() == ["static arguments of other values"]
    config.factor = 5
    assert f(x, config).tolist() == [5, 0]
    config.activation = Tensor.neg
    assert f(x, config).tolist() == [-5, 10]
    assert not any("as it is written" in reason for reason in f.explain_recompiles())
    power = koine.jit(lambda x, n, axes: (x ** n).sum(axes), static_argnums=(1, -1))
    assert power(x, 2, (0,)).item() == power(x, n=2, axes=(0,)).item() == 5 and power(x, 3, (0,)).item() == -7
    kind = koine.jit(lambda x, n: x * n, static_argnums=1)
    i = Tensor([3])
    assert [kind(i, n).dtype.name for n in (1, 1.0, True)] == ["int32", "float32", "int32"]
    assert kind(Tensor([1.0]), -0.0).tolist() == [-0.0] and np.signbit(kind(Tensor([1.0]), -0.0).numpy()[0]) and not np.signbit(kind(Tensor([1.0]), 0.0).numpy()[0])
    assert kind(Tensor([1.0]), np.float32(2)).tolist() == [2]
    decorated = koine.jit(static_argnums=0)(lambda name, x: getattr(x, name)())
    assert decorated("neg", x).tolist() == [-1, 2] and pickle.loads(pickle.dumps(koine.jit(of_name, static_argnums=0)))("neg", x).tolist() == [-1, 2]
    assert koine.grad(lambda x: decorated("square", x).sum())(x).tolist() == [2, -4]
    rows = koine.jit(lambda k, x: x * k, static_argnums=0, dynamic={"x": {0: koine.Variable("n", 1, 9)}})
    assert [rows(2, koine.ones(n)).sum().item() for n in (3, 5, 7)] == [6, 10, 14]
    for k in range(200):
        assert kind(Tensor([1.0]), k).item() == k
    assert len(kind._of_constants) <= 64


def of_name(name, x):
    return getattr(x, name)()


def test_static_arguments_that_are_none():
    x = Tensor([1.0])
    for value in ([1], {1}, {"a": 1}, x, np.ones(2)):
        with pytest.raises(ValueError, match="jit: argument 1 is static, and a .* has no hash that tells its value"):
            koine.jit(lambda x, n: x * 1, static_argnums=1)(x, value)
    f = lambda x, n: x * n  # noqa: E731
    for given, message in [({"static_argnums": 2}, "static_argnums names argument 2, and there are 2: x, n"),
                           ({"static_argnums": -3}, "static_argnums names argument -3"), ({"static_argnames": "q"}, "static_argnames names 'q', and the parameters are x, n"),
                           ({"donate_argnums": (0, 5)}, "donate_argnums names argument 5"), ({"donate_argnames": ["y"]}, "donate_argnames names 'y'"),
                           ({"static_argnums": 0, "donate_argnames": "x"}, "argument 0 is static, so it cannot be donated"),
                           ({"static_argnums": 0, "dynamic": {"x": {0: koine.Variable("n", 1, 9)}}}, "argument 'x' is static, so it has no dynamic axes")]:
        with pytest.raises(ValueError, match="jit: " + message):
            koine.jit(f, **given)
    for given in ({"static_argnums": "x"}, {"static_argnames": [0]}, {"donate_argnums": 1.5}):
        with pytest.raises(TypeError, match="jit: .*arg(nums|names) is the (number|name) of an argument"):
            koine.jit(f, **given)
    donated = koine.jit(lambda state, g: state - g, donate_argnums=0)
    state = x.realize()
    after = donated(state, x * 1)
    assert after.tolist() == [0] and state.tolist() == [1] and donated.explain_recompiles() == []


def test_static_arguments_of_methods():
    class Model:
        def __init__(self):
            self.w = Tensor([2.0, 3.0])

        @functools.partial(koine.jit, static_argnums=(0, 2))
        def run(self, x, n):
            return x * self.w * n

        @koine.jit(static_argnames=["n"], donate_argnums=1)
        def named(self, x, n):
            return x * self.w * n

    model, x = Model(), Tensor([1.0, 2.0])
    for _ in range(2):
        assert model.run(x, 2).tolist() == [4, 12] and model.named(x, n=3).tolist() == model.named(x, 3).tolist() == [6, 18]
    model.w = Tensor([0.0, 1.0])
    assert model.run(x, 2).tolist() == [0, 4] and model.named(x, n=3).tolist() == [0, 6]
    assert not any("as it is written" in reason for f in (model.run, model.named) for reason in f.explain_recompiles())
