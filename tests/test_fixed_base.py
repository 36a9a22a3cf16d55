"""Robots fixed to the world, against the reference and the algorithms."""

import equinox as eqx
import floating_base_data as data
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from floating_base_data import assert_close

from jaxdyn.algorithms import aba
from jaxdyn.contact import CompliantContact, ContactPoints, FlatTerrain, SmoothCoulomb
from jaxdyn.errors import InputError
from jaxdyn.model import from_urdf, load
from jaxdyn.systems import FixedBaseDynamics, FixedBaseState, Input, SemiImplicitEuler, rollout


def biped(dtype=jnp.float64):
    joints = data.read("fixed_base")["joints"]
    return from_urdf(data.urdf_path("biped"), joints=joints, dtype=dtype)


@pytest.mark.parametrize("dtype, tolerance", [(jnp.float64, 1e-11), (jnp.float32, 2e-4)])
def test_accelerations_equal_the_reference(dtype, tolerance):
    fixture = data.read("fixed_base")
    x = FixedBaseState(*(jnp.asarray(fixture[k], dtype) for k in ("s", "ds")))
    torque = jnp.asarray(fixture["tau"], dtype)
    result = FixedBaseDynamics(biped(dtype))(x, torque)
    assert_close(result.joint_acceleration, fixture["dds"], tolerance)
    np.testing.assert_array_equal(result.joint_rate, x.joint_velocity)
    assert result.joint_acceleration.dtype == dtype
    regular = FixedBaseDynamics(biped(dtype), mass_regularization=jnp.zeros((7, 7), dtype))
    assert_close(regular.acceleration(x, torque), fixture["dds"], tolerance)


def test_armature_friction_gravity_and_regularization():
    model = load("arm7")
    rng = np.random.default_rng(0)
    x = FixedBaseState(jnp.asarray(rng.normal(size=7)), jnp.asarray(rng.normal(size=7)))
    torque = jnp.asarray(rng.normal(size=7))
    heavy = FixedBaseDynamics(model, armature=np.full(7, 0.3)).acceleration(x, torque)
    assert_close(FixedBaseDynamics(model, mass_regularization=0.3 * np.eye(7)).acceleration(x, torque), heavy, 1e-10)
    floatless = FixedBaseDynamics(model, gravity=[0.0, 0.0, 0.0]).acceleration(x, torque)
    weightless = eqx.tree_at(lambda m: m.gravity, model, jnp.zeros(3))
    assert_close(floatless, aba(weightless, x.joint_position, x.joint_velocity, torque), 1e-12)
    damped = eqx.tree_at(lambda m: (m.damping, m.friction), model, (jnp.full(7, 2.0), jnp.zeros(7)))
    rubbing = FixedBaseDynamics(damped, joint_friction=True).acceleration(x, torque)
    assert_close(rubbing, FixedBaseDynamics(model).acceleration(x, torque - 2 * x.joint_velocity), 1e-12)


def test_wrenches_and_contacts_act_on_the_arm():
    model = load("arm7")
    tip = model.frame_names[-1]
    x = FixedBaseState(jnp.full(7, 0.4), jnp.full(7, 0.2))
    contact = CompliantContact(tip, ContactPoints(SmoothCoulomb(1e3, 10.0, smoothing=0.05)))
    system = FixedBaseDynamics(model, contact, terrain=FlatTerrain(1.0))
    pose, _ = system.contact_states(x)
    wrench = system.contact_wrenches(x)[0]
    assert wrench[2] > 0
    body = model.tree.frame_bodies[model.frame(tip)]
    # the same wrench, moved by hand to the origin of the body that carries the frame
    from jaxdyn.algorithms import forward_kinematics

    arm = pose.translation[0] - forward_kinematics(model, x.joint_position).translation[body]
    moved = jnp.concatenate([wrench[:3], wrench[3:] + jnp.cross(arm, wrench[:3])])
    wrenches = jnp.zeros((model.n_bodies, 6)).at[body].set(moved)
    pushed = FixedBaseDynamics(model).acceleration(x, Input(jnp.zeros(7), None, wrenches))
    assert_close(system.acceleration(x, None), pushed, 1e-11)


def test_wrong_arguments_are_named():
    model = load("double_pendulum")
    with pytest.raises(InputError, match="FloatingBaseDynamics"):
        FixedBaseDynamics(load("box", root="floating"))
    with pytest.raises(InputError, match=r"gravity: wanted shape \(3,\)"):
        FixedBaseDynamics(model, gravity=9.81)
    with pytest.raises(InputError, match=r"mass_regularization: wanted shape \(2, 2\)"):
        FixedBaseDynamics(model, mass_regularization=np.eye(3))
    system = FixedBaseDynamics(model)
    x = FixedBaseState(jnp.zeros(2), jnp.zeros(2))
    with pytest.raises(InputError, match=r"torque: wanted shape \(2,\)"):
        system(x, jnp.zeros(3))
    with pytest.raises(InputError, match=r"joint_velocity: wanted shape \(2,\), given \(3,\)"):
        system(FixedBaseState(jnp.zeros(2), jnp.zeros(3)), None)
    with pytest.raises(InputError, match=r"batches go through jax\.vmap"):
        system(FixedBaseState(jnp.zeros((5, 2)), jnp.zeros((5, 2))), None)


def test_no_joints_at_all():
    system = FixedBaseDynamics(load("box"))
    x = FixedBaseState([], [])
    assert system.acceleration(x, None).shape == (0,)
    assert rollout(system, SemiImplicitEuler(), x, None, 1e-2, 5).final.joint_position.shape == (0,)


def test_gradients_at_rest_are_finite():
    system = FixedBaseDynamics(load("pendulum"))

    def height(q, v, torque):
        return rollout(system, SemiImplicitEuler(), FixedBaseState(q, v), torque, 1e-2, 10).final.joint_position[0]

    with jax.debug_nans(True):
        slopes = jax.grad(height, argnums=(0, 1, 2))(jnp.zeros(1), jnp.zeros(1), jnp.zeros(1))
    assert all(np.isfinite(s).all() and np.abs(s).max() > 0 for s in slopes)
