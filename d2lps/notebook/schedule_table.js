// The table of a pipeline that the reader edits: devices × slots. The law is that of d2lps.schedule.pipelines, with one
// slot per task; the sentences come with the data, and no kernel is needed. A row is a list of [kind, micro-batch, stage].

const range = (count) => [...Array(Math.max(0, count)).keys()];
const fill = (words, values) => words.replace(/\{(\w+)\}/g, (_, name) => values[name]);

// GPipe, 1F1B, interleaved and ZB-H1 for p devices, m micro-batches and v stages per device.
const MAKE = {
  gpipe: (p, m) => range(p).map((s) => ["F", "B"].flatMap((kind) => range(m).map((i) => [kind, i, s]))),
  "1f1b": (p, m) => range(p).map((s) => alternate(Math.min(m, p - s), m, (kind, i) => [[kind, i, s]])),
  interleaved(p, m, v) {
    const groups = Math.max(1, Math.floor(m / p)), size = m / groups;
    if (m % groups) return null;
    const cell = (kind, k, d) => {
      const chunk = Math.floor(k / size) % v;
      return [kind, Math.floor(k / (size * v)) * size + (k % size), (kind === "B" ? v - 1 - chunk : chunk) * p + d];
    };
    return range(p).map((d) => alternate(Math.min(m * v, 2 * (p - d - 1) + (v - 1) * size + 1), m * v, (kind, k) => [cell(kind, k, d)]));
  },
  "zb-h1": (p, m) => range(p).map((s) => {
    const row = alternate(Math.min(m, p - s), m, (kind, i) =>
      kind === "F" ? [["F", i, s]] : i < s ? [["I", i, s]] : [["I", i, s], ["W", i - s, s]]);
    return [...row, ...range(m).filter((i) => i >= m - s).map((i) => ["W", i, s])];
  }),
};

// `ahead` forward passes, then backward and forward passes in turn.
function alternate(ahead, count, cells) {
  const row = range(ahead).flatMap((k) => cells("F", k));
  for (const k of range(count)) row.push(...cells("B", k), ...(ahead + k < count ? cells("F", ahead + k) : []));
  return row;
}

// What a task needs: each item is a list of tasks, any of which will do.
function needs([kind, i, stage], last) {
  if (kind === "F") return stage ? [[`F ${i} ${stage - 1}`]] : [];
  if (kind === "W") return [[`I ${i} ${stage}`]];
  return [[`F ${i} ${stage}`], ...(stage < last ? [[`B ${i} ${stage + 1}`, `I ${i} ${stage + 1}`]] : [])];
}

// The slot of each task if it starts as soon as it can, in the order of its row; of those that never start, undefined.
function settle(rows) {
  const last = Math.max(...rows.flat().map((cell) => cell[2])), ends = new Map();
  const slots = rows.map(() => []), free = rows.map(() => 0), waits = [];
  for (let moved = true; moved;) {
    moved = false;
    rows.forEach((row, d) => {
      for (let k; (k = slots[d].length) < row.length; moved = true) {
        const inputs = needs(row[k], last).map((any) => any.find((task) => ends.has(task)));
        if (inputs.includes(undefined)) return;
        const start = Math.max(free[d], ...inputs.map((task) => ends.get(task)));
        slots[d].push(start);
        free[d] = start + 1;
        if (!ends.has(row[k].join(" "))) ends.set(row[k].join(" "), start + 1);
      }
    });
  }
  rows.forEach((row, d) => {
    const cell = row[slots[d].length];
    if (cell) waits.push([d, cell, needs(cell, last).find((any) => !any.some((task) => ends.has(task)))]);
  });
  return { slots, waits, length: Math.max(0, ...free) };
}

