"""vmap against a loop over the examples, row by row of the specification."""
import collections
import dataclasses
import functools
import itertools

import numpy as np
import pytest
from conftest import numbers, same

import koine
from koine import Tensor, nn


def in_a_loop(f, axes, *arrays):
    """f of each example of NumPy's arrays, stacked."""
    size = next(a.shape[axis] for a, axis in zip(arrays, axes) if axis is not None)
    rows = [f(*[Tensor(a if axis is None else np.take(a, i, axis)) for a, axis in zip(arrays, axes)]).numpy() for i in range(size)]
    return np.stack(rows)


def is_a_loop(f, *arrays, rtol=1e-9):
    """f with each mixture of operands that hold examples, along their first axis or their last, is a loop over them."""
    for axes in itertools.product((0, -1, None), repeat=len(arrays)):
        if all(axis is None for axis in axes):
            continue
        given = [a[0] if axis is None else np.moveaxis(a, 0, axis) for a, axis in zip(arrays, axes)]
        same(koine.vmap(f, axes)(*map(Tensor, given)), in_a_loop(f, axes, *given), rtol=rtol)


T4, T5 = koine.zeros(4, 5), koine.zeros(5, 5)  # of four examples, and of five


def nodes(root):
    """The nodes of a graph, bodies too."""
    seen, todo = set(), [root]
    while todo:
        node = todo.pop()
        if node not in seen:
            seen.add(node)
            todo += node.src
    return seen


def test_spec_V2_sizes_of_mapped_axes_match_and_one_is_mapped():
    x, y = koine.zeros(4, 3), koine.zeros(3, 5)
    with pytest.raises(ValueError, match=r"vmap: the numbers of examples differ: a of shape \(4, 3\) has 4 along axis 0, b of shape \(3, 5\) has 5 along axis 1"):
        koine.vmap(lambda a, b: a, (0, 1))(x, y)
    with pytest.raises(ValueError, match="vmap: no argument has examples"):
        koine.vmap(lambda a, b: a, (None, None))(x, y)
    with pytest.raises(IndexError, match=r"vmap: a of shape \(4, 3\) has no axis 2: use -2 to 1"):
        koine.vmap(lambda a: a, 2)(x)
    with pytest.raises(ValueError, match="vmap: in_axes has 3 entries for 2 arguments"):
        koine.vmap(lambda a, b: a, (0, 0, 0))(x, y)


Pair = collections.namedtuple("Pair", "x y")


@dataclasses.dataclass
class Point:
    x: object
    y: object


@pytest.mark.parametrize("f, args, kwargs, names", [
    (lambda p, q: q, ({"w": [T4, T4], "b": T5}, T4), {}, ["p['b']", "p['w'][0]", "p['w'][1]", "q"]),
    (lambda p: p, ((T4, (T5, None)),), {}, ["p[0]", "p[1][0]"]),
    (lambda p: p, (Pair(T4, T5),), {}, ["p.x", "p.y"]),
    (lambda p: p, (Point(T4, [T5]),), {}, ["p.x", "p.y[0]"]),
    (lambda *rows, scale: scale, (T4, T4), {"scale": {"s": T5}}, ["argument 0", "argument 1", "scale['s']"]),
    (lambda p: p, (collections.OrderedDict(z=T4, a=T5),), {}, ["p['z']", "p['a']"]),
    (lambda layer, x: layer(x), (nn.Linear(4, 5), T4), {}, ["layer.bias", "layer.weight", "x"]),
    (functools.partial(lambda k, p, q: p, 1), (T4, T5), {}, ["p", "q"]),
    (max, (T4, T5), {}, ["argument 0", "argument 1"]),
])
def test_spec_V2_sizes_that_differ_name_the_arguments(f, args, kwargs, names):
    with pytest.raises(ValueError) as e:
        koine.vmap(f)(*args, **kwargs)
    said = str(e.value).split("differ: ", 1)[1].split(": in_axes")[0]
    assert sorted(part.split(" of shape")[0] for part in said.split(" along axis 0")[:-1] for part in [part.removeprefix(", ")]) == sorted(names)


