"""From Pinocchio's free-flyer coordinates to those of frax and MuJoCo, and back.

Pinocchio: quaternion x y z w, twist (linear, angular) in body axes. frax and MuJoCo: quaternion w x y z, the
linear velocity in world axes, the angular one in body axes; so with R the rotation of the base

    v' = (R v, w),   f' = (R f, m),   a' = (R (a + w x v), w_dot)

where a' is the plain time derivative of v'. For fixed bases nothing changes. All arrays have a leading axis
over states.
"""

import numpy as np


def rotation(q: np.ndarray) -> np.ndarray:
    """(states, 3, 3), from Pinocchio's free-flyer coordinates."""
    x, y, z, w = np.moveaxis(q[:, 3:7], 1, 0)
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ]
    return np.moveaxis(np.array(rows), 2, 0)


def quaternion_first_w(q: np.ndarray) -> np.ndarray:
    return np.concatenate([q[:, :3], q[:, 6:7], q[:, 3:6], q[:, 7:]], axis=1)


def _rotate(R: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The first three components of each row of x, by R."""
    return np.concatenate([np.einsum("...ij,...j->...i", R, x[..., :3]), x[..., 3:]], axis=-1)


def _shift(x: np.ndarray, linear: np.ndarray) -> np.ndarray:
    return np.concatenate([x[..., :3] + linear, x[..., 3:]], axis=-1)


def to_world_linear(states: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """q, v, a, tau of a floating-base robot in the convention of frax and MuJoCo."""
    q, v, a, tau = (states[key] for key in ("q", "v", "a", "tau"))
    R = rotation(q)
    classical = _shift(a, np.cross(v[:, 3:6], v[:, :3]))
    return {
        "q": quaternion_first_w(q),
        "v": _rotate(R, v),
        "a": _rotate(R, classical),
        "tau": _rotate(R, tau),
    }


def force_from_world_linear(q: np.ndarray, force: np.ndarray) -> np.ndarray:
    return _rotate(np.swapaxes(rotation(q), 1, 2), force)


def acceleration_from_world_linear(q: np.ndarray, v: np.ndarray, acceleration: np.ndarray) -> np.ndarray:
    """`q` and `v` in Pinocchio's convention."""
    local = _rotate(np.swapaxes(rotation(q), 1, 2), acceleration)
    return _shift(local, -np.cross(v[:, 3:6], v[:, :3]))


def mass_from_world_linear(q: np.ndarray, mass: np.ndarray) -> np.ndarray:
    T = np.tile(np.eye(mass.shape[-1]), (len(q), 1, 1))
    T[:, :3, :3] = rotation(q)
    return np.swapaxes(T, 1, 2) @ mass @ T


def acceleration_jacobian_from_world_linear(
    states: dict[str, np.ndarray],
    acceleration: np.ndarray,
    jacobians: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> np.ndarray:
    """d FD / d(q, v, tau) in Pinocchio's tangent coordinates, (states, 3, nv, nv).

    `states` in Pinocchio's convention; `acceleration` and `jacobians` (with respect to the coordinates q', and
    v', tau') in that of frax. Column by column: a unit change of q (along the body twist), v or tau is carried
    over to q', v', tau', multiplied by the Jacobians, and the resulting change of a' is carried back.
    """
    q, v, tau = (states[key] for key in ("q", "v", "tau"))
    n = v.shape[1]
    R = rotation(q)
    w, x, y, z = np.moveaxis(quaternion_first_w(q)[:, 3:7], 1, 0)
    body_acceleration = _rotate(np.swapaxes(R, 1, 2), acceleration)[:, :3]  # R^T a'
    columns = []
    for block in range(3):
        for k in range(n):
            unit = np.zeros((len(q), n))
            unit[:, k] = 1.0
            dq, dv, dtau = (unit if block == i else np.zeros_like(unit) for i in range(3))
            turn = dq[:, 3:6]
            a, b, c = np.moveaxis(turn, 1, 0)
            dquaternion = 0.5 * np.stack(
                [-x * a - y * b - z * c, w * a + y * c - z * b, w * b + z * a - x * c, w * c + x * b - y * a],
                axis=1,
            )
            dq_out = np.concatenate([np.einsum("...ij,...j->...i", R, dq[:, :3]), dquaternion, dq[:, 6:]], axis=1)
            dv_out = _rotate(R, _shift(dv, np.cross(turn, v[:, :3])))
            dtau_out = _rotate(R, _shift(dtau, np.cross(turn, tau[:, :3])))
            change = sum(
                np.einsum("sij,sj->si", J, d) for J, d in zip(jacobians, (dq_out, dv_out, dtau_out), strict=True)
            )
            local = _rotate(np.swapaxes(R, 1, 2), change)
            local = _shift(local, -np.cross(turn, body_acceleration))
            local = _shift(local, -np.cross(dv[:, 3:6], v[:, :3]) - np.cross(v[:, 3:6], dv[:, :3]))
            columns.append(local)
    stacked = np.stack(columns, axis=2)
    return np.stack(np.split(stacked, 3, axis=2), axis=1)
