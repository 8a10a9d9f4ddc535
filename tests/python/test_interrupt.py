"""Ctrl-C, and signals beside it, in the middle of what is compiled and run: planted by a thread."""
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import koine
from koine import Tensor

LONG = 10**9  # steps: nobody waits for their end


def endless():
    """A loop that runs for hours, a microsecond a step."""
    return koine.fori_loop(0, LONG, lambda i, x: x * 0.5 + 1, Tensor([1.0, 2.0]).realize())


@contextlib.contextmanager
def signal_soon(number=signal.SIGINT, seconds=0.2):
    """Another thread sends it after a while; what is given has when that was."""
    sent = []

    def send():
        time.sleep(seconds)
        sent.append(time.perf_counter())
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield sent
    finally:
        thread.join()


def stopped(work):
    """Whether Ctrl-C ended it, soon."""
    with signal_soon() as sent:
        with pytest.raises(KeyboardInterrupt):
            work()
        waited = time.perf_counter() - sent[0]
    assert waited < 2, waited  # 0.1 s and less where nobody else works on this machine
    return waited


def test_a_run_is_stopped_and_everything_is_usable():
    value = endless()
    stopped(value.realize)
    stopped(value.tolist)  # it is as lazy as before
    stopped(lambda: koine.realize(value, value + 1))
    stopped(value.numpy)
    stopped(lambda: memoryview(value))
    stopped(lambda: repr(value))
    assert (Tensor([1.0, 2.0]) * 2).tolist() == [2.0, 4.0]


def test_a_chain_that_was_stopped_is_computed_again(rng):
    order = rng.permutation(120)
    turn = Tensor(np.eye(120, dtype=np.float32)[order])
    start = rng.standard_normal((120, 120)).astype(np.float32)
    x, want = Tensor(start), start
    for _ in range(300):
        x, want = (x @ turn).contiguous(), want[:, np.argsort(order)]
    with signal_soon(seconds=0.02):
        with contextlib.suppress(KeyboardInterrupt):
            x.realize()
            time.sleep(60)  # where it was quicker than the signal
    assert (x.numpy() == want).all()


def test_a_compilation_is_stopped():
    koine.clear_compile_cache()
    values = [(Tensor(np.arange(n, dtype=np.float32)) * n).sum() for n in range(300, 1300)]  # a small kernel each
    koine.reset_counters()
    stopped(lambda: koine.realize(*values))
    assert koine.counters()["kernels"] == 0  # nothing had been launched
    assert values[0].item() == 300 * sum(range(300))


def test_a_large_kernel_is_left_to_its_compiler():
    """LLVM takes seconds for one kernel; nobody waits for it, and the process ends soon as well."""

    def chain(out, x):
        i = koine.UOp.range(8, 0)
        v = x[i]
        for _ in range(120):
            v = v.sin() + x[i]
        return out[i].store(v).end(i)

    koine.clear_compile_cache()
    a = np.linspace(0, 0.5, 8, dtype="float32")
    value, want = koine.custom_kernel(chain, Tensor(a), Tensor(a)), a
    stopped(value.realize)
    for _ in range(120):
        want = np.sin(want) + a
    np.testing.assert_allclose(value.numpy(), want, rtol=1e-4)


def test_a_jitted_function_is_stopped_and_goes_on():
    f = koine.jit(lambda x, n: koine.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, c[1] * 0.5), (Tensor(0), x))[1])
    x = Tensor([8.0, 4.0])
    assert f(x, Tensor(2)).tolist() == [2.0, 1.0]
    stopped(lambda: f(x, Tensor(LONG)))
    assert f(x, Tensor(3)).tolist() == [1.0, 0.5]


def test_assignments_wait():
    x = Tensor.zeros(4).contiguous().realize()
    x[1:3] = koine.fori_loop(0, LONG, lambda i, c: c * 0.5 + 1, Tensor([0.0, 4.0]))
    stopped(x.realize)
    x.assign(Tensor([1.0, 2.0, 3.0, 4.0]))
    assert x.tolist() == [1.0, 2.0, 3.0, 4.0]


def test_a_handler_that_raises_nothing_lets_it_go_on():
    calls = []
    before = signal.signal(signal.SIGINT, lambda *_: calls.append(1))
    try:
        a = Tensor.rand(300, 300).realize()
        x = a
        for _ in range(100):
            x = (x @ a * 0.01).contiguous()
        with signal_soon(seconds=0.05):
            first = x.tolist()
        time.sleep(0.1)
    finally:
        signal.signal(signal.SIGINT, before)
    assert calls == [1]
    assert first == x.tolist() and np.isfinite(first).all()


def test_what_a_handler_raises_is_raised():

    class Stop(Exception):
        pass

    def stop(*_):
        raise Stop("now")

    before = signal.signal(signal.SIGINT, stop)
    try:
        with signal_soon():
            with pytest.raises(Stop, match="now"):
                endless().realize()
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_handler_may_compute():
    seen = []
    before = signal.signal(signal.SIGINT, lambda *_: seen.append((Tensor([1.0, 2.0]) + 1).tolist()) or 1 / 0)
    try:
        with signal_soon():
            with pytest.raises(ZeroDivisionError):
                endless().realize()
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == [[2.0, 3.0]]


def test_other_signals_stop_nothing():
    calls = []
    before = signal.signal(signal.SIGUSR1, lambda *_: calls.append(1))
    try:
        with signal_soon(signal.SIGUSR1, 0.05):
            x = koine.fori_loop(0, 100_000, lambda i, c: c + 1, Tensor([0.0])).tolist()
        time.sleep(0.1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert x == [100_000.0] and calls == [1]


def test_only_the_main_thread_is_stopped():
    a = Tensor.rand(200, 200).realize()
    out, done = [], threading.Event()

    def work():
        x = a
        for _ in range(100):
            x = (x @ a * 0.01).contiguous()
        try:
            out.append(x.tolist())
        except BaseException as e:
            out.append(e)
        done.set()

    with signal_soon(seconds=0.05):
        with pytest.raises(KeyboardInterrupt):
            threading.Thread(target=work).start()
            time.sleep(60)
    assert done.wait(60) and np.isfinite(out[0]).all()


def test_a_program_that_computes_ends_by_ctrl_c():
    program = "import koine; print('begins', flush=True); koine.fori_loop(0, 10**9, lambda i, x: x * 0.5 + 1, koine.Tensor([1.])).realize()"
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "begins\n"
    time.sleep(0.3)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=60)
    assert err.strip().endswith("KeyboardInterrupt") and child.returncode == -signal.SIGINT
