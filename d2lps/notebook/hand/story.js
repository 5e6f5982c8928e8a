// The steps of a plan: the picture stays while the paragraphs pass, and shows the step of the one in the middle.
function story(root, { words, nodes, keys, follow, places, states, steps }) {
  let now = 0, since = 0; // what the page shows counts from this moment on
  const cells = nodes.map(() => keys.map((key) => make("span", { class: "hand-chunk" }, ...nodes.map((_, who) => make("i", { style: `--hue:var(--d2-w${who})` })))));
  const boxes = nodes.map((node, k) => make("div", { class: "hand-box-of", style: `left:${places[k][0]}%;top:${places[k][1]}%` }, make("span", {}, node),
    ...keys.map((key, j) => make("div", {}, make("small", {}, key), cells[k][j]))));
  const wires = make("div", { class: "hand-chips", "aria-hidden": "true" }), clock = make("b", { class: "hand-clock" });
  const picture = make("div", { class: "hand-ring" }, ...boxes, wires, clock);
  const parts = steps.map(({ said }, k) => make("p", { "data-step": k + 1 }, said));
  const [line, tell] = track({ name: words.steps, marks: [...states.keys()], at: 0, moved: (to) => show(to, true), label: (to) => (to ? steps[to - 1].said : words.start) });
  root.append(make("div", { class: "hand-tale" }, make("div", { class: "hand-stage" }, picture, line),
    make("div", { class: "hand-parts" }, make("p", { "data-step": 0 }, words.start), ...parts)));
  const boxed = !!root.closest(".jp-OutputArea-output"); // where a box of its own scrolls instead of the page
  root.classList.toggle("hand-boxed", boxed);

  function show(to, scrolls = false) {
    now = to;
    states[now].forEach((have, k) => have.forEach((who, j) => {
      const cell = cells[k][j];
      nodes.forEach((_, i) => cell.children[i].classList.toggle("hand-in", !!((who >> i) & 1)));
      cell.classList.toggle("hand-all", who === 2 ** nodes.length - 1);
      cell.classList.remove("hand-followed");
    }));
    const { sends = [], clock: time = "" } = steps[now - 1] ?? {}, home = sends.find(([, , key]) => key === follow);
    cells[home ? home[1] : follow % nodes.length][follow].classList.add("hand-followed");
    wires.replaceChildren(...sends.map(([src, dst, key]) => {
      const chip = make("span", { class: key === follow ? "hand-chip hand-followed" : "hand-chip" }, keys[key]);
      const [x, y] = places[src], [u, v] = places[dst];
      chip.style.cssText = `left:${x + 0.5 * (u - x)}%;top:${y + 0.5 * (v - y)}%;--from-x:${(x - u) / 4}cqw;--from-y:${(y - v) / 4}cqh`;
      chip.style.setProperty("--turn", `${Math.atan2(v - y, u - x)}rad`);
      return chip;
    }));
    clock.textContent = time;
    for (const part of root.querySelectorAll("[data-step]")) part.classList.toggle("hand-now", +part.dataset.step === now);
    if (!scrolls) return;
    since = Infinity; // not where this scroll leads to: at the ends of a page, a paragraph cannot come to the middle
    root.querySelector(`[data-step="${now}"]`).scrollIntoView({ block: "center", behavior: "instant" });
    requestAnimationFrame(() => requestAnimationFrame(() => (since = performance.now())));
  }
  const seen = new IntersectionObserver((entries) => {
    const entry = entries.find((each) => each.isIntersecting);
    if (!entry || entry.time < since || +entry.target.dataset.step === now) return;
    show(+entry.target.dataset.step);
    tell(now);
  }, { root: boxed ? root : null, rootMargin: "-48% 0px -48%" });
  for (const part of root.querySelectorAll("[data-step]")) seen.observe(part);
  show(0);
}
