"""Docstrings as HTML; an unknown element is an error."""

import pytest

from course.site.docstrings import DocstringError, names, read, types

DOC = """Adds it up. And more.

Parameters
----------
*columns : str, or list of ``"a"``
    Some *words*, ``code`` & :func:`ring`.
**options
    x

Returns
-------
Plan
    With ``2 < 3``.

Examples
--------
>>> 1 + 1  # doctest: +SKIP
2
"""


def link(text: str, role: str) -> str | None:
    return {("ring", "func"): "#ring", ("Plan", "type"): "#Plan"}.get((text, role))


def html(doc: str) -> str:
    return read(doc, link).html


def test_a_whole_docstring():
    assert html(DOC) == (
        "<p>Adds it up. And more.</p>\n"
        "<h4>Parameters</h4>\n"
        '<dl><dt><code>*columns</code> <span class="type">str, or list of <code>"a"</code></span></dt>'
        '<dd>Some <em>words</em>, <code>code</code> &amp; <a href="#ring"><code>ring</code></a>.</dd>\n'
        "<dt><code>**options</code></dt><dd>x</dd>\n"
        "</dl>\n"
        "<h4>Returns</h4>\n"
        '<dl><dt><span class="type"><a href="#Plan">Plan</a></span></dt>'
        "<dd>With <code>2 &lt; 3</code>.</dd>\n"
        "</dl>\n"
        "<h4>Examples</h4>\n"
        '<pre class="code" tabindex="0"><code><span class="gp">&gt;&gt;&gt; </span>'
        '<span class="mi">1</span> <span class="o">+</span> <span class="mi">1</span>\n'
        '<span class="go">2</span></code></pre>\n'
    )


def test_what_is_searched_is_plain():
    found = read(DOC, link)
    assert found.summary == "Adds it up."
    assert found.text == (
        'Adds it up. And more. *columns : str, or list of ``"a"`` Some words, code & ring. **options x Plan With 2 < 3.'
    )


def test_names_and_types_of_the_sections():
    assert names(DOC) == {"columns", "options"}
    assert types(DOC) == {"Plan"}
    assert types("Adds.\n\nRaises\n------\nAError, BError\n    x\n\nYields\n------\nrow : list of Row\n    x") == {
        "AError", "BError", "list", "of", "Row"}  # fmt: skip


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
    "doc, line, said",
    [
        ("Adds.\n\nParamters\n---------\nx\n    y", 3, "has the section 'Paramters'; known are Parameters, "),
        ("Adds.\n\nReturns\n------\nx\n    y", 3, "has the section 'Returns' with a line below that is not as long"),
        ("Adds.\n\nReturns\n-------\nx\n    y\n\nReturns\n-------\nx\n    y", 8, "has the section 'Returns' twice"),
        ("Adds.\n\nParameters\n----------\nx : int\ny : int\n    z", 5, "says nothing of 'x : int'"),
        ("Adds.\n\nReturns\n-------\nPlan", 5, "says nothing of 'Plan'"),
        ("Adds.\n\nB ``c.", 3, "cannot be read: Inline literal start-string without end-string"),
        ("Adds.\n\n:fnc:`b`", 3, 'cannot be read: Unknown interpreted text role "fnc"'),
        ("Adds.\n\nB `c`.", 3, "has a title_reference, which"),
        ("Adds.\n\n    B.", 3, "has a block_quote, which"),
        ("Adds.\n\n.. figure:: b.png", 3, "has a figure, which"),
        ("Adds.\n\n:math:`\\nothing`", 3, "has a formula that cannot be read: "),
    ],
)
def test_what_is_not_understood_is_refused(doc, line, said):
    with pytest.raises(DocstringError) as caught:
        read(doc, link)
    assert (str(caught.value)[: len(said)], caught.value.line) == (said, line)


def test_a_name_that_is_nowhere_is_refused_at_its_line():
    def nowhere(text: str, role: str) -> None:
        if role == "func":
            raise LookupError("nowhere")

    with pytest.raises(DocstringError, match="nowhere") as caught:
        read("Adds.\n\nB\n:func:`c`.", nowhere)
    assert caught.value.line == 3
