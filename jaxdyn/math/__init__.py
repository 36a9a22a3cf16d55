"""Rotations, rigid motions and spatial algebra."""

from jaxdyn.math import se3 as se3
from jaxdyn.math import so3 as so3
from jaxdyn.math import spatial as spatial
from jaxdyn.math.lie_space import LieElement as LieElement
from jaxdyn.math.lie_space import LieSpace as LieSpace
from jaxdyn.math.se3 import SE3 as SE3
from jaxdyn.math.spatial import Representation as Representation
from jaxdyn.math.spatial import SpatialInertia as SpatialInertia
