"""The table of surface.py: values, derivatives and many examples at once of each row, for drawn arguments, against NumPy and PyTorch.

KOINE_TEST_CASES is how many cases there are in all (2000), a fifth of them derivatives and as many of vmap, on interpreted and compiled
kernels in turn. A failure prints its case; KOINE_TEST_SEED with `-k "values and softmax"` runs those of a row again. PyTorch is asked
where it is installed.
"""
import importlib.util
import os
import zlib

import numpy as np
import pytest

import koine
import surface
from conftest import SEED
from koine import Tensor
from surface import FLOATS, ROWS, Draw, Want, is_float, numpy_dtype, unit, wide

CASES = int(os.environ.get("KOINE_TEST_CASES", "2000"))
TORCH = importlib.util.find_spec("torch") is not None
EACH = -(-CASES // len(ROWS))
BATCH = 16

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::UserWarning")


class Case:
    """Arguments of a row, by a number. `smooth`: for derivatives, in this dtype."""

    def __init__(self, row, kind, number, smooth=""):
        self.row, self.number = row, number
        rng = np.random.default_rng([SEED, zlib.crc32(f"{row.name} {kind}".encode()), number])
        self.rng = rng
        for _ in range(100):
            draw = Draw(rng, smooth)
            self.rest = row.draw(draw)
            if self.rest is not None:
                break
        assert self.rest is not None, f"{row.name}: nothing was drawn"
        self.operands = draw.operands
        self.device = "INTERP" if number // BATCH % 2 else "CPU"

    def arrays(self, bases=None):
        return [o.of(b) for o, b in zip(self.operands, bases or [o.base for o in self.operands])]

    def f(self, *bases):
        """Of tensors that are the bases, the row's results as a list."""
        defaults = surface.DEFAULTS.get(self.row.name, {})
        rest = {k: v for k, v in self.rest.items() if k not in defaults or type(v) is not type(defaults[k]) or v != defaults[k]}
        out = self.row.ours(*(o.of(x) for o, x in zip(self.operands, bases)), **rest)
        return list(out) if isinstance(out, (list, tuple)) else [out]

    def tensors(self, bases=None):
        return [Tensor(b, device=self.device) for b in (bases or [o.base for o in self.operands])]

    def want(self, bases=None):
        out = self.row.numpy(*self.arrays(bases), **self.rest)
        return out if isinstance(out, list) else [out]

    def places_of_floats(self):
        return [k for k, o in enumerate(self.operands) if is_float(o.base.dtype)]

    def __str__(self):
        np.set_printoptions(floatmode="unique")
        operands = ", ".join(f"{o.base.dtype}{list(o.base.shape)}{o.view and ' ' + o.view} = {o.base.tolist()}" for o in self.operands)
        return f"{self.row.name} {self.number} on {self.device} of {operands} with {self.rest}"


def difference(got, want):
    """Where a result is not what is wanted, in words."""
    value = np.asarray(want.value)
    if got.dtype != want.dtype or got.shape != value.shape:
        return f"{got.dtype}{got.shape} instead of {want.dtype}{value.shape}"
    if not is_float(want.dtype):
        bad = got != value
    else:
        near, wanted = wide(got), wide(value)
        with np.errstate(all="ignore"):
            exact = wide(value.astype(want.dtype))
            bad = ~((near == exact) | (np.isnan(near) & np.isnan(exact)))
            if want.error is not None:
                error = np.broadcast_to(want.error, value.shape)
                most = float(surface.ml_dtypes.finfo(want.dtype).max)
                # One rounding from what overflows; some formats have NaN for it.
                over = ~np.isfinite(near) & (np.abs(wanted) + error + most * unit(want.dtype) >= most) & (np.isnan(near) | (np.sign(near) == np.sign(wanted)))
                bad &= ~((np.abs(near - np.clip(wanted, -most, most)) <= error) | over)
            if want.signs:
                bad |= (near == 0) & (exact == 0) & (np.signbit(near) != np.signbit(exact))
    if not np.any(bad):
        return None
    at = tuple(int(k[0]) for k in np.nonzero(bad)) if value.ndim else ()
    return f"{np.asarray(got)[at]!r} instead of {value[at]!r} at {at} ({np.count_nonzero(bad)} of {value.size} differ)"


def realized(found):
    """All in one program; alone where one of them fails, so that the failure is that of its case."""
    try:
        koine.realize(*[t for _, tensors in found for t in tensors])
    except koine.Error:
        for case, tensors in found:
            try:
                koine.realize(*tensors)
            except koine.Error as e:
                raise AssertionError(f"{e}; {case}") from e
        raise


def counts(row):
    """How many cases of each kind a row has."""
    slopes, mapped = (EACH // 5 if row.smooth else 0), (EACH // 5 if row.vmap else 0)
    return {"values": EACH - slopes - mapped, "derivatives": slopes, "vmap": mapped}


def batches(row, kind):
    count = counts(row)[kind]
    return [range(at, min(at + BATCH, count)) for at in range(0, count, BATCH)]


def described(case, make):
    try:
        return make()
    except Exception as e:
        raise AssertionError(f"{type(e).__name__}: {e}; {case}") from e


def compare(case, tensors, wants):
    assert len(tensors) == len(wants), f"{len(tensors)} results instead of {len(wants)}; {case}"
    for k, (t, w) in enumerate(zip(tensors, wants)):
        words = difference(np.asarray(t.numpy()), w)
        assert words is None, f"result {k} is {words}; {case}"


@pytest.mark.parametrize("row", ROWS, ids=repr)
def test_values(row):
    for batch in batches(row, "values"):
        found = []
        for number in batch:
            case = Case(row, "values", number)
            f = koine.jit(case.f) if number % 8 == 7 and row.vmap else case.f  # what looks at values has no description
            found.append((case, described(case, lambda: f(*case.tensors()))))
        realized(found)
        for case, tensors in found:
            wants = described(case, case.want)
            compare(case, tensors, wants)
            if TORCH and row.torch:
                compare_with_torch(case, tensors, wants)


@pytest.mark.parametrize("row", [r for r in ROWS if r.vmap], ids=repr)
def test_vmap_is_each_example(row):
    """Examples along any axis of any operands, results along any axis; an example is what NumPy makes of it."""
    for batch in batches(row, "vmap"):
        found = []
        for number in batch:
            case = Case(row, "vmap", number)
            rng, size = case.rng, int(case.rng.integers(1, 4))
            mapped = [bool(rng.random() < 0.7) for _ in case.operands]
            mapped[int(rng.integers(len(mapped)))] = True
            examples = [[o.base, *(o.again() for _ in range(size - 1))] if m else [o.base] * size for o, m in zip(case.operands, mapped)]
            axes = [int(rng.integers(-o.base.ndim - 1, o.base.ndim + 1)) if m else None for o, m in zip(case.operands, mapped)]
            given = [np.stack(e, a) if m else e[0] for e, a, m in zip(examples, axes, mapped)]
            wants = [described(case, lambda: case.want([e[i] for e in examples])) for i in range(size)]
            to = [int(rng.integers(0, np.ndim(w.value) + 1)) for w in wants[0]]
            found.append((case, described(case, lambda: koine.vmap(case.f, in_axes=tuple(axes), out_axes=tuple(to))(*case.tensors(given))), wants, to))
        realized([(case, tensors) for case, tensors, _, _ in found])
        for case, tensors, wants, to in found:
            for k, t in enumerate(tensors):
                for i, want in enumerate(wants):
                    words = difference(np.take(t.numpy(), i, to[k]), want[k])
                    assert words is None, f"of example {i} result {k} is {words}; {case}"


# --- derivatives ---------------------------------------------------------------------------------------


def dot(xs, ys):
    return sum((wide(np.asarray(x)) * wide(np.asarray(y))).sum() for x, y in zip(xs, ys))


class Slopes:
    """The derivatives of a case's float results by its float operands: in both modes, and the second in two orders of them."""

    def __init__(self, case):
        self.case, self.at = case, case.places_of_floats()
        self.inputs = [case.operands[k].base for k in self.at]
        rng = case.rng
        draw = lambda a: np.asarray(rng.uniform(-1, 1, a.shape)).astype(a.dtype)
        self.tangents = [draw(a) for a in self.inputs]
        self.out = [k for k, w in enumerate(case.want()) if is_float(w.dtype)]
        self.cotangents = [draw(np.empty(np.shape(w.value), w.dtype)) for k, w in enumerate(case.want()) if k in self.out]

    def f(self, *xs):
        bases = self.case.tensors()
        for k, x in zip(self.at, xs):
            bases[k] = x
        out = self.case.f(*bases)
        return tuple(out[k] for k in self.out)

    def tensors(self, arrays, dtype=None, of=np.asarray):
        return tuple(Tensor(of(a if dtype is None else a.astype(dtype)), device=self.case.device) for a in arrays)

    def ours(self, dtype=None, of=np.asarray):
        """jvp; vjp; the second derivative along the tangents, reverse over reverse and forward over forward. `of`: of these arrays."""
        x, t, c = (self.tensors(a, dtype, of) for a in (self.inputs, self.tangents, self.cotangents))
        f = koine.checkpoint(self.f) if self.case.number % 4 == 2 else self.f
        pushed = koine.jvp(f, x, t)[1]
        pulled = koine.vjp(f, *x)[1](c)

        def along(*xs):
            return sum((g.cast("float64") * v.cast("float64")).sum() for g, v in zip(koine.vjp(f, *xs)[1](c), t))

        second = koine.grad(along, argnums=tuple(range(len(x))))(*x)
        twice = koine.jvp(lambda *xs: koine.jvp(f, xs, t)[1], x, t)[1]
        return list(pushed), list(pulled), list(second), list(twice)

    def theirs(self, h):
        """The results of NumPy at a step along the tangents."""
        bases = [o.base for o in self.case.operands]
        for k, x, t in zip(self.at, self.inputs, self.tangents):
            bases[k] = x.astype(np.longdouble) + np.longdouble(h) * t
        return [wide(np.asarray(self.case.want(bases)[k].value)) for k in self.out]


def of_roundings(case, dtype, want, size, terms):
    """How far a derivative in a narrow dtype may be from that of the same numbers in float64.

    A sum of n terms, in any order, is off by gamma(n) of the sum of their magnitudes at most, however much of it cancels: gamma(k) = k u / (1 - k u)
    is what k roundings of u cost. They are added in float32 at least. Before and behind a sum a term is rounded in its dtype: by a product,
    what its result is stored as, and an addition, of each of at most two sums, and by casts.
    Of functions whose terms nobody counts, it is 16 roundings of the largest result."""
    if not case.row.of_terms:
        return 16 * case.row.slack * unit(dtype) * np.max(np.abs(want), initial=1)

    def gamma(k, u):
        return k * u / (1 - k * u)

    outside, added = 8, min(unit(dtype), unit(np.dtype(np.float32)))
    return (gamma(outside, unit(dtype)) + gamma(terms, added)) * size + (outside + terms) * surface.smallest(dtype)


def near(got, want, error):
    got = np.asarray(got, np.longdouble)
    return np.all((got == want) | (np.abs(got - want) <= error) | (np.isnan(got) & np.isnan(want)))


@pytest.mark.parametrize("row", [r for r in ROWS if r.smooth], ids=repr)
def test_derivatives(row):
    """Of float64 those of differences of NumPy's functions; of narrower floats those of the same numbers in float64."""
    for batch in batches(row, "derivatives"):
        found = []
        for number in batch:
            case = Case(row, "derivatives", number, "float64" if number % 2 == 0 else FLOATS[number // 2 % 3])
            slopes = described(case, lambda: Slopes(case))
            assert slopes.inputs and slopes.out, case
            mine = described(case, slopes.ours)
            exact = ()
            if number % 2:
                measures = (np.asarray, np.abs, np.ones_like) if row.of_terms else (np.asarray,)
                exact = [described(case, lambda: slopes.ours("float64", of)) for of in measures]
            found.append((case, slopes, mine, exact))
        realized([(case, [t for parts in (mine, *exact) for part in parts for t in part]) for case, _, mine, exact in found])
        for case, slopes, mine, exact in found:
            pushed, pulled, second, twice = [[np.asarray(t.numpy()) for t in part] for part in mine]
            if exact:
                # Of each kind of derivative the value, and where terms are counted, the sum of their magnitudes and their number.
                for name, got, *wants in zip(("jvp", "vjp", "second", "twice"), (pushed, pulled, second, twice), *exact):
                    for a, *found_of in zip(got, *wants):
                        b, size, terms = [t.numpy() for t in found_of] if row.of_terms else (found_of[0].numpy(), None, None)
                        error = of_roundings(case, a.dtype, b, size, terms)
                        most = float(surface.ml_dtypes.finfo(a.dtype).max)
                        b = np.where(np.isinf(a) & (np.abs(b) >= most) & (np.sign(b) == np.sign(a)), a.astype(np.float64), b)  # it overflows
                        assert near(a.astype(np.float64), b, error), f"{name} is {a} instead of {b}; {case}"
                continue
            step = np.longdouble(1e-6)
            up, here, down = slopes.theirs(step), slopes.theirs(0), slopes.theirs(-step)
            slope = [(a - b) / (2 * step) for a, b in zip(up, down)]
            wider = np.longdouble(1e-4)
            up, down = slopes.theirs(wider), slopes.theirs(-wider)
            bend = [(a - 2 * b + c) / wider ** 2 for a, b, c in zip(up, here, down)]
            for name, got, want, tolerance in (("jvp", pushed, slope, 1e-8), ("jvp of jvp", twice, bend, 1e-5)):
                for a, b in zip(got, want):
                    assert near(a, b, tolerance * np.max(np.abs(b), initial=1)), f"{name} is {a} instead of {b}; {case}"
            left, right = dot(pulled, slopes.tangents), dot(slopes.cotangents, pushed)
            assert near(left, right, 1e-10 * max(abs(right), 1)), f"vjp gives {left}, jvp {right}; {case}"
            left, right = dot(second, slopes.tangents), dot(slopes.cotangents, twice)
            assert near(left, right, 1e-9 * max(abs(right), 1)), f"the gradient of vjp gives {left}, jvp of jvp {right}; {case}"
            if TORCH and row.torch:
                derivatives_of_torch(case, slopes, pushed, pulled, second)


def test_gradients_by_backward(rng):
    """What backward(), gradient() and grad() say is one gradient, of leaves and of what is computed of them."""
    for _ in range(20):
        a, b = rng.standard_normal((3, 4)), rng.standard_normal(4)
        f = lambda x, y: ((x * y).tanh() @ y).square().sum()
        x, y = Tensor(a).requires_grad(), Tensor(b, requires_grad=True)
        assert x.is_leaf and y.is_leaf and x.grad is None
        want = koine.grad(f, argnums=(0, 1))(Tensor(a), Tensor(b))
        for times in (1, 2):  # adds up
            f(x, y).backward()
            for leaf, g in zip((x, y), want):
                np.testing.assert_allclose(leaf.grad.numpy(), times * g.numpy(), rtol=1e-12)
        for got, g in zip(f(x, y).gradient(x, y), want):
            np.testing.assert_allclose(got.numpy(), g.numpy(), rtol=1e-12)
        x.zero_grad()
        y.requires_grad(False)
        assert x.grad is None and not y.is_leaf
        f(x, y).backward()
        np.testing.assert_allclose(x.grad.numpy(), want[0].numpy(), rtol=1e-12)


def test_what_a_tensor_says_of_itself(rng):
    for dtype in surface.REALS:
        case = Draw(rng)
        a = case.array(case.shape(), numpy_dtype(dtype))
        x = case.operands[0].of(Tensor(case.operands[0].base))
        assert (x.shape, x.ndim, x.numel(), x.nbytes, x.size()) == (a.shape, a.ndim, a.size, a.nbytes, a.shape)
        assert x.dtype == getattr(koine, dtype) and x.device == koine.default_device() and not x.is_leaf and x.shard_axis is None
        assert [x.size(k) for k in range(-a.ndim, a.ndim)] == [*a.shape, *a.shape]
        assert (len(x) if a.ndim else 0) == (len(a) if a.ndim else 0)
        assert koine.UOp is type(x.uop) and x.realize() is x and x.history_bytes() >= 0


# --- PyTorch -------------------------------------------------------------------------------------------

def torch_inputs(arrays):
    import torch
    return [torch.from_numpy(np.array(a.astype(np.float64) if is_float(a.dtype) else a)) for a in arrays]


def results_of_torch(case, inputs):
    given = [o.of(x) if o.view != "flip" or x.dim() else x for o, x in zip(case.operands, inputs)]
    out = case.row.torch(*given, **case.rest)
    return [] if out is None else list(out) if isinstance(out, (list, tuple)) else [out]


def compare_with_torch(case, tensors, wants):
    import torch
    # Whole numbers, and what they promote to, are NumPy's business; float64 stands for all floats.
    if not any(is_float(o.base.dtype) for o in case.operands):
        return
    if not all(is_float(o.base.dtype) or o.base.dtype == bool or o.places for o in case.operands):
        return
    found = described(case, lambda: results_of_torch(case, torch_inputs([o.base for o in case.operands])))
    for k, (t, w, theirs) in enumerate(zip(tensors, wants, found)):
        value = theirs.numpy(force=True)
        if case.row.apart:
            value = np.where(case.row.apart(*case.arrays()), w.value, value)
        if w.error is not None:  # its float64 cancels where NumPy has more digits
            value = np.where(np.isinf(w.value), w.value, value)  # narrower floats overflow before it does
            w = w._replace(error=2 * w.error + 32 * unit(np.dtype(np.float64)) * np.maximum(np.nan_to_num(np.abs(value)), 1))
        words = difference(np.asarray(t.numpy()), w._replace(value=value.astype(wide(np.empty(0, w.dtype)).dtype), signs=False))
        if words:
            raise AssertionError(f"result {k} is {words}, PyTorch's; {case}")


def derivatives_of_torch(case, slopes, pushed, pulled, second):
    import torch
    inputs = torch_inputs([o.base for o in case.operands])
    leaves = [inputs[k].requires_grad_() for k in slopes.at]
    c = torch_inputs(slopes.cotangents)
    t = torch_inputs(slopes.tangents)
    out = [results_of_torch(case, inputs)[k] for k in slopes.out[:1]] if len(slopes.out) == 1 else [r for r in results_of_torch(case, inputs) if r.is_floating_point()]
    if len(out) != len(c) or not any(o.requires_grad for o in out):
        return
    g = torch.autograd.grad(out, leaves, c, create_graph=True, allow_unused=True)
    g = [torch.zeros_like(x) if v is None else v for v, x in zip(g, leaves)]
    total = sum((a * b).sum() for a, b in zip(g, t))
    gg = torch.autograd.grad(total, leaves, allow_unused=True) if total.requires_grad else [None] * len(leaves)
    gg = [torch.zeros_like(x) if v is None else v for v, x in zip(gg, leaves)]
    for name, got, want in (("vjp", pulled, g), ("second", second, gg)):
        for a, b in zip(got, want):
            b = b.numpy(force=True)
            if not near(a, b, 1e-9 * np.max(np.abs(b), initial=1)):
                raise AssertionError(f"{name} is {a.tolist()} instead of {b.tolist()}, PyTorch's; {case}")


# --- what the table holds ------------------------------------------------------------------------------


def test_every_public_name_is_a_row_or_says_why_not():
    relations = {"__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__"}
    names = {f"Tensor.{n}" for n in {n for n in dir(Tensor) if n not in dir(object)} - {"__module__", "lazydata"} | relations}  # the last of koine.compat
    names |= {*koine.__all__, "bool", *(f"nn.{n}" for n in koine.nn.__all__), *(f"random.{n}" for n in koine.random.__all__)}
    covered = {n for r in ROWS for n in r.covers}
    assert sorted(names - covered - surface.ELSEWHERE.keys()) == []
    assert sorted((covered | surface.ELSEWHERE.keys()) - names) == [], "names that are not there"
    assert sorted(covered & surface.ELSEWHERE.keys()) == []
    rows = {r.name for r in ROWS}
    assert len(rows) == len(ROWS) and surface.DEFAULTS.keys() <= rows
