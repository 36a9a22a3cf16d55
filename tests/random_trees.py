"""Random robots for property tests: URDF text from a seed, so that every reader of URDF can be the oracle."""

import numpy as np

from jaxdyn.model import Model, from_urdf

# All types that move; "spherical" is no type of the URDF pages, so other readers refuse it
MOVING = ("revolute", "continuous", "prismatic", "planar", "floating", "spherical")
URDF_MOVING = ("revolute", "continuous", "prismatic", "planar", "floating")
ONE_DOF = ("revolute", "continuous", "prismatic")


def random_urdf(
    seed: int,
    n_joints: int = 8,
    *,
    types: tuple[str, ...] = ONE_DOF,
    shape: str = "random",
    fixed: float = 0.2,
    massless: float = 0.0,
    shuffled: bool = True,
) -> str:
    """A random robot with `n_joints` moving joints and about `fixed * n_joints` fixed ones more.

    `types` of the moving joints, drawn at random; `shape`: "chain", "star" or "random"; `massless`: share of
    links without inertia (those at the ends always have one, so that the mass matrix stays positive
    definite); `shuffled`: elements in random order, not parents first. Inertias are those of random sets of
    points, so always physical. Links are `link0` (root), `link1`, ...; joint `j3` moves `link3`.
    """
    rng = np.random.default_rng(seed)
    kinds = [str(rng.choice(types)) for _ in range(n_joints)] + ["fixed"] * int(rng.binomial(n_joints, fixed))
    kinds = [kinds[i] for i in rng.permutation(len(kinds))]
    parents = {
        "chain": lambda i: i,
        "star": lambda i: 0,
        "random": lambda i: int(rng.integers(max(0, i - 4), i + 1)),
    }[shape]
    parent = [parents(i) for i in range(len(kinds))]
    inner = set(parent)
    links = [_link(rng, f"link{i}", massive=i not in inner or rng.random() >= massless) for i in range(len(kinds) + 1)]
    joints = [_joint(rng, f"j{i + 1}", kind, f"link{parent[i]}", f"link{i + 1}") for i, kind in enumerate(kinds)]
    elements = links + joints
    if shuffled:
        elements = [elements[i] for i in rng.permutation(len(elements))]
    return f'<?xml version="1.0"?>\n<robot name="random{seed}">\n' + "\n".join(elements) + "\n</robot>\n"


def random_model(
    seed: int, n_joints: int = 8, *, root: str = "fixed", dtype=None, gravity=(0.0, 0.0, -9.81), **options
) -> Model:
    """The model of `random_urdf(seed, n_joints, **options)`."""
    return from_urdf(random_urdf(seed, n_joints, **options), root=root, dtype=dtype, gravity=gravity)


def _numbers(values) -> str:
    return " ".join(repr(float(v)) for v in values)


def _link(rng: np.random.Generator, name: str, massive: bool) -> str:
    if not massive:
        return f'<link name="{name}"/>'
    masses, points = rng.uniform(0.1, 1.0, 5), rng.normal(scale=0.15, size=(5, 3))
    mass = masses.sum()
    com = masses @ points / mass
    offsets = points - com
    inertia = sum(m * (d @ d * np.eye(3) - np.outer(d, d)) for m, d in zip(masses, offsets, strict=True))
    inertia += 1e-3 * np.eye(3)
    rpy = rng.uniform(-1.5, 1.5, 3)  # turns the tensor once more: all readers must agree on the sense
    xx, xy, xz, yy, yz, zz = (repr(float(inertia[i, j])) for i, j in ((0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2)))
    return (
        f'<link name="{name}"><inertial><origin xyz="{_numbers(com)}" rpy="{_numbers(rpy)}"/><mass value="{float(mass)!r}"/>'
        f'<inertia ixx="{xx}" ixy="{xy}" ixz="{xz}" iyy="{yy}" iyz="{yz}" izz="{zz}"/></inertial></link>'
    )


def _joint(rng: np.random.Generator, name: str, kind: str, parent: str, child: str) -> str:
    axis, xyz, rpy = rng.normal(size=3), rng.normal(scale=0.3, size=3), rng.uniform(-3, 3, 3)
    limit = ""
    if kind in ("revolute", "prismatic"):
        low, high = rng.uniform(-2, -0.2), rng.uniform(0.2, 2)
        limit = f'<limit lower="{low!r}" upper="{high!r}" effort="{rng.uniform(1, 50)!r}" velocity="{rng.uniform(1, 9)!r}"/>'
    return (
        f'<joint name="{name}" type="{kind}"><origin xyz="{_numbers(xyz)}" rpy="{_numbers(rpy)}"/>'
        f'<parent link="{parent}"/><child link="{child}"/>'
        f'<axis xyz="{_numbers(axis)}"/>{limit}<dynamics damping="{rng.uniform(0, 1)!r}" friction="{rng.uniform(0, 1)!r}"/></joint>'
    )
