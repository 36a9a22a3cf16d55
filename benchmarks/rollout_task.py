"""The contact rollout that all simulators run: the quadruped stands up on four feet under joint PD control.

Every simulator gets the same robot, the same initial states, gains, time step and number of steps. The contact
models differ: MuJoCo solves a constraint problem, jaxdyn evaluates compliant points.
"""

import numpy as np

ROBOT = "quadruped"
FEET = ("fl_foot", "fr_foot", "rl_foot", "rr_foot")
FOOT_RADIUS = 0.018  # m; the ball ends at the foot's frame
STANCE = {"hip_roll": 0.0, "hip_pitch": 0.8, "knee": -1.6}  # rad
STANDING_HEIGHT = 0.292617  # m, of the trunk above the feet in this stance
STIFFNESS = 60.0  # N m / rad
DAMPING = 2.0  # N m s / rad
FRICTION = 0.8
GROUND_STIFFNESS = 1e4  # N / m and foot, of the compliant ground
GROUND_DAMPING = 50.0  # N s / m
# Speed below which friction is viscous. Slower, and 1 ms is too long a step for a foot's small mass: it jitters.
SLIP_VELOCITY = 0.1  # m / s
TIME_STEP = 1e-3  # s
STEPS = 100
LONG = 10_000  # steps of the gradient whose memory is read off
ENVIRONMENTS = 256


def stance(joint_names: tuple[str, ...]) -> np.ndarray:
    """Joint angles, by the end of each joint's name."""
    return np.array([next(angle for part, angle in STANCE.items() if name.endswith(part)) for name in joint_names])


def initial_states(joint_names: tuple[str, ...], count: int, seed: int = 0) -> dict[str, np.ndarray]:
    """q and v in Pinocchio's convention: dropped from up to 1 cm, tilted, in motion."""
    rng = np.random.default_rng(seed)
    n = len(joint_names)
    position = np.column_stack([np.zeros((count, 2)), STANDING_HEIGHT + rng.uniform(0.0, 0.01, count)])
    quaternion = np.column_stack([rng.normal(scale=0.02, size=(count, 3)), np.ones(count)])
    quaternion /= np.linalg.norm(quaternion, axis=1, keepdims=True)
    joints = stance(joint_names) + rng.normal(scale=0.03, size=(count, n))
    velocity = rng.normal(scale=0.1, size=(count, 6 + n))
    return {"q": np.hstack([position, quaternion, joints]), "v": velocity}
