// Nodes at one switch. The edge of a link follows the pointer: pulled outwards, the link gets thicker.
function wires(root, { words, size, nodes, rates, start, plans }) {
  const at = nodes.map(() => start), thickness = [6, 12, 24, 46], pull = 16; // pixels: of a link, and from one to the next
  let chosen = 0, counted = plans.map(() => 0), timer = 0;
  const links = nodes.map((node, k) => {
    const strip = make("span", { class: "hand-strip" }), label = make("b", {});
    const link = make("div", { class: "hand-wire" }, strip, label), home = node === "cpu" ? "top" : "bottom";
    let side = 1;
    const tell = slider(link, { name: fill(words.link, { node }), count: rates.length, at: start, moved: (to) => { at[k] = to; draw(); tellAll(); },
      label: (to) => `${rates[to]}. ${said(at.map((now, other) => (other === k ? to : now)))}`,
      where: (event, from) => {
        const { left, width } = link.getBoundingClientRect();
        if (event.type === "pointerdown") side = event.clientX < left + width / 2 ? -1 : 1;
        return from.at + (side * (event.clientX - from.x)) / pull;
      } });
    const name = make("span", { class: "hand-node" }, node);
    return { strip, label, tell, place: make("div", { class: `hand-place hand-${home}` }, ...(home === "top" ? [name, link] : [link, name])) };
  });
  const rows = plans.map(({ name }, k) => {
    const time = make("b", {}), bar = make("i", {});
    const button = make("button", { type: "button" }, make("span", {}, name), make("span", { class: "hand-bar" }, bar), time);
    button.addEventListener("click", () => { chosen = k; draw(); tellAll(); });
    return { button, bar, time };
  });
  const status = make("p", { class: "hand-told" });
  const row = (home) => make("div", { class: "hand-places" }, ...links.filter((_, k) => (nodes[k] === "cpu") === (home === "top")).map(({ place }) => place));
  root.append(make("div", { class: "hand-ways", role: "group", "aria-label": words.pick }, ...rows.map(({ button }) => button)), status,
    make("div", { class: "hand-server" }, row("top"), make("div", { class: "hand-switch" }, "switch"), row("bottom")), make("p", { class: "hand-key" }, words.key));

  // The run of a plan: its table has a row for each position of its own links, the last one turning fastest.
  function run(plan, places) {
    const which = plan.nodes.reduce((number, node) => number * rates.length + places[node], 0);
    return { ms: plan.ms[which], decide: plan.decide[which] };
  }
  function said(places) {
    const { ms, decide } = run(plans[chosen], places);
    const why = decide.length ? fill(words.decides, { links: decide.map((node) => nodes[node]).join(", ") }) : words.spread;
    return `${plans[chosen].name}, ${size}: ${ms} ms. ${why}`;
  }
  const tellAll = () => links.forEach(({ tell }) => tell());
  function draw() {
    const runs = plans.map((plan) => run(plan, at)), most = Math.max(...plans.flatMap(({ ms }) => ms));
    const { decide } = runs[chosen], used = plans[chosen].nodes;
    links.forEach(({ strip, label, place }, k) => {
      strip.style.width = `${thickness[at[k]]}px`;
      label.textContent = rates[at[k]];
      place.classList.toggle("hand-decides", decide.includes(k));
      place.classList.toggle("hand-unused", !used.includes(k));
    });
    rows.forEach(({ button, bar }, k) => {
      button.setAttribute("aria-pressed", k === chosen);
      bar.style.width = `${(100 * runs[k].ms) / most}%`;
    });
    status.textContent = said(at);
    count(runs.map(({ ms }) => ms));
  }
  // Lets the milliseconds run to their new values.
  function count(to) {
    const from = counted, began = performance.now(), wait = matchMedia("(prefers-reduced-motion: reduce)").matches ? 0 : 350;
    cancelAnimationFrame(timer);
    const frame = (now) => {
      const part = wait ? Math.min(1, Math.max(0, now - began) / wait) : 1;
      counted = to.map((ms, k) => (part === 1 ? ms : from[k] + part * (ms - from[k])));
      rows.forEach(({ time }, k) => (time.textContent = `${part === 1 ? to[k] : counted[k].toFixed(0)} ms`));
      if (part < 1) timer = requestAnimationFrame(frame);
    };
    frame(began + (from.some(Boolean) ? 0 : wait));
  }
  draw();
  tellAll();
}
