"""The documentation site: ``sphinx-build -W docs site`` (``pip install -e '.[docs]'``)."""

project = "leanify"
author = "The leanify developers"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton"]
html_show_copyright = False  # the licence is in the repository
html_theme = "furo"
html_title = "leanify"
templates_path: list[str] = []
exclude_patterns = ["examples"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
default_role = "code"  # `x` in a docstring is code, as it is in Markdown
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
copybutton_prompt_text = "$ "
nitpicky = False
suppress_warnings = ["misc.highlighting_failure"]
narrow = {"code-font-size": "72%"}  # so that 100 columns of a terminal nearly fit
html_theme_options = {"light_css_variables": narrow, "dark_css_variables": narrow, "footer_icons": []}
