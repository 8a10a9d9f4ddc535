"""Tensors and methods in pickles and copies. What is one tensor under several names in what is pickled is one again: tied weights, and
the parameters of a model and its optimizer."""
import copyreg
import weakref

from . import _koine


class Stored:
    """The elements of a tensor, once in a pickle: pickle knows an object again, and a tensor has one under each of its names."""

    __slots__ = ("tensor", "__weakref__")

    def __init__(self, tensor):
        self.tensor = tensor

    def __reduce__(self):
        return made, _koine._pickled(self.tensor)


_living = weakref.WeakValueDictionary()  # by the tensor's identity; a pickle keeps its objects until it is done


def stored(tensor):
    return _living.setdefault(_koine._identity(tensor), Stored(tensor))


def made(*parts):
    return _koine._unpickle(*parts)


def restored(tensor):
    return tensor


# Functions and methods go by their names, as Python's own do: a layer may hold Tensor.relu.
for _kind in (type(_koine.Tensor.zeros), type(_koine.Tensor.relu)):
    copyreg.pickle(_kind, lambda f: f.__qualname__)
copyreg.pickle(type(_koine.Tensor.zeros(0).relu), lambda f: (getattr, (f.__self__, f.__name__)))