def test_spec_V2_what_is_wrong_with_one_argument_or_result_names_it():
    p = {"w": koine.zeros(4, 3), "b": (koine.zeros(3), Tensor(1.0))}
    for call, error, message in [
            (lambda: koine.vmap(lambda p: p, ({"w": 1, "b": 0},))(p), IndexError, r"vmap: p\['b'\]\[1\] of shape \(\) has no axis 0: it is a scalar"),
            (lambda: koine.vmap(lambda p: p, ({"w": 3, "b": None},))(p), IndexError, r"vmap: p\['w'\] of shape \(4, 3\) has no axis 3"),
            (lambda: koine.vmap(lambda p: p, ({"w": 0},))(p), ValueError, r"vmap: in_axes of p is \{'w': 0\}, and that is the tree \{'b': \(\*, \*\), 'w': \*\}"),
            (lambda: koine.vmap(lambda p: p, ((0, 0),))(p), ValueError, r"vmap: in_axes of p is \(0, 0\)"),
            (lambda: koine.vmap(lambda p: p, ({"w": "0", "b": None},))(p), TypeError, r"vmap: in_axes of p\['w'\], which is one tensor, is a number or None, not '0'"),
            (lambda: koine.vmap(lambda p: p, ({"w": True, "b": None},))(p), TypeError, r"vmap: in_axes of p\['w'\]"),
            (lambda: koine.vmap(lambda w: {"s": w, "t": (w, 1)}, out_axes={"s": 0, "t": (5, 0)})(p["w"]), IndexError, r"vmap: the result\['t'\]\[0\] of shape \(4, 3\) has no axis 5"),
            (lambda: koine.vmap(lambda w: (1, w), out_axes=None)(p["w"]), ValueError, r"vmap: the result\[1\] of shape \(3,\) is different in each example"),
            (lambda: koine.vmap(lambda w: (w, w), out_axes=(0, 0, 0))(p["w"]), ValueError, r"vmap: out_axes of the result is \(0, 0, 0\), and that is the tree \(\*, \*\)"),
            (lambda: koine.vmap(lambda w: w, out_axes="0")(p["w"]), TypeError, "vmap: out_axes of the result"),
            (lambda: koine.vmap(lambda p: p, ({"w": 0, "b": None},), axis_size=5)(p), ValueError, r"vmap: axis_size is 5, and p\['w'\] of shape \(4, 3\) has 4")]:
        with pytest.raises(error, match=message):
            call()


def test_spec_V3_a_function_is_traced_once_and_gives_ops_of_the_graph(rng):
    calls = []

    def f(x, y):
        calls.append(x.shape)
        return (x * y).sum() + x.exp().max() + x[1]

    a, b = rng.standard_normal((4, 3)), rng.standard_normal(3)
    made = koine.vmap(f, (0, None))(Tensor(a), Tensor(b))
    assert calls == [(3,)]
    found = {node.op for node in nodes(made.uop)}
    assert found <= set("Add Buffer Cast Const Detach Exp2 Expand Function GetTuple Mul Param Permute Reduce Reshape Shrink Stack Tuple".split()), found
    calls.clear()
    same(made, in_a_loop(f, (0, None), a, b))


def test_spec_V4_what_has_no_rule_is_an_error():
    def doubled(out, x):
        i = koine.UOp.range(out.shape[0], 0)
        return out[i].store(x[i] * 2).end(i)

    x = koine.ones(4, 3)
    with pytest.raises(ValueError, match="custom_kernel: 'doubled' under vmap: say vmap_method='sequential'"):
        koine.vmap(lambda r: koine.custom_kernel(doubled, koine.ShapeDtype((3,), "float32"), r))(x)
    with pytest.raises(ValueError, match="pure_callback: .* under vmap: say vmap_method"):
        koine.vmap(lambda r: koine.pure_callback(lambda a: a, koine.ShapeDtype((3,), "float32"), r))(x)
    constant = Tensor([1.0, 2.0, 3.0])  # a leaf that is in no argument is equal in all examples
    assert koine.vmap(lambda r: r * constant)(x).tolist() == [[1, 2, 3]] * 4


UNARY = {"sin": Tensor.sin, "exp2": Tensor.exp2, "log2": Tensor.log2, "sqrt": Tensor.sqrt, "neg": Tensor.neg, "reciprocal": Tensor.reciprocal, "trunc": Tensor.trunc,
         "cast": lambda t: t.cast("int32"), "bitcast": lambda t: t.bitcast("int64"), "a narrower bitcast": lambda t: t.bitcast("uint8")}


