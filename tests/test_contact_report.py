"""The report on contacts, from closed forms and along a rollout."""

import floating_base_data as data
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdyn.contact import (
    Brush,
    CompliantContact,
    ContactPatch,
    Coulomb,
    PlaneTerrain,
    StickSlip,
    wrench_cone,
    wrench_margins,
)
from jaxdyn.errors import InputError
from jaxdyn.math import so3
from jaxdyn.systems import (
    AnchoredDynamics,
    FloatingBaseDynamics,
    SemiImplicitEuler,
    State,
    contact_report,
    rollout,
)

SLOPE = 0.2
TILT = so3.from_rpy(jnp.array([0.0, SLOPE, 0.0]))  # ground that falls along x
NORMAL = TILT[:, 2]


def on_the_slope(law, **options):
    """The 10 kg box flat on a slope, 2 mm deep, turned about the normal, sliding down."""
    model = data.model("box")
    contact = CompliantContact("sole", ContactPatch(law, 0.3, 0.2, projected_area="none"))
    system = FloatingBaseDynamics(model, contact, terrain=PlaneTerrain(NORMAL), **options)
    rotation = so3.compose(TILT, so3.from_rpy(jnp.array([0.0, 0.0, 0.4])))
    down = TILT[:, 0]
    return system, State(jnp.concatenate([0.3 * down, jnp.zeros(3)]), [], 0.048 * NORMAL, rotation, [])


def test_the_report_speaks_the_axes_of_the_ground():
    system, x = on_the_slope(Coulomb(2e5, 0.0, 0.6, 1e-2))
    report = jax.jit(lambda system, x: contact_report(system, x))(system, x)
    np.testing.assert_allclose(report.axes[0], x.rotation, atol=1e-12)
    pressed = 2e5 * 0.06 * 0.002
    friction = 0.6 * pressed * 0.3 / np.hypot(0.3, 1e-2)
    force = [-friction * np.cos(0.4), friction * np.sin(0.4), pressed]
    np.testing.assert_allclose(report.local_wrench[0, :3], force, rtol=1e-9)
    assert report.friction_margin[0] == pytest.approx(0.6 * pressed - friction, rel=1e-9)
    np.testing.assert_allclose(report.center_of_pressure[0], 0, atol=1e-12)
    np.testing.assert_allclose(report.slip[0], [0.3 * np.cos(0.4), -0.3 * np.sin(0.4)], atol=1e-12)
    assert report.power[0] == pytest.approx(-0.3 * friction, rel=1e-9)
    assert (wrench_margins(report.local_wrench[0], wrench_cone(0.3, 0.2, 0.9)) > 0).all()
    other = contact_report(system, x, friction=1)
    assert other.friction_margin[0] == pytest.approx(pressed - friction, rel=1e-9)


def test_a_rollout_records_reports_that_a_cost_can_be_made_of():
    system, x = on_the_slope(StickSlip(2e6, 1e4, 0.6))
    anchored = AnchoredDynamics(system)

    @jax.jit
    def recorded(start):
        record = lambda x, u, t: contact_report(anchored, x, u, t)  # noqa: E731
        return rollout(anchored, SemiImplicitEuler(), start, None, 1e-3, 300, save_every=20, record=record).record

    report = recorded(anchored.start(x))
    assert report.wrench.shape == (15, 1, 6)
    assert (report.friction_margin > -1e-9).all()
    weight = 10 * 9.80665
    np.testing.assert_allclose(report.local_wrench[-1, 0, 2], weight * np.cos(SLOPE), rtol=1e-2)
    # at rest the centre of pressure is under the centre of mass: 5 cm above the sole, so downhill of its middle
    downhill = np.asarray(report.center_of_pressure[-1, 0]) @ [np.cos(0.4), -np.sin(0.4)]
    assert downhill == pytest.approx(0.05 * np.tan(SLOPE), rel=5e-2)
    assert np.abs(report.slip[-1]).max() < 1e-2


def test_mistakes_are_named():
    system, x = on_the_slope(Brush(1e5, 1e3))
    with pytest.raises(InputError, match="the Brush of the contact 'sole' has no coefficient of friction"):
        contact_report(system, x)
    with pytest.raises(InputError, match=r"friction: wanted a number or shape \(1,\)"):
        contact_report(system, x, friction=[0.1, 0.2])
    with pytest.raises(InputError, match="no contacts"):
        contact_report(FloatingBaseDynamics(data.model("box")), x, friction=0.5)
