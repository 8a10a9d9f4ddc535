"""Forked processes, as of data loaders: koine has computed before, and goes on in both."""
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback

import numpy as np
import pytest

import koine
from koine import Tensor

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # of Python 3.12 on, where there are threads
SHARED = Tensor([1.0, 2.0, 3.0])


def in_child(work):
    """Runs it in a forked process, which has a minute."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
    for _ in range(6000):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            assert status == 0, f"the child ended with {status}"
            return
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    raise AssertionError("the child hangs")


def batch(number):
    """What a worker makes: kernels that the parent has compiled, and others."""
    x = Tensor(np.full((number % 3 + 2, 5), number, np.float32))
    return ((x * 2 + SHARED.sum()) @ Tensor.ones(5, 300)).sum(1).numpy(copy=True)


def test_workers_of_a_pool_compute():
    want = [batch(n) for n in range(6)]
    with multiprocessing.get_context("fork").Pool(2) as pool:
        got = pool.map_async(batch, range(6)).get(timeout=60)
    for g, w in zip(got, want):
        np.testing.assert_array_equal(g, w)
    np.testing.assert_array_equal(batch(1), want[1])


def test_a_loader_gives_tensors():
    context = multiprocessing.get_context("fork")
    queue = context.Queue()

    def load():
        for n in range(4):
            queue.put((Tensor.arange(6).reshape(2, 3) * n).realize())

    worker = context.Process(target=load)
    worker.start()
    total = sum(queue.get(timeout=60).sum().item() for _ in range(4))
    worker.join(60)
    assert total == 15 * 6 and worker.exitcode == 0


def test_lazy_values_threads_and_jit_go_over():
    big = Tensor.rand(600, 600).realize()
    lazy, want = (big @ big).sum(), None
    f = koine.jit(lambda x: (x * 2).sum())
    f(SHARED)
    want = (big @ big).sum().item()

    def work():
        koine.clear_compile_cache()  # compiled anew, with threads of its own
        assert lazy.item() == want
        assert f(SHARED).item() == 12 and f(Tensor([1, 2])).item() == 6
        w = Tensor([1.0, 2.0], requires_grad=True)
        (w * w).sum().backward()
        assert w.grad.tolist() == [2.0, 4.0]
        in_child(lambda: batch(3))

    in_child(work)
    assert lazy.item() == want and f(SHARED).item() == 12


def test_a_fork_while_other_threads_compute():
    stop, wrong = threading.Event(), []

    def compute(k):
        try:
            n = 0
            while not stop.is_set():
                n += 1
                a = np.arange(n % 50 + k + 2, dtype=np.float32)
                assert (Tensor(a) * (n % 7)).sum().item() == a.sum() * (n % 7)
        except BaseException as e:
            wrong.append(e)

    threads = [threading.Thread(target=compute, args=(k,)) for k in range(3)]
    for t in threads:
        t.start()
    try:
        for n in range(15):
            in_child(lambda n=n: batch(n))
    finally:
        stop.set()
        for t in threads:
            t.join()
    assert not wrong, wrong


def test_a_fork_in_a_function_that_is_described():

    def f(x):
        in_child(lambda: os.getpid())
        return x * 2

    assert koine.vmap(f)(Tensor([1.0, 2.0])).tolist() == [2.0, 4.0]


def test_a_child_that_ends_as_programs_do():
    before = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            batch(2)
            sys.exit(7)
        finally:  # pytest is not to go on here
            os._exit(7 if os.getpid() != before else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
