"""Animation pages and plots."""

from . import plots as plots
from .scene import Scene as Scene
