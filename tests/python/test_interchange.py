"""Memory that is shared with NumPy and others: what is not copied, who may write, and how long it lives."""
import array
import copy
import ctypes
import io
import gc
import pickle
import weakref

import numpy as np
import pytest

import koine
from conftest import numbers, same

DTYPES = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64"]


def address(a):
    return a.__array_interface__["data"][0]


@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_go_there_and_back_without_a_copy(rng, dtype):
    for shape in [(), (1,), (3, 4), (0, 2), (2, 3, 4)]:
        a = numbers(rng, shape, dtype)
        x = koine.Tensor(a)
        assert x.shape == shape and x.dtype.name == dtype
        back = x.numpy()
        same(back, a)
        assert np.asarray(x).dtype == a.dtype and not back.flags.writeable
        if a.size:
            assert address(back) == address(a)


def test_64_mb_are_borrowed_and_lent():
    a = np.zeros(1 << 24, np.float32)
    x = koine.Tensor(a)
    assert address(x.numpy()) == address(a)
    y = koine.Tensor.ones(1 << 24).realize()
    assert address(y.numpy()) == address(y.numpy())


def test_views_of_arrays_are_gathered(rng):
    a = rng.standard_normal((6, 8)).astype("float32")
    for view in [a.T, a[::2], a[:, ::-1], a[1:, 2:], np.broadcast_to(a[0], (3, 8)), a[:0]]:
        same(koine.Tensor(view).numpy(), view)
        same((koine.Tensor(view) * 2).numpy(), view * 2)
    with pytest.raises(ValueError, match="copy=False"):
        koine.Tensor(a.T, copy=False)
    assert address(koine.Tensor(a, copy=False).numpy()) == address(a)
    assert address(koine.Tensor(a, copy=True).numpy()) != address(a)


def test_koine_never_writes_to_borrowed_memory():
    a = np.arange(4, dtype=np.float32)
    x = koine.Tensor(a)
    x[0] = 9
    x += 1
    assert x.tolist() == [10, 2, 3, 4]
    assert a.tolist() == [0, 1, 2, 3]
    readonly = np.arange(4.0)
    readonly.flags.writeable = False
    y = koine.Tensor(readonly)
    y[1:] = 5
    assert y.tolist() == [0, 5, 5, 5] and readonly.tolist() == [0, 1, 2, 3]


def test_what_numpy_shows_stays_when_the_tensor_changes():
    x = koine.Tensor.arange(6).cast("float32").realize()
    shown = x.numpy()
    x[2] = 100
    x.realize()
    x *= 2
    assert shown.tolist() == [0, 1, 2, 3, 4, 5]
    assert x.tolist() == [0, 2, 200, 6, 8, 10]
    del shown
    gc.collect()
    x[0] = 7
    assert x.tolist()[0] == 7


def test_operands_are_copied_so_that_later_writes_do_not_reach_them():
    a = np.ones(3, np.float32)
    y = koine.Tensor([1.0, 2.0, 3.0]) + a
    a[:] = 100
    assert y.tolist() == [2, 3, 4]


@pytest.mark.parametrize("device", ["CPU", "CPU:1", "INTERP"])
def test_arrays_without_axes_are_constants_beside_tensors_of_any_device(device):
    BF16 = pytest.importorskip("ml_dtypes").bfloat16
    x = koine.Tensor([1, 2], dtype="int8", device=device)
    for scalar in [np.float32(0.5), np.float64(0.1), np.int8(-3), np.uint64(2**63), np.bool_(True), np.array(2.5, "float16"),
                   np.float32(np.nan), BF16(1.5)]:
        want = np.add(x.numpy(), scalar) if scalar.dtype != BF16 else np.array([2.5, 3.5], scalar.dtype)
        for y in [x + scalar, x.__radd__(scalar), x.__add__(np.asarray(scalar))]:
            assert y.device == device
            same(y.numpy().astype("float64"), want.astype("float64"))
            assert y.numpy().dtype == want.dtype
    at = np.array(1.0)
    y = x * at
    at[()] = 5  # the value is that of then
    assert y.tolist() == [1, 2]
    first, second = koine.grad(lambda a, b: a * b * b, argnums=(0, 1))(np.float32(3), np.float32(3))
    assert first.item() == 9 and second.item() == 18


def test_borrowed_memory_lives_as_long_as_it_is_read():
    class Array(np.ndarray):
        pass

    a = np.arange(1000.0).view(Array)
    alive = weakref.ref(a)
    x = koine.Tensor(a)
    y = x + 1
    del a, x
    gc.collect()
    assert alive() is not None
    assert y.numpy()[10] == 11
    del y
    for _ in range(3):
        koine.Tensor(np.zeros(2))
    gc.collect()
    assert alive() is None


def test_memory_that_numpy_shows_outlives_the_tensor():
    x = (koine.Tensor.arange(100000) * 3).realize()
    shown = x.numpy()
    del x
    koine.Tensor.zeros(100000, dtype="int32").realize()
    assert shown[99999] == 299997


def test_many_tensors_of_arrays_leave_memory_flat():
    gc.collect()
    before = koine.memory_in_use()
    a = np.ones(64, np.float32)
    for _ in range(20000):
        koine.Tensor(a)
    assert koine.memory_in_use() <= before


def test_the_buffer_protocol():
    m = memoryview(koine.Tensor([[1, 2], [3, 4]]))
    assert m.format == "i" and m.shape == (2, 2) and m.readonly and m.tolist() == [[1, 2], [3, 4]]
    assert koine.Tensor(array.array("d", [1.5, 2.5])).tolist() == [1.5, 2.5]
    assert koine.Tensor(memoryview(b"abc")).tolist() == [97, 98, 99]
    assert koine.Tensor(b"ab").dtype == koine.uint8
    with pytest.raises(BufferError, match="bfloat16"):
        memoryview(koine.Tensor([1.0]).cast("bfloat16"))


def test_dlpack_both_ways(rng):
    a = rng.standard_normal((3, 4)).astype("float32")
    x = koine.Tensor(a)
    assert x.__dlpack_device__() == (1, 0)
    try:
        there = np.from_dlpack(x)
    except BufferError:
        there = None  # a NumPy that asks for version 0 and cannot take a copy
    if there is not None:
        same(there, a)
    y = koine.from_dlpack(a)
    assert address(y.numpy()) == address(a)
    assert koine.from_dlpack(a, copy=True).tolist() == a.tolist()

    class Old:  # version 0, as older libraries ask for it
        def __init__(self, t):
            self.t = t

        def __dlpack__(self, **how):
            return self.t.__dlpack__()

        def __dlpack_device__(self):
            return (1, 0)

    z = koine.from_dlpack(Old(x))
    assert z.tolist() == x.tolist() and address(z.numpy()) != address(a)
    with pytest.raises(BufferError):
        x.__dlpack__(copy=False)
    with pytest.raises(TypeError):
        koine.from_dlpack([1, 2])


def test_a_capsule_that_nobody_takes_is_freed():
    before = koine.memory_in_use()
    for _ in range(10):
        koine.Tensor([1.0] * 1000).__dlpack__(max_version=(1, 0))
        koine.Tensor([1.0] * 1000).__dlpack__()
    gc.collect()
    assert koine.memory_in_use() <= before + 8192


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_narrow_floats_through_ml_dtypes(name):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    a = np.array([[0.5, -2.0], [1.5, np.nan]]).astype(getattr(ml_dtypes, name))
    x = koine.Tensor(a)
    assert x.dtype == getattr(koine, name.replace("_e4m3fn", "e4m3").replace("_e5m2", "e5m2"))
    assert x.numpy().dtype == a.dtype and address(x.numpy()) == address(a)
    assert x.numpy().tobytes() == a.tobytes()
    np.testing.assert_array_equal((x + x).numpy().astype("float32"), (a + a).astype("float32"))


