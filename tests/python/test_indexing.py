"""x[...] and x[...] = value against NumPy, over generated indices of all kinds in all positions."""
import numpy as np
import pytest

import koine
from conftest import same

KINDS = ["int", "slice", "none", "ellipsis", "array", "mask", "list"]


def part(rng, kind, n):
    if kind == "int":
        return int(rng.integers(-n, n))
    if kind == "slice":
        ends = [None if rng.random() < 0.3 else int(rng.integers(-n - 2, n + 3)) for _ in range(2)]
        return slice(*ends, [None, 1, 2, -1, -2, 3][rng.integers(6)])
    if kind == "array":
        return rng.integers(-n, n, size=[(), (2,), (3, 2), (1,)][rng.integers(4)])
    if kind == "list":
        return [int(v) for v in rng.integers(-n, n, size=2)]
    return rng.random(n) < 0.5


def index(rng, shape):
    """A random index that NumPy takes for the shape."""
    out, axis, dots = [], 0, False
    while axis < len(shape) and rng.random() < 0.9:
        kind = KINDS[rng.integers(len(KINDS))]
        if kind == "none":
            out.append(None)
        elif kind == "ellipsis":
            if dots:
                continue
            dots = True
            out.append(...)
            axis += int(rng.integers(0, len(shape) - axis + 1))
        else:
            out.append(part(rng, kind, shape[axis]))
            axis += 1
    if dots:  # the axes behind the dots are the last ones
        at = next(k for k, p in enumerate(out) if p is ...)
        behind = [k for k, p in enumerate(out) if k > at and p is not None]
        for axis, k in zip(range(len(shape) - len(behind), len(shape)), behind):
            out[k] = part(rng, KINDS[[0, 1, 4, 5, 6][rng.integers(5)]], shape[axis])
    return tuple(out) if len(out) != 1 or rng.random() < 0.5 else out[0]


def as_numpy(x, key):
    try:
        return x[key]
    except (IndexError, ValueError):
        return None


@pytest.mark.parametrize("block", range(4))
def test_reads_are_numpys(rng, block):
    for _ in range(100):
        shape = tuple(rng.integers(1, 5, size=rng.integers(1, 5)))
        x = np.arange(np.prod(shape)).reshape(shape).astype("int64")
        key = index(rng, shape)
        want = as_numpy(x, key)
        if want is None:
            continue
        given = koine.Tensor(x)
        try:
            same(given[key].numpy(), want)
        except Exception:
            print("shape", shape, "index", key)
            raise


@pytest.mark.parametrize("block", range(4))
def test_writes_are_numpys(rng, block):
    for _ in range(50):
        shape = tuple(rng.integers(1, 5, size=rng.integers(1, 4)))
        x = np.arange(np.prod(shape)).reshape(shape).astype("float32")
        key = index(rng, shape)
        target = as_numpy(x, key)
        if target is None:
            continue
        value = rng.standard_normal([(), target.shape][rng.integers(2)]).astype("float32")
        given = koine.Tensor(x, copy=True)
        try:
            given[key] = value
            x[key] = value
            same(given.numpy(), x)
        except Exception:
            print("shape", shape, "index", key, "value", value.shape)
            raise


def test_views_alias_and_copies_do_not():
    x = koine.Tensor([[1.0, 2.0], [3.0, 4.0]])
    row, picked = x[0], x[[0]]
    row += 10
    assert x.tolist() == [[11, 12], [3, 4]]
    assert picked.tolist() == [[1, 2]]
    x[1] = 0
    assert x[1].tolist() == [0, 0] and row.tolist() == [11, 12]