// Whether a table can be done, or the reason why not; its bubbles; the most micro-batches that each device saves.
export function judge(rows, room = null) {
  const home = new Map(), count = new Map(), node = (d) => `gpu${d}`;
  rows.forEach((row, d) => row.forEach(([kind, i, stage]) => home.set(stage, d)));
  const several = home.size > new Set(home.values()).size;
  const label = (kind, i, stage) => (several ? `${kind}${stage}.${i}` : `${kind}${i}`);
  const peaks = rows.map((row) => {
    let saved = 0;
    return Math.max(0, ...row.map(([kind]) => (saved += { F: 1, I: 0, B: -1, W: -1 }[kind])));
  });
  const { slots, waits, length } = settle(rows), tasks = rows.flat().length, whole = length * rows.length;
  const result = { label, several, peaks, slots, length, total: (whole - tasks) / whole, relative: (whole - tasks) / tasks };
  const wrong = (reason, values) => ({ ...result, reason, values });

  const stages = [...home.keys()].sort((a, b) => a - b);
  if (!stages.length || stages.some((stage, k) => stage !== k)) return wrong("stages", { stages: stages.join(" ") });
  for (const [d, row] of rows.entries()) for (const [kind, i, stage] of row) {
    if (home.get(stage) !== d) return wrong("two-homes", { stage, nodes: `${node(d)} ${node(home.get(stage))}` });
    const name = `${kind} ${i} ${stage}`;
    count.set(name, (count.get(name) ?? 0) + 1);
  }
  for (const name of count.keys()) {
    const [kind, i, stage] = name.split(" "), forward = `F ${i} ${stage}`;
    if (count.has(forward)) continue;
    return wrong("backward-alone", { node: node(home.get(+stage)), cell: label(kind, i, stage), missing: label("F", i, stage) });
  }
  const batches = [...new Set(rows.flat().map((cell) => cell[1]))].sort((a, b) => a - b);
  for (const stage of home.keys()) for (const i of batches) {
    const split = ["I", "W"].some((kind) => count.has(`${kind} ${i} ${stage}`));
    for (const kind of split ? "FIWB" : "FB") {
      const times = count.get(`${kind} ${i} ${stage}`) ?? 0, once = split && kind === "B" ? 0 : 1;
      if (times !== once) return wrong(times ? "cell-twice" : "cell-missing", { node: node(home.get(stage)), cell: label(kind, i, stage) });
    }
  }
  if (waits.length) return wrong("deadlock", { waits: waits.map(([d, cell, any]) => {
    const missing = any.find((task) => count.has(task)).split(" ");
    return { node: node(d), cell: label(...cell), other: label(...missing), by: node(home.get(+missing[2])) };
  }) });
  const over = rows.flatMap((row, d) => {
    let saved = 0;
    const k = row.findIndex(([kind]) => (saved += { F: 1, I: 0, B: -1, W: -1 }[kind]) > (room ?? Infinity));
    return k < 0 ? [] : [[slots[d][k], d, k]];
  }).sort((a, b) => a[0] - b[0])[0];
  if (over) return wrong("memory", { node: node(over[1]), cell: label(...rows[over[1]][over[2]]), needed: room + 1, room });
  return { ...result, reason: null, values: { slots: length } };
}

// The table that torch prints (a column per rank), or that is in a CSV file of torchtitan (a row per rank).
export function read(text) {
  const lines = text.split(/\r?\n/).filter((line) => line.trim());
  const starts = [...(lines[0] ?? "").matchAll(/Rank \d+/g)].map((match) => match.index);
  const [first, ...steps] = lines, unlike = { reason: "not-a-grid", values: { line: `'${(first ?? "").slice(0, 60)}'` } };
  if (starts.length && steps.some((line) => !line.trimStart().startsWith("Step "))) return unlike;
  const ranks = starts.length
    ? starts.map((at, rank) => steps.map((line) => line.slice(at, starts[rank + 1]).trim()))
    : lines.map((line) => line.split(",").map((cell) => cell.trim()));
  const rows = ranks.map(() => []);
  for (const [rank, cells] of ranks.entries()) for (const [slot, cell] of cells.entries()) {
    if (!cell || cell === "None" || /^\d+(UNSHARD|RESHARD|REDUCE_GRAD|SEND_F|RECV_F|SEND_B|RECV_B)\d*$/.test(cell)) continue;
    for (const task of (/^\((.*)\)OVERLAP_F_B$/.exec(cell)?.[1] ?? cell).split(";")) {
      const [, stage, kind, i] = /^(\d+)([FBIW])(\d+)$/.exec(task.trim()) ?? [];
      if (!kind) return { reason: "not-a-cell", values: { rank, slot, cell: `'${cell}'` } };
      rows[rank].push([kind, +i, +stage]);
    }
  }
  return rows.flat().length ? { rows } : unlike;
}

