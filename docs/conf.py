"""The site: `make docs` builds the pages of this repository into build/docs/html, and a warning is an error.

The source folder is the root of the project, so that a link from page to page is the same on GitHub and in the site.
Nothing is fetched: no fonts, no scripts, no inventories of other projects.
"""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RECORD = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

project = RECORD["name"]
version = release = RECORD["version"]
html_title = f"{project} {version}"
copyright = f"the authors of {project}; {RECORD['license']}"

extensions = ["myst_parser", "sphinx_copybutton"]
root_doc = "README"  # the first page of the site, too
include_patterns = [
    "README.md",
    "docs/**.md",
    "examples/**.md",
    "bench/**.md",
    "src/rowgrad/*/README.md",
    "cpp/README.md",
    "web/README.md",
    "tests/golden/README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "THIRD_PARTY_NOTICES.md",
]
exclude_patterns = [".*", "build*", "dist", "tools", "**/node_modules", "**/__pycache__"]

myst_heading_anchors = 4
nitpicky = True

templates_path = ["_templates"]
html_theme = "furo"
html_theme_options = {
    "source_repository": RECORD["urls"]["Repository"],  # for "edit this page"
    "source_branch": "main",
    "source_directory": "",
}
copybutton_prompt_text = r">>> |\.\.\. "
copybutton_prompt_is_regexp = True
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_additional_pages = {"index": "to_the_landing_page.html"}
html_show_sourcelink = False
html_copy_source = False


FOLDERS = ["tutorials", "how-to", "reference", "explanation", "contributing"]
TOCTREE = "\n".join(["", "```{toctree}", ":hidden:", "", *(f"docs/{folder}/README" for folder in FOLDERS), "```", ""])


def setup(app):
    """Change what the site needs in another form than GitHub."""

    def read(app, docname, source):
        if docname == root_doc:
            source[0] += TOCTREE
        # Sessions end with an empty line, for doctest.
        source[0] = re.sub(r"\n\n```$", "\n```", source[0], flags=re.MULTILINE)
        # Results of benchmarks are written without a heading, which the list of pages needs.
        if docname.startswith("bench/results/") and not source[0].startswith("# "):
            source[0] = f"# {Path(docname).name}\n\n{source[0]}"

    app.connect("source-read", read)
