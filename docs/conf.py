# SPDX-License-Identifier: Apache-2.0
"""Settings of Sphinx for `make html`, which makes pages of the guides in this folder."""

project = "cistern"
author = "the authors of cistern"
extensions = ["myst_parser"]
myst_heading_anchors = 3  # For links such as steps.md#gradients.
html_theme = "furo"
html_title = "cistern"
html_show_copyright = False
exclude_patterns = ["pictures/README.md"]
