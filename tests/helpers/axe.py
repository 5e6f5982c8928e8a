"""axe-core: faults of a page for readers with low vision or without a mouse."""

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

GRAVE = ("serious", "critical")
CONTRAST = ("color-contrast", "link-in-text-block")  # the rules that look at colors


def grave(page: Page, inside: str | None = None, rules: tuple[str, ...] = ()) -> list[str]:
    """Return a sentence for every grave finding: the fault and its element.

    ``inside``: of what the selector names; ``rules``: by these alone, as ``CONTRAST`` where only colors have changed.
    """
    # Without preload it asks for no style sheets, which a page that was opened from a file may not read. What is right
    # is not described, which would take as long again.
    options = {"preload": False, "resultTypes": ["violations"]}
    if rules:
        options["runOnly"] = {"type": "rule", "values": rules}
    found = Axe().run(page, context=inside, options=options).response["violations"]
    return [
        f"{each['id']}: {node['target']} {node['failureSummary']}"
        for each in found
        if each["impact"] in GRAVE
        for node in each["nodes"]
    ]