def test_numbers_and_nested_lists():
    assert koine.Tensor(3).dtype == koine.int32 and koine.Tensor(3.0).dtype == koine.float32 and koine.Tensor(True).dtype == koine.bool
    assert koine.Tensor([1, 2]).dtype == koine.int32 and koine.Tensor([1, 2**40]).dtype == koine.int64
    assert koine.Tensor([2**63]).dtype == koine.uint64 and koine.Tensor([1, 2.5]).dtype == koine.float32
    assert koine.Tensor([True, False]).dtype == koine.bool and koine.Tensor([True, 2]).dtype == koine.int32
    assert koine.Tensor([[], []]).shape == (2, 0) and koine.Tensor([]).shape == (0,)
    assert koine.Tensor([[1, 2], (3, 4)]).tolist() == [[1, 2], [3, 4]]
    assert koine.Tensor([koine.Tensor([1, 2]), np.array([3, 4])]).tolist() == [[1, 2], [3, 4]]
    assert koine.Tensor(range(3)).tolist() == [0, 1, 2]
    assert koine.Tensor([0.1], dtype="float64").item() == 0.1
    assert koine.Tensor(0.1, dtype="float64").item() == 0.1
    assert koine.Tensor([2**63], dtype="uint64").item() == 2**63
    assert koine.Tensor(np.float64(0.1)).dtype == koine.float64 and koine.Tensor(np.int8(3)).dtype == koine.int8


def test_python_numbers_take_the_dtype_that_they_meet():
    for dtype in ["uint8", "int16", "float16", "float64"]:
        assert (koine.Tensor.ones(2, dtype=dtype) + 1).dtype.name == dtype
    assert (koine.Tensor.ones(2, dtype="int32") * 1.5).dtype == koine.float32
    assert (koine.Tensor.ones(2, dtype="float64") * 0.1).tolist() == [0.1, 0.1]
    assert (1 - koine.Tensor([3.0])).tolist() == [-2] and (2 ** koine.Tensor([3.0])).tolist() == [8]
    assert (np.float64(2) * koine.Tensor([1.0])).dtype == koine.float64
    assert isinstance(np.ones(2) + koine.Tensor([1.0, 2.0]), koine.Tensor)


def test_pickles_and_copies():
    for x in [koine.Tensor([[1.5, 2.5]]), koine.Tensor.arange(3), koine.Tensor([1.0, 2.0]).cast("bfloat16"), koine.Tensor(3.0),
              koine.Tensor.zeros(0, 3), koine.Tensor([1.0], requires_grad=True)]:
        for y in [pickle.loads(pickle.dumps(x)), copy.copy(x), copy.deepcopy(x)]:
            assert y.shape == x.shape and y.dtype == x.dtype and y.tolist() == x.tolist() and y.is_leaf == x.is_leaf
            y += 1
            assert y.tolist() != x.tolist() or x.numel() == 0
    assert pickle.loads(pickle.dumps(koine.float32)) is koine.float32


def test_one_tensor_is_one_in_what_is_copied():
    x = koine.Tensor([1.0, 2.0])
    for copied in (copy.deepcopy, lambda what: pickle.loads(pickle.dumps(what))):
        first, second, view, other = copied((x, x, x[:1], koine.Tensor([1.0, 2.0])))
        first += 1
        assert second.tolist() == [2.0, 3.0] and other.tolist() == x.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda what: pickle.loads(pickle.dumps(what))])
def test_views_of_one_memory_are_tensors_of_their_own(copied):
    b = koine.Tensor([[1.0, 2.0], [3.0, 4.0]]).clone().realize()
    whole = [b, b[0], b[1], b.T, b.reshape(4), b[None], b.flip(0), *b.split(1), b]
    again = copied(whole)
    assert [t.tolist() for t in again] == [t.tolist() for t in whole]
    again[0] += 1
    assert again[-1].tolist() == again[0].tolist() and again[1].tolist() == [1.0, 2.0]
    f = koine.jit(lambda x: (x * 2).split(1))
    assert [t.tolist() for t in copied(f(b))] == [[[2.0, 4.0]], [[6.0, 8.0]]]


def test_one_pickle_knows_nothing_of_another():
    b = koine.Tensor([[1.0, 2.0], [3.0, 4.0]]).clone()
    pickler = pickle.Pickler(io.BytesIO())
    pickler.dump(b)  # it keeps what it has seen
    assert pickle.loads(pickle.dumps(b[0])).tolist() == [1.0, 2.0]
    b += 1
    assert pickle.loads(pickle.dumps(b)).tolist() == [[2.0, 3.0], [4.0, 5.0]]
    assert pickle.loads(pickle.dumps(b.cast("int32"))).tolist() == [[2, 3], [4, 5]]


