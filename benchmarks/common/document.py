"""Writes docs/benchmarks.md: a section for each benchmark beside hand-written sections, and the pictures."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from pathlib import Path

from benchmarks.common.harness import REPOSITORY


class Document:
    """A Markdown file whose sections are replaced one by one, and a folder of the same name for its pictures."""

    def __init__(self, path: Path = REPOSITORY / "docs" / "benchmarks.md") -> None:
        self.path = path
        self.name = str(path.relative_to(REPOSITORY) if path.is_relative_to(REPOSITORY) else path)

    def write_section(self, title: str, body: str, about: Mapping[str, str]) -> None:
        """Replaces the section with the heading `title` by `body` and the description of the machine, `about`."""
        text = self.path.read_text() if self.path.exists() else "# Benchmarks\n"
        known = "; ".join(f"{name} {value}" for name, value in about.items() if value)
        section = f"## {title}\n\n{body}\n\n" + wrapped(f"Measured on: {known}.") + "\n"
        pattern = re.compile(rf"^## {re.escape(title)}\n.*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)
        if pattern.search(text):
            text = pattern.sub(lambda _: section + "\n", text)
        else:
            text = text.rstrip() + "\n\n" + section
        self.path.parent.mkdir(exist_ok=True)
        self.path.write_text(text.rstrip() + "\n")
        print(f"written: {self.name}, section {title!r}")

    def write_picture(self, file: str, svg: bytes, description: str) -> str:
        """Writes FILE.svg into the document's folder; returns the line of Markdown that shows it."""
        folder = self.path.with_suffix("")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{file}.svg").write_bytes(svg)
        return f"![{description}]({folder.name}/{file}.svg)"


def wrapped(text: str) -> str:
    """Lines of at most 120 columns, as everywhere in the documents."""
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)
