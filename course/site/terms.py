"""The words of the glossary on the pages of the book, marked at their first use in a section.

A page marks them with :func:`marked_terms`, and :func:`cards` has their meanings, which ``theme/terms.js`` shows.
Without that script a marked word is a link to its entry in :func:`glossary_page`.
"""

import html as markup
import json
import re
import unicodedata
from functools import cache

from course.book.glossary import ELSEWHERE, FIRST, Glossary, Term, inflected
from course.book.language import FILES
from course.book.library import Book
from course.site.front import FRAME
from d2lps.messages import LANGUAGES, html_language, only, text_in

PAGE = "glossary.html"
OTHERS = "other-texts"  # the id of the table in it
# A tag, a comment, or a script or style with its content. Everything between two of them is text.
_TAG = re.compile(
    r"""<!--.*?-->|<(?P<raw>script|style)\b.*?</(?P=raw)\s*>|<(?P<end>/?)(?P<name>[a-z][^\s/>]*)(?:"[^"]*"|'[^']*'|[^"'>])*>""",
    re.S | re.I,
)
# Tags whose content is not marked: it is no prose, a link already, or a heading or label.
_UNMARKED = set(
    "a button caption code dfn figcaption h1 h2 h3 h4 h5 h6 kbd label math option pre samp select summary svg textarea "
    "th title var".split()
)
_ALPHABET = "aăâbcdđeêfghijklmnoôơpqrstuưvwxyz"
_READ = {"重": "虫", "调和": "条和"}  # characters with two readings → characters with one
_TONES = ["", "\u0300", "\u0309", "\u0303", "\u0301", "\u0323"]  # in the order of Vietnamese dictionaries


def marked_terms(html: str, language: str, glossary: Glossary, seen: set[str]) -> str:
    """Return the prose of a section with each term marked at its first use.

    ``seen`` has the ids of the terms marked before in the section; new ones are added to it. Code, formulas, headings,
    links and captions are not marked, and nothing but the marks is changed.
    """
    pattern, owners = _finder(glossary, language)

    def mark(match: re.Match) -> str:
        term = next(term for word, term in owners if word.fullmatch(match[0]))
        if term is None or term.id in seen:
            return match[0]
        seen.add(term.id)
        return f'<a class="term" href="{PAGE}#{term.id}" data-term="{term.id}">{match[0]}</a>'

    parts, end, inside = [], 0, 0
    for tag in _TAG.finditer(html):
        text = html[end : tag.start()]
        parts += [text if inside else pattern.sub(mark, text), tag[0]]
        end = tag.end()
        if (tag["name"] or "").lower() in _UNMARKED and not tag[0].endswith("/>"):
            inside += -1 if tag["end"] else 1
    return "".join([*parts, pattern.sub(mark, html[end:])])


def cards(language: str, glossary: Glossary, ids: set[str]) -> str:
    """Return the script that a page with these terms needs before ``terms.js``: words and meanings."""
    terms = {}
    for term in glossary.terms:
        if term.id in ids:
            word, english = term.called(language)[0], term.en[0]
            terms[term.id] = [word, "" if word == english else english, shown(term.means[language])]
    data = json.dumps({"page": PAGE, "more": text_in(language, "terms.more"), "terms": terms}, ensure_ascii=False)
    safe = data.replace("</", "<\\/")
    return f"<script>window.D2_TERMS={safe}</script>"


def glossary_page(language: str, book: Book) -> str:
    """Return the body of the page with all terms that have a meaning, in the order of this language.

    Below them, a table tells what other texts call them; a narrow page shows each of its rows as a list.
    """
    glossary = Glossary(book.terms)
    return FRAME.get_template("glossary.html").render(
        book=book,
        language=language,
        languages=LANGUAGES,
        terms=sorted(filter(lambda term: term.means, glossary.terms), key=_order(language)),
        elsewhere=glossary.elsewhere,
        columns=[*ELSEWHERE] if language == FIRST else ["english", *ELSEWHERE],
        texts=ELSEWHERE,
        others=OTHERS,
        shown=shown,
        say=lambda key: text_in(language, f"terms.{key}"),
        lang=lambda name: only(name, html_language),
    )


def elsewhere(glossary: Glossary, term: Term) -> str:
    """Return the words of other texts for a term, by which it is found, too."""
    words = dict.fromkeys(word for words in glossary.elsewhere.get(term.id, {}).values() for word in words.split(", "))
    return markup.escape(" · ".join(filter(None, words)))


def names(glossary: Glossary, term: Term) -> str:
    """Return all names of a term, in all languages and other texts, each between bars."""
    words = [word for language in LANGUAGES for word in term.called(language)]
    words += markup.unescape(elsewhere(glossary, term)).split(" · ")
    return "".join(f"|{word.lower()}|" for word in dict.fromkeys(filter(None, words)))


def shown(meaning: str) -> str:
    """Return a meaning as HTML; its only markup is `code`."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", markup.escape(meaning, quote=False))


def _order(language: str):
    """Return the sort key of a language: the alphabet, with Vietnamese tones last, or pinyin."""
    order = {"en": str.lower, "vi": _vietnamese, "zh": _chinese}[language]
    return lambda term: order(term.called(language)[0])


def _chinese(word: str) -> bytes:
    for character, read in _READ.items():
        word = word.replace(character, read)
    return word.lower().encode("gb18030")  # orders common characters by their sound


def _vietnamese(word: str) -> tuple[list[int], list[int]]:
    letters, tones = [], []
    for letter in unicodedata.normalize("NFC", word.lower()):
        parts = unicodedata.normalize("NFD", letter)
        tone = next((mark for mark in parts[1:] if mark in _TONES), "")
        bare = unicodedata.normalize("NFC", parts.replace(tone, "") if tone else parts)
        letters.append(_ALPHABET.find(bare))
        tones.append(_TONES.index(tone))
    return letters, tones


@cache
def _finder(glossary: Glossary, language: str) -> tuple[re.Pattern, list[tuple[re.Pattern, Term | None]]]:
    """Return a pattern that finds the words of a language, and each word's pattern with its term.

    A longer word hides those inside it. A word of two terms belongs to the first one with a meaning; a word of no term,
    or of a term without a meaning, only hides others.
    """
    whose: dict[str, Term | None] = {}
    for term in glossary.terms:
        for word in term.called(language):
            whose[word] = whose.get(word) or (term if term.means else None)
    for term in glossary.terms:
        whose |= dict.fromkeys(term.other[language])
    words = sorted(whose, key=len, reverse=True)
    owners = [(re.compile(_written(word, language)), whose[word]) for word in words]
    choices = "|".join(word_pattern.pattern for word_pattern, _ in owners) or "(?!)"
    border = r"(?<![\w-])(?:%s)(?![\w-])" if FILES[language].get("spaced", True) else "%s"
    return re.compile(border % choices), owners


def _written(word: str, language: str) -> str:
    """Return a pattern for a word in a text: with or without a capital, in English also in the plural."""
    pattern = inflected(word) if language == FIRST else r"\s+".join(map(re.escape, word.split()))
    if word[0].islower():
        pattern = f"[{word[0]}{word[0].upper()}]{pattern[1:]}"
    if not FILES[language].get("spaced", True):  # names have borders there, too
        pattern += r"(?![A-Za-z0-9])" * word[-1].isascii()
        pattern = r"(?<![A-Za-z0-9])" * word[0].isascii() + pattern
    return pattern.replace("'", "['’]")
