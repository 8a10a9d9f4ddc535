"""More wrong uses, a table by subject: the exception that a user expects, with the method that was called and what does not fit; then all is usable.

test_errors.py has the first ones. What is here was accepted silently once, named an inner op or ended in words of C++, or is next to what did.
"""
import copy
import pickle
import re

import numpy as np
import pytest

import koine
from koine import Tensor, Variable, nn
from koine.errors import DeviceError, FileError

x = Tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
v, i, b = Tensor([1.0, 2.0, 3.0]), Tensor([0, 1, 2]), Tensor([True, False])
image = Tensor.ones(1, 2, 5, 5)
key = koine.random.Key(0)
n = Variable("n", 1, 2)


def parameter():
    return Tensor([1.0], requires_grad=True)


def has(**members):
    """An object of a class with these members."""
    return type("Given", (), members)()


def raises(error):
    def method(*_, **__):
        raise error
    return method


def put(target, name, value):
    setattr(target, name, value)


def closed(at):
    with open(at / "closed", "w") as file:
        return file


def released():
    with memoryview(bytearray(8)) as memory:
        return memory


def header(text, data=b""):
    """A safetensors file."""
    return len(text).to_bytes(8, "little") + text + data


WRONG = {
    "shapes": [
        (lambda: x.view(5), ValueError, r"view of \(2, 3\)"),
        (lambda: x.reshape(0, -1), ValueError, r"reshape: .*\(0, -1\)"),
        (lambda: x.reshape(True, 6), TypeError, "reshape: a size is a whole number, not a 'bool'"),
        (lambda: x.flatten(1, 0), ValueError, "flatten: axis 1 .* stands behind axis 0"),
        (lambda: x.expand(-1, -1, -1), ValueError, r"expand: axis 0 of \(-1, -1, -1\) is a new one"),
        (lambda: x.expand(2, -2), ValueError, r"expand: \(2, -2\) has a negative size"),
        (lambda: x.repeat(2), ValueError, "repeat: 1 counts"),
        (lambda: x.repeat(2.5, 1), TypeError, "repeat: .*'float'"),
        (lambda: x.split(0), ValueError, "split of .*the size 0"),
        (lambda: x.split(1.5), TypeError, "split: .*'float'"),
        (lambda: x.chunk(-3), ValueError, "chunk: the count -3"),
        (lambda: v.tril(), ValueError, r"tril: shape \(3,\) has no matrix"),
        (lambda: x.pad(((-1, 0), (0, 0))), ValueError, "pad: -1 and 0 around axis 0"),
        (lambda: x.pad(((1.5, 1), (0, 0))), TypeError, "pad: .*'float'"),
        (lambda: x.pad(((1, 1), (0, 0)), "reflect"), TypeError, "pad: .*'str'"),
        (lambda: x.shrink(((1, 0), (0, 1))), ValueError, r"shrink: bounds 1\.\.0 of axis 0"),
        (lambda: koine.cat([]), ValueError, "cat: no tensors"),
        (lambda: koine.stack(3), TypeError, "stack: .*'int'"),
        (lambda: koine.einsum("i1->i", x), ValueError, "einsum 'i1->i': '1' is not a letter"),
        (lambda: koine.einsum("ij,jk"), ValueError, "einsum 'ij,jk': 2 terms for 0 operands"),
        (lambda: koine.einsum(3, x), TypeError, r"einsum: 'formula' is a 'int'\. It takes"),
        (lambda: v.dot(Tensor.ones(4)), ValueError, r"dot of \(3,\), \(4,\)"),
        (lambda: 3 @ x, ValueError, r"matmul: shapes \(\) and \(2, 3\)"),
        (lambda: x.masked_fill(x > 1, v), ValueError, r"masked_fill: the value must be a scalar, its shape is \(3,\)"),
        (lambda: x.lerp(Tensor.ones(4), 0.5), ValueError, r"lerp of \(2, 3\), \(4,\)"),
        (lambda: x.scatter(0, Tensor([0]), v), ValueError, r"scatter: index \(1,\) and src \(3,\)"),
        (lambda: x.topk(9), ValueError, "topk: 9 of the 3 elements"),
        (lambda: x.scaled_dot_product_attention(Tensor.ones(4, 5), Tensor.ones(4, 5)), ValueError, "scaled_dot_product_attention of"),
    ],
    "axes": [
        (lambda: x.flip(0, 0), ValueError, "flip: axis 0 .* named twice"),
        (lambda: x.flip(0, -2), ValueError, "flip: axis -2 .* named twice"),
        (lambda: x.flip(2), IndexError, "flip: axis 2 is out of range"),
        (lambda: x.roll(1, 5), IndexError, "roll: axis 5 is out of range"),
        (lambda: x.squeeze(9), IndexError, "squeeze: axis 9"),
        (lambda: x.permute((0, 1), 1), TypeError, "permute: .*'tuple'"),
        (lambda: x.transpose(0, 2), IndexError, "transpose: axis 2"),
        (lambda: x.std((0, 0)), ValueError, "std: an axis is named twice"),
        (lambda: x.argmin((0, 1)), TypeError, "argmin: 'axis' is a 'tuple'"),
        (lambda: x.sort(4), IndexError, r"sort of \(2, 3\): .*axis 4"),
        (lambda: x.norm("fro"), TypeError, "norm: an axis is a whole number, not a 'str'"),
        (lambda: x.cumsum(None), TypeError, "cumsum: 'axis' is None"),
        (lambda: x.index_select(3, i), IndexError, "index_select: axis 3"),
        (lambda: np.add.reduce(x, axis=7), IndexError, "sum: axis 7"),
    ],
    "indices": [
        (lambda: x[np.array(["a"])], IndexError, "index of .*'ndarray' is no index"),
        (lambda: x[i, Tensor([0, 1])], IndexError, r"index of .*positions of shapes \(3,\), \(2,\) do not broadcast"),
        (lambda: x.clone().__setitem__((i, Tensor([0, 1])), 1.0), IndexError, r"setitem.*positions of shapes \(3,\), \(2,\)"),
        (lambda: x[1:2:3.5], TypeError, "index of .*the bounds of a slice .*'float'"),
        (lambda: x[{0}], IndexError, "index of .*'set' is no index"),
        (lambda: x[b, 0, 0], IndexError, "index of .*3 axes are indexed"),
        (lambda: x[b, b], IndexError, "index of .*a mask has size 2, and axis 1 of the tensor 3"),
        (lambda: x[:, -4], IndexError, "index of .*position -4 .*axis 1 of size 3"),
        (lambda: x[:n], TypeError, "index of .*not a 'Variable'"),
        (lambda: x.clone().__setitem__(0, v[:2]), ValueError, r"setitem of \(2, 3\), \(2,\)"),
        (lambda: x.clone().__setitem__(b, "a"), TypeError, "setitem: .*'str'"),
        (lambda: i.clone().__setitem__(0, 2**40), ValueError, "setitem: 1099511627776 is not in int32"),
        (lambda: i.clone().__setitem__(0, float("nan")), ValueError, "setitem: nan is not in int32"),
        (lambda: v.reshape(1, 3).expand(2, 3).__setitem__((0, 0), 7.0), ValueError, "setitem of .*repeats elements"),
        (lambda: x.gather(0, x), TypeError, "gather: positions must be integers, got float32"),
        (lambda: x.index_select(0, Tensor([7])).tolist(), IndexError, "index_select: position 7 .*size 2"),
        (lambda: i.one_hot(2).tolist(), IndexError, "one_hot: class 2 .*size 2"),
        (lambda: x.cross_entropy(Tensor([0, 5])).item(), IndexError, "cross_entropy: class 5 .*size 3"),
        (lambda: nn.Embedding(3, 2)(Tensor([-4])).tolist(), IndexError, "Embedding: position -4 .*size 3"),
        (lambda: koine.jit(lambda t: t[Tensor([5])])(x).tolist(), IndexError, "index: position 5 .*size 2"),
    ],
    "dtypes and numbers": [
        (lambda: x.cast(3), TypeError, "cast: 3 is no dtype"),
        (lambda: x.astype("float31"), TypeError, "astype: 'float31' is no dtype"),
        (lambda: koine.eye(2, -3), TypeError, "eye: -3 is no dtype"),
        (lambda: koine.ones(2, dtype=str), TypeError, "ones: .*'str'> is no dtype"),
        (lambda: koine.arange(3, dtype="q"), TypeError, "arange: 'q' is no dtype"),
        (lambda: koine.full((2,), 1, dtype="q"), TypeError, "full: 'q' is no dtype"),
        (lambda: koine.promote("float32", "b"), TypeError, "promote: 'b' is no dtype"),
        (lambda: Tensor([1], dtype=np.dtype("M8[s]")), TypeError, r"Tensor: dtype\('<M8\[s\]'\) is no dtype"),
        (lambda: x.bitcast("int64"), ValueError, r"bitcast of \(2, 3\).*12 bytes, not a multiple of 8"),
        (lambda: x << 1, TypeError, r"lshift of \(2, 3\).*float32"),
        (lambda: b - b, TypeError, "-: bool has no difference"),
        (lambda: x * "a", TypeError, r"\*: .*not a 'str'"),
        (lambda: "a" * x, TypeError, r"\*: .*not a 'str'"),
        (lambda: koine.arange(1, 2, 0), ValueError, "arange: the step must not be 0"),
        (lambda: koine.arange(0, float("nan")), ValueError, r"arange\(0, nan, 1\)"),
        (lambda: koine.arange(300, dtype="int8"), ValueError, r"arange\(0, 300, 1\): int8"),
        (lambda: koine.linspace(0, 1, -1), ValueError, "linspace: -1 steps"),
        (lambda: koine.full((2,), [1, 2]), ValueError, r"full: the value must be a scalar, its shape is \(2,\)"),
        (lambda: koine.zeros(2, device=5), TypeError, r"zeros: there is no 'device'\. It takes"),
        (lambda: Tensor.rand(2, dtype="int32"), TypeError, r"rand: there is no 'dtype'\. It takes"),
        (lambda: Tensor(range(-1, 2**64, 2**63)), OverflowError, "Tensor: no integer dtype"),
        (lambda: i.clone().__iadd__(0.5), TypeError, "__iadd__: the result is float32, which int32 cannot hold"),
        (lambda: x.gelu(5), TypeError, "gelu: 'approximate' is a 'int'"),
        (lambda: x.sparse_categorical_crossentropy(Tensor([0, 1]), label_smoothing=2.0), ValueError, "sparse_categorical_crossentropy: .*smoothing 2"),
        (lambda: f"{x:.2f}", ValueError, "item: a tensor of 6 elements"),
        (lambda: range(Tensor(2.5)), TypeError, "index, not float32"),
    ],
    "what becomes a tensor": [
        (lambda: Tensor([1, 2], copy=False), ValueError, "Tensor: copy=False, and a 'list' has no memory"),
        (lambda: Tensor(5, copy=False), ValueError, "Tensor: copy=False, and a 'int' has no memory"),
        (lambda: Tensor(np.ones(2, "float32"), dtype="float64", copy=False), ValueError, "Tensor: copy=False, and float64 from float32 is a copy"),
        (lambda: Tensor(x, dtype="int32", copy=False), ValueError, "Tensor: copy=False, and int32 from float32"),
        (lambda: Tensor(x, device="CPU:1", copy=False), ValueError, "Tensor: copy=False, and to CPU:1 from CPU"),
        (lambda: Tensor(Tensor), TypeError, "Tensor: a 'class Tensor' is neither"),
        (lambda: Tensor(np.float32), TypeError, "Tensor: a 'class float32' is neither"),
        (lambda: x + np.float32, TypeError, "not a 'class float32'"),
        (lambda: koine.cat([x, np.ndarray]), TypeError, "cat: .*not a 'class ndarray'"),
        (lambda: Tensor([Tensor([1.0]), 2.0]), ValueError, r"Tensor: element 0 of a list has shape \(1,\), and element 1 shape \(\)"),
        (lambda: Tensor([np.ones(2), [1, 2, 3]]), ValueError, r"Tensor: element 0 .*\(2,\), and element 1 shape \(3,\)"),
        (lambda: Tensor({1: 2}), TypeError, "Tensor: a 'dict' is neither"),
        (lambda: Tensor(k for k in range(3)), TypeError, "Tensor: a 'generator' is neither"),
        (lambda: Tensor([1j]), TypeError, "Tensor: an element is a 'complex'"),
        (lambda: Tensor(np.zeros(3, [("a", "f4")])), TypeError, "Tensor: an array of .*none of numbers"),
        (lambda: Tensor(np.lib.stride_tricks.as_strided(np.ones(1), (2**40,), (0,))), MemoryError, "not enough memory"),
        (lambda: Tensor(has(__array__=raises(LookupError("mine")))), LookupError, "mine"),
        (lambda: Tensor(has(__array__=lambda _: 5)), TypeError, "Tensor: an array of int is none of numbers"),
        (lambda: Tensor([1.0], device="CPU:-1"), DeviceError, "'CPU:-1': the number must be 0 to 63"),
        (lambda: Tensor([1.0], device=["CPU"]), TypeError, "Tensor: 'device' is a 'list'"),
        (lambda: Tensor([1, 2], requires_grad=True), TypeError, "requires_grad: int32"),
        (lambda: koine.cat([x, Tensor.__new__(Tensor)]), TypeError, "was made by __new__ alone"),
        (lambda: x + Tensor.__new__(Tensor), TypeError, "was made by __new__ alone"),
    ],
    "memory of others": [
        (lambda: x.__dlpack__(max_version=5), TypeError, "__dlpack__: max_version is a pair of whole numbers, .*not 5"),
        (lambda: x.__dlpack__(max_version="ab"), TypeError, "__dlpack__: max_version .*not 'ab'"),
        (lambda: x.__dlpack__(max_version=(None, 0)), TypeError, r"__dlpack__: max_version .*not \(None, 0\)"),
        (lambda: x.__dlpack__(dl_device=("a", 0)), TypeError, r"__dlpack__: dl_device .*not \('a', 0\)"),
        (lambda: x.__dlpack__(dl_device=(2, 0)), BufferError, "__dlpack__: .*to the CPU alone"),
        (lambda: x.__dlpack__(stream=5), ValueError, "__dlpack__: the CPU has no streams"),
        (lambda: koine.from_dlpack("a"), TypeError, "from_dlpack: a 'str' has no __dlpack__"),
        (lambda: Tensor(has(__dlpack__=lambda _, **__: 5)), TypeError, "__dlpack__ gives a 'int', not a capsule"),
        (lambda: koine.from_dlpack(has(__dlpack__=raises(BufferError("ask later")))), BufferError, "ask later"),
        (lambda: koine.from_dlpack(np.ones((2, 2)).T, copy=False), ValueError, "copy=False"),
        (lambda: Tensor(released()), TypeError, "Tensor: an array of memoryview"),
        (lambda: koine.cat([v, released()]), TypeError, "an array of memoryview"),
        (lambda: x.numpy(1), TypeError, "numpy: 'copy' is a 'int'"),
        (lambda: x.__array__("f8", copy=False), ValueError, "__array__: another dtype needs a copy"),
        (lambda: memoryview(Tensor([1.0], dtype="float8e4m3")), BufferError, "has no float8e4m3"),
        (lambda: memoryview(x).__setitem__((0, 0), 5.0), TypeError, "read-only"),
        (lambda: np.asarray(x).__setitem__((0, 0), 5.0), ValueError, "read-only"),
        (lambda: np.add.at(x, 0, 1), TypeError, r"np\.add\.at: .*scatter_add"),
        (lambda: np.sin(x, out=x), TypeError, r"np\.sin: out is a tensor"),
        (lambda: np.cbrt(x), TypeError, r"np\.cbrt: Koine has no such function"),
        (lambda: pickle.loads(pickle.dumps(x)[:-20]), pickle.UnpicklingError, "truncated"),
        (lambda: copy.deepcopy([x, raises(KeyError("mine"))])[1](), KeyError, "mine"),
    ],
    "nn and state": [
        (lambda: nn.Conv2d(2, 3, 3, stride=0), ValueError, "Conv2d: stride 0"),
        (lambda: nn.Conv2d(2, 3, 3, padding=-1), ValueError, "Conv2d: .*padding -1 not negative"),
        (lambda: nn.Conv2d(2, 3, 3, dilation=0), ValueError, "Conv2d: .*dilation 0"),
        (lambda: nn.Conv2d(2, 3, 3, groups=0), ValueError, "Conv2d: 0 groups"),
        (lambda: nn.Conv2d(2, 3, 9)(image), ValueError, "conv2d: the kernel reaches over 9"),
        (lambda: nn.BatchNorm(0), ValueError, "BatchNorm: features is 0"),
        (lambda: nn.BatchNorm(3)(x.T), ValueError, r"BatchNorm: axis 1 of shape \(3, 2\)"),
        (lambda: nn.LayerNorm(-1), ValueError, "LayerNorm: features is -1"),
        (lambda: nn.Embedding(0, 3), ValueError, "Embedding: vocabulary is 0"),
        (lambda: nn.Embedding(3, -2), ValueError, "Embedding: width is -2"),
        (lambda: nn.Dropout(1.5), ValueError, "Dropout: p = 1.5 is not a probability"),
        (lambda: nn.Dropout(float("nan")), ValueError, "Dropout: p = nan"),
        (lambda: put(nn.Dropout(), "p", -1.0), ValueError, "Dropout: p = -1"),
        (lambda: put(nn.Linear(3, 2), "weight", None), TypeError, "Linear: there is always a weight"),
        (lambda: put(nn.BatchNorm(3), "running_mean", None), TypeError, "BatchNorm: there is always a running_mean"),
        (lambda: put(nn.Linear(3, 2), "weight", "a"), TypeError, r"Linear\.weight: .*'str'"),
        (lambda: put(i, "grad", i), TypeError, "set_grad: int32 tensors have no gradient"),
        (lambda: nn.get_parameters(3), TypeError, "get_parameters: .*'int'"),
        (lambda: nn.get_state_dict("a"), TypeError, "get_state_dict: .*'str'"),
        (lambda: nn.load_state_dict(None, {}), TypeError, "load_state_dict: .*'NoneType'"),
        (lambda: nn.load_state_dict(nn.Linear(3, 2), {"weight": x, "bias": v[:2], "more": v}), KeyError, "load_state_dict: .*unknown .'more'"),
        (lambda: nn.load_state_dict(nn.Linear(3, 2), {"weight": i, "bias": v[:2]}), ValueError, r"load_state_dict: 'weight' has shape \(3,\)"),
        (lambda: image.conv2d(Tensor.ones(3, 2, 3, 3), Tensor.ones(5)), ValueError, r"conv2d: the bias has shape \(5,\)"),
        (lambda: image.max_pool2d(2, padding=5), ValueError, "max_pool2d: the padding 5"),
        (lambda: image.avg_pool2d(-1), ValueError, "avg_pool2d: kernel -1"),
        (lambda: x.dropout(-1), ValueError, "dropout: p = -1"),
    ],
    "optimizers": [
        (lambda: nn.SGD([1.0], 0.1), TypeError, "optimizer: parameter 0 is a 'float'"),
        (lambda: nn.Adam([parameter(), np.ones(2, "float32")]), TypeError, "optimizer: parameter 1 is a 'ndarray'"),
        (lambda: nn.SGD(x, 0.1), TypeError, "optimizer: takes a list of tensors, not a 'Tensor'"),
        (lambda: nn.SGD([], 0.1), ValueError, "optimizer: no parameters"),
        (lambda: nn.SGD([i], 0.1), TypeError, "optimizer: parameter 0 of shape .* is int32"),
        (lambda: nn.SGD([parameter()], float("nan")), ValueError, "optimizer: the learning rate nan"),
        (lambda: nn.SGD([parameter()], 0.1, nesterov=True), ValueError, "optimizer: Nesterov"),
        (lambda: nn.SGD([parameter()], 0.1).step(), ValueError, "step: none of the 1 parameters has a gradient"),
        (lambda: nn.SGD(2 * [parameter()], 0.1), ValueError, "optimizer: parameters 0 and 1, .* are one tensor"),
        (lambda: nn.AdamW([parameter()], 0.1, 1.5), ValueError, "optimizer: beta1 = 1.5"),
        (lambda: nn.Adam([parameter()], eps=-1), ValueError, "optimizer: the eps -1"),
        (lambda: nn.Optimizer(), TypeError, "Optimizer: it is not made by calling the class"),
        (lambda: nn.cosine_schedule(0.1, 10, 0.1), TypeError, "cosine_schedule: 'step' is a 'float'"),
    ],
    "files": [
        (lambda at: koine.safe_load(5), TypeError, "safe_load: a path is a text .*'int'"),
        (lambda at: koine.safe_load("a\0b"), ValueError, "safe_load: the path .* has a NUL"),
        (lambda at: koine.safe_load(closed(at)), TypeError, "safe_load: a path .*'TextIOWrapper'"),
        (lambda at: koine.safe_save({"a": x}, closed(at)), TypeError, "safe_save: a path .*'TextIOWrapper'"),
        (lambda at: koine.SavedProgram(closed(at)), TypeError, "SavedProgram: a path .*'TextIOWrapper'"),
        (lambda at: koine.safe_load(at), FileError, "cannot be opened"),
        (lambda at: koine.safe_load(holding(at, b"abc")), FileError, "3 bytes are too few"),
        (lambda at: koine.safe_load(holding(at, b"\xff" * 8)), FileError, "claims 18446744073709551615 bytes"),
        (lambda at: koine.safe_load(holding(at, header(b'{"a":5}xxx'))), FileError, "not a JSON object"),
        (lambda at: koine.safe_load(holding(at, header(b'{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}', bytes(4)))), FileError, "a size of 'a'"),
        (lambda at: koine.safe_load(holding(at, header(b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,400]}}', bytes(4)))), FileError, r"lies at 0\.\.400"),
        (lambda at: koine.safe_load(holding(at, header(b'{"a":{"dtype":"C64","shape":[1],"data_offsets":[0,8]}}', bytes(8)))), FileError, "unknown dtype 'C64'"),
        (lambda at: koine.safe_save({"a": x}, 5), TypeError, "safe_save: a path .*'int'"),
        (lambda at: koine.safe_save({"a": x}, f"{at}/a\0b"), ValueError, "safe_save: the path .* has a NUL"),
        (lambda at: koine.safe_save({"\ud800": x}, f"{at}/a"), ValueError, r"safe_save: the name '\\ud800' is no text"),
        (lambda at: koine.safe_save({"a": None}, f"{at}/a"), TypeError, "safe_save: .*'NoneType'"),
        (lambda at: koine.safe_save([x], f"{at}/a"), TypeError, "safe_save: 'tensors' is a 'list'"),
        (lambda at: koine.safe_save({"__metadata__": x}, f"{at}/a"), ValueError, "safe_save: .*'__metadata__'"),
        (lambda at: koine.safe_save({"a": x}, at), FileError, "cannot be written"),
        (lambda at: koine.SavedProgram(at), FileError, "it is a folder"),
        (lambda at: koine.SavedProgram(5), TypeError, "SavedProgram: a path .*'int'"),
        (lambda at: koine.SavedProgram(holding(at, b"abc")), ValueError, "these 3 bytes do not begin as one of this version"),
        (lambda at: koine.save_program({}, {}, f"{at}/p"), ValueError, "no value"),
    ],
    "devices": [
        (lambda: x.to("CPU:64"), DeviceError, "'CPU:64': the number must be 0 to 63"),
        (lambda: x.to("cpu"), DeviceError, "unknown device 'cpu'"),
        (lambda: x.to("CPU,CPU"), DeviceError, "name CPU twice"),
        (lambda: x.shard("CPU,CPU:1", axis=1), ValueError, "shard of .*axis 1 of size 3 does not split evenly"),
        (lambda: x.shard(["CPU", "CPU:1"]), TypeError, "shard: 'devices' is a 'list'"),
        (lambda: x + x.to("CPU:1"), DeviceError, r"\+ of .*on CPU:1, but an earlier one is on CPU"),
        (lambda: koine.where(x > 1, x, x.to("CPU:1")), DeviceError, "where of .*on CPU:1"),
        (lambda: x.shard_like(5), TypeError, "shard_like: 'other' is a 'int'"),
        (lambda: koine.collective.all_reduce([x, v]), ValueError, "all_reduce: element 0 of a list"),
        (lambda: koine.collective.all_reduce(x, "sum"), ValueError, "all_reduce: fold='sum'"),
        (lambda: koine.collective.reduce(x, "mean"), ValueError, "reduce: fold='mean'"),
        (lambda: koine.collective.broadcast(x, 5), TypeError, "broadcast: 'devices' is a 'int'"),
        (lambda: koine.distributed.own_part(x), DeviceError, "joined no others"),
        (lambda: koine.memory_in_use("a"), DeviceError, "unknown device 'a'"),
    ],
    "transforms": [
        (lambda: koine.value_and_grad(lambda t: t)(x), ValueError, r"^value_and_grad: the function gives float32 of shape \(2, 3\)"),
        (lambda: koine.hessian(lambda t: t)(x), ValueError, r"^hessian: the function gives float32 of shape \(2, 3\)"),
        (lambda: koine.hvp(lambda t: t.sum(), (x,), (v,)), ValueError, r"^hvp: tangents.*shape \(3,\)"),
        (lambda: koine.grad(lambda t: t.sum(), argnums=1.5)(x), TypeError, "grad: argnums .*1.5"),
        (lambda: koine.grad(lambda t: None)(x), TypeError, "grad: the function gives None"),
        (lambda: koine.jvp(lambda t: t, x, x), TypeError, "jvp: primals and tangents are tuples"),
        (lambda: koine.vjp(lambda t: (t, t), x)[1](x), ValueError, r"vjp: the cotangents are one value, and should be \(\*, \*\)"),
        (lambda: koine.linearize(lambda t: t, x)[1](v), ValueError, r"linearize: .*shape \(3,\)"),
        (lambda: koine.vmap(lambda t: t, in_axes=5)(x), IndexError, "vmap: t of shape .*no axis 5"),
        (lambda: koine.vmap(lambda t: t, out_axes="a")(x), TypeError, "vmap: out_axes .*'a'"),
        (lambda: koine.vmap(lambda t: t)(Tensor(1.0)), IndexError, r"vmap: t of shape \(\) has no axis 0"),
        (lambda: koine.jacrev(lambda t: t.argmax())(x), TypeError, "jacrev: the function must give one float tensor"),
        (lambda: koine.checkpoint(lambda t: t, policy="a"), TypeError, "checkpoint: policy .*'a'"),
        (lambda: koine.custom_vjp(lambda t: t).defvjp(5, 6), TypeError, "defvjp: takes a function, not a 'int'"),
        (lambda: koine.custom_jvp(lambda t: t).defjvp(6), TypeError, "defjvp: takes a function, not a 'int'"),
        (lambda: koine.custom_vjp(lambda t: t)(x), ValueError, "custom_vjp: the function has no gradient yet"),
        (lambda: koine.scan(lambda c, r: (c, r, r), x, x), TypeError, r"scan: a step gives \(carry, result\)"),
        (lambda: koine.scan(lambda c, r: (c, r), x, None, length=-1), ValueError, "scan: -1 steps"),
        (lambda: koine.while_loop(lambda c: c.sum(), lambda c: c, x), ValueError, "while_loop: cond_fun .*float32"),
        (lambda: koine.cond(Tensor(True), lambda: x, lambda: v), ValueError, r"cond: the result is float32 of shape \(3,\) in false_fun"),
        (lambda: koine.switch(Tensor(0), lambda: x), TypeError, "switch: branches is a list of functions, not a 'function'"),
        (lambda: koine.switch(0.5, [lambda: x, lambda: x]), ValueError, "switch: the number of the branch .*float32"),
        (lambda: koine.fori_loop(0, 2.5, lambda k, c: c, x), TypeError, "fori_loop: .*'float'"),
        (lambda: koine.ShapeDtype("a", "float32"), TypeError, "ShapeDtype: a shape .*'a'"),
        (lambda: koine.ShapeDtype((2, -3), "float32"), ValueError, r"ShapeDtype: the shape \(2, -3\) has a negative size"),
        (lambda: koine.ShapeDtype((2,), "a"), TypeError, "ShapeDtype: 'a' is no dtype"),
        (lambda: koine.pure_callback(lambda a: np.ones(5, "f4"), koine.ShapeDtype((2, 3), "float32"), x).realize(), ValueError, r"result 0 is float32 \(5,\)"),
    ],
    "trees": [
        (lambda: koine.tree.register(5, None, None), TypeError, r"tree\.register: takes a class, not a 'int'"),
        (lambda: koine.tree.register(type("Own", (), {}), 5, lambda d, c: d), TypeError, r"tree\.register: of Own, .*'int'"),
        (lambda: koine.tree.register(int, lambda a: ((), a), lambda d, c: d), ValueError, r"tree\.register: what int is"),
        (lambda: koine.tree.register(Tensor, lambda a: ((), a), lambda d, c: d), ValueError, r"tree\.register: what Tensor is"),
        (lambda: koine.tree_unflatten(5, [1]), TypeError, r"tree\.unflatten: .*'int'"),
        (lambda: koine.tree_unflatten(koine.tree_structure([1, 2]), 5), TypeError, r"tree\.unflatten: .*'int'"),
        (lambda: koine.tree_unflatten(koine.tree_structure([1, 2]), [1, 2, 3]), ValueError, "a tree of 2 leaves, .* is given 3"),
        (lambda: koine.tree_map(5, x), TypeError, r"tree\.map: takes a function, not a 'int'"),
        (lambda: koine.tree_map(lambda a, b: a, {"a": x}, {"b": x}), ValueError, r"tree\.map: tree 1 is \{'b': \*\}"),
    ],
    "jit": [
        (lambda: koine.jit(x), TypeError, "jit: takes a function, not a 'Tensor'"),
        (lambda: koine.jit(lambda t: t, foo=1), TypeError, "jit: there is no 'foo'"),
        (lambda: koine.jit(lambda t: t, dynamic={"q": {0: n}}), ValueError, "jit: dynamic names 'q'"),
        (lambda: koine.jit(lambda t: t, dynamic={"t": {"a": n}}), TypeError, r"jit: an axis of dynamic\['t'\] .*'str'"),
        (lambda: koine.jit(lambda t: t * 2, dynamic={"t": {7: n}})(x), IndexError, "jit: dynamic names axis 7 of argument 't'"),
        (lambda: koine.jit(lambda t: t * 2, dynamic={"t": {1: n}})(x), ValueError, "jit: axis 1 of argument 't' has size 3, and Variable 'n' is from 1 to 2"),
        (lambda: koine.jit(lambda t: t, static_argnums=5), ValueError, "jit: static_argnums names argument 5"),
        (lambda: koine.jit(lambda t, k: t, static_argnums=1)(x, [1]), ValueError, "jit: argument 1 is static, and a 'list' has no hash"),
        (lambda: koine.jit(lambda t: t, static_argnums=0, donate_argnums=0), ValueError, "jit: argument 0 is static, so it cannot be donated"),
        (lambda: koine.jit(lambda t: t.reshape(7))(x), ValueError, r"reshape: shape \(2, 3\) has 6 elements"),
        (lambda: koine.jit(lambda t: 1 / 0)(x), ZeroDivisionError, "division by zero"),
        (lambda: koine.jit(lambda t: t)(x, x), TypeError, "takes 1 positional argument but 2 were given"),
    ],
    "random numbers": [
        (lambda: koine.random.Key("a"), TypeError, "Key: a seed is a whole number, not a 'str'"),
        (lambda: koine.random.Key(2**70), ValueError, "Key: a seed does not fit into 64 bits"),
        (lambda: koine.random.Key(x), TypeError, "Key: the bits of a key are uint64, got float32"),
        (lambda: koine.random.split(key, -2), ValueError, "split: -2"),
        (lambda: koine.random.rand(5, (2,)), TypeError, "rand: 'key' is a 'int'"),
        (lambda: koine.random.uniform(key, (2,), 3.0, 1.0), ValueError, "uniform: from 3 to 1"),
        (lambda: koine.random.randint(key, (2,), 0, 2**40), ValueError, r"randint: the range \[0, 1099511627776\)"),
        (lambda: koine.random.bernoulli(key, (2,), 1.5), ValueError, "bernoulli: p = 1.5"),
        (lambda: koine.random.permutation(key, -1), ValueError, "permutation: -1"),
        (lambda: koine.random.dropout(key, x, 2.0), ValueError, "dropout: p = 2"),
        (lambda: Tensor.randint(2, low=5, high=5), ValueError, r"randint: the range \[5, 5\)"),
        (lambda: Tensor.randint(2, low=0, high=0.5), TypeError, r"randint: 'high' is a 'float'\. It takes"),
    ],
    "all else": [
        (lambda: koine.UOp(), TypeError, r"UOp: it is not made by calling the class: x\.uop"),
        (lambda: koine.Kernel(), TypeError, r"Kernel: it is not made by calling the class: koine\.schedule"),
        (lambda: koine.Program(), TypeError, r"Program: it is not made by calling the class: koine\.program_of"),
        (lambda: koine.Size(3), TypeError, r"Size: it is not made by calling the class: Variable\.bind"),
        (lambda: koine.schedule(5), TypeError, "schedule: takes tensors or nodes, .*'int'"),
        (lambda: koine.lower_kernel(x), TypeError, "lower_kernel: 'kernel' is a 'Tensor'"),
        (lambda: koine.realize([x, "a"]), TypeError, "realize: .*'str'"),
        (lambda: koine.set_printoptions(precision=-1), ValueError, "set_printoptions: precision -1"),
        (lambda: koine.set_printoptions(foo=1), TypeError, "set_printoptions: there is no 'foo'"),
        (lambda: koine.Variable("a b", 1, 2), ValueError, r"Variable\('a b', 1, 2\): needs a name"),
        (lambda: n.bind(2.5), TypeError, "bind: 'value' is a 'float'"),
        (lambda: x[:n.bind(1)] + x[:n.bind(2)], ValueError, r"\+: shapes \(n=1, 3\) and \(n=2, 3\)"),
        (lambda: x.requires_grad("a"), TypeError, "requires_grad: 'on' is a 'str'"),
        (lambda: x[0].requires_grad(), ValueError, "requires_grad: this is a view"),
        (lambda: parameter().sum().gradient("a"), TypeError, "gradient: takes tensors .*'str'"),
        (lambda: x.backward(5), TypeError, "backward: 1 arguments, and it takes 0"),
        (lambda: koine.checkpoint_policies.save_only_these_names(5), TypeError, "save_only_these_names: names are texts, .*5"),
        (lambda: x.clone().assign("a"), TypeError, "assign: .*'str'"),
    ],
}
CASES = [(subject, k) for subject, cases in WRONG.items() for k in range(len(cases))]


def holding(at, data):
    path = at / "bad"
    path.write_bytes(data)
    return path


@pytest.fixture(autouse=True)
def usable():
    """All is as it was, on interpreted and compiled kernels, with a gradient and under jit."""
    yield
    assert (x + 1).sum().item() == 27
    assert koine.grad(lambda t: (t * t).sum())(v).tolist() == [2, 4, 6]
    assert koine.jit(lambda t: t[1:] * 2)(v).tolist() == [4, 6]
    assert (Tensor([1.0], device="INTERP") + 1).tolist() == [2] and repr(i) == "Tensor([0, 1, 2], dtype=int32, device=CPU)"


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # nanobind's, of what __new__ made
@pytest.mark.parametrize("subject, k", CASES)
def test_wrong_uses_are_refused_in_the_users_words(subject, k, tmp_path):
    call, kind, text = WRONG[subject][k]
    with pytest.raises(kind) as caught:
        call(tmp_path) if subject == "files" else call()
    message = str(caught.value)
    assert re.search(text, message, re.S), message
    assert not re.search(r"bad_cast|std::|nanobind|koine\._koine", message), message


def test_the_table_is_as_long_as_it_says():
    assert len(CASES) >= 250 and len({(c[1], c[2]) for cases in WRONG.values() for c in cases}) > 240


def test_what_stays_allowed():
    """Next to what is refused."""
    assert Tensor(x, copy=False).tolist() == x.tolist() and Tensor(np.ones(2, "float32"), copy=False, device="CPU").tolist() == [1, 1]
    assert x.expand(4, -1, -1).shape == (4, 2, 3)
    layer = nn.Linear(3, 2)
    layer.bias = None
    assert layer(x).shape == (2, 2) and nn.get_state_dict([None, layer]).keys() == {"1.weight"}
    assert x.__dlpack__(max_version=[1, 0]) is not None and not x == "a"
    assert nn.Dropout(0.0)(x).tolist() == x.tolist() and koine.switch(1, (lambda: x, lambda: x + 1)).tolist() == (x + 1).tolist()

    class Own:
        def __init__(self, part):
            self.part = part

    koine.tree.register(Own, lambda o: ((o.part,), None), lambda data, children: Own(*children))
    assert koine.tree.map(lambda t: t + 1, Own(1)).part == 2
