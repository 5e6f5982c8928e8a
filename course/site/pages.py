"""The pages of one language: the body of each, and the frame around it."""

import html
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from course.book import navigation
from course.book.findings import BookError
from course.book.glossary import Glossary
from course.book.library import Book, Chapter
from course.book.navigation import numbered
from course.site import api, bandwidths, browser, cheat_sheet, downloads, front, outputs, reference, search, terms
from course.site.exercises import folded, opened
from course.site.linked import linked
from course.site.prose import Prose, code
from course.site.runs import ChapterRun
from d2lps.messages import html_language, only, text_in
from d2lps.notebook.grading.course import edition

NAMES = {"vi": "Tiếng Việt", "zh": "中文", "en": "English"}  # in the order of the menu
LOOKS = ("shared.css", "book.css")
PLAYS = ("../_static/play.js", "../_static/later.js")
EDITS = ("../_static/edit.js",)
HANDS = ("../_static/hand.js",)
PROGRESS = "../_static/progress.js"
SHOW = "../_static/show.js"  # shows the pictures and predictions of a chapter one by one
PIPELINE = "pipeline-table.html"
BANDWIDTHS = "bus-bandwidths.html"
CHEAT_SHEET = "cheat-sheet.html"
ANSWERS = "answers.html"  # only in the printed book; on a page they are beside the exercises
REFERENCE = "api/"  # the folder of the package's pages, from the root of the site; only in English


@dataclass
class Page:
    """A page of the site.

    ``path`` is relative to the folder of its language, ``title`` and ``body`` are HTML, ``kind`` is the body's class in
    the theme. ``sections`` has ids and titles for the contents, ``entries`` the entries of the search index.
    """

    path: str
    title: str
    body: str
    kind: str = "plain"
    description: str = ""
    sections: list[tuple[str, str]] = field(default_factory=list)
    entries: list[search.Entry] = field(default_factory=list)
    scripts: tuple[str, ...] = ()
    looks: tuple[str, ...] = ()
    slug: str = ""
    runs: str = ""  # the script with the data of its players


