"""grad, vmap, jvp, vjp and loops over trees: against differences, loops and each other."""
import collections
import dataclasses
import enum
import functools

import numpy as np
import pytest

import koine
from koine import Tensor, nn

Pair = collections.namedtuple("Pair", "first second")


@dataclasses.dataclass
class Weights:
    w: Tensor
    b: Tensor


def by_differences(f, a, eps=1e-5):
    out = np.zeros_like(a)
    for k in np.ndindex(a.shape):
        up, down = a.copy(), a.copy()
        up[k] += eps
        down[k] -= eps
        out[k] = (f(Tensor(up)).item() - f(Tensor(down)).item()) / (2 * eps)
    return out


def test_gradients_are_those_of_differences(rng):
    a = rng.standard_normal((3, 4))
    m = rng.standard_normal((4, 2))
    for f in [lambda x: (x @ Tensor(m)).tanh().sum(), lambda x: x.softmax(0).square().sum(), lambda x: (x[1:] * x[:-1]).sum(),
              lambda x: x[[0, 0, 2]].prod(), lambda x: koine.where(x > 0, x * x, 3 * x).sum(), lambda x: x.logsumexp()]:
        np.testing.assert_allclose(koine.grad(f)(Tensor(a)).numpy(), by_differences(f, a), rtol=1e-5, atol=1e-6)


def test_gradients_have_the_structure_of_the_argument(rng):
    x = Tensor(rng.standard_normal((5, 3)))
    tree = {"w": Tensor(rng.standard_normal((3, 2))), "rest": [Tensor(np.zeros(2)), (Tensor(np.ones(2)), None)]}

    def loss(p, x):
        return ((x @ p["w"] + p["rest"][0]) * p["rest"][1][0]).square().sum()

    value, g = koine.value_and_grad(loss)(tree, x)
    assert koine.tree.structure(g) == koine.tree.structure(tree)
    assert value.item() == pytest.approx(loss(tree, x).item())
    flat = np.asarray(g["w"])
    for k in np.ndindex(3, 2):
        moved = np.array(tree["w"].numpy())
        moved[k] += 1e-5
        up = loss({**tree, "w": Tensor(moved)}, x).item()
        assert (up - value.item()) / 1e-5 == pytest.approx(flat[k], rel=1e-3, abs=1e-3)
    g_first, g_second = koine.grad(lambda a, b: (a * a * b).sum(), argnums=(0, 1))(Tensor([3.0]), Tensor([2.0]))
    assert g_first.item() == 12 and g_second.item() == 9
    for last in (-1, np.int64(1)):
        assert koine.grad(lambda a, b: (a * a * b).sum(), argnums=last)(Tensor([3.0]), Tensor([2.0])).item() == 9
    g, aux = koine.grad(lambda a: ((a * a).sum(), {"twice": 2 * a}), has_aux=True)(Tensor([3.0]))
    assert g.item() == 6 and aux["twice"].item() == 6


def test_trees_of_all_kinds():
    assert list(koine.tree.map(lambda v: v, {"b": 1, "a": 2})) == ["b", "a"]
    assert koine.tree.leaves({"b": 1, "a": 2}) == [2, 1]
    for tree in [Pair(Tensor(1.0), [Tensor(2.0)]), Weights(Tensor([1.0]), Tensor([2.0])), {"b": 1, "a": (2, None)}, [], (), None, 5]:
        leaves, structure = koine.tree.flatten(tree)
        again = koine.tree.unflatten(structure, leaves)
        assert type(again) is type(tree) and koine.tree.structure(again) == structure
    assert koine.tree.map(lambda a, b: a + b, {"x": 1, "y": [2]}, {"x": 10, "y": [20]}) == {"x": 11, "y": [22]}
    g = koine.grad(lambda p: (p.w * p.b).sum())(Weights(Tensor([3.0]), Tensor([4.0])))
    assert isinstance(g, Weights) and g.w.item() == 4 and g.b.item() == 3
    g = koine.grad(lambda p: (p.first * p.second).sum())(Pair(Tensor([3.0]), Tensor([4.0])))
    assert isinstance(g, Pair) and g.second.item() == 3
    layer = nn.Linear(2, 1)
    g = koine.grad(lambda l, x: l(x).sum())(layer, Tensor([[1.0, 2.0]]))
    assert isinstance(g, nn.Linear) and g.weight.tolist() == [[1, 2]] and g.bias.tolist() == [1]

    class Own:
        def __init__(self, t, name):
            self.t, self.name = t, name

    koine.tree.register(Own, lambda o: ([o.t], o.name), lambda name, c: Own(c[0], name))
    doubled = koine.tree.map(lambda t: t * 2, Own(Tensor([1.0]), "n"))
    assert doubled.name == "n" and doubled.t.item() == 2


def test_spec_V1_vmap_is_a_loop(rng):
    a, m = rng.standard_normal((4, 3)), rng.standard_normal((3, 3))

    def f(row, matrix):
        return {"y": (row @ matrix).relu(), "s": row.sum()}

    out = koine.vmap(f, in_axes=(0, None))(Tensor(a), Tensor(m))
    for k in range(4):
        one = f(Tensor(a[k]), Tensor(m))
        np.testing.assert_allclose(out["y"].numpy()[k], one["y"].numpy())
        np.testing.assert_allclose(out["s"].numpy()[k], one["s"].numpy())
    by_column = koine.vmap(f, in_axes=(1, None), out_axes={"y": 1, "s": 0})(Tensor(a.T), Tensor(m))
    np.testing.assert_allclose(by_column["y"].numpy(), out["y"].numpy().T)
    trees = koine.vmap(lambda p: p["a"] + p["b"], in_axes=({"a": 0, "b": None},))({"a": Tensor(a), "b": Tensor(m[0])})
    np.testing.assert_allclose(trees.numpy(), a + m[0])
    last = koine.vmap(f, in_axes=(-1, None), out_axes={"y": -1, "s": -1})(Tensor(a.T), Tensor(m))
    np.testing.assert_allclose(last["y"].numpy(), out["y"].numpy().T)
    np.testing.assert_allclose(last["s"].numpy(), out["s"].numpy())
    nested = koine.vmap(lambda p: (p["w"][0] * p["w"][1], {"b": [p["b"]]}), in_axes=({"w": (0, None), "b": -1},),
                        out_axes=(1, {"b": [0]}))({"w": (Tensor(a), Tensor(m[0])), "b": Tensor(a.T)})
    np.testing.assert_allclose(nested[0].numpy(), (a * m[0]).T)
    np.testing.assert_allclose(nested[1]["b"][0].numpy(), a)
    each = koine.vmap(koine.grad(lambda r: (r * r).sum()))(Tensor(a))
    np.testing.assert_allclose(each.numpy(), 2 * a)


def test_both_modes_agree(rng):
    a, v = rng.standard_normal((3, 2)), rng.standard_normal((3, 2))

    def f(x):
        return {"y": (x * x).sum(0).sin(), "z": [x.exp()]}

    out, moved = koine.jvp(f, (Tensor(a),), (Tensor(v),))
    same_out, push = koine.linearize(f, Tensor(a))
    np.testing.assert_allclose(push(Tensor(v))["y"].numpy(), moved["y"].numpy())
    _, pull = koine.vjp(f, Tensor(a))
    cotangent = {"y": Tensor(rng.standard_normal(2)), "z": [Tensor(rng.standard_normal((3, 2)))]}
    (back,) = pull(cotangent)
    left = (back.numpy() * v).sum()
    right = (cotangent["y"].numpy() * moved["y"].numpy()).sum() + (cotangent["z"][0].numpy() * moved["z"][0].numpy()).sum()
    assert left == pytest.approx(right)
    g = lambda x: (x * x * x).sum(0)
    np.testing.assert_allclose(koine.jacfwd(g)(Tensor(a)).numpy(), koine.jacrev(g)(Tensor(a)).numpy())
    h = koine.hessian(lambda x: (x ** 3).sum())(Tensor([1.0, 2.0]))
    np.testing.assert_allclose(h.numpy(), [[6, 0], [0, 12]])
    assert koine.hvp(lambda x: (x ** 3).sum(), Tensor([1.0, 2.0]), Tensor([1.0, 1.0])).tolist() == [6, 12]
    np.testing.assert_allclose(koine.jacrev(lambda s, x: s * x, argnums=1)(Tensor(2.0), Tensor([1.0, 1.0])).numpy(), 2 * np.eye(2))
    value, pull, aux = koine.vjp(lambda x: (x * x, {"aux": x}), Tensor([3.0]), has_aux=True)
    assert value.item() == 9 and aux["aux"].item() == 3 and pull(Tensor([1.0]))[0].item() == 6