@pytest.mark.parametrize("name", UNARY)
def test_spec_V5_functions_of_one_operand(name, rng):
    is_a_loop(UNARY[name], np.abs(rng.standard_normal((4, 3, 2))) + 0.1)
    if name != "a narrower bitcast":  # which needs an axis
        is_a_loop(lambda t: UNARY[name](t.sum()), np.abs(rng.standard_normal((4, 3))) + 0.1)


BINARY = {"add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "max": Tensor.maximum, "min": Tensor.minimum, "pow": lambda a, b: abs(a) ** b,
          "lt": lambda a, b: a < b, "ne": lambda a, b: a != b, "eq": lambda a, b: a == b, "div": lambda a, b: a / b, "where": lambda a, b: koine.where(a > b, a, 2 * b)}
WHOLE = {"idiv": lambda a, b: a // b, "mod": lambda a, b: a % b, "xor": lambda a, b: a ^ b, "or": lambda a, b: a | b, "and": lambda a, b: a & b, "shl": lambda a, b: a << (b & 3),
         "shr": lambda a, b: a >> (b & 3)}
SHAPES = [((3,), (3,)), ((), (3,)), ((3,), ()), ((2, 3), (3,)), ((2, 1), (3,)), ((), ())]


@pytest.mark.parametrize("name", [*BINARY, *WHOLE])
def test_spec_V6_operands_with_examples_and_without_in_each_position(name, rng):
    for left, right in SHAPES:
        if name in BINARY:
            is_a_loop(BINARY[name], rng.standard_normal((4, *left)), rng.standard_normal((4, *right)))
        else:
            is_a_loop(WHOLE[name], rng.integers(-9, 9, (4, *left)), rng.integers(1, 9, (4, *right)))


def test_spec_V6_operands_of_three(rng):
    is_a_loop(lambda c, a, b: koine.where(c, a, b), rng.integers(0, 2, (4, 3)).astype(bool), rng.standard_normal((4,)), rng.standard_normal((4, 2, 3)))
    is_a_loop(lambda a, b, c: a * b + c, *[rng.standard_normal((4, 3)) for _ in range(3)])


MOVES = {"reshape": lambda t: t.reshape(3, 2), "permute": lambda t: t.permute(1, 0), "expand": lambda t: t.unsqueeze(0).expand(4, 2, 3), "pad": lambda t: t.pad([(1, 0), (0, 2)], 7),
         "shrink": lambda t: t.shrink([(1, 2), (0, 2)]), "flip": lambda t: t.flip(0, 1), "slice": lambda t: t[::-1, 1:], "squeeze": lambda t: t[:1].squeeze(0)}


@pytest.mark.parametrize("name", MOVES)
def test_spec_V7_movement(name, rng):
    f = MOVES[name]
    for examples in (1, 5):
        is_a_loop(f, rng.standard_normal((examples, 2, 3)))
    one = f(koine.zeros(2, 3))
    none = koine.vmap(f)(koine.zeros(0, 2, 3))
    assert none.shape == (0, *one.shape) and none.tolist() == []
    same(koine.vmap(lambda t, u: f(u) + t.sum(), (0, None))(koine.ones(3, 2), koine.ones(2, 3)), np.broadcast_to(f(koine.ones(2, 3)).numpy() + 2, (3, *one.shape)))


def test_spec_V8_marks_of_memory_pass_through(rng):
    a = rng.standard_normal((4, 3))
    is_a_loop(Tensor.contiguous, a)
    is_a_loop(Tensor.contiguous_backward, a)
    made = koine.grad(lambda x: koine.vmap(lambda r: (r.contiguous_backward() * r.contiguous()).sum())(x).sum())(Tensor(a))
    same(made, 2 * a)


@pytest.mark.parametrize("f", [Tensor.sum, Tensor.max, Tensor.prod, Tensor.min, Tensor.mean], ids=lambda f: f.__name__)
def test_spec_V9_reductions_along_any_axes(f, rng):
    a = rng.standard_normal((4, 2, 3, 2))
    for axis in (None, 0, 1, -1, -3, (0, 2), (-1, -2), (0, 1, 2), ()):
        for keepdim in (False, True):
            is_a_loop(lambda t: f(t, axis, keepdim=keepdim), a)  # noqa: B023


