#!/usr/bin/env python3
"""The links between the Markdown pages of this repository.

    links.py

checks that each relative link leads to a file, and each `#heading` to a heading. It exits with 1 if one does not.
"""

import re
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
# A listing, from its fence to its fence.
LISTING = re.compile(r"(^```.*?^```$)", re.M | re.S)


def anchor(heading: str) -> str:
    """The anchor of a heading as code forges make it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


class Page:
    """A page of Markdown: its text, its headings by their anchors, and its links."""

    def __init__(self, path: Path):
        self.path = path
        self.text = path.read_text()
        # Prose and listings in turn.
        self.parts = LISTING.split(self.text)
        prose = "".join(self.parts[::2])
        self.headings = {anchor(line): line for line in re.findall(r"^#+ +(.+?) *$", prose, re.M)}

    def problem(self, link: str) -> str | None:
        """What is wrong with a link; None for nothing, and for links to other hosts."""
        if re.match(r"[a-z]+:", link):
            return None
        target, heading = self.target(link)
        if not target.exists():
            return f"{self.path.relative_to(ROOT)}: {link} leads to no file"
        if heading is not None and (target.suffix != ".md" or heading not in page(target).headings):
            return f"{self.path.relative_to(ROOT)}: {link} leads to no heading"
        return None

    def target(self, link: str) -> tuple[Path, str | None]:
        """The file and the anchor that a relative link names."""
        name, _, heading = link.partition("#")
        return ((self.path.parent / name).resolve() if name else self.path), heading or None

    def problems(self) -> list[str]:
        return [wrong for part in self.parts[::2] for _, link in LINK.findall(part) if (wrong := self.problem(link))]

    def rewritten(self, link_to: Callable[[Path, str | None], str | None]) -> tuple[str, list[str]]:
        """The text with other links, and what is wrong with its own. A link to nowhere becomes its text."""

        def replacement(found: re.Match) -> str:
            text, link = found[1], found[2]
            if re.match(r"[a-z]+:", link) or self.problem(link):
                return found[0]
            other = link_to(*self.target(link))
            return f"[{text}]({other})" if other else text

        parts = self.parts.copy()
        parts[::2] = [LINK.sub(replacement, part) for part in parts[::2]]
        return "".join(parts), self.problems()


@cache
def page(path: Path) -> Page:
    return Page(path)


def main() -> int:
    pages = [path for path in sorted(ROOT.rglob("*.md")) if not path.relative_to(ROOT).parts[0].startswith(".")]
    problems = [problem for path in pages for problem in page(path).problems()]
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