def test_rules_of_ones_own():
    @koine.custom_vjp
    def clipped(x):
        return x * 2

    clipped.defvjp(lambda x: (x * 2, {"x": x}), lambda saved, g: (g.clip(-1.0, 1.0) + 0 * saved["x"],))
    assert koine.grad(lambda x: (clipped(x) * 5).sum())(Tensor([1.0, 2.0])).tolist() == [1, 1]
    assert clipped(Tensor([3.0])).item() == 6
    assert koine.grad(lambda x: (clipped(x) * 0.5).sum())(Tensor([[1.0], [2.0]])).tolist() == [[0.5], [0.5]]

    @koine.custom_jvp
    def f(x, y):
        return x * y

    f.defjvp(lambda primals, tangents: (f(*primals), 10 * tangents[0] + tangents[1]))
    assert koine.jvp(f, (Tensor(2.0), Tensor(3.0)), (Tensor(1.0), Tensor(1.0)))[1].item() == 11
    assert koine.grad(f, argnums=(0, 1))(Tensor(2.0), Tensor(3.0))[0].item() == 10
    with pytest.raises(ValueError, match="defvjp"):
        koine.custom_vjp(lambda x: x)(Tensor(1.0))


def test_a_rule_may_be_given_again():
    by_vjp, by_jvp = koine.custom_vjp(lambda x: x * 2), koine.custom_jvp(lambda x: x * 2)
    for slope in (3.0, 5.0):
        by_vjp.defvjp(lambda x: (x * 2, None), lambda saved, g, s=slope: (g * s,))
        by_jvp.defjvp(lambda p, t, s=slope: (p[0] * 2, t[0] * s))
        assert koine.grad(by_vjp)(1.0).item() == slope and koine.grad(by_jvp)(1.0).item() == slope


def test_attributes_that_are_no_fields_stay():
    @dataclasses.dataclass
    class Scaled:
        w: Tensor
        scale = 1.0

    given = Scaled(Tensor([1.0, 2.0]))
    given.scale = 5.0
    assert koine.grad(lambda m: (m.w * m.scale).sum())(given).w.tolist() == [5, 5]
    assert koine.vmap(lambda m: m.w * m.scale)(given).tolist() == [5, 10]
    assert koine.tree.map(lambda t: t * 2, given).scale == 5


def test_data_that_are_arrays():
    class Own:
        def __init__(self, t, data):
            self.t, self.data = t, data

    koine.tree.register(Own, lambda o: ([o.t], o.data), lambda data, c: Own(c[0], data))
    one, two, three = Own(1, np.arange(3.0)), Own(2, np.arange(3.0)), Own(3, np.arange(4.0))
    assert koine.tree.structure(one) == koine.tree.structure(two) != koine.tree.structure(three)

    class Strange:
        def __eq__(self, other):
            return np.array([True, False])

    with pytest.raises(koine.errors.TypeError, match="the data of a 'Own' in a tree do not compare"):
        assert koine.tree.structure(Own(1, Strange())) == koine.tree.structure(Own(1, Strange()))


def test_checkpoints_and_constants(rng):
    a = rng.standard_normal((4, 4))

    def block(x, w):
        return {"y": (x @ w).tanh()}

    plain = koine.grad(lambda x: block(block(x, Tensor(a))["y"], Tensor(a))["y"].sum())(Tensor(a))
    for keep in [(), ["h"], "products"]:
        again = koine.grad(lambda x: koine.checkpoint(block, keep)(koine.checkpoint(block)(x, Tensor(a))["y"], Tensor(a))["y"].sum())(Tensor(a))
        np.testing.assert_allclose(again.numpy(), plain.numpy())
    assert koine.grad(lambda x: (koine.stop_gradient(x) * x).sum())(Tensor([3.0])).item() == 3


def test_loops(rng):
    xs = rng.standard_normal((5, 2))
    (last, n), ys = koine.scan(lambda c, x: ((c[0] + x, c[1] + 1), {"sum": c[0] + x}), (Tensor(np.zeros(2)), Tensor(0)), Tensor(xs))
    np.testing.assert_allclose(ys["sum"].numpy(), xs.cumsum(0))
    assert n.item() == 5 and np.allclose(last.numpy(), xs.sum(0))
    back = koine.scan(lambda c, x: (c + x, c), Tensor(np.zeros(2)), Tensor(xs), reverse=True)[1]
    np.testing.assert_allclose(back.numpy()[0], xs[1:].sum(0))
    assert koine.scan(lambda c, _: (c * 2, None), Tensor(1.0), None, length=5)[0].item() == 32
    assert koine.fori_loop(0, 5, lambda i, c: c + i, Tensor(0)).item() == 10
    assert koine.while_loop(lambda c: c["x"] < 100, lambda c: {"x": c["x"] * 2}, {"x": Tensor(1)})["x"].item() == 128
    for k in range(4):
        assert koine.cond(Tensor(k) > 1, lambda x: x + 1, lambda x: x * 10, Tensor(5)).item() == (6 if k > 1 else 50)
        assert koine.switch(Tensor(k), [lambda x: x, lambda x: -x, lambda x: x * x], Tensor(3)).item() == [3, -3, 9, 9][k]
    g = koine.grad(lambda w: koine.scan(lambda c, x: (c * w + x.sum(), c), Tensor(np.float64(0)), Tensor(xs))[0])(Tensor(np.float64(0.5)))
    h = lambda w: sum(xs[k].sum() * w ** (4 - k) for k in range(5))
    assert g.item() == pytest.approx((h(0.5 + 1e-6) - h(0.5 - 1e-6)) / 2e-6, rel=1e-5)
    assert koine.eval_shape(lambda x: {"a": x @ x.T}, Tensor(xs))["a"].shape == (5, 5)
    said = koine.ShapeDtype((5, 5), "float64")
    assert koine.eval_shape(lambda x: x @ x.T, Tensor(xs)) == said == koine.ShapeDtype([5, 5], koine.float64) and len({said, said}) == 1
    assert said != koine.ShapeDtype((5, 5), "float32") and said != koine.ShapeDtype((5,), "float64") and said != (5, 5)


def test_what_is_prepared_for_one_value_names_no_memory_of_another(rng):
    def looked_at(f):
        x = Tensor(rng.standard_normal((5, 3)).astype("float32")).realize()
        kept, again = f(x).contiguous(), f(x).contiguous().contiguous()
        return kept.numpy(), again.numpy()

    def through_a_loop(x):  # a Function, and bytes of the host below it
        return koine.grad(lambda v: (v.softmax(-1) * v).sum())(koine.fori_loop(0, 3, lambda i, c: c * 0.5 + 1, x))

    for f in (through_a_loop, lambda x: x.exp()):
        kept, again = looked_at(f)
        np.testing.assert_array_equal(kept, again)


def test_a_scalar_has_no_examples():
    with pytest.raises(IndexError, match="vmap: x of shape \\(\\) has no axis 0: it is a scalar; give none for what is equal"):
        koine.vmap(lambda x: x)(Tensor(1.0))
    assert koine.vmap(lambda x, y: x + y, in_axes=(None, 0))(Tensor(1.0), Tensor([1.0, 2.0])).tolist() == [2.0, 3.0]


def of_rule(bwd):
    f = koine.custom_vjp(lambda w: w * 1)
    return f.defvjp(lambda w: (w * 1, w), lambda w, g: (bwd(w, g),))


@pytest.mark.parametrize("bwd, wanted", [
    (lambda w, g: koine.fori_loop(0, 2, lambda i, u: u * w, g), 9),
    (lambda w, g: koine.scan(lambda u, y: (u * w * y, None), g, koine.ones(2))[0], 9),
    (lambda w, g: koine.while_loop(lambda u: u < 5, lambda u: u * w, g), 9),
    (lambda w, g: koine.cond(g > 0, lambda u: u * w, lambda u: u, g), 3),
    (lambda w, g: koine.checkpoint(lambda u: u * w)(g), 3),
    (lambda w, g: koine.vmap(lambda y: y * w)(g.unsqueeze(0).expand(2)).sum(), 6),
    (lambda w, g: koine.cond(g > 0, lambda u: koine.grad(lambda y: y * y * u)(w), lambda u: u, g), 6),
])
def test_a_rule_traces_functions_of_its_own(bwd, wanted):
    f = of_rule(bwd)
    for derivative in (koine.grad(f), koine.jit(koine.grad(f)), lambda w: koine.vjp(f, w)[1](Tensor(1.0))[0],
                       lambda w: koine.vmap(koine.grad(f))(w.unsqueeze(0))[0]):
        for _ in range(2):
            assert derivative(Tensor(3.0)).item() == wanted


def test_loops_in_what_a_rule_saves_and_in_tangents():
    def powers(k, g):
        return koine.scan(lambda u, y: (k * u * y, None), g, koine.arange(1, 4).astype("float32"))[0]

    f = koine.custom_vjp(lambda w: w * 1)
    f.defvjp(lambda w: (w * 1, powers(w, w)), lambda c, g: (c * g,))
    assert koine.grad(f)(2.0).item() == 96
    h = koine.custom_jvp(lambda w: w * 1)
    h.defjvp(lambda p, t: (p[0] * 1, koine.fori_loop(0, 2, lambda i, u: u * p[0], t[0])))
    assert koine.jvp(h, (3.0,), (1.0,))[1].item() == 9 and koine.vmap(lambda w: koine.jvp(h, (w,), (w,))[1])(Tensor([3.0])).tolist() == [27.0]


