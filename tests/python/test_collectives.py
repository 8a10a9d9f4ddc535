"""The seven collectives and programs in several processes, from Python. What they send is tested in C++."""
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest

import koine
from conftest import same
from koine import Tensor, collective, nn

TESTS = pathlib.Path(__file__).parents[1]
DEVICES = {n: ",".join(["CPU", *(f"CPU:{k}" for k in range(1, n))]) for n in (2, 4)}


@pytest.mark.parametrize("n", DEVICES)
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_each_is_what_numpy_makes_of_the_parts(n, dtype, rng):
    a = (rng.standard_normal((n * 2 * n, 3)) * 10).astype(dtype)
    parts = collective.scatter(a, DEVICES[n])
    each = a.reshape(n, 2 * n, 3)
    results = {"broadcast": (collective.broadcast(a, DEVICES[n]), a, DEVICES[n], None),
               "scatter": (parts, a, DEVICES[n], 0),
               "gather": (collective.gather(parts), a, "CPU", None),
               "reduce": (collective.reduce(parts), each.sum(0), "CPU", None),
               "max": (collective.reduce(parts, "max", device="CPU:1"), each.max(0), "CPU:1", None),
               "all_gather": (collective.all_gather(parts), a, DEVICES[n], None),
               "reduce_scatter": (collective.reduce_scatter(parts), each.sum(0), DEVICES[n], 0),
               "all_reduce": (collective.all_reduce(parts), each.sum(0), DEVICES[n], None),
               "all_max": (collective.all_reduce(parts, fold="max"), each.max(0), DEVICES[n], None)}
    for name, (got, want, device, axis) in results.items():
        assert (got.device, got.shard_axis) == (device, axis), name
        np.testing.assert_allclose(got.numpy(), want, rtol=2e-6, atol=1e-6, err_msg=name)


def test_gradients_and_jit_go_through(rng):
    a = rng.standard_normal((4, 3)).astype("float32")

    def loss(x):
        return (collective.all_reduce(collective.scatter(x, DEVICES[2])).square()).sum()

    summed = a.reshape(2, 2, 3).sum(0)
    want = 2 * np.concatenate([summed, summed])
    same(koine.grad(loss)(Tensor(a)).numpy(), want, rtol=1e-5, atol=1e-5)
    fast = koine.jit(koine.grad(loss))
    for _ in range(2):
        same(fast(Tensor(a)).numpy(), want, rtol=1e-5, atol=1e-5)


def test_sizes_that_do_not_split_are_padded_or_refused():
    x = Tensor([1, 2, 3])
    assert collective.scatter(x, DEVICES[2], pad=True).tolist() == [1, 2, 3, 0]
    parts = Tensor([1, 2, 3, 10, 20, 30]).shard(DEVICES[2], axis=0)
    assert collective.all_reduce(parts, pad=True).tolist() == [11, 22, 33]
    assert collective.reduce_scatter(parts, pad=True).tolist() == [11, 22, 33, 0]
    with pytest.raises(ValueError, match="pad"):
        collective.scatter(x, DEVICES[2])
    with pytest.raises(ValueError, match="pad"):
        collective.reduce_scatter(parts)


@pytest.mark.parametrize("wrong, kind, words", [
    (lambda: collective.broadcast(Tensor([1]), "CPU"), ValueError, "broadcast"),
    (lambda: collective.scatter(Tensor(1), DEVICES[2]), ValueError, "scatter"),
    (lambda: collective.gather(Tensor([1, 2])), ValueError, "gather"),
    (lambda: collective.all_gather(Tensor([1, 2])), ValueError, "all_gather"),
    (lambda: collective.reduce(Tensor([1, 2])), ValueError, "reduce"),
    (lambda: collective.all_reduce(Tensor([1, 2]).shard(DEVICES[2], axis=0), "mean"), ValueError, "'mean' is none of 'add' and 'max'"),
    (lambda: collective.scatter("no numbers", DEVICES[2]), TypeError, "scatter"),
    (lambda: collective.scatter([1, 2], "NOWHERE,CPU"), koine.errors.DeviceError, "NOWHERE"),
])
def test_what_does_not_fit_is_named(wrong, kind, words):
    with pytest.raises(kind, match=words):
        wrong()


