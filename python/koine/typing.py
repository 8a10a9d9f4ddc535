"""Names for what Koine's functions take, for annotations."""
from __future__ import annotations

from typing import Any, Sequence, Union

from ._koine import DType, Size, Tensor, Variable

#: A tensor, a number, nested lists, or an array of others.
TensorLike = Union[Tensor, bool, int, float, Sequence[Any], Any]
#: Several of them.
TensorsLike = Sequence[Any]
#: A size: a whole number or a symbolic one.
SizeLike = Union[int, Size, Variable]
#: A size, or a number with a fraction.
NumberLike = Union[int, float, Size]
#: A size or several.
ShapeLike = Union[int, Size, Variable, Sequence[Union[int, Size, Variable]]]
#: An axis, several, or None for all.
AxesLike = Union[int, Sequence[int], None]
#: Two sizes for each axis.
PairsLike = Sequence[Sequence[Union[int, Size, Variable]]]
#: A dtype, its name, or what Python and NumPy have for one.
DTypeLike = Union[DType, str, type, Any]