def test_a_fixed_point_by_its_implicit_derivative():
    @koine.custom_vjp
    def root(a):  # x = (x + a / x) / 2
        return koine.while_loop(lambda c: (c[0] - c[1]).abs() > 1e-6, lambda c: (c[1], (c[1] + a / c[1]) / 2), (a + 1, a * 0 + 1.0))[1]

    def back(saved, g):
        a, x = saved
        move = koine.vjp(lambda v: (v + a / v) / 2, x)[1]
        u = koine.fori_loop(0, 40, lambda i, w: g + move(w)[0], g)
        return (koine.vjp(lambda b: (x + b / x) / 2, a)[1](u)[0],)

    root.defvjp(lambda a: (lambda x: (x, (a, x)))(root(a)), back)
    np.testing.assert_allclose(koine.grad(root)(2.0).item(), 0.5 / np.sqrt(2), rtol=1e-5)
    np.testing.assert_allclose(koine.jit(koine.grad(root))(Tensor(9.0)).item(), 1 / 6, rtol=1e-5)


def test_out_axes_are_a_prefix_of_the_result():
    x = koine.ones(5, 4)
    for f, axes, shapes in [(lambda a: (None, (a, a * 2)), (0, 1), [(4, 5), (4, 5)]), (lambda a: ((a, a + 1), a * 2), (0, 1), [(5, 4), (5, 4), (4, 5)]),
                            (lambda a: (a, None, a * 2), (0, None, 1), [(5, 4), (4, 5)]), (lambda a: {"p": a, "q": (a, a)}, {"p": 1, "q": 0}, [(4, 5), (5, 4), (5, 4)])]:
        assert [t.shape for t in koine.tree.leaves(koine.vmap(f, out_axes=axes)(x))] == shapes
    calls = []

    def counted(a):
        calls.append(a)
        return (a, {"p": a, "q": None}, (a, a * 2))

    for axes in (0, (0, 1, 1), (0, {"p": 1, "q": None}, 0), (0, 0, (1, 0))):
        calls.clear()
        koine.vmap(counted, out_axes=axes)(x)
        assert len(calls) == 1
    for f, axes in [(lambda a: (a, (a, a)), ((0, 1), 1)), (lambda a: {"z": a, "b": a}, {"z": 1, "y": 0})]:
        with pytest.raises((ValueError, TypeError), match="vmap: "):
            koine.vmap(f, out_axes=axes)(x)


def test_cotangents_have_the_structure_of_their_argument():
    f = koine.custom_vjp(lambda p, c: p["w"] * p["b"] * c)
    p = {"w": Tensor(2.0), "b": Tensor(3.0)}
    for made, message in [({"w": 1, "x": 2}, "'x'"), ([1, 2], "for argument 0"), (1.0, "for argument 0"), ({"w": (1, 2), "b": 1}, "for argument 0")]:
        f.defvjp(lambda p, c: (p["w"] * p["b"] * c, None), lambda _, g: (made, g))  # noqa: B023
        with pytest.raises(ValueError, match=message):
            koine.grad(f)(p, Tensor(1.0))
    f.defvjp(lambda p, c: (p["w"] * p["b"] * c, None), lambda _, g: ({"w": None, "b": g * 5}, g * 7))
    by_p, by_c = koine.grad(f, argnums=(0, 1))(p, Tensor(1.0))
    assert (by_p["w"].item(), by_p["b"].item(), by_c.item()) == (0, 5, 7)


def test_rules_take_keywords_and_what_the_function_captures():
    i = Tensor([1, 0])
    f = koine.custom_vjp(lambda a: a[i])
    f.defvjp(lambda a: (a[i], None), lambda _, g: (g[i] * 10,))
    assert koine.grad(lambda a: (f(a) * Tensor([1.0, 2.0])).sum())(Tensor([1.0, 2.0])).tolist() == [20.0, 10.0]
    product = koine.custom_vjp(lambda a, b: a * b)
    product.defvjp(lambda a, b: (a * b, (a, b)), lambda r, g: (g * r[1], g * r[0]))
    assert koine.grad(lambda a: product(a, b=Tensor(3.0)))(2.0).item() == koine.grad(lambda b: product(b=b, a=Tensor(3.0)))(2.0).item() == 3
    steep = koine.custom_jvp(lambda a, b: a * b)
    steep.defjvp(lambda p, t: (p[0] * p[1], t[0] * p[1] * 100))
    assert koine.grad(lambda a: steep(a, b=Tensor(3.0)))(2.0).item() == 300


def test_functions_are_mapped_over_keys():
    split, randn = koine.random.split, koine.random.randn
    key = koine.random.Key(11)
    keys, apart = split(key, 3), key.split(3)
    assert len(keys) == 3 and [k.bits.item() for k in keys] == [k.bits.item() for k in apart]
    assert [k.bits.item() for k in keys[1:]] == [k.bits.item() for k in apart[1:]]
    assert repr(key) == "<koine.random.Key>" and repr(keys) == "<koine.random.Key of shape (3,)>"
    first, second = split(key)
    assert first.bits.item() == apart[0].bits.item() and second.bits.item() == apart[1].bits.item()
    together = koine.vmap(lambda k: randn(k, (4,)))(keys)
    assert np.array_equal(together.numpy(), np.stack([randn(k, (4,)).numpy() for k in apart]))
    pairs = koine.vmap(lambda k: split(k, 2))(keys)  # keys are results, too
    assert pairs.bits.tolist() == [[k.bits.item() for k in one.split()] for one in apart]
    run = koine.jit(lambda keys, w: koine.vmap(koine.grad(lambda w, k: (w * randn(k, (4,))).sum()), in_axes=(None, 0))(w, keys))
    for _ in range(2):
        assert np.array_equal(run(keys, koine.Tensor.ones(4)).numpy(), together.numpy())
    with pytest.raises(ValueError, match=r"randn: needs one key, got keys of shape \(3,\): take one, keys\[i\], or run"):
        randn(keys, (2,))
    with pytest.raises(TypeError, match="this is one key; split gives several"):
        len(key)
    with pytest.raises(IndexError, match="position 3 is out of range"):
        keys[3]


class Mode:
    factor = 3


@pytest.mark.parametrize("transform", [
    lambda f: koine.grad(f), lambda f: lambda *a: koine.value_and_grad(f)(*a)[1], lambda f: lambda *a: koine.checkpoint(f)(*a) * 0 + koine.grad(f)(*a),
    lambda f: koine.jit(koine.grad(f)), lambda f: koine.jacrev(f), lambda f: koine.jacfwd(f)])
def test_what_is_no_array_comes_as_it_is(transform):
    def f(x, training, name, power, mode, shift):
        assert type(training) is bool and type(name) is str and type(power) is int and isinstance(shift, koine.Tensor)
        return getattr((x * mode.factor) ** power, name)().sum() + shift.sum() if training else x.sum()

    x = koine.Tensor([1.0, -2.0])
    assert transform(f)(x, True, "relu", 2, Mode, np.ones(2, np.float32)).tolist() == [18.0, -36.0]
    assert transform(f)(x, False, "relu", 2, Mode, np.ones(2, np.float32)).tolist() == [1.0, 1.0]


def test_what_is_equal_in_all_examples_comes_as_it_is():
    def f(x, training, power, *, scale):
        assert type(training) is bool and type(power) is int
        return x ** power * scale

    xs = koine.Tensor([[1.0, 2.0], [3.0, 4.0]])
    got = koine.vmap(f, in_axes=(0, None, None))(xs, True, 2, scale=koine.Tensor([1.0, 10.0]))
    assert got.dtype == koine.float32 and got.tolist() == [[1.0, 4.0], [90.0, 160.0]]
    with pytest.raises(TypeError, match="vmap: takes tensors, arrays, lists and numbers, not a 'str'"):
        koine.vmap(lambda x, name: x)(xs, "relu")
    with pytest.raises(TypeError, match="grad: takes tensors, arrays, lists and numbers, not a 'str'"):
        koine.grad(lambda x, name: x.sum(), argnums=1)(xs, "relu")


