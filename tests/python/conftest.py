"""What all tests share. The seed of random inputs is printed, and KOINE_TEST_SEED sets it."""
import os
import pathlib
import random

import numpy as np
import pytest

import koine

# Programs that tests start find koine, whatever folder they run in.
FOLDER = str(pathlib.Path(koine.__file__).absolute().parents[1])
os.environ["PYTHONPATH"] = FOLDER
SEED = int(os.environ.get("KOINE_TEST_SEED", "0")) or random.SystemRandom().randrange(1, 2**31)


def pytest_report_header(config):
    return f"KOINE_TEST_SEED={SEED}"


@pytest.fixture
def rng(request):
    """Numbers of the seed and of the test's name, in whatever order tests run."""
    return np.random.default_rng([SEED, *request.node.name.encode()])


SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5, 1e-30, 3e30, 2.5, -2.5]


def numbers(rng, shape, dtype, special=True):
    """An array of a dtype, with limits among its elements."""
    dtype = np.dtype(dtype)
    if dtype == bool:
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        out = rng.integers(max(info.min, -9), min(info.max, 9), shape, endpoint=True).astype(dtype)
        return np.asarray(np.where(rng.random(shape) < 0.1, info.max if special else 3, out), dtype)
    out = rng.standard_normal(shape)
    if special:
        with np.errstate(over="ignore"):
            out = np.where(rng.random(shape) < 0.2, rng.choice(SPECIAL, shape), out)
            return np.asarray(out).astype(dtype)
    return np.asarray(out).astype(dtype)


def same(got, want, rtol=1e-6, atol=1e-7, signs=False):
    """Values, shape and dtype; NaN is NaN. `signs`: zeros have the sign of the other's."""
    got = np.asarray(got)
    want = np.asarray(want)
    assert got.shape == want.shape, (got.shape, want.shape)
    assert got.dtype == want.dtype, (got.dtype, want.dtype)
    if want.dtype.kind == "f":
        narrow = {2: (2e-3, 2e-3), 4: (2e-6, 1e-6)}.get(want.dtype.itemsize, (1e-12, 1e-12))
        np.testing.assert_allclose(got, want, rtol=max(rtol, narrow[0]), atol=max(atol, narrow[1]), equal_nan=True)
        if signs:
            zero = want == 0
            np.testing.assert_array_equal(np.signbit(got[zero]), np.signbit(want[zero]))
    else:
        np.testing.assert_array_equal(got, want)
