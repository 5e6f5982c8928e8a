// One GPU as a vessel. The model is cut t times across, p times down, and has d copies; the vessel holds one piece of it.
function vessel(root, { words, cuts, batches, at, table, limit, most, parts, layers }) {
  const now = { ...at }, seconds = ["computing", "messages", "bubble"];
  const box = (name, ...children) => make("div", { class: name }, ...children);
  const lines = (name) => cuts.slice(0, -1).flatMap((_, k) => (k ? [...Array(cuts[k + 1] - cuts[k])] : [0])).map(() => make("i", { class: name }));
  const across = lines("hand-cut-t"), down = lines("hand-cut-p"), piece = make("i", { class: "hand-piece" });
  const copies = [...Array(6)].map((_, k, all) => make("i", { class: "hand-copy", style: `z-index:${all.length - k}` }));
  const model = box("hand-model", ...copies, make("i", { class: "hand-whole" }), piece, ...across, ...down);
  const reins = {}, tells = [];
  for (const [name, marks] of Object.entries({ t: cuts, p: cuts, batch: batches })) {
    const [line, tell] = track({ name: words[name], marks, at: at[name], upright: name === "p",
      label: (to) => `${marks[to]}. ${said({ ...now, [name]: to })}`, moved: (to) => { now[name] = to; draw(); } });
    reins[name] = line;
    tells.push(tell);
  }
  const poured = layers.map((_, k) => make("i", { class: `hand-layer hand-layer-${k}` })), over = make("i", { class: "hand-over" });
  const glass = box("hand-glass", ...poured, over, make("b", { class: "hand-rim" }, words.limit));
  const list = make("ul"), status = make("p", { class: "hand-told" }), rest = make("p", { class: "hand-rest" });
  const bar = box("hand-step", ...seconds.map((name) => make("i", { class: `hand-${name}` })), make("span", { class: "hand-between" }));
  const legend = make("p", { class: "hand-key" }), step = make("p");
  root.append(status,
    box("hand-sides", box("hand-cutting", make("label", { class: "hand-for-t" }, words.t), reins.t, make("label", { class: "hand-for-p" }, words.p), reins.p, model, rest),
      box("hand-poured", glass, list)),
    box("hand-batch", make("label", {}, words.batch), reins.batch), box("hand-times", step, bar, legend));

  function found({ t, p, batch }) {
    return table[`${cuts[t]} ${cuts[p]} ${batches[batch]}`];
  }
  function said(position) {
    const { said, refused } = found(position);
    return said ?? refused;
  }
  function draw() {
    const entry = found(now), t = cuts[now.t], p = cuts[now.p], { d, sizes = [], size = 0 } = entry;
    status.textContent = said(now);
    status.classList.toggle("hand-wrong", !entry.sizes || size > limit);
    across.forEach((line, k) => (line.style.left = `${k + 1 < t ? (100 * (k + 1)) / t : 100}%`));
    down.forEach((line, k) => (line.style.top = `${k + 1 < p ? (100 * (k + 1)) / p : 100}%`));
    piece.style.width = `${100 / t}%`;
    piece.style.height = `${100 / p}%`;
    copies.forEach((copy, k) => (copy.style.translate = k + 1 < d ? `${5 * (k + 1)}px ${-5 * (k + 1)}px` : "0 0"));
    rest.textContent = entry.rest;
    let level = 0;
    poured.forEach((layer, k) => {
      layer.style.bottom = `${(100 * level) / most}%`;
      layer.style.height = `${(100 * (sizes[k] ?? 0)) / most}%`;
      level += sizes[k] ?? 0;
    });
    over.style.height = `${(100 * Math.max(0, size - limit)) / most}%`;
    glass.style.setProperty("--rim", `${(100 * limit) / most}%`);
    list.replaceChildren(...layers.map((name, k) => make("li", { class: `hand-of-${k}` }, make("i"), `${name} `, make("b", {}, entry.shown?.[k] ?? "–"))).reverse());
    list.append(make("li", { class: size > limit ? "hand-too-much" : "" }, `${words.all} `, make("b", {}, entry.total ?? "–")));
    bar.parentNode.classList.toggle("hand-none", !entry.sizes);
    if (!entry.sizes) return;
    step.textContent = entry.step;
    seconds.forEach((_, k) => (bar.children[k].style.width = `${(100 * entry.seconds[k]) / entry.longest}%`));
    const [low, high] = entry.ends;
    bar.lastChild.style.cssText = `left:${(100 * low) / entry.longest}%;width:${(100 * (high - low)) / entry.longest}%`;
    legend.replaceChildren(...entry.parts.map((words, k) => make("span", { class: `hand-part hand-${seconds[k]}` }, make("i"), words)), entry.interval);
  }
  draw();
  for (const tell of tells) tell();
}
