"""Writes promotion.inc and operations.inc into a folder: in what dtypes operands meet, and what functions give, as the library answers
now. A cell in bold is not NumPy's answer."""
import pathlib
import sys

import ml_dtypes  # noqa: F401: NumPy knows its floats then
import numpy as np

import koine

DTYPES = list(koine.DType)
SHORT = {d: d.name.replace("float8", "").replace("float", "f").replace("uint", "u").replace("int", "i") for d in DTYPES}


def theirs(f):
    """NumPy's dtype of a result; None where it has no answer."""
    try:
        with np.errstate(all="ignore"):
            return np.asarray(f()).dtype
    except TypeError:
        return None


def cell(ours, numpy):
    return SHORT[ours] if numpy == ours.numpy else f"**{SHORT[ours]}**"


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def ones(d):
    return np.ones(3, d.numpy)


def promotion():
    rows = []
    for a in DTYPES:
        rows.append([f"`{a.name}`"] + [cell(koine.promote(a, b), theirs(lambda: ones(a) + ones(b))) for b in DTYPES])
    return table([""] + [SHORT[d] for d in DTYPES], rows)


OPERATIONS = [
    ("`x + 1`", lambda x: x + 1, lambda x: x + 1),
    ("`x + 0.5`", lambda x: x + 0.5, lambda x: x + 0.5),
    ("`x / x`", lambda x: x / x, lambda x: x / x),
    ("`x.exp()`", lambda x: x.exp(), np.exp),
    ("`x.sum()`", lambda x: x.sum(), np.sum),
    ("`x.mean()`", lambda x: x.mean(), np.mean),
    ("`x.max()`", lambda x: x.max(), np.max),
    ("`x.cumsum()`", lambda x: x.cumsum(), np.cumsum),
    ("`x.argmax()`", lambda x: x.argmax(), np.argmax),
    ("`x > 0`", lambda x: x > 0, lambda x: x > 0),
]


def operations():
    rows = []
    for d in DTYPES:
        x, a = koine.ones(3, dtype=d), ones(d)
        rows.append([f"`{d.name}`"] + [cell(ours(x).dtype, theirs(lambda: numpy(a))) for _, ours, numpy in OPERATIONS])
    return table(["x is"] + [name for name, _, _ in OPERATIONS], rows)


folder = pathlib.Path(sys.argv[1])
(folder / "promotion.inc").write_text(promotion())
(folder / "operations.inc").write_text(operations())