class Site:
    """All pages of one language.

    ``chapters`` and ``runs`` map slugs to chapters and to the outputs of their cells; ``public`` has the entries of the
    package's pages. ``tried`` maps slugs to the cells that a browser can run; chapters without any have no "try it".
    ``python`` has the files for it, of :func:`course.site.browser.parts`. On paper nothing plays, and words and names
    are no links.
    """

    def __init__(
        self,
        book: Book,
        chapters: dict[str, Chapter],
        language: str,
        runs: dict[str, ChapterRun],
        public: list[reference.Entry],
        paper: bool = False,
        tried: dict[str, dict[str, list[str]]] | None = None,
        python: dict[str, bytes] | None = None,
    ):
        self.book, self.chapters, self.language, self.runs = book, chapters, language, runs
        self.public, self.paper, self.tried, self.python = public, paper, tried or {}, python or {}
        self.known = {} if paper else reference.addresses(public, f"../{REFERENCE}")
        self.glossary = Glossary({} if paper else book.terms)
        self.html_language = only(language, html_language)

    def say(self, key: str, **values: object) -> str:
        """Return a message of the site as HTML."""
        return html.escape(text_in(self.language, f"site.{key}", **values))

    @cached_property
    def titles(self) -> dict[str, str]:
        """Slug → number and title, as HTML."""
        contents = self.book.contents.items()
        return {slug: html.escape(numbered(self.language, slug, title[self.language])) for slug, title in contents}

    def pages(self) -> list[Page]:
        """Return all pages in the order of the contents."""
        chapters = map(self.chapter, self.chapters)
        return [
            self.front(),
            *chapters,
            *([self.cheat_sheet()] if (self.book.chapters / cheat_sheet.FOLDER).is_dir() else ()),
            self.pipeline(),
            self.bandwidths(),
            self.terms(),
            self.references(),
            self.search(),
        ]

    def chapter(self, slug: str) -> Page:
        """Return a chapter with the outputs of its cells."""
        chapter, run = self.chapters[slug], self.runs[slug]
        prose = Prose(self.book, self.language, chapter)
        body, entries, sections, terms_used = [], [], [], set()
        page_title = html.unescape(self.titles[slug])
        for section in chapter.texts[self.language].sections:
            inside = "".join(self._blocks(chapter, section, prose, run, terms_used))
            if section.id == "top":
                title, url = page_title, f"{slug}.html"
                body.append(f"<h1>{prose.inline(title)}</h1>{inside}")
            else:
                heading = prose.inline(section.title)
                title, url = search.words(heading), f"{slug}.html#{section.id}"
                sections.append((section.id, heading))
                sign = f'<a class="anchor" href="#{section.id}" aria-label="{self.say("anchor")}">#</a>'
                body.append(f'<section id="{section.id}"><h2>{heading}{sign}</h2>{inside}</section>')
            entries.append(search.Entry(page_title, title, url, search.words(inside), search.defined(inside)))
        body[0] = body[0].replace(
            "</h1>", f"</h1>{self._before(slug)}{'' if self.paper else show_button(self.language)}", 1
        )
        body += [] if self.paper else [self._after(slug)]
        ran = self.say("ran", day=run.day, machine=run.machine)
        body.append(f'<p class="ran"><small>{ran}</small></p>')
        if terms_used:
            body.append(terms.cards(self.language, self.glossary, terms_used))
        tries = (f"../{browser.STATIC}/try.js",) if self.tried.get(slug) else ()
        body += [browser.data(self.language, slug, self.python)] if tries else []
        # Tables of pipelines, and pictures that answer to the hand.
        edits, hands = (any(start in piece for piece in body) for start in ("edit(el,", "handle(el,"))
        more, looks = EDITS * edits + HANDS * hands, ("edit.css",) * edits + ("hand.css",) * hands
        whole, players = outputs.later(outputs.tell_apart("\n".join(body)), runs_of(slug))
        return Page(
            f"{slug}.html",
            self.titles[slug],
            whole,
            "chapter",
            self.about(slug),
            sections,
            entries,
            ("../_static/ask.js", *more, *PLAYS, "../_static/terms.js", PROGRESS, SHOW, *tries),
            ("terms.css", *looks, "show.css"),
            slug,
            players,
        )

    def _before(self, slug: str) -> str:
        """Return the line below the title: what the chapter needs, and its time."""
        line = Prose(self.book, self.language).inline(navigation.before(self.book, slug, self.language, _page))
        return f'<p class="way">{line}</p>' if line else ""

    def _after(self, slug: str) -> str:
        """Return what comes next."""
        inside = Prose(self.book, self.language).markdown(navigation.after(self.book, slug, self.language, _page))
        title = html.escape(text_in(self.language, "map.way"))
        return f'<nav class="way" data-chapter="{slug}" aria-label="{title}">{inside}</nav>'

    def _blocks(self, chapter: Chapter, section, prose: Prose, run: ChapterRun, terms_used: set[str]) -> Iterator[str]:
        for block in section.blocks:
            if block.kind != "cell":
                yield terms.marked_terms(prose.block(block), self.language, self.glossary, terms_used)
            elif block.name != "language":  # the page already has its language
                yield self._cell(chapter, block.name, search.words(section.title), prose, run)

    def _cell(self, chapter: Chapter, name: str, title: str, prose: Prose, run: ChapterRun) -> str:
        cell = chapter.cell(name)
        before = [cell_before.source for cell_before in chapter.cells[: chapter.cells.index(cell)]]
        opens = cell.source.startswith("d2lps.opening(")  # the opening comes before explanations, so its code is hidden
        source = "" if opens else code(linked(cell.source, self.known, before))
        if cell.exercise is not None and self.paper:
            below = f'<p><a href="{ANSWERS}#{chapter.slug}-{cell.exercise}">{self.say("answers")}</a></p>'
        elif cell.exercise is not None:
            below = folded(self.book, chapter, cell.exercise, self.language, prose)
        elif opens and chapter.slug == front.FIRST and not self.paper:
            below = f'<div class="shown">{self.race[0].replace("[[hero]]", "").replace("[[beside]]", "")}</div>'
        else:
            results, place = run.outputs[self.language].get(name, []), f"{chapter.slug}, cell {name!r},"
            below = outputs.cell_html(results, name, place, title, prose.markdown, self.paper)
        tries = " data-try" if source and name in self.tried.get(chapter.slug, ()) else ""
        return f'<div class="cell" id="cell-{name}"{tries}>{source}{below}</div>'

    @cached_property
    def race(self) -> tuple[str, dict[str, str]]:
        """The race with sliders, as on the front page, and file → script with all positions."""
        form, scripts = front.race(self.language)
        return outputs.lean(form), scripts

    def front(self) -> Page:
        """Return the first page: the course in a few words, the race, and the chapters."""
        file = self.book.chapters / "front" / f"{self.language}.md"
        if not file.is_file():
            raise BookError(f"{file} is missing; write it, with [[race]] and [[chapters]] each alone on a line")
        written = file.read_text("utf-8")
        if not self.tried.get(browser.ALONE):  # then there is no file that runs alone
            written = written.replace(browser.file(self.language), f"{browser.ALONE}.html")
        lead, _, rest = written.partition("[[race]]")
        before, _, after = rest.partition("[[chapters]]")
        prose = Prose(self.book, self.language)
        opens = "".join(
            front.card(slug, title, prose.inline(self.about(slug)), self.language, self.book, "../")
            for slug, title in self.titles.items()
        )
        chart = outputs.lean(front.the_map(self.book, self.chapters, self.language))
        lead, before, after = map(prose.markdown, (lead, before, after))
        cards = f'<ol class="opens">{opens}</ol>'
        parts = {
            "[[hero]]": front.hero(self.language),
            "[[beside]]": front.beside(self.book, self.titles, self.language),
        }
        race = self.race[0]
        for mark, part in parts.items():
            race = race.replace(mark, part)
        body = [lead, f'<div class="shown">{race}</div>', before, chart, cards, after]
        title = text_in(self.language, "site.title")
        entries = [search.Entry(title, title, "index.html", search.words("".join([lead, before, cards, after])))]
        scripts = (*PLAYS, "../_static/ask.js", PROGRESS)
        return Page("index.html", html.escape(title), "".join(body), "front", "", [], entries, scripts)

    def about(self, slug: str) -> str:
        """Return the sentence about a chapter."""
        return self.book.abouts[slug][self.language]

    def pipeline(self) -> Page:
        """Return the table of a pipeline, to be edited."""
        title, lead = self.say("pipeline"), self.say("pipeline-lead")
        table = outputs.lean(only(self.language, lambda: front.pipeline_table()._repr_html_()))
        body = f'<h1>{title}</h1><p>{lead}</p><div class="shown">{table}</div>'
        entries = [search.Entry(title, title, PIPELINE, lead)]
        return Page(PIPELINE, title, body, "plain wide-page", entries=entries, scripts=EDITS, looks=("edit.css",))

    def bandwidths(self) -> Page:
        """Return the bus bandwidths of topologies, predicted and published."""
        title, lead = self.say("bandwidths"), self.say("bandwidths-lead")
        body, entries = outputs.lean(bandwidths.page(self.language)), [search.Entry(title, title, BANDWIDTHS, lead)]
        return Page(BANDWIDTHS, title, body, entries=entries, scripts=(*PLAYS, "../_static/ask.js"))

    def cheat_sheet(self) -> Page:
        """Return the notation, the costs and the frameworks on one page."""
        body, title = cheat_sheet.sheet(self.language, self.book), self.say("cheat-sheet")
        entries = [search.Entry(title, title, CHEAT_SHEET, search.words(body))]
        return Page(CHEAT_SHEET, title, body, entries=entries, looks=("cheat-sheet.css",))

    def terms(self) -> Page:
        """Return the glossary."""
        title = self.say("terms")
        body = terms.glossary_page(self.language, self.book)
        entries = [
            search.Entry(
                title,
                term.called(self.language)[0],
                f"{terms.PAGE}#{term.id}",
                search.words(terms.shown(term.means[self.language]) + " " + terms.elsewhere(self.glossary, term)),
                terms.names(self.glossary, term),
            )
            for term in self.glossary.terms
            if term.means
        ]
        return Page(terms.PAGE, title, body, entries=entries, looks=("terms.css",))

    def package(self) -> list[Page]:
        """Return the pages of the package, which are in English: the table of all names, and a page per room."""
        body, sections = api.table(self.public)
        pages = [Page(api.INDEX, self.say("reference"), body, "api", "", sections, scripts=("../_static/api.js",))]
        homes = api.homes(self.public)
        for name, page, members in api.rooms(self.public):
            body, sections = api.room(name, members, homes)
            pages.append(Page(page, name, body, "api", "", sections))
        return pages

    def answers(self) -> Page:
        """Return the hints and solutions of all exercises, for the printed book."""
        title, body = self.say("answers"), []
        for slug, chapter in self.chapters.items():
            prose = Prose(self.book, self.language, chapter)
            exercises = [cell.exercise for cell in chapter.cells if cell.exercise is not None]
            body += [f"<h2>{self.titles[slug]}</h2>"] if exercises else []
            for exercise in exercises:
                answer = opened(self.book, chapter, exercise, self.language, prose)
                body.append(f'<section id="{slug}-{exercise}"><h3><code>{exercise}</code></h3>{answer}</section>')
        return Page(ANSWERS, title, f"<h1>{title}</h1>{''.join(body)}")

    def references(self) -> Page:
        """Return the sources of all chapters, with the sections that cite them."""
        cited: dict[str, dict[str, None]] = {}  # source → links, each once
        for slug, chapter in self.chapters.items():
            for section in chapter.texts[self.language].sections:
                place, name = section.id, f"{self.titles[slug].partition(' ')[0]} {html.escape(section.title)}"
                if place == "top":
                    place, name = "main", self.titles[slug]
                for key in section.cited():
                    cited.setdefault(key, {})[f'<a href="{slug}.html#{place}">{name}</a>'] = None
        sources = sorted(self.book.references.items(), key=lambda pair: (pair[1]["authors"].lower(), pair[1]["year"]))
        body = front.FRAME.get_template("sources.html").render(
            sources=[(key, source) for key, source in sources if key in cited],
            cited=cited,
            between=html.escape(text_in(self.language, "list.between")),
            say=self.say,
        )
        path, title = "references.html", self.say("references")
        return Page(path, title, body, entries=[search.Entry(title, title, path, search.words(body))])

    def search(self) -> Page:
        """Return the page that lists the results of a search."""
        values = {"n": "{n}", "query": "{query}", "other": "{other}"}  # the script fills them
        said = ("none", "found", "near-word", "like-word")
        messages = " ".join(f'data-{word.removesuffix("-word")}="{self.say(word, **values)}"' for word in said)
        body = (
            f'<h1>{self.say("search")}</h1><p id="found" role="status" {messages}></p><ol id="results"></ol>'
            f"<noscript>{self.say('noscript')}</noscript>"
        )
        return Page("search.html", self.say("search"), body, "search", scripts=("sections.js", "../_static/search.js"))

    def framed(self, page: Page, pages: list[Page], pdf: bool = False, folder: str = "") -> str:
        """Return the whole page: its body in the frame.

        ``pdf`` says if there is a PDF; ``folder`` is the path from the page to the pages of its language.
        """
        order = [other for other in pages if other.kind in ("front", "chapter")]
        at = next((number for number, other in enumerate(order) if other is page), None)
        neighbours = [None, None] if at is None else [order[at - 1] if at else None, *order[at + 1 : at + 2], None][:2]
        contents = [
            {"href": folder + other.path, "title": other.title, "current": other is page, "gap": number == len(order)}
            for number, other in enumerate([*order, *(other for other in pages if other.kind.startswith("plain"))])
        ]
        package = {
            "href": f"../{REFERENCE}{api.INDEX}",
            "title": self.say("reference"),
            "current": page.kind == "api",
            "gap": False,
        }
        contents.append(package)
        copies = ["../_static/copy.js"] if '<pre class="code"' in page.body else []
        return front.FRAME.get_template("page.html").render(
            lang=self.html_language,
            language=self.language,
            title=page.title,
            description=html.escape(page.description),
            kind=page.kind,
            body=page.body,
            up="../",
            home=f"{folder}index.html",
            search=f"{folder}search.html",
            languages=[
                {
                    "href": f"../{other_language}/{'index.html' if page.kind == 'api' else page.path}",
                    "name": name,
                    "lang": only(other_language, html_language),
                    "current": other_language == self.language,
                }
                for other_language, name in NAMES.items()
            ],
            looks=[*LOOKS, *page.looks],
            scripts=["../_static/book.js", *copies, *page.scripts],
            contents=contents,
            sections=[{"id": id, "title": title} for id, title in page.sections],
            tools=downloads.tools(self.book, page.slug, self.language, pdf)
            if page.kind in ("front", "chapter")
            else [],
            previous=neighbours[0] and {"href": neighbours[0].path, "title": neighbours[0].title},
            next=neighbours[1] and {"href": neighbours[1].path, "title": neighbours[1].title},
            footer=f"{self.say('license')} {self.say('edition', edition=edition())}.",
            w={word: self.say(word) for word in WORDS},
        )


def show_button(language: str) -> str:
    """Return the button above a chapter, which stays hidden without scripts, or if a chapter has nothing to show."""
    title, words = (html.escape(text_in(language, f"site.{key}")) for key in ("show-keys", "show"))
    return f'<button type="button" class="show" title="{title}" hidden>{words}</button>'


def runs_of(slug: str) -> str:
    """Return the name of the script with the data of a chapter's players."""
    return f"{slug}-runs.js"


def _page(slug: str) -> str:
    return f"{slug}.html"


WORDS = "skip search language theme contents near previous next here copy copied".split()