def test_a_deep_copy_is_none_of_the_memory_it_came_from():
    array = np.array([1.0, 2.0], dtype="float32")
    x = copy.deepcopy(koine.Tensor(array))
    array[0] = 9
    assert x.tolist() == [1.0, 2.0]


def test_methods_and_functions_are_copied_by_their_names():
    x = koine.Tensor([-1.0, 4.0])
    held = [koine.Tensor.relu, koine.zeros, koine.Tensor.zeros, koine.nn.cosine_schedule, koine.collective.scatter, koine.random.randn, koine.realize]
    for copied in (copy.copy, copy.deepcopy, lambda what: pickle.loads(pickle.dumps(what))):
        assert all(a is b for a, b in zip(copied(held), held))
        assert copied(x.relu)().tolist() == [0.0, 4.0]


def test_pickles_say_where_a_tensor_lies():
    x = koine.Tensor([[1.0, 2.0], [3.0, 4.0]])
    for axis in (0, 1, None):
        y = x.shard("CPU,CPU:1", axis=axis)
        for z in (pickle.loads(pickle.dumps(y)), copy.deepcopy(y)):
            assert (z.device, z.shard_axis, z.tolist()) == ("CPU,CPU:1", axis, x.tolist())


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda key: pickle.loads(pickle.dumps(key))])
def test_keys_are_copied(copied):
    key = koine.random.Key(3)
    assert koine.random.bits(copied(key), (4,)).tolist() == koine.random.bits(key, (4,)).tolist()


def test_texts_are_numpys():
    assert repr(koine.Tensor([[1.0, 2.0], [3.0, 4.5]])) == "Tensor([[1. , 2. ],\n        [3. , 4.5]], dtype=float32, device=CPU)"
    assert "..." in repr(koine.Tensor.arange(10000))
    koine.set_printoptions(precision=2, edgeitems=1, threshold=2)
    try:
        assert repr(koine.Tensor([1 / 3, 1, 2])).startswith("Tensor([0.33, ..., 2.  ]")
    finally:
        koine.set_printoptions(precision=8, edgeitems=3, threshold=1000)
    with pytest.raises(ValueError, match="set_printoptions: precision 8 and threshold 1000 must not be negative, edgeitems 0 and linewidth 75 must"):
        koine.set_printoptions(edgeitems=0)


def test_numbers_of_one_element():
    assert float(koine.Tensor(2.5)) == 2.5 and int(koine.Tensor([7])) == 7 and bool(koine.Tensor([0])) is False
    assert [10, 20, 30][koine.Tensor(1)] == 20
    assert f"{koine.Tensor(1.5):.2f}" == "1.50" and f"{koine.Tensor([1])}" == "Tensor([1], dtype=int32, device=CPU)"
    assert round(koine.Tensor(2.5)).item() == 2
    assert [t.item() for t in divmod(koine.Tensor(-7), 2)] == [-4, 1] and [t.item() for t in divmod(7, koine.Tensor(2))] == [3, 1]
    assert koine.Tensor([[5]]).item() == 5 and isinstance(koine.Tensor([5]).item(), int)
    assert koine.Tensor([2**64 - 1], dtype="uint64").item() == 2**64 - 1


def test_arrays_of_ctypes_and_of_array_are_memory():
    assert koine.Tensor((ctypes.c_float * 3)(1, 2, 3)).tolist() == [1, 2, 3]
    assert koine.Tensor(((ctypes.c_int * 2) * 3)((1, 2), (3, 4), (5, 6))).tolist() == [[1, 2], [3, 4], [5, 6]]
    assert koine.Tensor(array.array("d", [1.5, 2])).tolist() == [1.5, 2]
    with pytest.raises(TypeError, match="an array of array is none of numbers"):
        koine.Tensor(array.array("u", "ab"))


