"""What Python costs: PYTHONPATH=build/release/python build/venv/bin/python bench/python_bench.py"""
import subprocess
import sys
import time
import timeit


def microseconds(call, times):
    """Of this thread's own time, which others on the machine do not change much."""
    return min(timeit.repeat(call, number=times, repeat=9, timer=time.thread_time)) / times * 1e6


def main():
    imports = [float(subprocess.run([sys.executable, "-c", "import time; t = time.process_time(); import koine; print(time.process_time() - t)"],
                                    capture_output=True, text=True, check=True).stdout) for _ in range(7)]
    import koine
    import numpy as np

    x, y = koine.Tensor.rand(8, 8).realize(), koine.Tensor.rand(8, 8).realize()
    f = koine.jit(lambda a, b: ((a @ b).softmax() * 2).sum(0))
    f(x, y)
    koine.reset_counters()
    f(x, y)
    kernels = koine.counters()["kernels"]
    large = np.zeros(1 << 24, np.float32)
    shown = koine.Tensor(large)
    rows = [
        ("import koine", min(imports) * 1e3, "ms"),
        ("x + y (new tensors)", microseconds(lambda: x + y, 20000), "us"),
        ("x + 1", microseconds(lambda: x + 1, 20000), "us"),
        ("x.exp()", microseconds(lambda: x.exp(), 20000), "us"),
        ("x.reshape(4, 16)", microseconds(lambda: x.reshape(4, 16), 20000), "us"),
        ("x[2:, 1]", microseconds(lambda: x[2:, 1], 5000), "us"),
        (f"replay of {kernels} kernels by jit", microseconds(lambda: f(x, y), 5000), "us"),
        ("eager, the same", microseconds(lambda: ((x @ y).softmax() * 2).sum(0).realize(), 500), "us"),
        ("Tensor(array) of 64 MB", microseconds(lambda: koine.Tensor(large), 500), "us"),
        ("numpy() of 64 MB", microseconds(lambda: shown.numpy(), 500), "us"),
    ]
    for name, value, unit in rows:
        print(f"{name:34} {value:9.2f} {unit}")


if __name__ == "__main__":
    main()
