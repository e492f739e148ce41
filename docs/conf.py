"""The documentation site: ``sphinx-build -W docs site`` (``pip install -e '.[docs]'``)."""

import re
from pathlib import Path
from typing import Any

project = "leanify"
author = "The leanify developers"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton"]
html_show_copyright = False  # the licence is in the repository
html_theme = "furo"
html_title = "leanify"
html_static_path = ["_static"]
html_css_files = ["site.css"]
templates_path: list[str] = []
exclude_patterns = ["examples"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
default_role = "code"  # `x` in a docstring is code, as it is in Markdown
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
maximum_signature_line_length = 88  # longer ones have a parameter a line
copybutton_prompt_text = "$ "
nitpicky = False
smartquotes_action = "q"  # two hyphens are an option's
suppress_warnings = ["misc.highlighting_failure"]
narrow = {"code-font-size": "72%"}  # so that 100 columns of a terminal nearly fit
html_theme_options = {"light_css_variables": narrow, "dark_css_variables": narrow, "footer_icons": []}

RESULTS = Path(__file__).parent / "results"
if not RESULTS.exists():  # an sdist has no links
    RESULTS.symlink_to("../recipes/results", target_is_directory=True)

FIELD = re.compile(r"^[\w, ]+?  +(?=\S)")
ERROR = re.compile(r"(?<![`.\w])(\w+Error|UnsupportedModel|KeyboardInterrupt)\b")


def shown(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Aligned lines of a docstring (``name   meaning``) become a list, and errors are code."""
    text, column = [], 0
    for line in lines:
        first = FIELD.match(line)
        column = 0 if not line else column or (first.end() if first else 0)
        names = ", ".join(f"``{name}``" for name in line[:column].replace(",", " ").split())
        item = f"- {names}: {line[column:]}" if names else f"  {line[column:]}"
        text.append(item if column else line)
    lines[:] = [ERROR.sub(r"``\1``", line) for line in text]


def results(app: Any, name: str, source: list[str]) -> None:
    """The pages of recipes/results, to which docs/results leads, are pages of the site, below that on the evidence."""
    text = re.sub(r"\]\((?:\.\./)+recipes/results/", "](/results/", source[0])
    here = "" if name.startswith("results/") else "/results/"
    text = re.sub(rf"\[`?([^]`]+)`?\]\({here}([\w-]+)\.md\)", r"{doc}`\1 </results/\2>`", text)
    if name == "evidence":
        text += "\n```{toctree}\n:hidden:\n:glob:\n\nresults/*\n```\n"
    source[0] = text


def anchors(app: Any, name: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Every option in a command's help has an anchor: reference/commands.html#redesign-target-params."""
    if name != "reference/commands":
        return
    command, lines = "", []
    for line in context["body"].splitlines():
        section = re.search(r'<section id="leanify-(\w+)">', line)
        command = section[1] if section else command
        lines.append(re.sub(r'^(<span class="go">)(?=  (?:-\w, )?--([\w-]+))', rf'\1<a id="{command}-\2"></a>', line))
    context["body"] = "\n".join(lines)


def setup(app: Any) -> None:
    app.connect("html-page-context", anchors)
    app.connect("autodoc-process-docstring", shown)
    app.connect("source-read", results)