def test_spec_V10_results_that_are_equal_in_all_examples_are_repeated(rng):
    a, c = rng.standard_normal((4, 3)), rng.standard_normal(2)
    constant, own = koine.vmap(lambda x: (Tensor(c) * 2, x.sum()))(Tensor(a))
    same(constant, np.broadcast_to(2 * c, (4, 2)))
    same(own, a.sum(1))
    assert koine.vmap(lambda x: 3.0)(Tensor(a)).tolist() == [3.0] * 4
    last = koine.vmap(lambda x: (Tensor(c), x * 2), out_axes=-1)(Tensor(a))
    same(last[0], np.broadcast_to(c[:, None], (2, 4)))
    same(last[1], 2 * a.T)
    same(koine.vmap(lambda x: (Tensor(c) * 2, x), out_axes=(None, 0))(Tensor(a))[0], 2 * c)
    with pytest.raises(ValueError, match="vmap: the result .* is different in each example"):
        koine.vmap(lambda x: x, out_axes=None)(Tensor(a))


def test_spec_V11_vmap_in_vmap_and_with_derivatives(rng):
    a = rng.standard_normal((4, 3))
    m = rng.standard_normal((3, 3))
    f = lambda x: (x @ Tensor(m)).sin() * x.sum()  # noqa: E731
    loss = lambda x: f(x).square().sum()  # noqa: E731
    x = Tensor(a)
    pushed = koine.vmap(lambda v: koine.jvp(f, (x[0],), (v,))[1], out_axes=-1)(Tensor.eye(3, dtype="float64"))
    same(koine.jacfwd(f)(x[0]), pushed.numpy())
    same(koine.jacfwd(f)(x[0]), koine.jacrev(f)(x[0]).numpy(), rtol=1e-9)
    each = koine.vmap(koine.grad(loss))(x).numpy()
    same(koine.grad(lambda x: koine.vmap(loss)(x).sum())(x), each, rtol=1e-9)
    same(koine.jit(koine.vmap(koine.grad(loss)))(x), each, rtol=1e-9)
    same(koine.vmap(koine.jit(koine.grad(loss)))(x), each, rtol=1e-9)
    same(np.stack([koine.grad(loss)(x[i]).numpy() for i in range(4)]), each, rtol=1e-9)
    same(koine.vmap(koine.vmap(lambda s, t: s * t + s.sin(), (0, None)), (None, 0))(x[0], x[1]), np.stack([a[0] * t + np.sin(a[0]) for t in a[1]]), rtol=1e-9)
    for axes in itertools.permutations(range(3), 2):
        b = rng.standard_normal((2, 3, 4))
        inner = axes[1] - (axes[0] < axes[1])
        got = koine.vmap(koine.vmap(lambda r: r.cumsum(0) * r.max(), inner), axes[0])(Tensor(b))
        same(got, np.stack([np.stack([r.cumsum() * r.max() for r in np.moveaxis(p, inner, 0)]) for p in np.moveaxis(b, axes[0], 0)]), rtol=1e-9)


def test_spec_V12_positions_assignments_and_constants(rng):
    tables, at = rng.standard_normal((4, 5, 3)), rng.integers(-5, 5, (4, 3))
    is_a_loop(lambda t, i: t[i], *(tables, at))
    for f in (lambda t, i: t.index_select(0, i), lambda t, i: t[i, i % 3], lambda t, i: t.gather(0, (i % 5).reshape(1, 3).expand(2, 3)),
              lambda t, i: t.scatter_add(0, (i % 5).reshape(3, 1).expand(3, 3), t[:3].exp())):
        for axes in ((0, 0), (0, None), (None, 0)):
            given = [a if axis == 0 else a[0] for a, axis in zip((tables, at), axes)]
            same(koine.vmap(f, axes)(*map(Tensor, given)), in_a_loop(f, axes, *given), rtol=1e-9)

    def writes(t, i):
        own = t * 1
        own[i] = t[:3] * 2
        own += 1
        own[0, 1:] = 0
        return own

    for axes in ((0, 0), (0, None), (None, 0)):
        given = [a if axis == 0 else a[0] for a, axis in zip((tables, at), axes)]
        same(koine.vmap(writes, axes)(*map(Tensor, given)), in_a_loop(writes, axes, *given), rtol=1e-9)
    is_a_loop(lambda t: t.detach() * t, tables)
    same(koine.grad(lambda x: koine.vmap(lambda r: (r.detach() * r).sum())(x).sum())(Tensor(tables)), tables)


