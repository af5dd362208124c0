#!/usr/bin/env python3
"""Opens the built documentation in Chromium, over HTTP as a reader does, and follows its links.

    test_site.py [SITE]

SITE is the directory that `build.py` wrote, `.build/docs` by default. Every article, page and module is opened, and some
symbols, which a seed chooses. A page fails if it does not show its title, reports an error, or has a link to a page or a
heading that does not exist. The links of all other symbols are compared with the files of the site.
"""

import fcntl
import functools
import http.server
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from urllib.parse import unquote, urlsplit

TIME_LIMIT = 180
SYMBOL_COUNT = 12

# Waits until the page shows what it has to show, without looking again and again.
SHOWN = """
new Promise((resolve, reject) => {
  const shown = () => document.querySelector("main h1, main .title")?.textContent.trim()
  const look = () => { if (shown()) { observer.disconnect(); requestAnimationFrame(() => resolve({
    title: shown(),
    links: [...document.querySelectorAll("main a[href]")].map(link => link.href),
    ids: [...document.querySelectorAll("[id]")].map(element => element.id) })) } }
  const observer = new MutationObserver(look)
  observer.observe(document, {subtree: true, childList: true, characterData: true})
  look()
  setTimeout(() => reject(new Error("the page shows no title")), 15000)
})
"""


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    """Serves a directory and prints nothing."""

    def log_message(self, *arguments):
        pass


class Browser:
    """Chromium without a window, which takes orders over a pipe (Chrome DevTools Protocol)."""

    def __init__(self, profile: str):
        orders, self.orders = os.pipe()
        self.reports, reports = os.pipe()
        # Chromium expects them at 3 and 4, where others may be now.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (orders, reports)]

        def take_ends():
            for number, end in zip((3, 4), ends):
                os.dup2(end, number)

        self.process = subprocess.Popen(
            ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, pass_fds=(3, 4), preexec_fn=take_ends)
        for end in (orders, reports, *ends):
            os.close(end)
        self.unread = b""
        self.number = 0
        self.errors: list[str] = []
        # It ends when its time is over, so that no read waits forever.
        self.timer = threading.Timer(TIME_LIMIT, self.process.kill)
        self.timer.start()
        target = self.ask("Target.createTarget", {"url": "about:blank"})["targetId"]
        self.session = self.ask("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.ask(f"{domain}.enable")

    session = None

    def ask(self, method: str, parameters: dict | None = None) -> dict:
        """Gives an order and waits for its answer. Errors of the page that are reported meanwhile are kept."""
        self.number += 1
        order = {"id": self.number, "method": method, "params": parameters or {}}
        if self.session:
            order["sessionId"] = self.session
        os.write(self.orders, json.dumps(order).encode() + b"\0")
        while True:
            report = self.report()
            if report.get("id") == self.number:
                if "error" in report:
                    raise SystemExit(f"{method}: {report['error']}")
                return report["result"]
            if report.get("method") == "Runtime.exceptionThrown":
                self.errors.append(report["params"]["exceptionDetails"]["text"])
            if report.get("method") == "Log.entryAdded" and report["params"]["entry"]["level"] == "error":
                entry = report["params"]["entry"]
                self.errors.append(f"{entry['text']} {entry.get('url', '')}")

    def report(self) -> dict:
        while b"\0" not in self.unread:
            piece = os.read(self.reports, 1 << 20)
            if not piece:
                raise SystemExit(f"Chromium ended, or was ended after {TIME_LIMIT} s")
            self.unread += piece
        report, self.unread = self.unread.split(b"\0", 1)
        return json.loads(report)

    def open(self, url: str) -> dict:
        """Opens a page, and returns its title, links and headings."""
        # From page to page of one site nothing is loaded again unless the document is another.
        self.ask("Page.navigate", {"url": "about:blank"})
        self.ask("Page.navigate", {"url": url})
        result = self.ask("Runtime.evaluate", {"expression": SHOWN, "awaitPromise": True, "returnByValue": True})
        if "exceptionDetails" in result:
            details = result["exceptionDetails"]
            raise PageError(details.get("exception", {}).get("description", details["text"]).split("\n")[0])
        return result["result"]["value"]

    def close(self):
        self.timer.cancel()
        self.process.kill()
        self.process.wait()


class PageError(Exception):
    """A page that does not show what it should."""


class Site:
    """The files of the site."""

    def __init__(self, directory: Path):
        self.directory = directory
        self.pages = {"/" + str(path.relative_to(directory / "data").with_suffix(""))
                      for path in (directory / "data").rglob("*.json")}

    def has(self, path: str) -> bool:
        return unquote(path).rstrip("/").lower() in self.pages

    def broken_references(self) -> list[str]:
        """Links in the data of any page to pages that do not exist."""
        broken = []
        for path in (self.directory / "data").rglob("*.json"):
            for reference in json.loads(path.read_text()).get("references", {}).values():
                url = reference.get("url", "")
                if url.startswith("/documentation/") and not self.has(urlsplit(url).path):
                    broken.append(f"{path.relative_to(self.directory)}: {url} leads nowhere")
        return broken

    def roots(self) -> list[str]:
        """Pages without a parent, articles and modules."""
        return sorted(page for page in self.pages if page.count("/") <= 2 or page.startswith("/documentation/sluice/"))


def follow(browser: Browser, site: Site, origin: str, pages: list[str]) -> list[str]:
    """Opens the pages, and returns what is wrong with them and their links."""
    problems: list[str] = []
    headings: dict[str, set[str]] = {}
    links: list[tuple[str, str]] = []
    for page in pages:
        try:
            shown = browser.open(origin + page + "/")
        except PageError as error:
            problems.append(f"{page}: {error}")
            continue
        headings[page] = set(shown["ids"])
        links += [(page, link) for link in shown["links"]]
        problems += [f"{page}: {error}" for error in browser.errors]
        browser.errors.clear()
    for page, link in links:
        parts = urlsplit(link)
        if f"{parts.scheme}://{parts.netloc}" != origin:
            continue
        target = unquote(parts.path).rstrip("/").lower()
        if not site.has(parts.path):
            problems.append(f"{page}: {parts.path} leads nowhere")
        elif parts.fragment and target in headings and unquote(parts.fragment) not in headings[target]:
            problems.append(f"{page}: {parts.path}#{parts.fragment} leads to no heading")
    count = sum(link.startswith(origin) for _, link in links)
    print(f"{len(headings)} pages opened, {count} links followed")
    return problems


def main() -> int:
    directory = Path(sys.argv[1] if len(sys.argv) > 1 else ".build/docs").resolve()
    site = Site(directory)
    seed = int(os.environ.get("SLUICE_SEED") or random.randrange(1 << 32))
    print(f"SLUICE_SEED={seed}")
    roots = site.roots()
    symbols = random.Random(seed).sample(sorted(site.pages - set(roots)), SYMBOL_COUNT)
    handler = functools.partial(QuietHandler, directory=str(directory))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, tempfile.TemporaryDirectory() as profile:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser = Browser(profile)
        try:
            problems = follow(browser, site, f"http://127.0.0.1:{server.server_port}", roots + symbols)
        finally:
            browser.close()
            server.shutdown()
    problems += site.broken_references()
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
