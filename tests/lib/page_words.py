#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks a page of `cistern report` on standard input and prints its words, with N for each number.

The page must be well nested, refer to nothing outside of itself, and name each chart. What is
printed: headings, paragraphs, key figures, facts, legends, and titles of columns."""

import re
import sys
from html.parser import HTMLParser

VOID = {"meta", "path", "br", "link"}
WORDS = {"title", "h1", "h2", "h3", "p", "span", "dt", "th", "li", "summary"}
UNITS = r"(?:ns|us|ms|s|min|h|d|B|KiB|MiB|GiB|TiB|K|M|G|T)"


def masked(text: str) -> str:
    """Replace what differs between runs: numbers with their units, and what the plan is."""
    text = " ".join(text.split())
    if text.startswith("Plan: "):
        return "Plan: ..."
    text = text.replace(" Several steps in a row differed from the expected time by more than 20 %.", "")
    text = re.sub(r"(?<![A-Za-z])[-+]?\d+(?:[.:,]\d+)*(?:e[-+]?\d+)?", "N", text)
    text = re.sub(rf"N(?: {UNITS}\b)+", "N", text)
    return re.sub(r"N(?: N)+", "N", text)


class Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[tuple[str, str]] = []
        self.lines: list[str] = []
        self.marks = 0

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        named = dict(attributes)
        for name in ("src", "href", "xlink:href", "srcset", "action"):
            assert name not in named, f"<{tag}> refers to {named[name]}"
        assert tag not in ("script", "iframe", "object", "link", "img"), f"there is a <{tag}>"
        if tag == "svg":
            assert named.get("role") == "img" and named.get("aria-label"), "a chart has no name"
            self.lines.append(f"chart: {named['aria-label']}")
        for name in ("d", "x", "y", "width", "height", "cx", "cy"):
            value = named.get(name) or ""
            assert "nan" not in value and "inf" not in value, f"<{tag} {name}=\"{value}\">"
        if tag in ("rect", "circle"):
            self.marks += 1
            assert float(named.get("width", "0")) >= 0 and float(named.get("height", "0")) >= 0, f"{tag} {named}"
        if tag not in VOID:
            self.open.append(tag)
            self.words.append((tag, ""))

    def handle_endtag(self, tag: str) -> None:
        if tag in VOID:
            return
        assert self.open and self.open[-1] == tag, f"</{tag}> in {self.open}"
        self.open.pop()
        _, text = self.words.pop()
        if tag in WORDS and "svg" not in self.open and masked(text):
            self.lines.append(f"{tag}: {masked(text)}")

    def handle_data(self, data: str) -> None:
        if self.words:
            tag, text = self.words[-1]
            self.words[-1] = (tag, text + data)
            if tag == "style":
                assert "url(" not in data and "@import" not in data, "the style refers to something outside"


page = Page()
page.feed(sys.stdin.read())
page.close()
assert not page.open, f"not closed: {page.open}"
print("\n".join(page.lines))
print(f"marks: {page.marks}", file=sys.stderr)
