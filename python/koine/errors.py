"""What Koine raises. Each is a `koine.Error` and the exception that a Python user expects of such a mistake:

    try:
        x.reshape(3, 5)
    except ValueError as e:   # or koine.Error
        print(e)

The process, and every tensor, stays usable after one.
"""
import builtins


class Error(Exception):
    """A mistake in a call: what, where, with which shapes and values, and how to mend it."""


class ValueError(Error, builtins.ValueError):
    """Shapes that do not fit, numbers out of range, a function that cannot be traced."""


class TypeError(Error, builtins.TypeError):
    """A dtype or a Python type that an operation does not take."""


class IndexError(Error, builtins.IndexError):
    """A position or an axis that does not exist."""


class KeyError(Error, builtins.KeyError):
    """A name that is not known, such as one that a state dict lacks."""

    __str__ = Exception.__str__  # KeyError would put the message in quotes


class OverflowError(Error, builtins.OverflowError):
    """A Python number that no dtype, or not the one asked for, holds."""


class MemoryError(Error, builtins.MemoryError):
    """More memory than there is, or than KOINE_MEMORY_LIMIT allows."""


class DeviceError(Error, builtins.RuntimeError):
    """A device that does not exist, or cannot do what is asked."""


class FileError(Error, builtins.OSError):
    """A file that cannot be read or written, or is not what it should be."""

    __str__ = Exception.__str__


class InternalError(builtins.RuntimeError):
    """A mistake of Koine's own, with the graph that shows it. Please report it."""
