"""Docstrings as HTML; an unknown element is an error."""

import pytest

from course.site.docstrings import DocstringError, names, read, types

DOC = """Adds it up. And more.

Args:
    *columns (str, or list of (int, int)): Some *words*, ``code`` & :func:`ring`.
    one, two: Both.
    **options: x

Returns:
    With ``2 < 3``.

Example:
    >>> 1 + 1  # doctest: +SKIP
    2
"""


def link(text: str, role: str) -> str | None:
    return {("ring", "func"): "#ring", ("Plan", "type"): "#Plan"}.get((text, role))


def html(doc: str) -> str:
    return read(doc, link, annotations={"two": "int", "return": "Plan"}).html


def test_a_whole_docstring():
    assert html(DOC) == (
        "<p>Adds it up. And more.</p>\n"
        "<h4>Parameters</h4>\n"
        '<dl><dt><code>*columns</code> <span class="type">str, or list of (int, int)</span></dt>'
        '<dd>Some <em>words</em>, <code>code</code> &amp; <a href="#ring"><code>ring</code></a>.</dd>\n'
        '<dt><code>one</code>, <code>two</code> <span class="type">int</span></dt><dd>Both.</dd>\n'
        "<dt><code>**options</code></dt><dd>x</dd>\n"
        "</dl>\n"
        "<h4>Returns</h4>\n"
        '<dl><dt><span class="type"><a href="#Plan">Plan</a></span></dt>'
        "<dd>With <code>2 &lt; 3</code>.</dd>\n"
        "</dl>\n"
        "<h4>Example</h4>\n"
        '<pre class="code" tabindex="0"><code><span class="gp">&gt;&gt;&gt; </span>'
        '<span class="mi">1</span> <span class="o">+</span> <span class="mi">1</span>\n'
        '<span class="go">2</span></code></pre>\n'
    )


def test_what_is_searched_is_plain():
    found = read(DOC, link)
    assert found.summary == "Adds it up."
    assert found.text == (
        "Adds it up. And more. *columns Some words, code & ring. one, two Both. **options x With 2 < 3."
    )


def test_names_and_types_of_the_sections():
    assert names(DOC) == {"columns", "one", "two", "options"}
    assert types(DOC) == set()
    doc = "Adds.\n\nRaises:\n    AError, BError: x\n\nYields:\n    row (list of Row): x\n    number: y"
    assert types(doc) == {"AError", "BError", "list", "of", "Row"}


@pytest.mark.parametrize(
    "doc, shown",
    [
        ("Adds.\n\n1. one\n2. two", "<ol><li>one</li>\n<li>two</li>\n</ol>"),
        ("Adds.\n\n* one\n\n  more", "<ul><li><p>one</p>\n<p>more</p>\n</li>\n</ul>"),
        ("Adds::\n\n    x < y", '<pre class="code" tabindex="0"><code>x &lt; y</code></pre>'),
        (":class:`~d2lps.plan.Plan`", "<code>Plan</code>"),
        ("See https://arxiv.org/abs/1 there.", '<a href="https://arxiv.org/abs/1">https://arxiv.org/abs/1</a>'),
        (
            "=  =\na  b\n=  =\n1\n=  =",
            "<table><thead><tr><th>a</th><th>b</th></tr>\n</thead>\n<tbody><tr><td>1</td><td></td>",
        ),
        (":math:`x_1`", "<mi>x</mi>"),
        ("x\n  y\n    z", "<dl><dt>x</dt>"),
        ("Adds.\n\n.. a comment", "<p>Adds.</p>\n"),
    ],
)
def test_elements(doc, shown):
    assert shown in html(doc)


@pytest.mark.parametrize(
    "doc, said",
    [
        ("Adds.\n\nParamters:\n    x: y", "has the section 'Paramters'; known are Args, "),
        ("Adds.\n\nExamples:\n    >>> 1\n    1", "has the section 'examples'; known are Args, "),
        ("Adds.\n\nArgs:\n    x (int):\n    y: z", "says nothing of 'x': describe it after the colon"),
        ("Adds.\n\nArgs:\n    x", "cannot be read: "),
        ("Adds.\n\nB ``c.", "cannot be read: Inline literal start-string without end-string"),
        ("Adds.\n\n:fnc:`b`", 'cannot be read: Unknown interpreted text role "fnc"'),
        ("Adds.\n\nB `c`.", "has a title_reference, which"),
        ("Adds.\n\n    B.", "has a block_quote, which"),
        ("Adds.\n\n.. figure:: b.png", "has a figure, which"),
        ("Adds.\n\n:math:`\\nothing`", "has a formula that cannot be read: "),
    ],
)
def test_what_is_not_understood_is_refused(doc, said):
    with pytest.raises(DocstringError) as caught:
        read(doc, link)
    assert str(caught.value)[: len(said)] == said


def test_a_name_that_is_nowhere_is_refused():
    def nowhere(text: str, role: str) -> None:
        if role == "func":
            raise LookupError("nowhere")

    with pytest.raises(DocstringError, match="nowhere"):
        read("Adds.\n\nB\n:func:`c`.", nowhere)
