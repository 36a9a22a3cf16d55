"""Configuration of the documentation: `make docs`."""

import pathlib
import sys

DOCS = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS))

import pages

from jaxdyn import __version__

project = "jaxdyn"
author = "The jaxdyn authors"
copyright = "The jaxdyn authors, Apache-2.0"
release = version = __version__

extensions = ["myst_nb", "sphinx.ext.mathjax"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["dollarmath", "colon_fence", "deflist"]
myst_heading_anchors = 3
# Notebooks are stored with their results; one without them is executed.
nb_execution_mode = "auto"
nb_execution_timeout = 600
nb_execution_raise_on_error = True

html_theme = "furo"
html_title = f"jaxdyn {version}"
html_static_path = ["_static"]

# Written anew at each build, both ignored by git.
pages.write_reference(DOCS / "reference")
pages.copy_notebooks(DOCS.parent / "notebooks", DOCS / "notebooks")
