"""The site of `make docs`: the pages as they stand in the repository, with a reference from docstrings and a search.

`docs/index.md` and `docs/adr/README.md` list pages for readers of the repository; the site's navigation is made from
their lists, so that a page is listed once. Beside each page `name.html` lies its text, `name.md`.
"""

from __future__ import annotations

import posixpath
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import merman
from docutils import nodes
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

import keylane

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "keylane"
author = "The keylane authors"
project_copyright = author
version = release = keylane.__version__
root_doc = "docs/index"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton"]

myst_heading_anchors = 4
myst_fence_as_directive = ["mermaid"]

default_role = "code"  # docstrings write `name`, as Markdown does
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
add_module_names = False
python_maximum_signature_line_length = 88

html_theme = "furo"
html_title = "keylane"
html_show_sphinx = False
html_copy_source = False  # the text lies beside the page
html_static_path = ["site.css"]
html_css_files = ["site.css"]

TESTS = Path(__file__).parents[1] / "tests"
TEST = re.compile(r"`([\w/]+\.py)::(\w+)`")
LISTS = (root_doc, "docs/adr/README")
"""Pages that list pages, by sections."""
LONG = 400
"""Characters of a signature that is left out: the options that it names stand below it."""
LISTED = re.compile(r"^- \[([^\]]+)\]\(([^)#]+)\.md\)", re.MULTILINE)


def setup(app: Sphinx) -> None:
    app.add_directive("mermaid", Drawing)
    app.connect("autodoc-process-signature", without_options)
    app.connect("autodoc-process-docstring", link_pages)
    app.connect("source-read", add_navigation)
    app.connect("source-read", find_tests)
    app.connect("build-finished", add_texts)


class Drawing(SphinxDirective):
    """A Mermaid diagram, drawn here: a browser would have to fetch the program that draws it."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        drawn = merman.Merman().render_svg("\n".join(self.content), None)
        return [nodes.raw("", f'<div class="drawing">{drawn}</div>', format="html")]


def without_options(
    _app: Sphinx, what: str, _name: str, _of: object, _options: object, signature: str | None, _returns: str
) -> tuple[str, str] | None:
    """None leaves a signature as it is."""
    return ("", "") if what == "class" and len(signature or "") > LONG else None


def link_pages(_app: Sphinx, _what: str, _name: str, _of: object, _options: object, lines: list[str]) -> None:
    """A docstring names a page by its path in the repository."""
    lines[:] = [re.sub(r"docs/([\w-]+)\.md", r":doc:`/docs/\1`", line) for line in lines]


def add_navigation(_app: Sphinx, docname: str, source: list[str]) -> None:
    """The pages that a list names, section by section."""
    if docname not in LISTS:
        return
    for section in source[0].split("\n## ")[1:]:
        caption, _, body = section.partition("\n")
        entries = "\n".join(f"{title.replace('`', '')} <{page}>" for title, page in LISTED.findall(body))
        if entries:
            source[0] += f"\n\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{entries}\n```\n"


def find_tests(_app: Sphinx, docname: str, source: list[str]) -> None:
    """A test that a page names is there, which is a warning else."""
    for file, name in TEST.findall(source[0]):
        text = (TESTS / file).read_text() if (TESTS / file).exists() else ""
        if not re.search(rf"^ *(?:(?:async )?def|class) {name}\b|^{name} = ", text, re.MULTILINE):
            logging.getLogger(__name__).warning("there is no test %s::%s", file, name, location=docname)


def add_texts(app: Sphinx, error: Exception | None) -> None:
    """The text of each page beside it, their list for language models, and a first page that leads to the index."""
    if error is not None or app.builder.name != "html":
        return
    out = Path(app.outdir)
    for docname in app.env.found_docs:
        shutil.copyfile(app.env.doc2path(docname), out / f"{docname}.md")
    (out / "llms.txt").write_text(as_llms_txt((out / f"{root_doc}.md").read_text()))
    (out / "index.html").write_text('<!doctype html><meta http-equiv="refresh" content="0; url=docs/index.html">\n')


def as_llms_txt(index: str) -> str:
    """The index as language models look for it (https://llmstxt.org): a title, a summary, and lists of pages' texts."""
    title, summary, pages = index.split("\n\n", 2)
    lists = re.sub(r"(\]\()([^)#:]+\.md)", lambda found: found[1] + posixpath.normpath(f"docs/{found[2]}"), pages)
    return f"{title}\n\n> {summary}\n\n{lists}"
