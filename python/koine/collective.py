"""What several devices do together: the seven collectives, which have gradients.

    devices = "CPU,CPU:1"
    parts = koine.collective.scatter(x, devices)    # each device has its share of the rows
    whole = koine.collective.all_gather(parts)      # each has all of them

"In parts" is split along axis 0. Where values are combined (reduce, reduce_scatter, all_reduce), each device's part is its value: of
shape (m, ...) of x of shape (n m, ...) on n devices. docs/devices.md has what each sends.
"""
from ._koine.collective import all_gather, all_reduce, broadcast, gather, reduce, reduce_scatter, scatter

__all__ = ["all_gather", "all_reduce", "broadcast", "gather", "reduce", "reduce_scatter", "scatter"]