def test_derivatives_of_trees_by_several_arguments(rng):
    a, b = rng.standard_normal(2), rng.standard_normal(2)
    x, y = Tensor(a), Tensor(b)
    for jacobian in (koine.jacfwd, koine.jacrev):
        found = jacobian(lambda p, q: {"product": p["x"] * q, "dot": (p["x"] @ q,)}, (0, 1))({"x": x}, y)
        (product_by_p, product_by_q), (dot_by_p, dot_by_q) = found["product"], found["dot"][0]
        assert np.array_equal(product_by_p["x"].numpy(), np.diag(b)) and np.array_equal(product_by_q.numpy(), np.diag(a))
        assert np.array_equal(dot_by_p["x"].numpy(), b) and np.array_equal(dot_by_q.numpy(), a)
        assert np.array_equal(jacobian(lambda p, q: p * q, -1)(x, y).numpy(), np.diag(a))
    (aa, ab), (ba, bb) = koine.hessian(lambda x, y: (x * x * y).sum(), (0, 1))(x, y)
    assert np.allclose(aa.numpy(), np.diag(2 * b)) and np.array_equal(bb.numpy(), np.zeros((2, 2)))
    assert np.allclose(ab.numpy(), np.diag(2 * a)) and np.allclose(ba.numpy(), np.diag(2 * a))
    tree = koine.hessian(lambda p: (p["w"] ** 2 * p["b"]).sum())({"w": x, "b": Tensor(3.0)})
    assert np.allclose(tree["w"]["w"].numpy(), 6 * np.eye(2)) and np.allclose(tree["w"]["b"].numpy(), 2 * a)
    assert np.allclose(tree["b"]["w"].numpy(), 2 * a) and tree["b"]["b"].item() == 0
    for call, message in [(lambda: koine.jacfwd(lambda x: x, ())(x), "jacfwd: there is no tensor in what to differentiate by"),
                          (lambda: koine.jacrev(lambda x: ())(x), r"jacrev: the function gives .*, in which there is no tensor"),
                          (lambda: koine.jacfwd(lambda x: x.argmax())(x), "jacfwd: the function must give one float tensor")]:
        with pytest.raises(TypeError, match=message):
            call()


def test_shapes_of_what_is_not_computed():
    like = koine.ShapeDtype
    out = koine.eval_shape(lambda x, n: (x @ x.T, {"n": n * 2}), like((100000, 3), "float64"), 3)  # 80 GB
    assert out[0].shape == (100000, 100000) and out[0].dtype == koine.float64 and out[1]["n"].shape == ()
    layer = nn.Linear(3, 4)
    assert koine.eval_shape(layer, like((7, 3), koine.float32)).shape == (7, 4)
    assert koine.eval_shape(lambda d, training: d["x"] if training else d["y"], {"x": like((2,), "int8"), "y": Tensor([1.0])}, True).dtype == koine.int8
    for f, error, message in [(lambda x: x.item(), ValueError, "realizing a tensor of shape .* inside of the function traced at .*test_transforms"),
                              (lambda x: x.reshape(3, 2), ValueError, "reshape"), (lambda x: "name", TypeError, "eval_shape: takes tensors")]:
        with pytest.raises(error, match=message):
            koine.eval_shape(f, like((), "float32"))


def test_rules_of_another_form_are_refused():
    x, y = Tensor([1.0, 2.0, 3.0]), Tensor([[1.0, 2.0], [3.0, 4.0]])
    for rule, message in [(lambda p, t: t[0] * 5, "the rule gives a pair, f's result and its tangent, not Tensor"),
                          (lambda p, t: (p[0] * 2, t[0] * 2, t[0]), "the rule gives a pair"),
                          (lambda p, t: (p[0] * 2, (t[0] * 2,)), r"the rule gives \(\*,\) for the result \*"),
                          (lambda p, t: (p[0] * 2, t[0].sum()), r"the rule gives shape \(\) for a result of shape \(3,\)")]:
        f = koine.custom_jvp(lambda x: x * 2).defjvp(rule)
        with pytest.raises(ValueError, match="custom_jvp: " + message):
            koine.jvp(f, (x,), (x,))
    for fwd, message in [(lambda x: x * 2, "fwd gives a pair, f's result and what is saved, not Tensor"),
                         (lambda x: (x.sum(), x), r"fwd gives shape \(\) for a result of shape \(2, 2\)"),
                         (lambda x: ([x * 2], x), r"fwd gives \[\*\] for the result \*")]:
        g = koine.custom_vjp(lambda x: x * 2).defvjp(fwd, lambda saved, g: (g * saved,))
        with pytest.raises(ValueError, match="custom_vjp: " + message):
            koine.grad(lambda x: g(x).sum())(y)


def test_what_takes_a_function_says_so_itself():
    for name in ("grad", "value_and_grad", "jacfwd", "jacrev", "hessian", "vmap", "checkpoint", "custom_vjp", "custom_jvp", "jit"):
        with pytest.raises(TypeError, match=f"^{name}: takes a function, not a 'int'"):
            getattr(koine, name)(3)
    with pytest.raises(TypeError, match="^hvp: takes a function"):
        koine.hvp(3, Tensor(1.0), Tensor(1.0))


AUX = {"jvp": lambda f, x: koine.jvp(f, (x,), (x,), has_aux=True), "linearize": lambda f, x: koine.linearize(f, x, has_aux=True),
       "jacfwd": lambda f, x: koine.jacfwd(f, has_aux=True)(x), "jacrev": lambda f, x: koine.jacrev(f, has_aux=True)(x),
       "vjp": lambda f, x: koine.vjp(f, x, has_aux=True)}


@pytest.mark.parametrize("name", AUX)
def test_what_a_function_gives_beside_its_result(name, rng):
    a = rng.standard_normal(3)
    calls = []

    def f(x):
        calls.append(1)
        return {"y": x * x, "z": x.sum()}, [(x * 3).cast("float32"), x.argmax()]

    found = AUX[name](f, Tensor(a))
    aux = found[-1]
    assert type(aux) is list and np.allclose(aux[0].numpy(), np.float32(a * 3)) and aux[1].item() == a.argmax() and len(calls) == 1
    if name in ("jacfwd", "jacrev"):
        assert np.allclose(found[0]["y"].numpy(), np.diag(2 * a)) and np.array_equal(found[0]["z"].numpy(), np.ones(3))
    else:
        assert np.allclose(found[0]["y"].numpy(), a * a)
    if name == "vjp":
        assert np.allclose(found[1]({"y": Tensor(np.ones(3)), "z": Tensor(np.float64(1))})[0].numpy(), 2 * a + 1)
    if name == "jvp":
        assert np.allclose(found[1]["y"].numpy(), 2 * a * a) and found[1]["z"].item() == pytest.approx(a.sum())
    if name == "linearize":
        assert np.allclose(found[1](Tensor(a))["y"].numpy(), 2 * a * a)
    with pytest.raises(TypeError, match=rf"{name}: with has_aux the function gives \(result, aux\), not one value"):
        AUX[name](lambda x: x.sum(), Tensor(a))


def test_second_derivatives_with_aux():
    h, aux = koine.hessian(lambda x, y: ((x ** 3).sum() * y, {"twice": x * 2}), has_aux=True)(Tensor([1.0, 2.0]), 2.0)
    assert h.tolist() == [[12, 0], [0, 24]] and aux["twice"].tolist() == [2, 4]


@pytest.mark.parametrize("name, of", [("grad", lambda f: koine.grad(f)), ("value_and_grad", lambda f: koine.value_and_grad(f)), ("jacfwd", lambda f: koine.jacfwd(f)),
                                      ("jacrev", lambda f: koine.jacrev(f)), ("hessian", lambda f: koine.hessian(f))])
def test_integers_have_no_gradients(name, of):
    for x, dtype in [(3, "int32"), (True, "bool"), (Tensor([1, 2]), "int32"), (np.uint8(3), "uint8")]:
        with pytest.raises(TypeError, match=f"^{name}: gradients need floating point inputs, and argument 0, [a-z0-9 ]+, is {dtype}: cast it to a float, as in 3.0 for 3"):
            of(lambda x: (x * x * 1.0).sum())(x)
    with pytest.raises(TypeError, match="gradients need floating point inputs, and argument 0"):
        koine.grad(lambda x: x * x)(3)
    with pytest.raises(TypeError, match="argument 1, .*, is int32"):
        koine.grad(lambda p, q: p["x"].sum() * q[0], argnums=(0, 1))({"x": Tensor([1.0])}, [2])


