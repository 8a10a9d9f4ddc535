"""One program in several processes, `mpirun -n 4 python train.py`:

    koine.distributed.init()
    devices = koine.distributed.devices()           # one of each process, devices like any others
    w = w.shard(devices)                            # whole on each
    x = koine.distributed.parts(rows)               # the rows that each process has read, as one value

Every process runs the same lines. What lies on another device, such as CPU, each has for itself. docs/sharding.md has a program.
"""
from ._koine.distributed import count, devices, init, own_devices, own_part, parts, rank

__all__ = ["count", "devices", "init", "own_devices", "own_part", "parts", "rank"]
