"""Random numbers under explicit keys: pure functions of a key and a shape, equal on every device.

    key, sub = koine.random.Key(0).split()
    x = koine.random.randn(sub, (2, 3))

Use a key for one draw, then split it. The numbers of one global seed are Tensor.rand and its like.
"""
from . import tree
from ._koine.random import Key, bernoulli, bits, dropout, permutation, rand, randint, randn, split, uniform

__all__ = ["Key", "bernoulli", "bits", "dropout", "permutation", "rand", "randint", "randn", "split", "uniform"]

tree.register(Key, lambda key: ([key.bits], None), lambda _, bits: Key(bits[0]))