class Lent:
    """Gives DLPack capsules of float32 as it is told to, right or wrong, and counts how often one is let go."""

    class Tensor(ctypes.Structure):
        _fields_ = [("data", ctypes.c_void_p), ("device", ctypes.c_int32 * 2), ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                    ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
                    ("offset", ctypes.c_uint64)]

    class Managed(ctypes.Structure):
        pass

    class Versioned(ctypes.Structure):
        pass

    Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    Managed._fields_ = [("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", Deleter)]
    Versioned._fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p), ("deleter", Deleter),
                          ("flags", ctypes.c_uint64), ("tensor", Tensor)]

    def __init__(self, sizes, memory=True, version=None, strides=None, name=None, **fields):
        self.memory = (ctypes.c_float * 8)(*range(8))
        self.shape = (ctypes.c_int64 * len(sizes))(*sizes)
        self.strides = strides and (ctypes.c_int64 * len(strides))(*strides)
        self.released = 0
        self.managed = self.Managed() if version is None else self.Versioned(major=version)
        self.name = name or (b"dltensor" if version is None else b"dltensor_versioned")
        self.managed.deleter = self.deleter = self.Deleter(self.release)
        t = self.managed.tensor
        t.data, t.ndim, t.code, t.bits, t.lanes = ctypes.addressof(self.memory) if memory else None, len(sizes), 2, 32, 1
        t.device[0] = 1
        t.shape = ctypes.cast(self.shape, ctypes.POINTER(ctypes.c_int64))
        if strides:
            t.strides = ctypes.cast(self.strides, ctypes.POINTER(ctypes.c_int64))
        for field, value in fields.items():
            setattr(t, field, value)

    def release(self, _):
        self.released += 1

    def __dlpack__(self, **_):
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self.managed), self.name, None)

    def __dlpack_device__(self):
        return 1, 0


def test_arrays_without_the_memory_for_their_shape_are_refused():
    whole = Lent((2, 4))
    assert koine.from_dlpack(whole).tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert koine.from_dlpack(Lent((0, 4), memory=False)).shape == (0, 4)
    for shape, memory in [((4,), False), ((2 ** 62,), True), ((2 ** 32, 2 ** 32), True), ((2 ** 63 - 1,), True)]:
        with pytest.raises(ValueError, match="an array of .*shape .*without the memory for it"):
            koine.from_dlpack(Lent(shape, memory))


def test_capsules_that_cannot_be_read_are_refused():
    null = ctypes.POINTER(ctypes.c_int64)()
    for version in (None, 1):
        for match, lent in [("2 axes, and no shape", Lent((2, 4), version=version, shape=null)),
                            ("-1 axes", Lent((2, 4), version=version, ndim=-1)),
                            ("1000000 axes", Lent((2, 4), version=version, ndim=10 ** 6)),
                            ("axis 0 has the size -2", Lent((-2, 4), version=version)),
                            ("axis 1 has the size -5", Lent((0, -5), version=version)),
                            ("without the memory for it", Lent((2, 4), memory=False, version=version)),
                            ("without the memory for it", Lent((2, 4), memory=False, version=version, offset=64)),
                            ("strides of the capsule lead out", Lent((2, 4), version=version, strides=(2 ** 62, 1))),
                            ("strides of the capsule lead out", Lent((3, 4), version=version, strides=(-2 ** 63, 1))),
                            ("strides of the capsule lead out", Lent((2 ** 31, 2 ** 31), version=version, strides=(2 ** 31, 2 ** 31)))]:
            for take in (koine.from_dlpack, koine.Tensor, lambda a: koine.from_dlpack(a.__dlpack__()), lambda a: koine.ones(2) + a):
                with pytest.raises(ValueError, match=match):
                    take(lent)
            assert lent.released == 0  # whose it still is
        assert koine.from_dlpack(Lent((), version=version, shape=null)).tolist() == 0
        assert koine.from_dlpack(Lent((2, 2), version=version, strides=(-4, -2), offset=28)).tolist() == [[7, 5], [3, 1]]
        for field, value in (("lanes", 4), ("bits", 128), ("code", 99)):
            with pytest.raises(TypeError):
                koine.from_dlpack(Lent((2,), version=version, **{field: value}))
        with pytest.raises(RuntimeError, match="DLPack type 2"):
            koine.from_dlpack(Lent((2,), version=version, device=(ctypes.c_int32 * 2)(2, 0)))
    with pytest.raises(ValueError, match="version 2.0 of DLPack"):
        koine.from_dlpack(Lent((2,), version=2))
    with pytest.raises(ValueError, match="named 'other'"):
        koine.from_dlpack(Lent((2,), name=b"other"))


