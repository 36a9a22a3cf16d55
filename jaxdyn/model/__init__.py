"""The robot: its tree, its joints, its parameters, its configuration space and its files."""

from .edit import add_frame as add_frame
from .edit import append as append
from .edit import attach as attach
from .edit import change_base as change_base
from .edit import mirror as mirror
from .edit import reduce as reduce
from .manifold import check_configuration as check_configuration
from .manifold import configuration_status as configuration_status
from .manifold import coordinate_rates as coordinate_rates
from .manifold import difference as difference
from .manifold import integrate as integrate
from .manifold import interpolate as interpolate
from .manifold import neutral as neutral
from .manifold import normalize as normalize
from .manifold import random_configuration as random_configuration
from .manifold import velocity_from_rates as velocity_from_rates
from .model import Model as Model
from .model import configuration as configuration
from .model import tangent as tangent
from .tree import ShapeInfo as ShapeInfo
from .tree import Tree as Tree
from .urdf import from_urdf as from_urdf
from .urdf import load as load
from .urdf import robot_names as robot_names