def test_keywords_that_are_not_known_are_refused_with_those_that_are():
    f = lambda x: x  # noqa: E731
    for call, message in [(lambda: koine.grad(f, holomorphic=True), r"grad: there is no 'holomorphic'. It takes \(f, argnums=0, has_aux=False\)"),
                          (lambda: koine.vmap(f, spmd_axis_name="i"), r"vmap: there is no 'spmd_axis_name'. It takes \(f, in_axes=0, out_axes=0, axis_name=None, axis_size=None\)"),
                          (lambda: koine.vjp(f, 1.0, aux=1), r"vjp: there is no 'aux'. It takes \(f, \*primals, has_aux=False\)"),
                          (lambda: koine.linearize(f, 1.0, aux=1), "linearize: there is no 'aux'"), (lambda: koine.jvp(f, (1.0,), (1.0,), aux=1), "jvp: there is no 'aux'"),
                          (lambda: koine.value_and_grad(f, aux=1), "value_and_grad: there is no 'aux'"), (lambda: koine.hessian(f, aux=1), "hessian: "),
                          (lambda: koine.jacfwd(f, a=1, b=2), "jacfwd: there is no 'a' and no 'b'"), (lambda: koine.jacrev(f, a=1), "jacrev: "),
                          (lambda: koine.hvp(f, 1.0, vectors=1.0), r"hvp: there is no 'vectors'. It takes \(f, x, vector\)"),
                          (lambda: koine.checkpoint(f, prevent_cse=1), r"checkpoint: there is no 'prevent_cse'. It takes \(f, keep=\(\), policy=None\)"),
                          (lambda: koine.scan(f, 1.0, rows=1), r"scan: .*\(f, init, xs=None, length=None, reverse=False, unroll=1\)"),
                          (lambda: koine.fori_loop(0, 1, f, 1, init=2), r"fori_loop: .*\(lower, upper, body_fun, init_val, \*, unroll=None\)"),
                          (lambda: koine.while_loop(f, f, init=2), "while_loop: there is no 'init'"), (lambda: koine.cond(True, f, f, operand=2), "cond: "),
                          (lambda: koine.switch(1, [f], operand=2), "switch: "), (lambda: koine.jit(f, inline=True), "jit: there is no 'inline'. .*static_argnums=None"),
                          (lambda: koine.jit(inline=True), "jit: there is no 'inline'"), (lambda: koine.custom_vjp(f, rule=1), "custom_vjp: there is no 'rule'"),
                          (lambda: koine.custom_jvp(f, rule=1), r"custom_jvp: .*\(f, nondiff_argnums=\(\), nondiff_argnames=\(\)\)"),
                          (lambda: koine.tree.map(f, 1, leaf=1), "map: there is no 'leaf'"), (lambda: koine.tree.flatten(1, leaf=1), "flatten: "),
                          (lambda: koine.custom_kernel(f, 1, method=1), "custom_kernel: there is no 'method'")]:
        with pytest.raises(koine.errors.TypeError, match="^" + message):
            call()
    assert koine.vmap(f, axis_size=2)(Tensor([1.0, 2.0])).tolist() == [1, 2]


def test_arguments_of_rules_that_are_constants():
    @functools.partial(koine.custom_vjp, nondiff_argnums=(1, 2))
    def f(x, mode, g):
        return g(x) if mode == "apply" else x * 1

    seen = []

    def bwd(mode, g, saved, cotangent):
        seen.append((mode, g))
        return (cotangent * (10 if mode == "apply" else 20) * saved,)

    f.defvjp(lambda x, mode, g: (f(x, mode, g), x), bwd)
    x = Tensor([1.0, 2.0])
    for derivative in (koine.grad, lambda h: koine.jit(koine.grad(h)), lambda h: lambda v: koine.vmap(koine.grad(h))(v.reshape(2, 1)).flatten()):
        assert derivative(lambda x: f(x, "apply", Tensor.sin).sum())(x).tolist() == [10, 20]
        assert derivative(lambda x: f(x, g=Tensor.sin, mode="keep").sum())(x).tolist() == [20, 40]
    assert ("apply", Tensor.sin) in seen and f(x, "apply", Tensor.neg).tolist() == [-1, -2]

    steep = koine.custom_jvp(lambda name, a, scale=2.0: getattr(a, name)() * scale, nondiff_argnums=(0, -1))
    steep.defjvp(lambda name, scale, primals, tangents: (getattr(primals[0], name)() * scale, tangents[0] * scale * 100))
    assert koine.grad(lambda a: steep("neg", a).sum())(x).tolist() == [200, 200] and steep("neg", x).tolist() == [-2, -4]
    assert koine.jvp(lambda a: steep("neg", a, scale=3.0), (x,), (x,))[1].tolist() == [300, 600]
    named = koine.custom_vjp(lambda x, mode: x * 1, nondiff_argnames="mode")
    named.defvjp(lambda x, mode: (x * 1, None), lambda mode, _, g: (g * len(mode),))
    assert koine.grad(lambda x: named(x, "four").sum())(x).tolist() == [4, 4]
    for call, message in [(lambda: koine.custom_vjp(lambda x, name: x, nondiff_argnames="nam"), "custom_vjp: nondiff_argnames names 'nam', and the parameters are x, name"),
                          (lambda: named(x), "custom_vjp: argument 1 of 1, which nondiff_argnums names, does not exist")]:
        with pytest.raises(ValueError, match=message):
            call()
    plain = koine.custom_vjp(lambda x, name: x * 1)
    plain.defvjp(lambda x, name: (x * 1, None), lambda _, g: (g, None))
    with pytest.raises(TypeError, match="custom_vjp: takes tensors, .* not a 'str': where it is a constant, name its argument by nondiff_argnums"):
        plain(x, "name")
    for k in range(100):  # other constants, other rules
        assert koine.grad(lambda x: named(x, "x" * k).sum())(x).tolist() == [k, k]  # noqa: B023


def test_how_many_examples_there_are():
    assert koine.vmap(lambda: Tensor(1.0) * 2, axis_size=3)().tolist() == [2, 2, 2]
    assert koine.vmap(lambda x, y: x * y, in_axes=None, axis_size=2, out_axes=-1)(Tensor([1.0, 2.0]), 3).tolist() == [[3, 3], [6, 6]]
    assert koine.vmap(lambda x, y: {"s": x + y}, in_axes=(0, None), axis_size=np.int64(2), out_axes={"s": 0})(Tensor([1.0, 2.0]), 3)["s"].tolist() == [4, 5]
    assert koine.vmap(lambda x: x, axis_size=0)(koine.zeros(0, 2)).shape == (0, 2)
    drawn = koine.vmap(lambda: Tensor.rand(2), axis_size=3)().tolist()
    assert len({tuple(row) for row in drawn}) == 3
    for size, message in [(3, r"axis_size is 3, and y of shape \(4, 2\) has 2 examples along axis -1"), (-1, "axis_size is how many"), (True, "axis_size is how many")]:
        with pytest.raises(ValueError, match=message):
            koine.vmap(lambda x, y: x, in_axes=(None, -1), axis_size=size)(1.0, koine.zeros(4, 2))
    with pytest.raises(ValueError, match="vmap: axis_name='batch': no function of Koine's computes over all examples"):
        koine.vmap(lambda x: x, axis_name="batch")


@pytest.mark.parametrize("run", [
    lambda f, x: koine.vmap(f)(x), lambda f, x: koine.grad(lambda v: f(v).sum())(x), lambda f, x: koine.jvp(f, (x,), (x,)),
    lambda f, x: koine.jacfwd(f)(x), lambda f, x: koine.scan(lambda c, row: (c, f(row)), 0.0, x), lambda f, x: koine.fori_loop(0, 3, lambda i, c: f(c), x),
    lambda f, x: koine.while_loop(lambda c: c.sum() < 9, f, x), lambda f, x: koine.cond(x.sum() > 1, f, f, x),
    lambda f, x: koine.checkpoint(f)(x), lambda f, x: koine.eval_shape(f, x), lambda f, x: koine.jit(koine.grad(lambda v: f(v).sum()))(x)])
def test_a_tensor_that_is_kept_from_inside_of_a_function_says_so(run):
    kept = []

    def f(x):
        kept.append(x * 2)
        return x + 1

    run(f, koine.ones(3))
    for look in (lambda t: t.tolist(), lambda t: (t + 1).sum().item(), lambda t: koine.grad(lambda v: (v * t).sum())(1.0).item(),
                 lambda t: koine.fori_loop(0, 3, lambda i, c: c + t.sum(), 0.0).item(), lambda t: koine.jit(lambda v: v * t)(koine.ones(3)).tolist()):
        with pytest.raises(ValueError, match=r"what stood for an argument, float32 of shape \(3?,?\), of a function that was traced at .*test_transforms.py:\d+.*"
                                             r"kept from inside of it \(it begins at .*test_transforms.py:\d+.*let the function return it"):
            look(kept[0])
    assert "traced" in repr(kept[0])


