"""Hints and the solution of an exercise: folded on a page, and open at the end of the printed book."""

import ast
from functools import cache

from course.book.findings import BookError
from course.book.library import Book, Chapter
from course.classes import slices
from course.site.prose import Prose, listing
from d2lps.messages import text_in


def folded(book: Book, chapter: Chapter, exercise: str, language: str, prose: Prose) -> str:
    """Return hints, from vague to nearly the answer, and the solution, each folded by itself."""
    check = f"<p><small>{text_in(language, 'site.check')}</small></p>"
    parts = (
        f"<details><summary>{name}</summary>{inside}</details>"
        for name, inside in _parts(book, chapter, exercise, language, prose)
    )
    return f'<div class="folds">{check}{"".join(parts)}</div>'


def opened(book: Book, chapter: Chapter, exercise: str, language: str, prose: Prose) -> str:
    """Return the same unfolded, for paper."""
    return "".join(f"<h4>{name}</h4>{inside}" for name, inside in _parts(book, chapter, exercise, language, prose))


def _parts(book: Book, chapter: Chapter, exercise: str, language: str, prose: Prose) -> list[tuple[str, str]]:
    """Return name and HTML of each hint and the solution, if the book has them; raise BookError if it lacks one."""
    exercise_texts = chapter.exercises.get(exercise)
    if exercise_texts is None:
        raise BookError(f"{chapter.slug}/exercises.toml has no exercise {exercise!r}; write it")
    hints = exercise_texts.get("hints", ())
    parts = [
        (text_in(language, "site.hint", number=number, of=len(hints)), prose.markdown(hint[language]))
        for number, hint in enumerate(hints, 1)
    ]
    if book.solutions:
        parts.append((text_in(language, "site.solution"), listing(solved(book, chapter, exercise))))
    return parts


def solved(book: Book, chapter: Chapter, exercise: str) -> str:
    """Return the code of an exercise's solution; raise BookError if the chapter has none."""
    name = exercise.replace("-", "_")
    code = solution((book.folder(chapter.slug) / "solutions.py").read_text("utf-8"), name)
    if code is None:
        raise BookError(f"{chapter.slug}/solutions.py has no {name}; write the solution there")
    return code


@cache  # the same in all languages
def solution(source: str, name: str) -> str | None:
    """Return the solution of that name with the parts of its module that it needs, or None if there is none.

    >>> print(solution("import math\\nimport re\\nA = 1\\n\\ndef f(x):\\n    return math.sqrt(x + A)\\n", "f"))
    import math
    <BLANKLINE>
    A = 1
    <BLANKLINE>
    def f(x):
        return math.sqrt(x + A)
    """
    module = slices.cell("solutions", source)
    if not any(name in slices.bound(statement) for statement in module.body):
        return None
    needed = [module.body[number] for _, _, numbers in slices.needed([name], [module], ()) for number in numbers]
    used = set().union(*map(slices.used, needed))
    pieces, imports = [], []
    for node in needed:
        if isinstance(node, ast.Import | ast.ImportFrom):
            node.names = [item for item in node.names if (item.asname or item.name.partition(".")[0]) in used]
            imports.append(ast.unparse(node))
        else:
            first = min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", ()))])
            pieces.append("\n".join(source.splitlines()[first - 1 : node.end_lineno]))
    return "\n\n".join(filter(None, ["\n".join(imports), *pieces]))
