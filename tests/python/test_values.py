"""Everything that NumPy has too, over generated shapes, dtypes, views and limits."""
import numpy as np
import pytest

import koine
from conftest import numbers, same

FLOATS = ["float16", "float32", "float64"]
INTS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
ALL = ["bool", *INTS, *FLOATS]

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def shapes(rng):
    """Two shapes that broadcast, with empty ones and ones without axes among them."""
    full = [int(n) for n in rng.choice([0, 1, 2, 3, 5], size=rng.integers(0, 4), p=[0.05, 0.15, 0.3, 0.3, 0.2])]
    cut = full[rng.integers(0, len(full) + 1):]
    return tuple(full), tuple(1 if rng.random() < 0.3 else n for n in cut)


def viewed(rng, a):
    """An array and the tensor of the same values, often a view."""
    x = koine.Tensor(a)
    if a.ndim == 2 and rng.random() < 0.5:
        return a.T, x.T
    if a.ndim >= 1 and rng.random() < 0.3:
        return a[::-1], x[::-1]
    return a, x


UNARY = {"neg": np.negative, "abs": np.abs, "square": np.square, "sign": np.sign, "sqrt": np.sqrt, "exp": np.exp, "log": np.log,
         "exp2": np.exp2, "log2": np.log2, "sin": np.sin, "cos": np.cos, "tanh": np.tanh, "floor": np.floor, "ceil": np.ceil,
         "trunc": np.trunc, "round": np.round, "isnan": np.isnan, "isinf": np.isinf, "isfinite": np.isfinite,
         "reciprocal": np.reciprocal}


@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one_float(rng, name):
    for _ in range(8):
        a = numbers(rng, shapes(rng)[0], FLOATS[rng.integers(1, 3)])
        if name in ("sin", "cos", "tanh", "exp", "exp2"):
            a = np.asarray(np.where(np.abs(a) > 80, np.sign(a) * 1.5, a), a.dtype)
        want_of, x = viewed(rng, a)
        signs = name in ("neg", "abs", "square", "sqrt", "floor", "ceil", "trunc", "round")
        same(getattr(x, name)().numpy(), np.asarray(UNARY[name](want_of)), rtol=4e-6, signs=signs)


BINARY = {"+": np.add, "-": np.subtract, "*": np.multiply, "/": np.true_divide, "<": np.less, "<=": np.less_equal, ">": np.greater,
          ">=": np.greater_equal, "==": np.equal, "!=": np.not_equal}


@pytest.mark.parametrize("op", BINARY)
def test_operators_of_floats_broadcast(rng, op):
    for _ in range(10):
        full, cut = shapes(rng)
        dtype = FLOATS[rng.integers(1, 3)]
        a, b = numbers(rng, full, dtype), numbers(rng, cut, dtype)
        na, x = viewed(rng, a)
        nb, y = viewed(rng, b)
        try:
            want = np.asarray(BINARY[op](na, nb))
        except ValueError:
            continue
        same(eval(f"x {op} y").numpy(), want, signs=op in ("+", "-", "*", "/"))


@pytest.mark.parametrize("op", ["+", "-", "*", "//", "%", "&", "|", "^", "<", "=="])
def test_operators_of_integers(rng, op):
    for dtype in INTS:
        full, cut = shapes(rng)
        a, b = numbers(rng, full, dtype, special=False), numbers(rng, cut, dtype, special=False)
        if op in ("//", "%"):
            b = np.where(b == 0, np.ones_like(b), b)
        same(eval("x op y".replace("op", op), {"x": koine.Tensor(a), "y": koine.Tensor(b)}).numpy(), np.asarray(eval(f"a {op} b")))


def test_dtypes_promote_as_numpys():
    for a in ALL:
        for b in ALL:
            assert koine.promote(a, b).numpy == np.promote_types(a, b), (a, b)