def test_fori_loop_from_and_to_numbers_that_are_computed():
    step = lambda i, c: c * 3 + i
    for low, high in [(0, 5), (-2, 3), (4, 1), (2, 2)]:
        wanted = koine.fori_loop(low, high, step, 1).item()
        for first, last in [(Tensor(low), Tensor(high)), (low, Tensor(high)), (Tensor(low), high), (Tensor(low, dtype="int8"), Tensor(high, dtype="int64"))]:
            assert koine.fori_loop(first, last, step, 1).item() == wanted
    assert koine.fori_loop(0, Tensor(3, dtype="uint8"), lambda i, c: {"n": c["n"] + i, "d": i}, {"n": Tensor(0, dtype="uint8"), "d": Tensor(9, dtype="uint8")})["d"].item() == 2
    # How often is an argument: of each example, of a program that is compiled once, in forward mode.
    assert koine.vmap(lambda n: koine.fori_loop(0, n, lambda i, c: c * 2, 1))(Tensor([0, 3, 1])).tolist() == [1, 8, 2]
    power = koine.jit(lambda x, n: koine.fori_loop(0, n, lambda i, c: c * x, 1.0))
    assert [power(Tensor(2.0), Tensor(n)).item() for n in (0, 1, 5)] == [1, 2, 32]
    assert koine.jvp(lambda x: koine.fori_loop(0, Tensor(3), lambda i, c: c * x, 1.0), (2.0,), (1.0,))[1].item() == 12
    with pytest.raises(TypeError, match="a while_loop has no gradient"):
        koine.grad(lambda x: koine.fori_loop(0, Tensor(3), lambda i, c: c * x, 1.0))(2.0)
    with pytest.raises(ValueError, match=r"fori_loop: the steps go to an integer of shape \(\), got int32 of shape \(1,\)"):
        koine.fori_loop(0, Tensor([3]), step, 1)
    with pytest.raises(ValueError, match=r"fori_loop: the steps go from an integer of shape \(\), got float32 of shape \(\)"):
        koine.fori_loop(Tensor(0.0), 3, step, 1)
    with pytest.raises(ValueError, match=r"fori_loop: init_val\['h'\] is float32 of shape \(2,\) before"):
        koine.fori_loop(0, Tensor(3), lambda i, c: {"h": c["h"].sum()}, {"h": koine.ones(2)})


def test_derivatives_of_random_functions_are_those_of_one_call():
    x, calls = Tensor([1.0, -2.0, 3.0]), []

    def f(v):
        calls.append(v)
        return (v * v).sum() * Tensor.rand(4)

    for jacobian in (koine.jacfwd, koine.jacrev):
        koine.manual_seed(7)
        calls.clear()
        got = jacobian(f)(x).numpy()
        assert len(calls) == 1
        koine.manual_seed(7)
        np.testing.assert_allclose(got, 2 * Tensor.rand(4).numpy()[:, None] * x.numpy(), rtol=1e-5)
    koine.manual_seed(7)
    calls.clear()
    got = koine.hessian(lambda v: f(v).sum())(x).numpy()
    assert len(calls) == 1
    koine.manual_seed(7)
    np.testing.assert_allclose(got, np.eye(3) * 2 * Tensor.rand(4).numpy().sum(), rtol=1e-5)


