"""Measures some programs on one thread and draws them under the roof of this machine: figures/roofline.svg, and its numbers as roofline.inc.

The roof is the best that `koine_bench --only limits` measures on one core before, between and after them. Operations and bytes are those that koine.counters() has for the
program, and its time is the best of many runs, from the call to the result, on values that lie in memory.
"""
import math
import os
import pathlib
import platform
import re
import subprocess
import sys
import time

os.environ["KOINE_THREADS"] = "1"
import koine  # noqa: E402: it reads the line above
from koine import Tensor  # noqa: E402

folder = pathlib.Path(sys.argv[1])
BENCH = pathlib.Path(os.environ["KOINE_BUILD"]) / "bench/koine_bench"


def limits():
    """GFLOP/s, and GB/s of a read or a copy, whichever is more, of one core."""
    core = min(os.sched_getaffinity(0))
    done = subprocess.run([str(BENCH), "--only", "limits"], check=True, capture_output=True, text=True,
                          preexec_fn=lambda: os.sched_setaffinity(0, {core}))
    found = re.search(r"FMA (\S+) GFLOP/s on one thread, read (\S+) GB/s, copy (\S+) GB/s", done.stdout)
    return float(found[1]), max(float(found[2]), float(found[3]))


def programs():
    big, square = Tensor.rand(64 << 20).realize(), {n: Tensor.rand(n, n).realize() for n in (64, 256, 1024)}
    rows, table = Tensor.rand(65536, 1024).realize(), Tensor.rand(8192, 8192).realize()
    column, images, kernels = Tensor.rand(8192).realize(), Tensor.rand(16, 32, 32, 32).realize(), Tensor.rand(64, 32, 3, 3).realize()
    yield "x + 1, 64M", lambda: big + 1
    yield "x.sum(), 64M", lambda: big.sum()
    yield "x.exp(), 64M", lambda: big.exp()
    yield "softmax, 65536 x 1024", lambda: rows.softmax()
    yield "layernorm, 65536 x 1024", lambda: rows.layernorm()
    yield "matrix @ vector, 8192", lambda: table @ column
    for n in (64, 256, 1024):
        yield f"matrix @ matrix, {n}", lambda: square[n] @ square[n]
    product, other = koine.jit(lambda x, y: x @ y), Tensor.rand(64, 64).realize()
    yield "matrix @ matrix, 64, by koine.jit", lambda: product(square[64], other)
    yield "conv2d 3 x 3, 16 x 32 x 32 x 32", lambda: images.conv2d(kernels)


def measured(make, seconds=1.5):
    """(operations, bytes, the best time) of a program."""
    make().realize()
    koine.reset_counters()
    make().realize()
    c, best, end = koine.counters(), math.inf, time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        make().realize()
        best = min(best, time.perf_counter() - start)
    return c["operations"], c["bytes"], best


WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 760, 460, 64, 16, 20, 48


def drawn(points, peak, bandwidth):
    low_x, high_x = -4.0, 9.0  # powers of 2: operations a byte
    low_y, high_y = -1.0, math.ceil(math.log2(peak)) + 0.5  # of GFLOP/s

    def x(v):
        return LEFT + (math.log2(v) - low_x) / (high_x - low_x) * (WIDTH - LEFT - RIGHT)

    def y(v):
        return HEIGHT - BOTTOM - (math.log2(v) - low_y) / (high_y - low_y) * (HEIGHT - TOP - BOTTOM)

    def text(px, py, words, more=""):
        return f'<text x="{px:.1f}" y="{py:.1f}" {more}>{words}</text>\n'

    out = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}">\n'
    out += "<style>text { font: 12px sans-serif; fill: #333 }</style>\n"
    for k in range(int(low_x), int(high_x) + 1):
        out += f'<path d="M{x(2**k):.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="#eee"/>\n'
        if k % 2 == 0:
            out += text(x(2**k), HEIGHT - BOTTOM + 16, f"1/{2**-k}" if k < 0 else 2**k, 'text-anchor="middle"')
    for k in range(0, int(high_y) + 1):
        out += f'<path d="M{LEFT} {y(2**k):.1f}H{WIDTH - RIGHT}" stroke="#eee"/>\n'
        out += text(LEFT - 6, y(2**k) + 4, 2**k, 'text-anchor="end"')
    out += text((LEFT + WIDTH) / 2, HEIGHT - 8, "operations for each byte of memory", 'text-anchor="middle"')
    out += text(14, HEIGHT / 2, "GFLOP/s", f'text-anchor="middle" transform="rotate(-90 14 {HEIGHT / 2})"')
    ridge = peak / bandwidth
    out += f'<path d="M{x(2**low_x):.1f} {y(2**low_x * bandwidth):.1f}L{x(ridge):.1f} {y(peak):.1f}H{WIDTH - RIGHT}" fill="none" stroke="#555" stroke-width="2"/>\n'
    out += text(WIDTH - RIGHT, y(peak) - 6, f"{peak:.0f} GFLOP/s: FMA", 'text-anchor="end"')
    out += text(x(0.5), y(2.2 * bandwidth), f"{bandwidth:.0f} GB/s: memory")
    places = [(x(operations / size), y(operations / seconds * 1e-9)) for _, operations, size, seconds in points]
    taken = list(places)
    for number, ((name, *_), (px, py)) in enumerate(zip(points, places), 1):
        out += f'<circle cx="{px:.1f}" cy="{py:.1f}" r="4.5" fill="#2b6cb0"><title>{name}</title></circle>\n'
        around = [(px + 13, py), (px - 13, py), (px, py - 13), (px, py + 13)]  # the first where nothing stands yet, or the emptiest
        at = max(around, key=lambda q: min(13, *(math.dist(q, other) for other in taken)))
        taken.append(at)
        out += text(at[0], at[1] + 4, number, 'text-anchor="middle"')
    return out + "</svg>\n"


def processor():
    found = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    return found[1] if found else platform.processor()


seen, points = [limits()], []
for name, make in programs():
    points.append((name, *measured(make)))
    seen.append(limits())
peak, bandwidth = max(s[0] for s in seen), max(s[1] for s in seen)
(folder / "figures/roofline.svg").write_text(drawn(points, peak, bandwidth))
lines = [f"Measured when this page was built, on one core of a machine that says it is `{processor()}`: FMA {peak:.0f} GFLOP/s, "
         f"memory {bandwidth:.1f} GB/s. On average {os.getloadavg()[0]:.1f} programs ran on its {os.cpu_count()} cores meanwhile; where others "
         "ran too, a limit may be measured too low, and a program be above it.\n", "| | program | operations a byte | GFLOP/s | the roof | of it |", "|---|---|---|---|---|---|"]
for number, (name, operations, size, seconds) in enumerate(points, 1):
    rate, roof = operations / seconds * 1e-9, min(peak, operations / size * bandwidth)
    lines.append(f"| {number} | {name} | {operations / size:.2f} | {rate:.1f} | {roof:.1f} | {rate / roof:.0%} |")
(folder / "roofline.inc").write_text("\n".join(lines) + "\n")