def test_spec_V13_functions_random_numbers_and_what_else_a_graph_holds(rng):
    a = rng.standard_normal((4, 3))
    x = Tensor(a)
    is_a_loop(lambda r: Tensor.stack([r, r * 2], 1), a)
    is_a_loop(lambda r, s: koine.cat([r, s, r]), a, rng.standard_normal((4, 2)))
    is_a_loop(lambda r: koine.arange(3) * r, a)
    two = koine.vmap(lambda r: {"a": r * 2, "b": (r.sum(), None)})(x)  # several results
    same(two["a"], 2 * a)
    same(two["b"][0], a.sum(1))
    inner = koine.checkpoint(lambda r: r.sin() * 2)
    made = koine.vmap(lambda r: inner(inner(r)))(x)
    calls = [node for node in nodes(made.uop) if node.op == "Function"]
    assert made.uop.src[0].op == "Function" and len(calls) == 3 and len({call.src[0] for call in calls}) == 2  # both calls have one body
    same(made, 2 * np.sin(2 * np.sin(a)), rtol=1e-9)
    is_a_loop(lambda r: koine.scan(lambda c, t: (c + t, c * t), 0.0 * r[0], r)[1], a)
    is_a_loop(lambda r: koine.fori_loop(0, 3, lambda i, c: c * 0.5 + r, r), a)
    is_a_loop(lambda r: koine.while_loop(lambda c: c.sum() < 100, lambda c: c + 1, r), a)
    is_a_loop(lambda r: koine.cond(r.sum() > 0, lambda t: t * 2, lambda t: -t, r), a)
    koine.manual_seed(7)
    drawn = koine.vmap(lambda r: r * 0 + Tensor.rand(64))(koine.zeros(4, 64)).numpy()
    assert all((drawn[i] == drawn[k]).mean() < 0.05 for i in range(4) for k in range(i))
    keys = koine.random.split(koine.random.Key(3), 4)
    apart = np.stack([koine.random.randn(k, (5,)).numpy() for k in koine.random.Key(3).split(4)])
    same(koine.vmap(lambda k: koine.random.randn(k, (5,)))(keys), apart)
    split = koine.vmap(lambda r: r * 2)(koine.ones(4, 3).shard("CPU,CPU:1", 0))
    assert split.shard_axis == 0 and split.tolist() == [[2.0] * 3] * 4
    same(koine.vmap(lambda t: t.to("CPU:1") * 2)(x).to("CPU"), 2 * a)
    with pytest.raises(ValueError, match="axis_name"):
        koine.vmap(lambda r: r, axis_name="i")


def test_spec_V14_groups_of_checks_in_one_model(rng):
    """Elementwise, broadcast, movement and reduce of a net, nested, and under jvp; validation is V2 and V4."""
    net = nn.Linear(3, 2)
    data = rng.standard_normal((2, 4, 3)).astype(np.float32)

    def loss(net, x):
        return (net(x).reshape(2, 1).permute(1, 0) - x[:2]).relu().square().sum() / (1 + x.abs().max())

    one_by_one = np.array([[loss(net, Tensor(r)).item() for r in rows] for rows in data])
    per_row = koine.vmap(lambda r: loss(net, r))
    nested = koine.vmap(per_row)(Tensor(data)).numpy()
    np.testing.assert_allclose(nested, one_by_one, rtol=1e-5)
    gradients = koine.vmap(koine.grad(loss), (None, 0))(net, Tensor(data[0]))
    each = [koine.grad(loss)(net, Tensor(r)) for r in data[0]]
    np.testing.assert_allclose(gradients.weight.numpy(), np.stack([g.weight.numpy() for g in each]), rtol=1e-4, atol=1e-6)
    x, v = Tensor(data[0]), Tensor(numbers(rng, (4, 3), "float32", special=False))
    moved = koine.vmap(lambda r, t: koine.jvp(lambda r: loss(net, r), (r,), (t,))[1])(x, v).numpy()
    np.testing.assert_allclose(moved, (koine.vmap(koine.grad(lambda r: loss(net, r)))(x) * v).sum(1).numpy(), rtol=1e-4, atol=1e-5)