// Shows the editor in `el`; `changed` gets the rows after each edit.
export function edit(el, data, changed = () => {}) {
  const { words, hues } = data;
  let { rows } = data, undone = [], at = [0, 0], held = false, shown, unread = null;
  const make = (name, look = {}, ...children) => {
    const node = document.createElement(name);
    for (const [key, value] of Object.entries(look)) node.setAttribute(key, value);
    node.append(...children);
    return node;
  };
  const menu = (name, options, value, does = () => choose()) => {
    const select = make("select", {}, ...options.map(([key, label]) => make("option", { value: key }, label)));
    select.value = value;
    select.addEventListener("change", () => does());
    return [make("label", {}, make("span", {}, words[name]), select), select];
  };
  const counts = (least, most) => range(most - least + 1).map((k) => [least + k, least + k]);
  const [kinds, kind] = menu("schedule", [...Object.keys(MAKE), "own"].map((key) => [key, words[key]]), data.kind);
  const [devices, p] = menu("devices", counts(1, 8), rows.length);
  const [batches, m] = menu("micro", counts(1, 16), data.micro);
  const [chunks, v] = menu("chunks", counts(2, 4), data.chunks);
  const [rooms, room] = menu("room", [["", words.unlimited], ...counts(1, 16)], data.room ?? "", () => draw());
  const act = (name, sign, does) => {
    const button = make("button", { type: "button", "aria-label": words[name], title: words[name] }, sign);
    button.addEventListener("click", does);
    return button;
  };
  const tools = make("div", { class: "d2-edit-tools", role: "group", "aria-label": words.cell },
    act("left", "←", () => shift(0, -1)), act("right", "→", () => shift(0, 1)), act("up", "↑", () => shift(-1, 0)),
    act("down", "↓", () => shift(1, 0)), act("empty", "✕", empty), act("undo", "↶", undo), act("reset", "⟲", () => (kind.value === "own" ? change(data.rows) : choose())));
  const verdict = make("p", { class: "d2-verdict", role: "status" });
  const facts = make("div", { class: "d2-facts" }), grid = make("div", { class: "d2-grid", role: "grid", "aria-label": words.grid });
  const field = make("textarea", { rows: 7, spellcheck: "false", autocapitalize: "off", wrap: "off", "aria-label": words.field });
  field.value = data.paste;
  const button = make("button", { type: "button" }, words.read);
  button.addEventListener("click", () => {
    const found = read(field.value);
    unread = found.rows ? null : found;
    kind.value = "own";
    if (found.rows) change(found.rows);
    else draw();
    verdict.scrollIntoView({ block: "nearest" });
  });
  const paste = make("details", {}, make("summary", {}, words.paste), field, button);
  const wide = make("div", { class: "d2-grid-room" }, grid);
  const more = () => wide.classList.toggle("d2-more", wide.scrollLeft + wide.clientWidth < wide.scrollWidth - 1);
  wide.addEventListener("scroll", more, { passive: true });
  const watching = new ResizeObserver(more);
  watching.observe(wide);
  watching.observe(grid);
  const root = make("div", { class: "d2lps d2-edit", lang: data.lang, "data-lm-suppress-shortcuts": "true" },
    make("div", { class: "d2-edit-menus" }, kinds, devices, batches, chunks, rooms), verdict, facts,
    wide, tools, make("p", { class: "d2-edit-keys" }, words.keys), paste);

  function choose() {
    const made = kind.value === "own" ? rows : MAKE[kind.value](+p.value, +m.value, +v.value);
    unread = made ? null : { reason: "uneven-groups", values: { micro: m.value, devices: p.value } };
    held = false;
    if (made) change(made);
    else draw();
  }
  function change(next, focus = null) {
    if (next !== rows) undone.push([rows, at]);
    rows = next.map((row) => [...row]);
    if (focus) at = focus;
    draw();
    changed(rows);
  }
  function undo() {
    const last = undone.pop();
    if (!last) return;
    [rows, at] = last;
    unread = null;
    draw();
    changed(rows);
  }
  // Moves a cell to a device, before its k-th other task.
  function put([from, which], to, k) {
    const next = rows.map((row) => [...row]), [cell] = next[from].splice(which, 1);
    k = Math.max(0, Math.min(k, next[to].length));
    next[to].splice(k, 0, cell);
    unread = null;
    change(next, [to, k]);
  }
  function shift(down, right) {
    const [d, k] = at, to = d + down;
    if (!rows[d]?.[k] || to < 0 || to >= rows.length) return;
    if (right && !rows[d][k + right]) return;
    put(at, to, down ? nearest(to, slotOf(d, k)) : k + right);
  }
  function empty() {
    const [d, k] = at;
    if (!rows[d]?.[k]) return;
    held = false;
    unread = null;
    change(rows.map((row, other) => row.filter((_, index) => other !== d || index !== k)), [d, Math.max(0, k - 1)]);
  }
  const slotOf = (d, k) => places[d][k];
  const nearest = (d, slot) => places[d].filter((other) => other < slot).length;
  let places = [];

  function sentence({ reason, values }) {
    if (!reason) return fill(words.legal, values);
    if (reason !== "deadlock") return fill(words[reason], values);
    const waits = values.waits.slice(0, 3).map((wait) => fill(words[wait.by === wait.node ? "waits-own" : "waits"], wait));
    return fill(words.deadlock, { waits: waits.join("; ") + (values.waits.length > 3 ? " …" : "") });
  }
  function draw() {
    shown = judge(rows, room.value ? +room.value : null);
    const { reason, peaks, several, label, length } = shown, numbers = [...new Set(rows.flat().map((cell) => cell[1]))].sort((a, b) => a - b);
    // Tasks that never start stand behind those that do.
    places = rows.map((row, d) => row.map((_, k) => shown.slots[d][k] ?? (shown.slots[d].at(-1) ?? -1) + 1 + k - shown.slots[d].length));
    const slots = Math.max(length, ...places.flat().map((slot) => slot + 1)), bad = unread ?? (reason ? shown : null);
    verdict.classList.toggle("d2-wrong", !!bad);
    verdict.textContent = `${bad ? "✗" : "✓"} ${sentence(bad ?? shown)}`;
    const percent = (value) => (bad ? "–" : `${+(100 * value).toPrecision(3)} %`);
    facts.replaceChildren(...[["total", percent(shown.total)], ["relative", percent(shown.relative)], ["slots", bad ? "–" : length]].map(
      ([name, value]) => make("span", {}, `${words[name]} `, make("b", {}, String(value)))));
    chunks.hidden = kind.value !== "interleaved";
    for (const one of [devices, batches]) one.hidden = kind.value === "own";
    at = [Math.min(at[0], rows.length - 1), at[1]];
    at[1] = Math.max(0, Math.min(at[1], rows[at[0]].length - 1));
    if (!rows[at[0]].length) at = [Math.max(0, rows.findIndex((row) => row.length)), 0];
    grid.style.setProperty("--slots", slots);
    grid.classList.toggle("d2-broad", several);
    const head = make("div", { role: "row" }, make("span", { role: "columnheader", class: "d2-grid-name" }, words.slot),
      ...range(slots).map((slot) => make("span", { role: "columnheader" }, String(slot))), make("span", { role: "columnheader", class: "d2-grid-peak" }, words.peak));
    const most = Math.max(1, ...peaks, +room.value);
    const focused = grid.contains(el.getRootNode().activeElement);
    grid.replaceChildren(head, ...rows.map((row, d) => {
      const cells = range(slots).map(() => make("span", { role: "gridcell", class: "d2-idle-cell" }));
      row.forEach(([name, i, stage], k) => {
        const hue = numbers.indexOf(i) % hues.length, mine = at[0] === d && at[1] === k;
        const cell = make("span", { role: "gridcell", tabindex: mine ? 0 : -1, "data-at": `${d} ${k}`, "aria-selected": held && mine,
          class: `d2-task d2-task-${name} d2-on${hues[hue][name]}${shown.slots[d][k] === undefined ? " d2-stuck" : ""}`,
          style: `--hue:var(--d2-w${hue})` }, label(name, i, stage));
        cells[places[d][k]] = cell;
      });
      const bar = make("i", { style: `width:${(100 * peaks[d]) / most}%` });
      const over = room.value && peaks[d] > +room.value ? " d2-over-room" : "";
      return make("div", { role: "row" }, make("span", { role: "rowheader", class: "d2-grid-name" }, `gpu${d}`), ...cells,
        make("span", { role: "gridcell", class: `d2-grid-peak${over}` }, make("span", {}, bar), room.value ? `${peaks[d]} / ${room.value}` : String(peaks[d])));
    }));
    if (focused) focus();
  }
  const focus = () => grid.querySelector("[tabindex='0']")?.focus();

  const where = (target) => target.closest?.("[data-at]")?.dataset.at.split(" ").map(Number);
  function point(to, take) {
    at = to;
    held = take;
    draw();
    focus();
  }
  grid.addEventListener("keydown", (event) => {
    const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (event.altKey || ((event.ctrlKey || event.metaKey) && event.key !== "z")) return;
    at = where(event.target) ?? at;
    const [d, k] = at;
    if (steps && held) shift(...steps);
    else if (steps) {
      const to = Math.max(0, Math.min(rows.length - 1, d + steps[0]));
      point([to, Math.max(0, Math.min(rows[to].length - 1, steps[0] ? nearest(to, slotOf(d, k)) : k + steps[1]))], false);
    } else if (event.key === "Enter" || event.key === " ") point(at, !held);
    else if (event.key === "Escape") point(at, false);
    else if (event.key === "Delete" || event.key === "Backspace") empty();
    else if (event.key === "z" && (event.ctrlKey || event.metaKey)) undo();
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  grid.addEventListener("pointerdown", (event) => {
    const from = where(event.target), cell = event.target.closest("[data-at]");
    if (!from || event.button) return;
    const dragged = event.pointerType !== "touch", { clientX: x, clientY: y } = event;
    const move = ({ clientX, clientY }) => {
      if (!dragged || Math.hypot(clientX - x, clientY - y) < 4) return;
      cell.classList.add("d2-dragged");
      cell.style.transform = `translate(${clientX - x}px,${clientY - y}px)`;
    };
    const end = ({ clientX, clientY, type }) => {
      for (const [name, does] of [["pointermove", move], ["pointerup", end], ["pointercancel", end]]) removeEventListener(name, does);
      const moved = cell.classList.contains("d2-dragged");
      if (type === "pointercancel" || !moved) return type === "pointerup" && point(from, !(held && String(at) === String(from)));
      const lines = [...grid.querySelectorAll("[role=rowheader]")].map((name) => name.getBoundingClientRect());
      const to = lines.findIndex((line) => clientY >= line.top && clientY <= line.bottom);
      if (to < 0) return draw();
      const others = [...grid.querySelectorAll(`[data-at^="${to} "]`)].filter((other) => other !== cell);
      held = true;
      put(from, to, others.filter((other) => other.getBoundingClientRect().x + other.offsetWidth / 2 < clientX).length);
      focus();
    };
    for (const [name, does] of [["pointermove", move], ["pointerup", end], ["pointercancel", end]]) addEventListener(name, does);
    if (dragged) event.preventDefault();
  });
  draw();
  el.replaceChildren(...[...el.children].filter((child) => ["STYLE", "SCRIPT"].includes(child.tagName)), root);
}

export default { render: ({ model, el }) => edit(el, model.get("data"), (rows) => { model.set("rows", rows); model.save_changes(); }) };
