"""What users read when something is wrong, and that it can be caught as the usual Python exceptions."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdyn import errors
from jaxdyn.algorithms import aba
from jaxdyn.errors import (
    InputError,
    JaxdynError,
    JaxdynWarning,
    Status,
    UnknownNameError,
    URDFError,
    check_shape,
    unknown_name,
)
from jaxdyn.model import from_urdf, load


def test_errors_are_also_the_usual_python_exceptions():
    assert (
        issubclass(InputError, ValueError)
        and issubclass(URDFError, ValueError)
        and issubclass(UnknownNameError, KeyError)
    )
    assert all(issubclass(error, JaxdynError) for error in (InputError, UnknownNameError, URDFError))
    assert issubclass(JaxdynWarning, UserWarning)


def test_an_unknown_name_reads_as_plain_text_with_near_names_and_all_names():
    text = str(unknown_name("frame", "left_fot", ["left_foot", "right_foot", "head"]))
    assert text.startswith("unknown frame 'left_fot'. Did you mean 'left_foot'")
    assert "'head'" in text
    assert str(unknown_name("frame", "x", [])) == "unknown frame 'x'. There is no frame at all."


def test_near_names_ignore_case_and_long_lists_are_cut():
    assert errors.nearest("TOOL", ["tool", "base"]) == ["tool"]
    assert errors.listing([f"j{i}" for i in range(20)]).endswith("'j11' and 8 more")


@pytest.mark.parametrize("shape", [(2,), (4,), (), (1,), (1, 3), (3, 1)])
def test_a_wrong_shape_is_refused_with_the_argument_and_both_shapes(shape):
    with pytest.raises(InputError, match=r"q: wanted shape \(3,\), given shape ") as caught:
        check_shape("q", jnp.zeros(shape), (3,))
    assert str(shape) in str(caught.value)


def test_a_batch_is_pointed_to_vmap():
    with pytest.raises(InputError, match=r"jax\.vmap"):
        check_shape("q", jnp.zeros((5, 3)), (3,))


@pytest.mark.parametrize(
    "bad",
    [
        np.zeros(3, int),
        jnp.zeros(3, jnp.int32),
        np.zeros(3, bool),
        [0, 1, 2],
        np.zeros(3, complex),
        "abc",
        None,
        [[1.0], 2.0],
    ],
)
def test_what_is_not_floating_point_is_refused(bad):
    with pytest.raises(InputError, match=r"^q: "):
        check_shape("q", bad, (3,))


def test_what_is_no_number_at_all_is_not_told_to_become_one():
    with pytest.raises(InputError, match=r"^q: wanted an array of floating-point numbers, given None\.$"):
        check_shape("q", None, (3,))


def test_lists_of_floats_and_of_tracers_are_converted():
    assert check_shape("q", [0.0, 1, 2], (3,)).dtype == jnp.float64
    assert check_shape("q", [0.0, 1, 2], (3,), dtype=jnp.float32).dtype == jnp.float32
    assert check_shape("q", [], (0,)).shape == (0,)
    assert check_shape("q", np.zeros(3, np.float32), (3,)).dtype == jnp.float32
    assert jax.grad(lambda x: check_shape("q", [x, 2 * x], (2,)).sum())(1.0) == 3.0


def test_shapes_are_refused_while_tracing():
    with pytest.raises(InputError, match="given shape"):
        jax.jit(lambda q: check_shape("q", q, (3,)))(jnp.zeros(4))
    with pytest.raises(InputError, match="given shape"):
        jax.vmap(lambda q: check_shape("q", q, (3,)))(jnp.zeros((2, 4)))


def test_every_status_has_a_remedy_and_zero_is_success():
    assert Status(0) is Status.OK
    assert len({status.remedy for status in Status}) == len(Status)


WITHOUT_LIMITS = """<robot name="r"><link name="a"/><link name="b"/>
<joint name="j" type="revolute"><parent link="a"/><child link="b"/></joint></robot>"""
AT_ONE = jnp.ones(1)
MASSLESS = from_urdf(WITHOUT_LIMITS.replace("revolute", "continuous"))

# each on a line of its own, which is where the warning is to point
WARNING = {
    "a direct call": lambda: errors.warn("careful"),
    "under jit": lambda: jax.jit(lambda x: (errors.warn("careful"), x)[1])(AT_ONE),
    "under vmap and grad": lambda: jax.vmap(jax.grad(lambda x: (errors.warn("careful"), x)[1]))(AT_ONE),
    "a reader": lambda: from_urdf(WITHOUT_LIMITS),
    "a loader": lambda: load(WITHOUT_LIMITS, root="floating"),
    "an algorithm": lambda: aba(MASSLESS, AT_ONE, AT_ONE, AT_ONE),
}


@pytest.mark.parametrize("call", WARNING.values(), ids=WARNING)
def test_warnings_point_at_the_line_of_the_user(call):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    caught = [w for w in caught if w.category is JaxdynWarning]
    assert caught
    assert {(w.filename, w.lineno) for w in caught} == {(__file__, call.__code__.co_firstlineno)}
