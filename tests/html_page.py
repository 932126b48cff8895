"""A page of HTML as a test reads it, and names that do harm where they are not escaped."""

from html.parser import HTMLParser

VOID = {"meta", "br", "img", "link"}
HOSTILE = ["<script>alert(1)</script>", "$x^{", 'a & b "c"']


class Page(HTMLParser):
    """Tags, attributes and cells of a page; fails on tags that do not close."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.links: list[str] = []
        self.cells: list[str] = []
        self.headings: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href", "xlink:href")]
        if tag not in VOID:
            self.open.append(tag)
        if tag in ("td", "h2"):
            (self.cells if tag == "td" else self.headings).append("")

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href", "xlink:href")]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("td", "h2"):
            (self.cells if self.open[-1] == "td" else self.headings)[-1] += data