def test_in_place_operators_change_the_tensor_that_all_see():
    x = koine.Tensor([4.0, 9.0])
    same_tensor = x
    x += 1
    x *= 2
    x -= 4
    x /= 2
    x **= 2
    x //= 2
    x %= 5
    assert same_tensor is x
    assert x.tolist() == [((((4 + 1) * 2 - 4) / 2) ** 2 // 2) % 5, ((((9 + 1) * 2 - 4) / 2) ** 2 // 2) % 5]
    i = koine.Tensor([6, 5])
    i &= 4
    i |= 1
    i ^= 3
    i <<= 2
    i >>= 1
    assert i.tolist() == [((((6 & 4) | 1) ^ 3) << 2) >> 1, ((((5 & 4) | 1) ^ 3) << 2) >> 1]
    m = koine.Tensor([[1.0, 1.0], [0.0, 1.0]])
    m @= koine.Tensor([[2.0, 0.0], [0.0, 3.0]])
    assert m.tolist() == [[2, 3], [0, 3]]


def test_a_mask_takes_one_value_without_a_look_and_several_in_order():
    x = koine.Tensor([1.0, -2.0, 3.0, -4.0])
    x[x < 0] = 0
    assert x.tolist() == [1, 0, 3, 0]
    x[x == 0] = [7.0, 8.0]
    assert x.tolist() == [1, 7, 3, 8]
    x[x > 5] += 1
    assert x.tolist() == [1, 8, 3, 9]


def test_rows_length_and_membership():
    x = koine.Tensor([[1, 2], [3, 4], [5, 6]])
    assert len(x) == 3 and [r.tolist() for r in x] == [[1, 2], [3, 4], [5, 6]]
    assert 4 in x and 7 not in x
    a, b, c = x
    assert b.tolist() == [3, 4]


def test_symbolic_positions_and_slices():
    n = koine.Variable("n", 1, 8)
    x = koine.Tensor.arange(8)
    sums = {k: x[:n.bind(k)].sum().item() for k in (1, 3, 8)}
    assert sums == {1: 0, 3: 3, 8: 28}
    assert str(x[:n.bind(3)].shape[0]) != "3" and int(x[:n.bind(3)].shape[0].present) == 3


@pytest.mark.parametrize("device", ["CPU:1", "INTERP"])
def test_masks_and_lists_of_a_tensor_on_another_device(device):
    x = koine.Tensor.arange(6).to(device)
    assert x[x > 2].tolist() == [3, 4, 5] and x[[0, 1]].tolist() == [0, 1] and x[np.array([5])].tolist() == [5]
    assert x[[True, False] * 3].tolist() == [0, 2, 4] and x[[0, 1]].device == device
    y = x.clone()
    y[[0, 1]] = 5
    y[y > 4] = koine.Tensor([7])
    assert y.tolist() == [7, 7, 2, 3, 4, 7]


@pytest.mark.parametrize("device", ["CPU:1", "INTERP"])
def test_arrays_and_lists_lie_where_the_other_operand_does(device):
    x = koine.Tensor([1.0, 2.0], device=device)
    ones = np.ones(2, np.float32)
    for got, wanted in [(x + [1.0, 2.0], [2, 4]), (ones - x, [0, -1]), (x @ ones, 3), (x > [0, 5], [True, False]),
                        (divmod(x, [2, 2])[1], [1, 0]), (divmod(ones * 3, x)[0], [3, 1]), (x ** 2, [1, 4])]:
        assert got.device == device and got.tolist() == wanted
    x += ones
    x /= [2, 3]
    assert x.device == device and x.tolist() == [1, 1]
    x[1:] = [7.0]
    assert x.tolist() == [1, 7] and x.assign(ones * 3).tolist() == [3, 3] and [3.0] in x
    with pytest.raises(koine.errors.DeviceError, match="copy one of them"):
        x + koine.Tensor([1.0, 2.0])  # which the user has put elsewhere


def test_positions_that_are_none():
    x = koine.arange(6).reshape(2, 3)
    for key, message in [(10 ** 30, "position 1000000000000000000000000000000 is out of range for any axis"),
                         (-10 ** 30, "position -1000000000000000000000000000000 is out of range"),
                         (np.array(True), "a bool without axes is no position"), (np.bool_(False), "a bool without axes is no position")]:
        with pytest.raises(koine.errors.IndexError, match=message):
            x[key]
        with pytest.raises(koine.errors.IndexError, match=message):
            x[key] = 1
    assert x[10 ** 30:].shape == (0, 3) and x[np.int8(1)].tolist() == x[np.array(1)].tolist() == [3, 4, 5]


def test_a_product_in_place_keeps_the_shape():
    x = koine.arange(4).reshape(2, 2)
    x @= x
    assert x.tolist() == [[2, 3], [6, 11]]
    v = koine.arange(2)
    for target in (v, x):
        with pytest.raises(ValueError, match=r"__imatmul__: the result has shape \(2?,?\), and the tensor \(2,"):
            target @= v


@pytest.mark.parametrize("device", ["CPU:1", "INTERP"])
def test_arrays_in_methods_lie_where_their_tensor_does(device):
    x, a = koine.Tensor([[1.0, 2.0], [3.0, 4.0]], device=device), np.array([[5, 0], [0, 5]], np.float32)
    position = np.array([[1], [0]])
    calls = {"maximum": x.maximum(a), "clip": x.clip(a, [9, 9]), "where": (x > 2).where(a, 0), "a condition": koine.where([True, False], x, a),
             "matmul": x.matmul(a), "einsum": koine.einsum("ij,jk", a, x), "linear": x.linear(a, [1, 2]), "cat": koine.cat([a, x]),
             "stack": koine.stack([x, a]), "gather": x.gather(1, position), "scatter": x.scatter(1, position, a[:, :1]), "mse_loss": x.mse_loss(a),
             "masked_fill": x.masked_fill([True, False], 0), "cross_entropy": x.cross_entropy([0, 1]), "lerp": x.lerp(a, [0.5, 1]),
             "attention": x.scaled_dot_product_attention(a, a), "conv2d": x.reshape(1, 1, 2, 2).conv2d(np.ones((1, 1, 2, 2), np.float32), [3])}
    for name, got in calls.items():
        assert got.device == device, name
    assert calls["maximum"].tolist() == [[5, 2], [3, 5]] and calls["a condition"].tolist() == [[1, 0], [3, 5]]
    assert calls["cat"].tolist() == [[5, 0], [0, 5], [1, 2], [3, 4]] and calls["einsum"].tolist() == [[5, 10], [15, 20]]
    with pytest.raises(koine.errors.DeviceError, match="copy one of them"):
        x.maximum(koine.Tensor(a))  # which lies somewhere already


def test_positions_that_are_known_are_checked_at_once():
    x = koine.Tensor.arange(12).reshape(3, 4)
    for key, message in [([3], "position 3 is out of range for axis 0 of size 3"), (np.array([0, -4]), "position -4"),
                         ((slice(None), [4]), "position 4 is out of range for axis 1 of size 4"), (([0], [7]), "position 7")]:
        with pytest.raises(IndexError, match=r"index of shape \(3, 4\): " + message):
            x[key]
        with pytest.raises(IndexError, match=r"setitem of shape \(3, 4\): " + message):
            x[key] = 0
    assert x[[], [9]].shape == (0,)  # as NumPy
    i = koine.Tensor(2)
    assert koine.jit(lambda x, i: x[[i, 0]])(x, i).tolist() == x[[i, 0]].tolist() == [[8, 9, 10, 11], [0, 1, 2, 3]]
    with pytest.raises(IndexError, match="position 5"):
        koine.jit(lambda x: x[[5]])(x)
    late = x[koine.Tensor([7])]
    with pytest.raises(IndexError, match="position 7"):
        late.tolist()