@pytest.mark.parametrize("call, error, message", [
    (lambda: koine.jvp(lambda p, q: p["w"], ({"w": R3, "b": 1}, 1.0), ({"w": R2, "b": 0}, 1.0)), ValueError, r"jvp: tangents\[0\]\['w'\] is float32 of shape \(2,\), and primals\[0\]\['w'\] float32 of shape \(3,\)"),
    (lambda: koine.jvp(lambda p, q: p, (R3, 1.0), (R3,)), ValueError, r"jvp: the tangents are \[\*\], and should be \[\*, \*\]"),
    (lambda: koine.linearize(lambda p: p, R3)[1](R3.cast("float64")), ValueError, r"linearize: tangents\[0\] is float64 of shape \(3,\), and primals\[0\] float32"),
    (lambda: koine.vjp(lambda p: {"y": (p, p)}, R3)[1]({"y": (R3, R2)}), ValueError, r"vjp: cotangents\['y'\]\[1\] is float32 of shape \(2,\), and the result\['y'\]\[1\] float32 of shape \(3,\)"),
    (lambda: koine.vjp(lambda p: (p, p), R3)[1](R3), ValueError, r"vjp: the cotangents are one value, and should be \(\*, \*\)"),
    (lambda: koine.grad(lambda p: p["w"])({"w": 1.0, "n": [3]}), TypeError, r"argument 0, p\['n'\]\[0\], is int32: cast it"),
])
def test_messages_of_derivatives_name_the_leaf(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_in_axes_in_the_structure_of_a_layer():
    each, x = nn.Linear(3, 2), koine.ones(4, 3)
    layers = koine.tree.map(lambda t: koine.stack([t, t * 2, t * 3, t * 4]), each)
    for axes in (0, koine.tree.map(lambda _: 0, each)):
        got = koine.vmap(lambda layer, row: layer(row), (axes, 0))(layers, x)
        np.testing.assert_allclose(got.numpy(), np.arange(1, 5)[:, None] * each(x).numpy(), rtol=1e-5)


def test_numbers_that_a_step_makes_floats_are_floats_from_the_first_step_on():
    last = koine.while_loop(lambda c: c < 10, lambda c: c * 1.5, 1)
    assert last.dtype == koine.float32 and last.item() == 1.5 ** 6
    assert koine.scan(lambda c, x: (c * 1.5, c), 1, None, length=3)[1].tolist() == [1, 1.5, 2.25]
    assert koine.fori_loop(0, 3, lambda i, c: {"x": c["x"] / 2, "n": c["n"] + 1}, {"x": 1, "n": 0})["x"].item() == 0.125
    assert koine.fori_loop(0, 3, lambda i, c: c + 1, True).item() == 4  # a bool is 1
    assert koine.grad(lambda w: koine.fori_loop(0, 3, lambda i, c: c * w, 1))(2.0).item() == 12
    with pytest.raises(ValueError, match="fori_loop: init_val is int32 of shape .* and float32"):
        koine.fori_loop(0, 3, lambda i, c: i * 0.5, Tensor([1], dtype="int32").sum())
    with pytest.raises(ValueError, match="cond: the result is .*int32.* in false_fun and float32 .* in true_fun"):
        koine.cond(True, lambda x: 2.5, lambda x: x, Tensor([1], dtype="int32").sum())
    assert koine.cond(True, lambda x: 2, lambda x: x, Tensor(0.5)).item() == 2
    with pytest.raises(ValueError, match=r"while_loop: cond_fun must give one bool of shape \(\), not \(\*, \*\)"):
        koine.while_loop(lambda c: (c > 0, c), lambda c: c, 1)


R2, R3 = koine.ones(2), koine.ones(3)


@pytest.mark.parametrize("call, error, message", [
    (lambda: koine.scan(lambda c, x: (c, x), 0.0), ValueError, "scan: there are no rows: say how many steps with length=$"),
    (lambda: koine.scan(lambda c, x: (c, x), 0.0, {"a": R2, "b": [R3]}), ValueError, r"scan: the numbers of rows differ: xs\['a'\] of shape \(2,\) has 2, xs\['b'\]\[0\] of shape \(3,\) has 3$"),
    (lambda: koine.scan(lambda c, x: (c, x), 0.0, R2, length=4), ValueError, r"scan: the numbers of rows differ: length= is 4, xs of shape \(2,\) has 2$"),
    (lambda: koine.scan(lambda c, x: (c, x), 0.0, (R2, Tensor(1.0))), ValueError, r"scan: xs\[1\] has shape \(\): it has no axis 0"),
    (lambda: koine.scan(lambda c, x: ({"h": c["h"].sum(), "n": 1}, x), {"h": R2, "n": 0}, R3), ValueError, r"scan: init\['h'\] is float32 of shape \(2,\) before the first step and float32 of shape \(\) behind it"),
    (lambda: koine.scan(lambda c, x: c, 0.0, R2), TypeError, r"scan: a step gives \(carry, result\), not one value"),
    (lambda: koine.scan(lambda c, x: (c, x), (0.0, 1.0), R2, length=-1), ValueError, "scan: the numbers of rows differ: length= is -1"),
    (lambda: koine.scan(lambda c, x: ((c[0],), x), (0.0, 1.0), R2), ValueError, r"scan: a step gives the carry \(\*,\), and the first is \(\*, \*\)"),
    (lambda: koine.fori_loop(0, 3, lambda i, c: (c[0], c[1][None]), (R2, R3)), ValueError, r"fori_loop: init_val\[1\] is float32 of shape \(3,\) before the first step and float32 of shape \(1, 3\)"),
    (lambda: koine.fori_loop(None, 3, lambda i, c: c, R2), TypeError, "fori_loop: lower and upper are whole numbers, or tensors of one, not None"),
    (lambda: koine.checkpoint(lambda x: x, keep=3), TypeError, "checkpoint: keep is a name of koine.save_as, or several, not 3"),
    (lambda: koine.fori_loop(0, 3, lambda i, c: [c], R2), ValueError, r"fori_loop: a step gives the carry \[\*\], and the first is one value"),
    (lambda: koine.while_loop(lambda c: c["a"] > 0, lambda c: c, {"a": R2}), ValueError, r"while_loop: cond_fun must give one bool of shape \(\), got bool of shape \(2,\)"),
    (lambda: koine.while_loop(lambda c: c["a"].sum() > 0, lambda c: {"a": c["a"].cast("int32")}, {"a": R2}), ValueError, r"while_loop: init_val\['a'\] is float32 .* and int32"),
    (lambda: koine.cond(R2 > 0, lambda: 1, lambda: 1), ValueError, r"cond: pred must be a bool of shape \(\), got bool of shape \(2,\)"),
    (lambda: koine.cond(True, lambda x: (x, x), lambda x: x, R2), ValueError, r"cond: true_fun gives \(\*, \*\), and false_fun gives one value: all give the same"),
    (lambda: koine.cond(True, lambda x: {"y": x, "z": x}, lambda x: {"y": x, "z": x.sum()}, R2), ValueError, r"cond: the result\['z'\] is float32 of shape \(\) in false_fun and float32 of shape \(2,\) in true_fun"),
    (lambda: koine.switch(0, [lambda x: x, lambda x: x, lambda x: [x]], R2), ValueError, r"switch: branch 2 gives \[\*\], and branch 0 gives one value"),
    (lambda: koine.switch(0, [lambda x: x, lambda x: x.cast("int32")], R2), ValueError, "switch: the result is float32 .* in branch 0 and int32 .* in branch 1"),
])
def test_messages_of_loops_name_what_a_call_names(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_hints_of_loops_change_nothing():
    for unroll in (1, 2, 7, True, False):
        last, all_of = koine.scan(lambda c, x: (c + x, c), 0.0, Tensor([1.0, 2.0, 3.0]), unroll=unroll, reverse=True)
        assert last.item() == 6 and all_of.tolist() == [5, 3, 0]
        assert koine.fori_loop(0, 3, lambda i, c: c * 2, 1.0, unroll=unroll).item() == 8
    for unroll in (0, -1, "all", 1.5):
        with pytest.raises(ValueError, match="scan: unroll is True, False, or a number from 1 on"):
            koine.scan(lambda c, x: (c + x, c), 0.0, Tensor([1.0]), unroll=unroll)


def test_what_is_a_leaf():
    is_pair = lambda part: type(part) is tuple  # noqa: E731
    tree = {"b": (1, [2]), "a": [None, (3, 4)]}
    assert koine.tree_leaves(tree, is_leaf=is_pair) == [(3, 4), (1, [2])] and koine.tree_leaves(tree) == [3, 4, 1, 2]
    assert koine.tree_leaves(tree, is_leaf=lambda part: part is None) == [None, 3, 4, 1, 2]
    assert koine.tree_map(lambda part: part and part[0], tree, is_leaf=lambda part: part is None or is_pair(part)) == {"b": 1, "a": [None, 3]}
    leaves, structure = koine.tree_flatten(tree, is_leaf=is_pair)
    assert koine.tree_unflatten(structure, leaves) == tree and structure == koine.tree_structure({"b": 0, "a": [None, 0]})
    assert koine.tree_structure(tree, is_leaf=is_pair) == structure
    assert koine.tree_map(lambda a, b: (a, b), {"x": 1, "y": [2]}, {"x": {"z": 3}, "y": [(4, 5)]}) == {"x": (1, {"z": 3}), "y": [(2, (4, 5))]}
    for other in ({"x": 1}, {"x": 1, "y": 2}, {"x": 1, "y": (2,)}, {"x": 1, "z": [2]}, {"x": 1, "y": [2, 3]}):
        with pytest.raises(ValueError, match="tree.map: tree 1 is "):
            koine.tree_map(lambda a, b: a, {"x": 1, "y": [2]}, other)


class Mapping(dict):
    __getattr__ = dict.__getitem__


def made_of(kind, **items):
    """A dict of a class, with an attribute of its own where it has a place for one."""
    out = collections.defaultdict(list, items) if kind is collections.defaultdict else kind(items)
    if kind is Mapping:
        out.__dict__["title"] = "a title"
    return out


@pytest.mark.parametrize("kind", [collections.OrderedDict, collections.defaultdict, Mapping])
def test_classes_of_dicts_are_trees(kind, rng):
    a, b = rng.standard_normal(3), rng.standard_normal(3)
    given = made_of(kind, z=Tensor(a), b=(Tensor(b), None))
    leaves, structure = koine.tree.flatten(given)
    assert [t.tolist() for t in leaves] == ([list(a), list(b)] if kind is collections.OrderedDict else [list(b), list(a)])

    def like(made):
        same = made.default_factory is list if kind is collections.defaultdict else kind is not Mapping or vars(made) == {"title": "a title"}
        return type(made) is kind and list(made) == ["z", "b"] and same

    assert like(koine.tree.unflatten(structure, leaves)) and koine.tree.structure(koine.tree.unflatten(structure, leaves)) == structure

    def loss(p):
        assert like(p)
        return (p["z"] * p["b"][0]).sum()

    found = koine.grad(loss)(given)
    assert like(found) and found["z"].tolist() == list(b) and found["b"][0].tolist() == list(a)
    assert koine.vmap(lambda p: p["z"] * p["b"][0])(given).tolist() == list(a * b)
    for axes in ({"z": 0, "b": None}, made_of(kind, z=0, b=None)):
        assert koine.vmap(lambda p: p["z"] * p["b"][0].sum(), in_axes=(axes,))(given).numpy() == pytest.approx(a * b.sum())
    out = koine.vmap(lambda p: p, out_axes=made_of(kind, z=0, b=(0, None)))(given)
    assert like(out) and out["z"].tolist() == list(a)
    last, rows = koine.scan(lambda c, p: (made_of(kind, z=c["z"] + p["z"], b=c["b"]), p), made_of(kind, z=0.0 * Tensor(a[0]), b=(1.0,)), given)
    assert like(last) and like(rows) and rows["z"].tolist() == list(a)
    f = koine.jit(lambda p: (p["z"] * p["b"][0]).sum() * 1)
    for scale in (1, 2):
        assert f(made_of(kind, z=Tensor(scale * a), b=(Tensor(b), None))).item() == pytest.approx(scale * (a * b).sum())
    gives = koine.jit(lambda p: koine.tree.map(lambda t: t * 2, p))
    assert [like(gives(given)) and gives(given)["z"].tolist() for _ in range(2)] == [list(2 * a)] * 2
    assert f.explain_recompiles() == gives.explain_recompiles() == []


def test_orders_and_kinds_of_dicts_are_told_apart():
    ordered, counted = collections.OrderedDict, collections.defaultdict
    trees = [ordered(a=1, b=2), ordered(b=1, a=2), {"a": 1, "b": 2}, counted(list, a=1, b=2), counted(int, a=1, b=2), Mapping(a=1, b=2)]
    structures = [koine.tree.structure(t) for t in trees]
    assert all((s == t) is (i == j) for i, s in enumerate(structures) for j, t in enumerate(structures))
    assert koine.tree.structure(counted(list, b=1, a=2)) == structures[3] and hash(koine.tree.structure(counted(list, b=1, a=2))) == hash(structures[3])
    f = koine.jit(lambda p: p[0] * 10 if 0 in p else p[True] * 1)
    assert [f(Mapping({key: Tensor([1.0])})).item() for key in (0, True, 1, 1.0, 0.0)] == [10, 1, 1, 1, 10]


class Kind(enum.Enum):
    LINEAR = 1


@dataclasses.dataclass
class Layer:
    w: Tensor
    name: str
    activation: object = Tensor.relu
    power: int = dataclasses.field(default=3, metadata={"static": True})
    kind: Kind = Kind.LINEAR
    dtype: koine.DType = koine.float32


def test_fields_of_dataclasses_that_are_no_tensors(rng):
    a = rng.standard_normal(4).astype(np.float32)

    def g(layer):
        return layer.activation(layer.w ** layer.power) * (2 if layer.name == "two" else 1)

    def f(layer):
        assert type(layer) is Layer and type(layer.power) is int and layer.kind is Kind.LINEAR and layer.dtype is koine.float32
        return g(layer)

    layer, want = Layer(Tensor(a), "two"), 2 * np.maximum(a ** 3, 0)
    assert koine.tree.leaves(layer)[0].tolist() == a.tolist() and len(koine.tree.leaves(layer)) == 1
    found = koine.grad(lambda m: f(m).sum())(layer)
    assert (found.name, found.activation, found.power) == ("two", Tensor.relu, 3) and np.allclose(found.w.numpy(), 6 * a ** 2 * (a > 0), rtol=1e-5)
    for axes in (0, (0,), (Layer(0, "any"),), (Layer(0, None),)):
        assert np.allclose(koine.vmap(f, in_axes=axes)(layer).numpy(), want, rtol=1e-5)
    assert koine.vmap(lambda m, x: m.w.sum() * x, in_axes=(Layer(None, "two"), 0))(layer, koine.ones(2)).shape == (2,)
    assert koine.vmap(lambda m: m, out_axes=Layer(0, "two"))(layer).name == "two"
    assert np.allclose(koine.jvp(f, (layer,), (layer,))[1].numpy(), 3 * want, rtol=1e-5)
    carried, _ = koine.scan(lambda m, x: (dataclasses.replace(m, w=m.w * x), None), layer, koine.ones(3))
    assert carried.name == "two" and np.allclose(carried.w.numpy(), a)
    compiled = koine.jit(g)
    for given in (layer, Layer(Tensor(a), "one"), Layer(Tensor(a), "two", Tensor.neg), Layer(Tensor(a), "two", Tensor.neg, 2), layer):
        assert compiled(given).tolist() == f(given).tolist()
    assert not any("as it is written" in reason for reason in compiled.explain_recompiles())
    same = Layer(Tensor(a), "two")
    assert koine.tree.structure(layer) == koine.tree.structure(same) != koine.tree.structure(Layer(Tensor(a), "one"))
    assert koine.tree.map(lambda s, t: s + t, layer, same).w.tolist() == (2 * a).tolist()
    with pytest.raises(ValueError, match="tree.map: tree 1"):
        koine.tree.map(lambda s, t: s + t, layer, Layer(Tensor(a), "one"))
    rule = koine.custom_vjp(f)
    rule.defvjp(lambda m: (f(m), m), lambda m, g: (Layer(g * 7, m.name),))
    assert koine.grad(lambda m: rule(m).sum())(layer).w.tolist() == [7] * 4


def test_rules_capture_values_of_the_functions_around_them():
    def by_vjp(w, x):
        f = koine.custom_vjp(lambda x: x * 2)
        f.defvjp(lambda x: (x * 2, (x, w * 1)), lambda saved, g: (g * w * saved[0] * saved[1],))
        return koine.grad(f)(x)  # w * w * x

    def by_jvp(w, x):
        f = koine.custom_jvp(lambda x: x * 2)
        f.defjvp(lambda p, t: (p[0] * 2, t[0] * w * w * p[0]))
        return koine.grad(f)(x)

    for of_rule in (by_vjp, by_jvp):
        w, x = Tensor(3.0), Tensor([2.0, 5.0])[0]
        assert of_rule(w, x).item() == 18
        assert [t.item() for t in koine.grad(of_rule, (0, 1))(w, x)] == [12, 9]
        assert koine.grad(koine.grad(of_rule))(w, x).item() == 4
        assert koine.jvp(of_rule, (w, x), (1.0, 1.0))[1].item() == 21
        assert koine.jacfwd(of_rule, (0, 1))(w, x)[0].item() == koine.jacrev(of_rule)(w, x).item() == 12
        assert koine.vmap(of_rule)(Tensor([1.0, 2.0]), Tensor([1.0, 2.0])).tolist() == [1, 8]
        compiled = koine.jit(of_rule)
        assert [compiled(Tensor(v), x).item() for v in (3.0, 1.0)] == [18, 2]
        assert koine.cond(Tensor(True), lambda x: of_rule(w, x), lambda x: x, x).item() == 18
        held = Tensor(3.0).requires_grad()
        of_rule(held, x).backward()
        assert held.grad.item() == 12


def test_functions_with_rules_capture_no_tensors_but_detached_ones():
    w, x = Tensor([3.0]).realize(), Tensor(2.0)
    held = koine.custom_vjp(lambda x: x * w[0])
    held.defvjp(lambda x: (x * w[0], None), lambda _, g: (g * w[0],))
    for call in (lambda: held(x), lambda: koine.grad(held)(x), lambda: koine.jit(koine.grad(held))(x)):
        with pytest.raises(ValueError, match=r"the function uses a tensor of shape \(\) that is none of its arguments, so .* make it an argument, or detach\(\) it there"):
            call()

    def product(w, x):
        f = koine.custom_vjp(lambda x: x * w.detach())
        f.defvjp(lambda x: (x * w.detach(), w.detach()), lambda saved, g: (g * saved,))
        return f(x)

    for w in (Tensor(3.0), Tensor([3.0]).realize()[0], Tensor([1.0, 2.0]).sum(), Tensor(3.0).realize()):
        assert product(w, x).item() == 6 and [t.item() for t in koine.grad(product, (0, 1))(w, x)] == [0, 3]
        assert koine.grad(product, 1)(w, x).item() == 3 and koine.jacrev(product, 1)(w, x).item() == 3
        assert koine.jit(koine.grad(product, 1))(w, x).item() == 3


@pytest.mark.parametrize("factor", [2.0, 2, True, np.float32(2)], ids=lambda f: type(f).__name__)
def test_functions_with_rules_capture_numbers(factor):
    """As in JAX: a number has no gradient."""
    def by_vjp(c):
        f = koine.custom_vjp(lambda x: x * c)
        return f.defvjp(lambda x: (x * c, c), lambda c, g: (g * c * 3,))

    def by_jvp(c):
        return koine.custom_jvp(lambda x: x * c).defjvp(lambda p, t: (p[0] * c, t[0] * c * 3))

    x, slope = Tensor([1.0, 2.0]), [3.0 * factor] * 2
    for rule in (by_vjp, by_jvp):
        def f(x):
            return rule(factor)(x).sum()

        def around(g):
            return koine.grad(lambda x: g(x).sum())(x).tolist()

        assert koine.grad(f)(x).tolist() == koine.jit(koine.grad(f))(x).tolist() == slope
        assert koine.jit(lambda x, c: koine.grad(lambda x: rule(c)(x).sum())(x))(x, float(factor)).tolist() == slope
        assert koine.vmap(koine.grad(rule(factor)))(x).tolist() == koine.jacrev(rule(factor))(x).sum(0).tolist() == slope
        assert around(koine.checkpoint(rule(factor))) == around(lambda x: koine.cond(True, rule(factor), rule(5.0), x)) == slope
        assert around(lambda x: koine.scan(lambda c, k: (rule(factor)(c), k), x, Tensor([1.0]))[0]) == slope
        assert around(lambda x: koine.fori_loop(0, 2, lambda i, x: rule(factor)(x), x)) == [slope[0] ** 2] * 2


def cost_of_gradient(policy, batched=False):
    """The gradient by twelve blocks with two named values, a product by one matrix for all rows, and one by another for each row where `batched`."""
    rng, blocks = np.random.default_rng(1), 12

    def weights(*shape):
        return [Tensor(rng.standard_normal(shape).astype("float32") * 0.1) for _ in range(blocks)]

    ws, vs, x = weights(32, 128), weights(8, 128, 32) if batched else weights(128, 32), Tensor(rng.standard_normal((8, 16, 32)).astype("float32"))

    def block(w, v, x):
        wide = koine.save_as("wide", x @ w)
        return koine.save_as("narrow", wide.square() @ v).square() + x

    wrapped = block if policy is None else koine.checkpoint(block, policy=policy)

    def loss(ws, vs):
        y = x
        for w, v in zip(ws, vs):
            y = wrapped(w, v, y)
        return y.square().mean()

    found = [t for part in koine.grad(loss, (0, 1))(ws, vs) for t in part]
    koine.reset_counters()
    koine.realize(*found)
    counted = koine.counters()
    return [t.numpy() for t in found], counted["operations"], counted["temporary_bytes"]


def test_policies_of_jax_keep_what_they_say():
    p = koine.checkpoint_policies
    product = 2 * 8 * 16 * 32 * 128
    plain, work, memory = cost_of_gradient(None)

    def again(policy, batched=False, base=None):
        """How many of the products (24) are computed again, and the temporary bytes."""
        found, operations, held = cost_of_gradient(policy, batched)
        for got, want in zip(found, plain if base is None else base[0]):
            np.testing.assert_allclose(got, want, rtol=2e-4, atol=1e-7)
        return round((operations - (work if base is None else base[1])) / product), held

    assert again(p.everything_saveable) == (0, memory)
    nothing, least = again(p.nothing_saveable)
    assert nothing == 24 and least < memory
    for policy in (p.dots_saveable, p.checkpoint_dots, p.dots_with_no_batch_dims_saveable, p.checkpoint_dots_with_no_batch_dims, p.save_any_names_but_these(),
                   p.save_only_these_names("wide", "narrow"), p.save_anything_except_these_names("other"), p.save_any_names_but_these("other"),
                   p.save_from_both_policies(p.save_only_these_names("wide"), p.save_any_names_but_these("wide"))):
        assert again(policy)[0] == 0, policy
    for policy in (p.save_only_these_names("wide"), p.save_any_names_but_these("narrow"), p.save_anything_except_these_names("narrow")):
        assert again(policy)[0] == 12, policy
    assert least < again(p.save_only_these_names("narrow"))[1] < again(p.save_only_these_names("wide"))[1] < memory
    assert again(p.save_only_these_names("other")) == again(p.save_only_these_names()) == (nothing, least)

    of_batches = cost_of_gradient(None, True)
    assert again(p.dots_saveable, True, of_batches)[0] == 0
    assert again(p.dots_with_no_batch_dims_saveable, True, of_batches)[0] == 12  # x @ w is kept, h @ v of a v for each row is not
    with pytest.raises(TypeError, match=r"checkpoint: policy is one of koine.checkpoint_policies, such as dots_saveable .*, not 'dots'"):
        koine.checkpoint(lambda x: x, policy="dots")
    with pytest.raises(TypeError, match="save_only_these_names: names are texts"):
        p.save_only_these_names(["wide"])