def test_a_program_of_one_process_says_what_it_lacks():
    with pytest.raises(koine.Error, match="init"):
        koine.distributed.rank()


PROGRAM = """
import sys
import numpy as np
import koine
from koine import Tensor, nn

koine.distributed.init()
rank, count = koine.distributed.rank(), koine.distributed.count()
devices = koine.distributed.devices()
assert count == int(sys.argv[1]) and len(devices.split(",")) == count and koine.distributed.own_devices() in devices.split(",")
images = np.random.default_rng(0).standard_normal((8, 5)).astype("float32")
targets = images.sum(1, keepdims=True)
own = slice(rank * 8 // count, (rank + 1) * 8 // count)
x, y = koine.distributed.parts(images[own]), koine.distributed.parts(targets[own])
assert x.shape == (8, 5) and (koine.distributed.own_part(x).numpy() == images[own]).all()
w = Tensor.zeros(5, 1).shard(devices).clone().requires_grad()
optimizer = nn.SGD([w], 0.1)
for _ in range(50):
    optimizer.zero_grad()
    loss = (x @ w).mse_loss(y)
    loss.backward()
    optimizer.step()
assert loss.item() < .05, loss.item()
if count > 1:
    total = koine.collective.all_reduce(koine.distributed.parts(Tensor([rank + 1.0])), pad=True)
    assert total.tolist() == [count * (count + 1) / 2]
if rank == 0:
    print("learned", w.numpy().ravel().round(1).tolist())
if len(sys.argv) > 2:
    raise SystemExit(3 if rank == 1 else 0)
"""


def ranks(n, program, *arguments):
    return subprocess.run([TESTS / "distributed/run", str(n), sys.executable, program, str(n), *arguments], capture_output=True, text=True,
                          timeout=120)


needs_mpirun = pytest.mark.skipif(shutil.which("mpirun") is None, reason="there is no mpirun")


@needs_mpirun
@pytest.mark.parametrize("n", [1, 2, 4])
def test_processes_train_one_model(n, tmp_path):
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    done = ranks(n, program)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("learned [") == 1


DIVERGING = """
import sys
import koine
from koine import Tensor

koine.distributed.init()
rank = koine.distributed.rank()
x = koine.distributed.parts(Tensor([1.0, 2.0]) * (rank + 1))
y = x * 2
try:
    print(*[t.sum().item() for t in ((x, y) if rank == 0 else (y, x))])
except koine.errors.DeviceError as e:
    sys.exit(7 if "do not run the same program" in str(e) else 8)
"""

FORKED = """
import os
import koine
from koine import Tensor

koine.distributed.init()
x = koine.distributed.parts(Tensor([1.0, 2.0]))
if os.fork() == 0:
    try:
        x.sum().item()
    except koine.errors.DeviceError as e:
        os._exit(0 if "before this process was forked" in str(e) else 1)
    os._exit(2)
assert os.wait()[1] == 0
assert x.sum().item() == 3.0 * koine.distributed.count()
"""

ALONE = """
import koine
from koine import Tensor, collective, nn

try:
    koine.distributed.init(10**6)
    raise SystemExit("it has so many devices?")
except koine.errors.DeviceError:
    pass
koine.distributed.init()
devices, parts = koine.distributed.devices(), koine.distributed.parts(Tensor([[1, 2], [3, 4]]))
for f in (collective.all_reduce, collective.reduce, collective.reduce_scatter, collective.all_gather, collective.gather):
    assert f(parts).tolist() == [[1, 2], [3, 4]], f
assert collective.broadcast(Tensor([1, 2]), devices).tolist() == collective.scatter(Tensor([1, 2]), devices).tolist() == [1, 2]
"""


@needs_mpirun
@pytest.mark.parametrize("program, n, status", [(DIVERGING, 2, 7), (FORKED, 2, 0), (FORKED, 1, 0), (ALONE, 1, 0)])
def test_programs_of_ranks_end_well_or_in_words(program, n, status, tmp_path):
    file = tmp_path / "program.py"
    file.write_text(program)
    done = ranks(n, file)
    assert done.returncode == status, done.stdout + done.stderr