def test_floats_that_numpy_does_not_have_promote_to_the_narrowest_that_holds_both():
    """Beside whole numbers they stay what they are."""
    narrow = {"float8e4m3", "float8e5m2", "bfloat16"}
    holds = {"float8e4m3": {"float16", "bfloat16"}, "float8e5m2": {"float16", "bfloat16"}, "float16": {"float32"}, "bfloat16": {"float32"},
             "float32": {"float64"}, "float64": set()}

    def held(d):
        return {d}.union(*map(held, holds[d]))

    sizes = {"float8e4m3": 1, "float8e5m2": 1, "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
    for a in narrow:
        for b in ("bool", *INTS):
            assert koine.promote(a, b).name == koine.promote(b, a).name == a, (a, b)
        for b in sizes:
            both = held(a) & held(b)
            least = min(both, key=lambda d: (sizes[d], d != "float16"))  # of two float8 float16
            assert koine.promote(a, b).name == koine.promote(b, a).name == least, (a, b)


FOLDS = {"sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min, "mean": np.mean, "any": np.any, "all": np.all}


@pytest.mark.parametrize("name", FOLDS)
def test_reductions_along_all_axes(rng, name):
    for _ in range(10):
        a = numbers(rng, tuple(rng.integers(1, 5, size=rng.integers(1, 4))), "float64", special=name in ("max", "min"))
        na, x = viewed(rng, a)
        axes = [None, *range(-a.ndim, a.ndim)]
        if a.ndim > 1:
            axes.append((0, -1))
        for axis in axes:
            for keep in (False, True):
                same(getattr(x, name)(axis=axis, keepdim=keep).numpy(), np.asarray(FOLDS[name](na, axis=axis, keepdims=keep)))


@pytest.mark.parametrize("name", ["cumsum", "cumprod"])
def test_running_folds(rng, name):
    for _ in range(5):
        a = rng.standard_normal(tuple(rng.integers(1, 6, size=2)))
        for axis in (0, 1, -1):
            same(getattr(koine.Tensor(a), name)(axis).numpy(), getattr(np, name)(a, axis))


def test_order(rng):
    for _ in range(10):
        a = rng.integers(-5, 5, size=(3, 7)).astype("float32")
        a[rng.integers(3), rng.integers(7)] = np.nan
        values, places = koine.Tensor(a).sort()
        same(values.numpy(), np.sort(a))
        same(places.numpy().astype("int64"), np.argsort(a, kind="stable"))
        same(koine.Tensor(a).argsort().numpy().astype("int64"), np.argsort(a, kind="stable"))
        clean = np.nan_to_num(a)
        same(koine.Tensor(clean).argmax(1).numpy().astype("int64"), clean.argmax(1))
        same(koine.Tensor(clean).unique().numpy(), np.unique(clean))


def test_products(rng):
    for a, b in [((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 2)), ((2, 3), (3, 4)), ((5, 2, 3), (3, 4)), ((5, 2, 3), (5, 3, 4)),
                 ((2, 0), (0, 3)), ((4, 1, 2, 3), (5, 3, 2))]:
        x, y = rng.standard_normal(a), rng.standard_normal(b)
        same((koine.Tensor(x) @ koine.Tensor(y)).numpy(), np.asarray(x @ y))
        same(koine.Tensor(x).matmul(y).numpy(), np.asarray(x @ y))
    x, y = rng.standard_normal((2, 3)), rng.standard_normal((3, 4))
    same(koine.einsum("ij,jk->ki", x, y).numpy(), np.einsum("ij,jk->ki", x, y))
    same((x @ koine.Tensor(y)).numpy(), x @ y)


MOVES = [
    ("reshape(2, 6)", "reshape(2, 6)"), ("reshape((3, -1))", "reshape(3, -1)"), ("reshape([12])", "reshape(12)"), ("view(12)", "reshape(12)"),
    ("permute(1, 0)", "transpose(1, 0)"), ("permute((1, 0))", "transpose(1, 0)"), ("transpose()", "T"), ("T", "T"),
    ("flip(0)", "[::-1]"), ("flip((0, 1))", "[::-1, ::-1]"), ("flip(0, 1)", "[::-1, ::-1]"), ("unsqueeze(0)", "[None]"),
    ("unsqueeze(-1)", "[:, :, None]"), ("flatten()", "ravel()"), ("shrink(((0, 2), (1, 3)))", "[0:2, 1:3]"),
    ("expand(2, 3, 4)", "__class__.__call__(1)"), ("squeeze()", "squeeze()"), ("cast('int64')", "astype('int64')"),
    ("clip(-0.5, 0.5)", "clip(-0.5, 0.5)"), ("roll(1, 0)", None), ("tril()", None), ("triu(1)", None), ("pad(((1, 0), (0, 2)))", None),
]


def test_movement(rng):
    a = rng.standard_normal((3, 4))
    x = koine.Tensor(a)
    by_hand = {"roll(1, 0)": np.roll(a, 1, 0), "tril()": np.tril(a), "triu(1)": np.triu(a, 1),
               "pad(((1, 0), (0, 2)))": np.pad(a, ((1, 0), (0, 2))), "expand(2, 3, 4)": np.broadcast_to(a, (2, 3, 4))}
    for ours, theirs in MOVES:
        want = by_hand[ours] if ours in by_hand else eval("a" + (theirs if theirs.startswith("[") else "." + theirs))
        same(eval("x." + ours).numpy(), want)
    same(x.pad(((1, 1), (0, 0)), value=7).numpy(), np.pad(a, ((1, 1), (0, 0)), constant_values=7))
    same(koine.cat([x, x], axis=1).numpy(), np.concatenate([a, a], 1))
    same(koine.stack([x, x], axis=-1).numpy(), np.stack([a, a], -1))
    assert [p.shape for p in x.split(3, axis=1)] == [(3, 3), (3, 1)] and len(x.chunk(2, axis=1)) == 2
    same(x.repeat(2, 1).numpy(), np.tile(a, (2, 1)))


def test_creation():
    same(koine.zeros(2, 3).numpy(), np.zeros((2, 3), "float32"))
    same(koine.zeros((2, 3), "int32").numpy(), np.zeros((2, 3), "int32"))
    same(koine.ones((2,), dtype=koine.float64).numpy(), np.ones(2))
    same(koine.zeros(()).numpy(), np.zeros((), "float32"))
    same(koine.full((2, 2), 7, dtype="int8").numpy(), np.full((2, 2), 7, "int8"))
    same(koine.arange(5).numpy(), np.arange(5, dtype="int32"))
    same(koine.arange(10, 2, -3).numpy(), np.arange(10, 2, -3, dtype="int32"))
    same(koine.arange(3, dtype="float64").numpy(), np.arange(3.0))
    same(koine.linspace(0, 1, 5).numpy(), np.linspace(0, 1, 5, dtype="float32"))
    same(koine.eye(3).numpy(), np.eye(3, dtype="float32"))
    x = koine.Tensor([[1, 2]])
    assert x.zeros_like().tolist() == [[0, 0]] and x.ones_like().dtype == koine.int32 and x.full_like(9).tolist() == [[9, 9]]
    same(koine.where(koine.Tensor([True, False]), 1.0, [5.0, 6.0]).numpy(), np.array([1, 6], "float32"))
    assert koine.Tensor([True, False]).where([1, 2], 0).tolist() == [1, 0]


def test_random_numbers_follow_from_the_seed_and_the_key():
    koine.manual_seed(5)
    first = [koine.Tensor.rand(3).tolist(), koine.Tensor.randn((2,)).tolist(), koine.Tensor.randint(4, low=3, high=6).tolist()]
    koine.manual_seed(5)
    assert first == [koine.Tensor.rand(3).tolist(), koine.Tensor.randn(2).tolist(), koine.Tensor.randint(4, low=3, high=6).tolist()]
    assert all(3 <= v < 6 for v in first[2])
    key, other = koine.random.Key(1).split()
    assert koine.random.randn(key, (4,)).tolist() == koine.random.randn(koine.random.Key(1).split()[0], 4).tolist()
    assert koine.random.rand(key, 4).tolist() != koine.random.rand(other, 4).tolist()
    assert sorted(koine.Tensor.randperm(6).tolist()) == list(range(6))


def test_every_method_has_a_docstring_and_a_default_that_works():
    for name in dir(koine.Tensor):
        if not name.startswith("_"):
            assert getattr(koine.Tensor, name).__doc__, name
    for name in koine.__all__:
        value = getattr(koine, name)
        if callable(value):
            assert value.__doc__, name


def test_a_tensor_of_a_number_is_a_tensor_before_and_after_a_look():
    one, wide = koine.Tensor(0.1), koine.Tensor([0.1], dtype="float64")
    for _ in range(2):
        assert (one * 2).dtype == koine.float32 and (one + wide).dtype == koine.float64 and (one == wide).tolist() == [False]
        assert (koine.Tensor(300) + koine.Tensor([255], dtype="uint8")).tolist() == [555]
        one.item()
    twice = koine.jit(lambda q: q * 2)
    assert twice(koine.Tensor(1.0)).dtype == koine.float32
    for made in [koine.Tensor(1.0) + 1, 1 - koine.Tensor(1.0), koine.Tensor(1.0) ** 2, koine.Tensor(0.0).maximum(0), koine.Tensor(1) + 2.5,
                 koine.where(koine.Tensor([True, False]), 1.0, 0), koine.where(koine.Tensor([True]), 1, 0.5), koine.Tensor(True) + 1.0]:
        assert made.dtype == koine.float32
    assert koine.where(koine.Tensor([True]), 1, 2).dtype == koine.int32 and (koine.Tensor(2) + 3).dtype == koine.int32
    weights = koine.Tensor([1.0, 2.0], requires_grad=True)
    assert (weights / (koine.Tensor(2.0) + 1)).dtype == koine.float32
    assert [t.item() for t in koine.jvp(lambda z: z * z, (koine.Tensor(1.0),), (koine.Tensor(1.0) * 0 + 1,))] == [1.0, 2.0]


def test_a_fold_along_no_axis_keeps_the_elements():
    a = np.array([[1.0, -2.0, 0.0], [4.0, 0.5, 3.0]], np.float32)
    for name in ("sum", "prod", "max", "min", "mean", "any", "all"):
        for given in (a, a[0], a[0, 0]):
            for keepdim in (False, True):
                got = getattr(koine.Tensor(given), name)((), keepdim)
                wanted = getattr(np, name)(given, axis=(), keepdims=keepdim)
                assert got.shape == wanted.shape and np.array_equal(got.numpy(), wanted), name
    x = koine.Tensor(a)
    assert x[0].sum(tuple(range(1, 1))).tolist() == [1, -2, 0] and x.sum(None).item() == x.sum().item() == 6.5
    assert np.array_equal(x.norm([]).numpy(), np.abs(a)) and np.allclose(x.logsumexp(()).numpy(), a)
    assert x.var((), correction=0).tolist() == x.std((), False, 0).tolist() == [[0, 0, 0], [0, 0, 0]]


def test_losses_of_classes_take_any_leading_axes():
    rng = np.random.default_rng(3)
    x, target = rng.standard_normal((2, 3, 5)).astype(np.float32), rng.integers(0, 5, (2, 3))
    for name in ("cross_entropy", "sparse_categorical_crossentropy", "nll_loss"):
        rows = getattr(koine.Tensor(x.reshape(6, 5)), name)(target.reshape(6), ignore_index=1).item()
        assert np.isclose(getattr(koine.Tensor(x), name)(target, ignore_index=1).item(), rows, rtol=1e-6)
        one = getattr(koine.Tensor(x[0, 0]), name)(int(target[0, 0])).item()
        assert np.isclose(one, getattr(koine.Tensor(x[:1, 0]), name)(target[:1, 0]).item(), rtol=1e-6)
        with pytest.raises(ValueError, match=name + r": needs \(..., classes\) and \(...\), got \(2, 3, 5\) and \(2, 5\)"):
            getattr(koine.Tensor(x), name)(target[:, :1].repeat(5, 1))
