#!/usr/bin/env python3
"""Builds the documentation as a static site, and fails if anything in it is missing or wrong.

    build.py BUILD [SITE]

BUILD is the directory of a debug build, as `.build/debug`. SITE is the directory to write, `.build/docs` by default.

The site has the public symbols of every library product, the articles of `Sluice.docc`, and the other pages of `docs/`.
Links between pages are relative in the sources, so that they work in the repository too. This program turns them into
links of DocC. It reports, and exits with 1 for:

- a public symbol without a comment,
- a public declaration that names a type of a module that belongs to no product,
- a link to a file or a heading that does not exist,
- each warning of DocC.
"""

import json
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from links import Page

ROOT = Path(__file__).resolve().parent.parent.parent
DOCS = ROOT / "docs"
CATALOGUE = DOCS / "Sluice.docc"
# Its classes are in a module of their own, which the product exports.
EXPORTED = {"FoundationUploads": "FoundationUploadsCore"}
# Modules of the toolchain, by their names in mangled symbols.
TOOLCHAIN = {"s", "SC", "So"}


def output_of(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


# MARK: Symbols


def product_modules() -> list[str]:
    """The modules of the library products, in the order of Package.swift."""
    # A scratch path of its own: a build that runs meanwhile has locked the other.
    package = json.loads(output_of("swift", "package", "--scratch-path", ".build/docs-package", "dump-package"))
    modules: list[str] = []
    for product in package["products"]:
        if product["type"].get("library") == ["automatic"]:
            modules += [target for target in product["targets"] if target not in modules]
    return modules


def package_modules() -> set[str]:
    """Every module of this package."""
    return {path.name for path in (ROOT / "Sources").iterdir() if path.is_dir()}


def extract(module: str, build: Path, graphs: Path) -> Path:
    """Writes the symbol graphs of a module, and gives back their directory."""
    directory = graphs / module
    directory.mkdir(parents=True)
    target = json.loads(output_of("swift", "-print-target-info"))["target"]["triple"]
    imports = [build / "Modules", *(path for path in (ROOT / "Sources").iterdir() if (path / "module.modulemap").exists())]
    subprocess.run(
        ["swift", "symbolgraph-extract", "-module-name", module, "-target", target]
        + [option for path in imports for option in ("-I", str(path))]
        + ["-minimum-access-level", "public", "-skip-synthesized-members", "-output-dir", str(directory)]
        + ([f"-experimental-allowed-reexported-modules={EXPORTED[module]}"] if module in EXPORTED else []),
        cwd=ROOT, check=True)
    return directory


def place(symbol: dict) -> str:
    """Where a symbol is declared."""
    location = symbol["location"]
    path = location["uri"].removeprefix("file://").removeprefix(f"{ROOT}/")
    return f"{path}:{location['position']['line'] + 1}"


def judge(graph: dict, products: set[str]) -> list[str]:
    """What is wrong with the symbols of a graph."""
    problems = []
    for symbol in graph["symbols"]:
        # Symbols that the compiler makes have no location.
        if "location" not in symbol:
            continue
        name = ".".join(symbol["pathComponents"])
        if not any(line["text"].strip() for line in symbol.get("docComment", {}).get("lines", [])):
            problems.append(f"{place(symbol)}: {name} has no comment. Add one, or make it package or internal.")
        for fragment in symbol["declarationFragments"]:
            module = module_of(fragment.get("preciseIdentifier", ""))
            if module in package_modules() - products:
                problems.append(
                    f"{place(symbol)}: {name} names {fragment['spelling']}, and {module} belongs to no product.")
    return problems


def module_of(identifier: str) -> str | None:
    """The module of a Swift symbol, from its mangled name: `s:13LiveStreaming…`."""
    if found := re.match(r"s:(\d+)", identifier):
        start = found.end()
        return identifier[start:start + int(found[1])]
    return None


# MARK: Pages


def site_catalogue(directory: Path, modules: list[str]) -> list[str]:
    """Copies the articles and the other pages of `docs/` into one catalogue, with links of DocC. Returns problems."""
    directory.mkdir(parents=True)
    shutil.copy(CATALOGUE / "theme-settings.json", directory)
    articles = sorted(CATALOGUE.glob("*.md"))
    reference = sorted(DOCS.glob("*.md"))
    pages = {path: Page(path) for path in articles + reference}
    problems = []
    for path, page in pages.items():
        text, wrong = page.rewritten(lambda target, heading: docc_link(target, heading, pages))
        problems += wrong
        if path.name == "Sluice.md":
            text += "\n### More pages\n\n" + "".join(f"- <doc:{path.stem}>\n" for path in reference)
            text += "\n### Modules\n\n" + "".join(f"- ``/{module}``\n" for module in sorted(modules))
        (directory / path.name).write_text(text)
    return problems


def docc_link(target: Path, heading: str | None, pages: dict[Path, Page]) -> str | None:
    """The link of DocC to a page, or to a heading of it; nil for a file that is not on the site."""
    page = pages.get(target)
    if page is None:
        return None
    if heading is None:
        return f"doc:{target.stem}"
    # DocC keeps the words of a heading and joins them with hyphens.
    words = page.headings[heading]
    return f"doc:{target.stem}#" + re.sub(r"[^\w.]+", "-", words.replace("`", "")).strip("-")


# MARK: Site


def convert(catalogue: Path, graphs: Path, site: Path) -> list[str]:
    """Runs DocC. Returns its warnings, each with the lines that belong to it."""
    shutil.rmtree(site, ignore_errors=True)
    result = subprocess.run(
        ["docc", "convert", str(catalogue), "--additional-symbol-graph-dir", str(graphs),
         "--fallback-display-name", "Sluice", "--fallback-bundle-identifier", "Sluice", "--output-path", str(site)],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    warnings = [part.strip() for part in re.split(r"^(?=(?:warning|error): )", result.stdout, flags=re.M) if part.strip()]
    if result.returncode and not warnings:
        warnings.append(f"docc convert ended with {result.returncode}")
    return warnings


def main() -> int:
    build = Path(sys.argv[1])
    site = Path(sys.argv[2]) if len(sys.argv) > 2 else ROOT / ".build" / "docs"
    work = ROOT / ".build" / "docs-work"
    shutil.rmtree(work, ignore_errors=True)
    products = product_modules()
    with ThreadPoolExecutor() as pool:
        directories = list(pool.map(lambda module: extract(module, build, work / "graphs"), products))
    problems = []
    known = set(products) | set(EXPORTED.values())
    count = 0
    for directory in directories:
        for path in sorted(directory.glob("*.json")):
            graph = json.loads(path.read_text())
            count += len(graph["symbols"])
            problems += judge(graph, known)
    problems += site_catalogue(work / "Sluice.docc", products)
    problems += convert(work / "Sluice.docc", work / "graphs", site)
    # The root of the site shows nothing by itself.
    if (site / "index.html").exists():
        (site / "index.html").write_text(
            '<!DOCTYPE html><meta charset="utf-8"><title>Sluice</title>'
            '<meta http-equiv="refresh" content="0; url=documentation/sluice/">'
            '<a href="documentation/sluice/">Sluice</a>\n')
    for problem in problems:
        print(problem)
    print(f"{count} symbols of {len(products)} modules, {len(problems)} problems: {site}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
