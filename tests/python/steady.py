"""Memory while one program runs again and again, and while ever others are compiled, by hand:

    PYTHONPATH=build/release/python python tests/python/steady.py [REPLAYS [RECOMPILES]]

prints what the process holds after each tenth, once warm, and fails where the last is above the second by more than 2 % and 4 MiB.
"""
import os
import random
import sys
import time

import koine

MIB = 1 << 20


def resident() -> float:
    """MiB of this process that are in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / MIB


def watch(what: str, count: int, step) -> bool:
    held, begin = [], time.perf_counter()
    for part in range(10):
        for k in range(part * count // 10, (part + 1) * count // 10):
            step(k)
        held.append(resident())
    each = (time.perf_counter() - begin) / count
    print(f"{what}: {count:,}, {each * 1e6:.1f} us each, MiB after each tenth: {' '.join(f'{m:.1f}' for m in held)}", flush=True)
    return held[-1] <= held[1] * 1.02 + 4


def main(replays: int = 1_000_000, recompiles: int = 100_000) -> int:
    f = koine.jit(lambda a, b: ((a @ b).softmax() * 2).sum(0))
    x, y = koine.Tensor.rand(8, 8).realize(), koine.Tensor.rand(8, 8).realize()
    f(x, y)
    flat = watch("replays", replays, lambda k: f(x, y))

    g = koine.jit(lambda a: (a * 2 + 1).max())
    seen = []
    # In random order: larger shapes have larger programs, of which as many are kept.
    shapes = list(range(max(recompiles, 100_000)))
    random.Random(7).shuffle(shapes)

    def other_shape(k: int) -> None:
        koine.reset_counters()
        g(koine.zeros(1 + shapes[k] % 331, 1 + shapes[k] // 331))  # each once
        if k % 1000 == 0:
            seen.append(koine.counters()["compiled"])

    flat = watch("recompiles", recompiles, other_shape) and flat
    assert all(n > 0 for n in seen), "a shape was compiled before"
    return 0 if flat else 1


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
