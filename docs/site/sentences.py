#!/usr/bin/env python3
"""Prints sentences of README, the pages, the articles and the help at random, for a review of the English.

    sentences.py SLUICE [COUNT] [SEED]

SLUICE is the command, COUNT how many sentences (100), SEED which ones.
"""

import random
import re
import subprocess
import sys

from links import LISTING, ROOT

TOPICS = ["mic", "heartbeat", "pipe", "put", "serve", "devices", "load", "report", "verify", "spool"]


def page_sentences(name: str, text: str) -> list[str]:
    """The sentences of a page, without listings, headings and fragments."""
    prose = LISTING.sub("\n", text)
    # Table cells and list items stand alone.
    prose = re.sub(r"^\|[-| :]+\|$|^#.*$|^ {4}.*$", "", prose, flags=re.M)
    blocks = re.split(r"\n\s*\n|\n(?=\s*[-*] |\s*\d+\. |\|)|(?<= )\|(?= )", prose)
    sentences = []
    for block in blocks:
        words = re.sub(r"\s+", " ", block.strip().lstrip("-*| ").rstrip("| "))
        parts = re.split(r"(?<=[.?!])\s+(?=[A-Z`\[*])", words)
        sentences += [f"{name}: {part}" for part in parts if len(part.split()) >= 4 and part[-1:] in ".?!:)"]
    return sentences


def main() -> None:
    command = sys.argv[1]
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 100
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else random.randrange(1 << 32)
    sentences = []
    for path in [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")), *sorted(ROOT.glob("docs/Sluice.docc/*.md"))]:
        sentences += page_sentences(str(path.relative_to(ROOT)), path.read_text())
    for topic in TOPICS:
        result = subprocess.run([command, "help", topic], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        lines = [line.strip() for line in result.stdout.splitlines() if len(line.split()) > 5]
        sentences += [f"sluice help {topic}: {line}" for line in lines]
    print(f"{count} of {len(sentences)} sentences, seed {seed}")
    for number, sentence in enumerate(random.Random(seed).sample(sentences, count), 1):
        print(f"{number}. {sentence}")


if __name__ == "__main__":
    main()
