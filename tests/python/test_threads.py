"""Threads: the interpreter's lock is free while kernels are compiled and run."""
import subprocess
import sys
import threading
import time

import numpy as np

import koine


def run_all(work, n=4):
    wrong = []

    def guarded(k):
        try:
            work(k)
        except BaseException as e:
            wrong.append(e)

    threads = [threading.Thread(target=guarded, args=(k,)) for k in range(n)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong, wrong


def test_others_run_while_one_computes():
    ticks = []
    done = threading.Event()

    def tick():
        while not done.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.001)

    x = koine.Tensor.rand(1200, 1200).realize()
    t = threading.Thread(target=tick)
    t.start()
    begin = time.perf_counter()
    y = x
    for _ in range(4):
        y = y @ x
    y.realize()
    end = time.perf_counter()
    done.set()
    t.join()
    assert sum(begin <= at <= end for at in ticks) >= min(5, int((end - begin) / 0.02))


def test_threads_compile_and_run_beside_each_other():
    def work(k):
        for n in range(1, 12):
            a = np.arange(n * 7 + k, dtype=np.float32)
            assert np.allclose((koine.Tensor(a) * 2 + k).sum().item(), (a * 2 + k).sum())

    run_all(work)


def test_threads_borrow_and_let_go():
    def work(k):
        for _ in range(300):
            a = np.full(100, k, np.float32)
            x = koine.Tensor(a)
            y = (x + 1).numpy()
            del x
            assert (y == k + 1).all()

    run_all(work)


def test_one_tensor_from_many_threads():
    x = koine.Tensor.rand(64, 64)
    sums = []
    run_all(lambda k: sums.append(x.sum().item()))
    assert len(set(sums)) == 1


def test_a_process_ends_well_with_tensors_and_threads_about():
    program = """
import threading, koine, numpy as np
x = koine.Tensor(np.ones(10))
f = koine.jit(lambda a: a * 2)
y = f(x)
view = y.numpy()
threading.Thread(target=lambda: (koine.Tensor.rand(100, 100) @ koine.Tensor.rand(100, 100)).realize(), daemon=True).start()
print(view.sum())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout.strip() == "20.0" and done.stderr == "", done.stderr


def test_the_import_is_light():
    program = "import sys, koine; print([m for m in ('numpy', 'torch', 'jax', 'ml_dtypes') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr
