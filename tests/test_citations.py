"""Comments and docstrings cite headings that pages of docs/ have, and nothing outside the repository."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_import_arrows import REPOSITORY, repository_files

CODE_SUFFIXES = {".c", ".cpp", ".cu", ".h", ".hpp", ".py", ".toml", ""}

CITATION = re.compile(r'docs/(?P<page>\w+\.md), "(?P<heading>[^"]+)"')

FOREIGN = re.compile(r"\b(?:spec|design) sections?\b|\(spec \d|\(design: ", re.IGNORECASE)
"""Citations of pages that are not in the repository."""

LINE_START = re.compile(r"\n[ \t]*(?:#|//+|\*(?!/))?[ \t]*")
"""A line break within a comment or a docstring."""


def code_files() -> Iterator[Path]:
    for file in repository_files():
        if file.suffix in CODE_SUFFIXES and "third_party" not in file.parts and file != Path(__file__):
            yield file


def citations(text: str) -> list[tuple[str, str]]:
    """`(page, heading)` of every citation, also of those that a line break divides."""
    return [(found["page"], found["heading"]) for found in CITATION.finditer(LINE_START.sub(" ", text))]


def headings(page: Path) -> set[str]:
    """The headings of a page, not the lines of its code blocks that start like one."""
    outside = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return {line.lstrip("#").strip() for line in outside.splitlines() if re.match(r"#+ ", line)}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('(docs/design.md, "Ring sizes").', ("design.md", "Ring sizes")),
        ('# as docs/design.md,\n    # "Ring sizes" says', ("design.md", "Ring sizes")),
        ('    docs/design.md, "Ring\n    sizes"', ("design.md", "Ring sizes")),
        (' * docs/design.md, "Ring\n * sizes"', ("design.md", "Ring sizes")),
    ],
)
def test_citations_are_found(text: str, found: tuple[str, str]) -> None:
    assert citations(text) == [found]


def test_cited_headings_exist() -> None:
    pages: dict[str, set[str]] = {}
    cited = 0
    for file in code_files():
        for page, heading in citations(file.read_text(errors="replace")):
            if page not in pages:
                assert (REPOSITORY / "docs" / page).is_file(), f"{file} cites docs/{page}: no such page"
                pages[page] = headings(REPOSITORY / "docs" / page)
            assert heading in pages[page], f'{file} cites docs/{page}, "{heading}": no such heading'
            cited += 1
    assert cited > 20, "citations have another spelling than this test looks for"


def test_every_mention_of_a_page_names_one_that_exists() -> None:
    for file in code_files():
        for page in re.findall(r"\bdocs/(\w+\.md)\b", file.read_text(errors="replace")):
            assert (REPOSITORY / "docs" / page).is_file(), f"{file} mentions docs/{page}: no such page"


def test_nothing_outside_the_repository_is_cited() -> None:
    for file in code_files():
        found = FOREIGN.search(file.read_text(errors="replace"))
        assert found is None, f"{file} cites {found.group() if found else ''}"
