"""Forces between a robot and the ground."""

from jaxdyn.contact.compliant import CompliantContact as CompliantContact
from jaxdyn.contact.laws import Brush as Brush
from jaxdyn.contact.laws import Coulomb as Coulomb
from jaxdyn.contact.laws import HuntCrossley as HuntCrossley
from jaxdyn.contact.laws import Nodes as Nodes
from jaxdyn.contact.laws import SmoothCoulomb as SmoothCoulomb
from jaxdyn.contact.laws import SmoothUnilateral as SmoothUnilateral
from jaxdyn.contact.laws import TractionLaw as TractionLaw
from jaxdyn.contact.laws import UnilateralBrush as UnilateralBrush
from jaxdyn.contact.patch import ContactPatch as ContactPatch
from jaxdyn.contact.patch import ContactPoints as ContactPoints
from jaxdyn.contact.patch import Surface as Surface
from jaxdyn.contact.patch import contact_rate as contact_rate
from jaxdyn.contact.patch import contact_rate_terms as contact_rate_terms
from jaxdyn.contact.patch import contact_regressor as contact_regressor
from jaxdyn.contact.patch import contact_wrench as contact_wrench
from jaxdyn.contact.stability import stable_dt as stable_dt
from jaxdyn.contact.terrain import FlatTerrain as FlatTerrain
from jaxdyn.contact.terrain import PlaneTerrain as PlaneTerrain
from jaxdyn.contact.terrain import Terrain as Terrain
from jaxdyn.contact.terrain import touchdown_anchor as touchdown_anchor