def test_a_capsule_is_taken_once():
    for version in (None, 1):
        lent = Lent((3,), version=version)
        capsule = lent.__dlpack__()

        class Again:
            def __dlpack__(self, **_):
                return capsule

        x = koine.from_dlpack(capsule)
        assert x.tolist() == [0, 1, 2]
        for again in (capsule, Again()):
            with pytest.raises(ValueError, match="named 'used_dltensor"):
                koine.from_dlpack(again)
        del x
        koine.Tensor([1.0, 2.0])
        gc.collect()
        assert lent.released == 1
    first = koine.Tensor([1.0, 2.0]).__dlpack__()
    assert koine.from_dlpack(first).tolist() == [1, 2]
    with pytest.raises(ValueError, match="used_dltensor"):
        koine.from_dlpack(first)


def test_what_an_array_says_when_it_refuses_is_seen():
    class Refuses:
        def __dlpack__(self, **_):
            raise BufferError("ask me later")

    class GivesNone:
        def __dlpack__(self, **_):
            return None

    with pytest.raises(BufferError, match="ask me later"):
        koine.from_dlpack(Refuses())
    with pytest.raises(TypeError, match="__dlpack__ gives a 'NoneType'"):
        koine.Tensor(GivesNone())


def test_variables_and_what_holds_them_are_copied():
    n = koine.Variable("copied", 1, 9)
    for made in (copy.copy(n), copy.deepcopy(n), pickle.loads(pickle.dumps(n))):
        assert repr(made) == "Variable('copied', 1, 9)"
    x = koine.Tensor.arange(9)
    assert (x[:n.bind(4)] + x[:copy.deepcopy(n).bind(4)]).tolist() == [0, 2, 4, 6]


def test_views_are_seen_where_they_lie(rng):
    """Slices, steps, reversed and broadcast axes of memory are NumPy's strided views of it: no copy, and elements of then."""
    seen = 0
    for _ in range(400):
        want = rng.standard_normal(rng.integers(1, 6, rng.integers(1, 4))).astype("float32")
        base = koine.Tensor(want, copy=True).realize()
        root, view = np.asarray(base), base
        for kind in rng.integers(0, 4, 3):
            if kind == 0:
                steps = ((None, None, 2), (None, None, -1), (1, None, None), (None, -1, None), (None, None, -2), (1, None, 3), (-2, None, 1))
                at = tuple(slice(*steps[rng.integers(len(steps))]) for _ in range(want.ndim))
                want, view = want[at], view[at]
            elif kind == 1:
                order = [int(k) for k in rng.permutation(want.ndim)]
                want, view = want.transpose(order), view.permute(order)
            elif kind == 2:
                want, view = np.broadcast_to(want[None], (3, *want.shape)), view[None].expand(3, *view.shape)
            elif want.size:
                want, view = want.reshape(want.shape[0], -1), view.reshape(want.shape[0], -1)
        got = np.asarray(view)
        same(got, want)
        assert not got.flags.writeable and memoryview(view).tobytes() == bytes(np.ascontiguousarray(want))
        seen += np.shares_memory(got, root)
    assert seen > 200  # no view: reshapes of what does not lie in rows, and what has no elements

    x = koine.Tensor([0.0, 1.0, 2.0, 3.0, 4.0]).realize()
    for view in (x[::2], x[1:], x[::-2], x[None].expand(3, 5), x[:4].reshape(2, 2).T, x.detach()[3:]):
        assert np.shares_memory(view.numpy(), x.numpy())
    shown = x[::2].numpy()
    x[0] = 7
    x += 1
    assert shown.tolist() == [0, 2, 4] and x[::2].numpy().tolist() == [8, 3, 5]
    part = x[1:3]
    shown = part.numpy()
    part.assign(koine.Tensor([0.0, 0.0]))
    assert shown.tolist() == [2, 3] and x.tolist() == [8, 0, 0, 4, 5] and bytes(part) == bytes(8)
    half = koine.Tensor([[1.0, 2.0], [3.0, 4.0]], dtype="bfloat16").realize()
    assert np.shares_memory(half.T.numpy(), half.numpy()) and half[:, ::-1].numpy().tolist() == [[2, 1], [4, 3]]
    assert np.from_dlpack(x[::-1]).tolist() == [5, 4, 0, 0, 8]  # a copy: not everybody who takes DLPack knows steps back
    assert x[::2].numpy(copy=True).flags.writeable
