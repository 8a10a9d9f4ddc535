"""Beside PyTorch in one process, and memory both ways. Skipped where it is not installed."""
import gc
import importlib.util
import subprocess
import sys

import pytest

import koine

if importlib.util.find_spec("torch") is None:
    pytest.skip("PyTorch is not installed", allow_module_level=True)
torch = pytest.importorskip("torch")


@pytest.mark.parametrize("dtype", ["bool", "int8", "int32", "int64", "uint8", "float16", "bfloat16", "float32", "float64"])
def test_memory_goes_both_ways(dtype):
    theirs = torch.arange(6).reshape(2, 3).to(getattr(torch, dtype))
    ours = koine.Tensor(theirs)
    assert ours.dtype.name == dtype and ours.shape == (2, 3)
    assert ours.cast("float64").tolist() == theirs.to(torch.float64).tolist()
    back = torch.from_dlpack(ours)
    assert torch.equal(back, theirs)
    assert koine.Tensor(theirs.T).cast("float64").tolist() == theirs.T.to(torch.float64).tolist()


def test_who_shares_and_who_may_write():
    theirs = torch.ones(1000)
    ours = koine.Tensor(theirs)
    assert ours.numpy().__array_interface__["data"][0] == theirs.data_ptr()
    ours += 1
    assert theirs.sum().item() == 1000 and ours.sum().item() == 2000
    mine = (koine.Tensor.arange(5) * 2).realize()
    there = torch.from_dlpack(mine)
    mine[0] = 7
    mine.realize()
    assert there.tolist() == [0, 2, 4, 6, 8] and mine.tolist() == [7, 2, 4, 6, 8]
    del mine
    gc.collect()
    assert there.tolist() == [0, 2, 4, 6, 8]


@pytest.mark.parametrize("order", ["torch, koine", "koine, torch"])
def test_in_either_order(order):
    program = f"import {order}; a = torch.rand(64, 64); d = (koine.Tensor(a) @ koine.Tensor(a)).numpy() - (a @ a).numpy(); print(abs(d).max() < 1e-3)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "True", done.stderr


def test_what_pytorch_writes_is_seen_and_what_was_computed_stays():
    theirs = torch.ones(4)
    for ours in (koine.Tensor(theirs), koine.from_dlpack(theirs)):
        view, kept = ours[1:], []
        for k in range(3):
            theirs.fill_(k)
            kept.append(((ours + 1) * 2, ours.sum()))
            assert [y.tolist() for y in kept[-1]] == [[2 * k + 2] * 4, 4 * k] and view.tolist() == [k] * 3
        assert [y.tolist() for pair in kept for y in pair] == [v for k in range(3) for v in ([2 * k + 2] * 4, 4 * k)]


def test_pytorch_writes_to_memory_that_is_lent():
    x = koine.Tensor([1.0, 2.0, 3.0])
    there = torch.from_numpy(x.numpy(writable=True))
    y = x + 1
    y.tolist()
    there[:] = 7
    assert (x + 1).tolist() == [8] * 3 and y.tolist() == [2, 3, 4] and x.tolist() == [7] * 3
