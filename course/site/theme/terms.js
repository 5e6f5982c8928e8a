// The card of a glossary word, at the pointer, the focus or the finger. Without it a word is a link to its entry.
(() => {
  const data = window.D2_TERMS;
  const card = document.createElement("div");
  if (!data || !("popover" in card)) return;
  card.className = "term-card";
  card.popover = "manual";
  card.innerHTML = "<p><b></b> <span lang=en></span></p><p></p><a></a>";
  const [head, body, more] = card.children;
  more.textContent = data.more;

  // What a screen reader says after the word, whether the card is shown or not.
  const notes = document.createElement("div");
  notes.hidden = true;
  for (const [id, [, , means]] of Object.entries(data.terms)) {
    const note = notes.appendChild(document.createElement("span"));
    note.id = `term-${id}`;
    note.innerHTML = means;
  }
  document.body.append(notes, card);
  for (const term of document.querySelectorAll(".term")) term.setAttribute("aria-describedby", `term-${term.dataset.term}`);

  let open = null, before = null, touched = false, timer = 0;
  const soon = (act, ms) => { clearTimeout(timer); timer = setTimeout(act, ms); };
  const hide = () => { clearTimeout(timer); if (open) card.hidePopover(); open = null; };
  const place = () => {
    if (!open) return;
    const at = open.getBoundingClientRect(), page = document.documentElement;
    const fits = (from, size, room) => Math.max(8, Math.min(from, room - size - 8));
    const above = at.top - card.offsetHeight - 6, below = at.bottom + 6;
    const over = below + card.offsetHeight > page.clientHeight - 8 && above >= 8;
    card.style.left = `${fits(at.left, card.offsetWidth, page.clientWidth)}px`;
    card.style.top = `${fits(over ? above : below, card.offsetHeight, page.clientHeight)}px`;
  };
  const show = (term) => {
    clearTimeout(timer);
    const [word, english, means] = data.terms[term.dataset.term];
    [head.firstChild.textContent, head.lastChild.textContent, body.innerHTML] = [word, english, means];
    more.href = term.href;
    if (!open) card.showPopover();
    open = term;
    place();
  };
  const of = (event, selector) => event.target.closest?.(selector);
  const on = (name, act) => document.addEventListener(name, act);
  on("pointerover", (event) => {
    if (event.pointerType !== "mouse") return;
    const term = of(event, ".term");
    if (term) soon(() => show(term), 120);
    else if (of(event, ".term-card")) clearTimeout(timer);
    else soon(() => open !== document.activeElement && hide(), 250);
  });
  on("focusin", (event) => { const term = of(event, ".term"); if (term?.matches(":focus-visible")) show(term); else if (!of(event, ".term-card")) hide(); });
  on("pointerdown", (event) => { [touched, before] = [event.pointerType !== "mouse", open]; if (!of(event, ".term, .term-card")) hide(); });
  on("click", (event) => { const term = of(event, ".term"); if (term && touched && event.detail) { event.preventDefault(); if (before === term) hide(); else show(term); } });
  on("keydown", (event) => { if (event.key === "Escape") hide(); });
  for (const name of ["scroll", "resize"]) addEventListener(name, place, { capture: true, passive: true });
})();
