"""`assert_close`: the comparison that tests of the mathematics share."""

import numpy as np


def assert_close(found, expected, tol=1e-14) -> None:
    """All entries equal within `tol`, in units of the values: no relative part that would hide a small entry."""
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=0, atol=tol)