@needs_mpirun
def test_a_rank_that_fails_ends_the_others(tmp_path):
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    assert ranks(2, program, "fail").returncode != 0


@needs_mpirun
def test_the_program_of_the_page_runs(tmp_path):
    page = (TESTS.parent / "docs/sharding.md").read_text()
    program = tmp_path / "train.py"
    program.write_text("""
import koine
from koine import Tensor, nn

def batches_of(rank):
    for step in range(3):
        koine.manual_seed(10 * step + rank)
        yield Tensor.rand(6, 784), Tensor.randint(6, low=0, high=10)
""" + page.split("```py\n")[1].split("```")[0])
    done = ranks(2, program)
    assert done.returncode == 0, done.stderr
    losses = [float(line) for line in done.stdout.split()]
    assert len(losses) == 3 and abs(losses[0] - np.log(10)) < 1e-5


def sharded(shape, axis):
    return koine.ones(*shape).shard(DEVICES[2], axis)


@pytest.mark.parametrize("f, message", [
    (lambda a, b: a[1:], r"index of shape \(4, 4\): the devices CPU,CPU:1 split axis 0 of shape \(4, 4\), which it changes: copy it"),
    (lambda a, b: a.roll(1, 0), "roll: the devices CPU,CPU:1 split axis 0"), (lambda a, b: a.flip(0), "flip: "), (lambda a, b: a.pad(((1, 1), (0, 0))), "pad: "),
    (lambda a, b: b.reshape(16), r"reshape: the devices CPU,CPU:1 split axis 1 of shape \(4, 4\), and no axis"), (lambda a, b: a.split(2), "split: "),
    (lambda a, b: koine.cat([a, b]), r"cat of \(4, 4\) split along axis 0, \(4, 4\) split along axis 1: "), (lambda a, b: koine.stack([a, b]), r"stack of \(4, 4\) split"),
    (lambda a, b: a + b, r"\+ of \(4, 4\) split along axis 0, \(4, 4\) split along axis 1: its operands are split along axis 0 and axis 1 of what it combines"),
    (lambda a, b: a < b, r"< of \(4, 4\) split along axis 0, \(4, 4\) split along axis 1: "), (lambda a, b: a @ a, r"matmul of \(4, 4\) split along axis 0, \(4, 4\) split along axis 0: "),
    (lambda a, b: koine.einsum("ij,jk->ik", a, a), r"einsum of \(4, 4\) split"), (lambda a, b: a.mse_loss(b), r"mse_loss of \(4, 4\) split along axis 0, "),
    (lambda a, b: a.sort(0), r"sort of \(4, 4\) split along axis 0: "), (lambda a, b: a.gather(0, koine.zeros(4, 4, dtype="int32").shard(DEVICES[2], 1)), "gather of "),
    (lambda a, b: koine.where(a > 0, a, b), r"where of \(4, 4\) split along axis 0, \(4, 4\) split along axis 0, \(4, 4\) split along axis 1: "),
    (lambda a, b: a[None].conv2d(koine.ones(1, 1, 3, 3), padding=1), r"conv2d: needs"), (lambda a, b: a[None, None].conv2d(koine.ones(1, 1, 3, 3), padding=1), "conv2d of "),
    (lambda a, b: a.clone().__setitem__(0, 1.0), "setitem: the devices"), (lambda a, b: a + koine.ones(4, 4).to("CPU:1"), r"\+ of \(4, 4\) split along axis 0, \(4, 4\): operand 1 of shape \(4, 4\) is on CPU:1"),
    (lambda a, b: koine.vmap(lambda v: v[1:])(b), "index of shape "), (lambda a, b: koine.jvp(lambda v: v * 2, (a,), (b,)), "jvp: its operands are split"),
    (lambda a, b: nn.Embedding(4, 4)(Tensor([0, 1]).shard(DEVICES[2], 0)), r"Embedding of \(4, 4\), \(2,\) split along axis 0: "),
])
def test_what_cuts_across_parts_is_refused_in_the_name_of_what_was_called(f, message):
    with pytest.raises(koine.Error, match="^" + message):
        f(sharded((4, 4), 0), sharded((4, 4), 1))
