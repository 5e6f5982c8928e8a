// Moves the pictures of d2lps.view.drawing: every number, path and word comes with the data, and no kernel is needed.

const TICKS = 1e6;
const SPEEDS = [0.25, 0.5, 1, 2, 4];
const LENGTH = 8; // least seconds of the longest trace at 1×
const LEAST = 1.5; // the longest trace takes more if the shortest would take less than this,
const MOST = 60; // but never more than this
const GLIDE = 0.45; // seconds of a step by hand
const LEAST_TEXT = 9.2; // pixels of the smallest words
const CROWD = 8; // nodes of a race that is shown without details
const NEAR = 30; // pixels between the play-head and the edge of lanes that move with it
const KEY = 14; // units of the largest name of a key
const ICONS = {
  restart: "M3 3h2v12H3zM15 3v12L6 9z",
  back: "M11 3v12L4 9zM13 3h2v12h-2z",
  play: "M5 2l11 7-11 7z",
  pause: "M4 2h4v14H4zM10 2h4v14h-4z",
  forward: "M7 3v12l7-6zM3 3h2v12H3z",
};

export default { render: ({ model, el }) => play(el, model.get("data")) };

function make(name, attributes = {}, ...children) {
  const drawn = ["svg", "g", "path", "rect"].includes(name);
  const node = drawn ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

// The pictures that are in the page already, or those that came with the data.
function pictures(el, data) {
  const box = document.createElement("template");
  box.innerHTML = (data.stills ?? []).join("");
  return [...el.querySelectorAll("svg.d2-still"), ...box.content.children];
}

// Walks columns [time, place, before, after] in either direction, and calls `become` with the new state of each place.
function walk([time = [], place, before, after], become) {
  let next = 0;
  return (tick) => {
    for (; next < time.length && time[next] <= tick; next++) become(place[next], after[next]);
    for (; next > 0 && time[next - 1] > tick; next--) become(place[next - 1], before[next - 1]);
  };
}

// The trace of a schedule: letters on its tasks, and a memory bar for each device.
function lanes(run, data, scene) {
  const { words } = data, [long, peak] = run.gauge;
  const bars = [...scene.querySelectorAll(".d2-memory")], amounts = [...scene.querySelectorAll(".d2-amount")];
  const held = run.nodes.map(() => 0), peaks = amounts.map((words) => words.textContent); // the still has the peaks
  const bar = (node, bytes, sentence) => {
    bars[node].setAttribute("width", ((long * bytes) / peak).toFixed(1));
    tell(amounts[node], bytes ? sentence : ""); // an empty bar says so itself
  };
  const heading = make("div", { class: "d2-heading" }, words.memory);
  scene.querySelector(".d2-held")?.remove(); // a heading beside the lanes takes its place
  const walked = walk(run.memory, (node, bytes) => {
    held[node] = bytes;
    bar(node, bytes, amount(bytes, data.unit));
  });
  let over = false;
  function show(tick) {
    walked(tick);
    if (over === (over = tick >= TICKS)) return;
    held.forEach((bytes, node) => (over ? bar(node, run.peaks[node], peaks[node]) : bar(node, bytes, amount(bytes, data.unit))));
  }
  const letters = run.letters.map(([x, y, width, height, , , color]) => make("span", { class: `d2-cell d2-on${color}`, "aria-hidden": "true",
    style: `left:${x}%;width:${width}%;top:${y}px;height:${height}px;line-height:${height}px` }));
  const [start = [], end, lane, title] = run.blocks;
  return {
    heading,
    letters,
    show,
    // The whole label of a task where it has room, else its shortest label, else nothing.
    fit: (room) => run.letters.forEach(([, , width, , label, least], i) =>
      tell(letters[i], [label, least, ""].find((all) => 6.4 * all.length + 2 <= (width * room) / 100 || !all))),
    node: (i) => fillIn(run.limits[i] === null ? words.holds : words.limited, { node: run.nodes[i], now: amount(held[i], data.unit),
      peak: amount(run.peaks[i], data.unit), limit: amount(run.limits[i] ?? 0, data.unit) }),
    at(tick, at, clock) {
      const wanted = 2 * Math.floor(at) + (at % 1 > 0.72 ? 1 : 0), near = TICKS / 400;
      const here = [...start.keys()].filter((i) => lane[i] === wanted && start[i] - near * (wanted % 2) <= tick && tick < end[i] + near * (wanted % 2));
      return here.slice(0, 3).map((i) => fillIn(words.task, { label: run.titles[title[i]], start: clock(start[i]), end: clock(end[i]) })).join("; ");
    },
  };
}

// One trace: its picture, its clock, its timeline. Its `show` draws a frame.
function perform(run, still, data, longest) {
  const { words, runs } = data;
  const scene = still.querySelector(".d2-scene");
  const time = still.querySelector(".d2-time");
  const fills = [...scene.querySelectorAll(".d2-fill")];
  const shares = [...scene.querySelectorAll(".d2-share")];
  const tanks = [...scene.querySelectorAll(".d2-tank")];
  const lefts = [...scene.querySelectorAll(".d2-left")];
  // Nodes are drawn in the order of the layout, which need not be that of the plan.
  const nodes = new Map([...scene.querySelectorAll(".d2-node")].map((box) => [box.querySelector("title").textContent, box]));
  const boxes = run.nodes.map((name) => nodes.get(name));
  const tiles = scene.querySelector(".d2-tiles");
  for (const svg of [scene, time]) for (const name of ["x", "y", "width", "height"]) svg.removeAttribute(name);
  tiles.replaceChildren();
  time.querySelector(".d2-head")?.remove();
  const table = run.memory && lanes(run, data, scene);

  const clock = make("span", { class: "d2-clock" });
  const step = make("span", { class: "d2-step" });
  const head = make("div", { class: "d2-head" });
  const full = make("span", { class: "d2-full-links" });
  const decides = make("span", { class: "d2-decider" });
  const atWork = make("i", {});
  const [mean, why] = run.reason;
  const caption = make("p", { class: "d2-said", role: "status" });
  const labels = run.labels.map(([number, middle]) => make("span", { style: `left:${100 * middle}%` }, number));
  const portion = longest ? run.duration / longest : 1;
  const width = `width:${100 * portion}%`;
  const size = { class: `d2-run${runs.some((other) => other.nodes.length > 8) ? " d2-dense" : ""}${table ? " d2-lanes" : ""}`, style: `--d2-rows:${run.nodes.length}` };
  if (run.name) size["aria-label"] = run.name;
  const root = make("section", size,
    make("header", {}, make("b", {}, run.name), make("span", { class: "d2-where" }, run.where),
      make("span", { class: "d2-now" }, make("span", {}, clock, " ", step),
        ...(runs[1] && !data.zoom ? [make("strong", { class: "d2-finish" }, run.finish)] : []))),
    make("div", { class: run.links ? "d2-state" : "d2-state d2-unknown" }, make("span", { class: "d2-at-work" }, atWork),
      make("span", {}, full, make("span", { class: "d2-mean" }, mean)),
      make("span", {}, decides, make("span", { class: run.awaited ? "d2-why d2-awaited" : "d2-why" }, why))),
    make("div", { class: "d2-stage" }, ...(table ? [] : [scene])),
    make("div", table ? { class: "d2-rows d2-table", style: `--d2-row:${run.row}px` } : { class: "d2-rows" },
      make("div", { class: "d2-names" }, ...run.nodes.map((name) => make("span", { title: name }, name))),
      make("div", { class: "d2-steps" }, make("div", { style: width }, ...labels)),
      make("div", { class: "d2-all" },
        make("div", { class: "d2-track", style: table ? `width:calc(${portion}*var(--d2-axis))` : width }, time, ...(table ? table.letters : []), head)),
      ...(table ? [table.heading, scene] : [])),
    caption);
  const track = root.querySelector(".d2-all");
  // Its line in the list of runs beside the controls, which is visible if not all runs are abreast.
  const progress = make("i", {}), elapsed = make("span", {}), links = make("span", { class: "d2-told" });
  const standing = make("div", {}, make("b", {}, run.name), make("span", {}, make("span", { style: width }, progress)), elapsed, links);

  // The contents of each cell.
  const cells = run.first.slice(), keys = run.cell[0].length;
  const has = run.looks.map(([who]) => new Set(who));
  const stale = new Set(fills.keys());
  const paths = fills.map((group) => [...group.querySelectorAll("path:not(.d2-gaps)")]);
  const drawn = paths.map((all) => all.map(() => null));
  const contents = walk(run.changes, (cell, look) => {
    cells[cell] = look;
    stale.add(Math.floor(cell / keys));
  });
  function fill(node) {
    const looks = cells.slice(node * keys, node * keys + keys);
    const pick = (pieces, wanted) => looks.map((look, key) => (wanted(look) ? pieces[key] : "")).join("");
    const [slot, hatch, frame] = run.cell;
    const shapes = Array.from({ length: run.workers }, (_, worker) => pick(slot, (look) => has[look].has(worker)));
    shapes.push(pick(hatch, (look) => run.looks[look][2]), pick(frame, (look) => run.looks[look][1]));
    shapes.forEach((d, i) => {
      if (drawn[node][i] !== d) paths[node][i].setAttribute("d", (drawn[node][i] = d));
    });
  }

  // The states of links: idle, in use, at full speed, or deciding; and the number at full speed.
  const marked = new Set();
  let deciding = -1, filled = 0, worked = null;
  function share(place, state) {
    shares[place].setAttribute("class", `d2-share${data.states[state]}${marked.has(shares[place]) ? " d2-shown" : ""}`);
  }
  shares.forEach((_, place) => share(place, 0));
  const states = walk(run.states, share);
  const decisions = walk(run.deciding, (_, place) => { deciding = place; });
  const fullness = walk(run.full, (_, count) => { filled = count; });

  // The backlog of each link: a bar with a color for each sender.
  const hues = 1 + Math.max(0, ...run.colors) + 1;
  const left = new Float64Array(run.places.length * hues);
  const bars = tanks.map((tank) => { tank.replaceChildren(); return []; });
  const drawnLeft = run.places.map(() => 0), sums = run.places.map(() => 0), numbers = run.places.map(() => null);
  const seen = (0.25 * data.peak) / run.long;
  let fresh = true;
  function backlogs(tick) {
    left.fill(0);
    for (let i = 0; i < start.length; i++) {
      if (!live[i]) continue;
      const [src, , passed] = run.ways[way[i]];
      const bytes = ((end[i] - tick) / (end[i] - start[i])) * run.sizes[bulk[i]];
      for (const place of passed) left[place * hues + run.colors[src] + 1] += bytes;
    }
    for (let place = 0; place < tanks.length; place++) {
      let sum = 0;
      for (let hue = 0; hue < hues; hue++) sum += left[place * hues + hue];
      sums[place] = sum;
      const shown = sum > 0 && (run.label_level || place === deciding) ? amount(sum, data.unit, run.label_level === 1) : "";
      if (numbers[place] !== shown) {
        lefts[place].style.display = shown ? "inline" : "none";
        lefts[place].textContent = numbers[place] = shown;
      }
      // While the same messages are under way, a change too small to see waits for a later frame.
      if (!fresh && Math.abs(sum - drawnLeft[place]) < seen) continue;
      drawnLeft[place] = sum;
      // The grey of servers comes first, then the workers in their order.
      for (let hue = 0, far = 0; hue < hues; hue++) {
        const long = (left[place * hues + hue] / (data.peak || 1)) * run.long;
        if (!long && !bars[place][hue]) continue;
        const bar = (bars[place][hue] ??= tanks[place].appendChild(make("rect", { y: -4, height: 8,
          class: hue ? `d2-w${(hue - 1) % data.palette}` : "d2-soft" })));
        bar.setAttribute("x", far.toFixed(1));
        bar.setAttribute("width", long.toFixed(1));
        far += long;
      }
    }
    tell(full, run.links ? fillIn(words.full, { full: filled, links: run.links }) : "");
    const part = (tick < TICKS ? filled : run.mean) / (run.links || 1);
    if (part !== worked) atWork.style.transform = `scaleX(${(worked = part)})`;
    fresh = false;
    const sum = deciding < 0 ? 0 : sums[deciding];
    tell(decides, loss || (sum ? fillIn(words.togo, { place: run.places[deciding], size: amount(sum, data.unit) }) : ""));
  }

  boxes.forEach((box) => box.classList.remove("d2-working", "d2-gone"));
  const deaths = walk(run.gone ?? [], (node, on) => boxes[node].classList.toggle("d2-gone", on > 0));
  let loss = ""; // the sentence about the dead
  const losses = walk(run.losses ?? [], (_, sentence) => { loss = sentence; });
  const works = walk(run.work, (node, on) => boxes[node].classList.toggle("d2-working", on > 0));

  // The messages under way.
  const routes = run.routes.map((points) => {
    const far = [0];
    for (let i = 2; i < points.length; i += 2) {
      far.push(far[far.length - 1] + Math.hypot(points[i] - points[i - 2], points[i + 1] - points[i - 1]));
    }
    return { points, far };
  });
  const many = Math.max(0, ...run.messages.map((column) => column.length));
  const columns = run.messages.map((column) => (column.length ? column : new Array(many).fill(0)));
  const [start = [], end, route, key, look, behind, last, way, bulk] = columns;
  const live = start.map(() => null);
  function tile(i) {
    const [who, complete, updated] = run.looks[look[i]];
    const [sheet, layer, shading] = run.tile.map((pieces) => pieces[key[i]]);
    const lift = (worker) => `translate(0 ${run.levels[worker]})`;
    const parts = who.map((worker) => make("path", { class: `d2-w${worker % data.palette}`, d: layer, transform: lift(worker) }));
    if (updated) parts.push(make("path", { class: "d2-new", d: shading }));
    return make("g", complete ? { class: "d2-full" } : {}, make("path", { class: "d2-tile", d: sheet }), ...parts);
  }
  function move(i, tick) {
    const { points, far } = routes[route[i]];
    const all = far[far.length - 1], whole = all + last[i];
    const done = (tick - start[i]) / (end[i] - start[i]);
    const s = Math.max(0, Math.min(all, done * whole - behind[i]));
    let k = 1;
    while (k < far.length - 1 && far[k] < s) k++;
    const part = (s - far[k - 1]) / (far[k] - far[k - 1] || 1);
    const x = points[2 * k - 2] + (points[2 * k] - points[2 * k - 2]) * part;
    const y = points[2 * k - 1] + (points[2 * k + 1] - points[2 * k - 1]) * part;
    const grown = Math.max(0, 1 - (Math.min(done, 1 - done) * whole) / run.reach);
    const [width, height] = run.growth[key[i]].map((size) => 1 + (size - 1) * grown);
    const scaled = grown ? ` scale(${width.toFixed(3)} ${height.toFixed(3)})` : "";
    live[i].setAttribute("transform", `translate(${x.toFixed(1)} ${y.toFixed(1)})${scaled}`);
    live[i].firstChild.style.opacity = grown ? 1 - grown : "";
  }

  // Lanes that are longer than their window move on with the play-head; an edge beyond which there is more is pale.
  let beyond = 0;
  function follow(tick) {
    if (!beyond && !track.scrollLeft && !track.classList.contains("d2-before")) return;
    const far = (tick / TICKS) * (beyond + track.clientWidth), from = track.scrollLeft, room = track.clientWidth - NEAR;
    const to = Math.max(0, Math.min(beyond, Math.max(far - room, Math.min(from, far - NEAR))));
    if (to !== from) track.scrollLeft = to;
    track.classList.toggle("d2-before", to > 1);
    track.classList.toggle("d2-beyond", to < beyond - 1);
  }

  function show(seconds) {
    const over = seconds >= run.duration;
    const tick = over ? TICKS : Math.round((seconds / run.duration) * TICKS);
    contents(tick);
    stale.forEach(fill);
    stale.clear();
    states(tick);
    decisions(tick);
    fullness(tick);
    works(tick);
    deaths(tick);
    losses(tick);
    table?.show(tick);
    ticked = tick;
    for (let i = 0; i < start.length; i++) {
      if (start[i] <= tick && tick < end[i]) {
        if (!live[i]) {
          tiles.append((live[i] = tile(i)));
          fresh = true;
        }
        move(i, tick);
      } else if (live[i]) {
        live[i].remove();
        live[i] = null;
        fresh = true;
      }
    }
    backlogs(tick);
    head.style.transform = `translateX(${tick / 1e4}%)`;
    if (table) follow(tick);
    const now = fillIn(words.clock, { now: over ? run.end : format(seconds, run.end), end: run.end });
    tell(clock, now);
    progress.style.transform = `scaleX(${tick / TICKS})`;
    tell(elapsed, over ? `⚑ ${run.end}` : format(seconds, run.end));
    tell(links, over ? mean : full.textContent);
    const number = run.begins.filter((begin) => begin <= tick).length;
    const where = run.steps ? fillIn(words.step, { step: Math.max(1, number), steps: run.steps }) : "";
    tell(step, where);
    if (over && !root.classList.contains("d2-over")) root.dispatchEvent(new CustomEvent("d2-over", { bubbles: true, detail: run }));
    root.classList.toggle("d2-over", over);
    return now;
  }

  // Descriptions of the parts that the pointer or the keyboard reaches.
  let ticked = 0;
  const clockOf = (tick) => format((tick / TICKS) * run.duration, run.end);
  function message(i) {
    const [src, dst, passed] = run.ways[way[i]];
    const meets = (place) => start.filter((_, k) =>
      start[k] < end[i] && start[i] < end[k] && run.ways[way[k]][2].includes(place)).length;
    const most = Math.max(1, ...passed.map(meets));
    const sentence = fillIn(words.message, { way: `${run.nodes[src]}→${run.nodes[dst]}`, key: run.keys[key[i]],
      size: amount(run.sizes[bulk[i]], data.unit), start: clockOf(start[i]), end: clockOf(end[i]) });
    return most > 1 ? `${sentence} · ${fillIn(words.sharing, { count: most })}` : sentence;
  }
  function node(number) {
    if (table) return table.node(number);
    const still = (side) => amount(start.reduce((sum, _, i) =>
      sum + (run.ways[way[i]][side] !== number ? 0
        : Math.max(0, Math.min(1, (end[i] - ticked) / (end[i] - start[i] || 1))) * run.sizes[bulk[i]]), 0), data.unit);
    return fillIn(words.node, { node: run.nodes[number], out: still(0), in: still(1) });
  }
  function describe(target) {
    const group = target.closest(".d2-node, .d2-share, .d2-tiles > g, .d2-tank, .d2-left");
    if (!group) return "";
    if (boxes.includes(group)) return node(boxes.indexOf(group));
    if (live.includes(group)) return message(live.indexOf(group));
    const place = [shares, tanks, lefts].map((all) => all.indexOf(group)).find((k) => k >= 0);
    return fillIn(words.togo, { place: run.places[place], size: amount(sums[place], data.unit) });
  }
  function row(event) {
    const area = root.querySelector(".d2-track").getBoundingClientRect();
    const tick = ((event.clientX - area.left) / area.width) * TICKS;
    const at = ((event.clientY - area.top) / area.height) * run.nodes.length, number = Math.floor(at);
    if (table) return table.at(tick, at, clockOf);
    const near = TICKS / 400, side = at % 1 < 0.5 ? 0 : 1;
    const messages = [...start.keys()].filter((i) =>
      start[i] - near <= tick && tick <= end[i] + near && run.ways[way[i]][side] === number);
    return messages.slice(0, 3).map(message).join("; ") + (messages.length > 3 ? " …" : "");
  }
  scene.addEventListener("pointerover", (event) => tell(caption, describe(event.target)));
  scene.addEventListener("pointerleave", () => tell(caption, ""));
  track.addEventListener("pointermove", (event) => {
    const sentence = row(event);
    tell(caption, sentence);
    track.title = sentence;
  });
  track.addEventListener("pointerleave", () => tell(caption, ""));
  boxes.forEach((box, number) => {
    for (const [name, value] of Object.entries({ tabindex: 0, role: "img", "aria-label": run.nodes[number] })) box.setAttribute(name, value);
    box.addEventListener("focus", () => { const all = node(number); box.setAttribute("aria-label", all); tell(caption, all); });
    box.addEventListener("blur", () => tell(caption, ""));
  });
  for (const hidden of [tiles, time, ...shares, ...tanks, ...lefts, ...fills, ...scene.querySelectorAll("text")]) hidden.setAttribute("aria-hidden", "true");

  // Marks the nodes and links with these names, and no others.
  function mark(names) {
    for (const group of marked) group.classList.remove("d2-shown");
    marked.clear();
    for (const title of scene.querySelectorAll("g > title")) {
      if (!names.includes(title.textContent.split(" · ")[0])) continue;
      marked.add(title.parentNode);
      title.parentNode.classList.add("d2-shown");
    }
  }
  // The number of messages under way at these nodes and links, at the moment shown.
  const carries = (names) => start.filter((_, i) => start[i] <= ticked && ticked < end[i] &&
    [...run.ways[way[i]][2].map((place) => run.places[place]), ...run.ways[way[i]].slice(0, 2).map((n) => run.nodes[n])]
      .some((name) => names.includes(name))).length;
  const [x, y, across, height] = run.view;
  // A name that has no room is its number; nodes whose names differ only in their numbers are alike in this.
  const called = [...scene.querySelectorAll(".d2-names-above .d2-name[style]")].map((node) => {
    const name = node.textContent, room = parseFloat(node.style.getPropertyValue("--d2-most")) * name.length;
    return { node, name, room, stem: name.replace(/\d+$/, "") };
  });
  const call = (zoom) => {
    const fits = ({ name, room }) => room >= 0.95 * LEAST_TEXT * zoom * name.length;
    const tight = new Set(called.filter((each) => !fits(each)).map((each) => each.stem));
    for (const { node, name, room, stem } of called) {
      const number = name.slice(stem.length), most = Math.max(1, Math.floor(room / (LEAST_TEXT * zoom)));
      const shown = !tight.has(stem) ? name : number || name.slice(0, most);
      tell(node, shown);
      node.style.setProperty("--d2-most", `${Math.min(20, room / shown.length).toFixed(1)}px`);
    }
  };
  const scale = () => {
    const zoom = across / (scene.clientWidth || across);
    scene.style.setProperty("--d2-zoom", zoom);
    scene.classList.toggle("d2-small", zoom > KEY / 9);
    call(zoom);
    if (!table) return;
    const long = track.querySelector(".d2-track").clientWidth;
    table.fit(long);
    beyond = Math.max(0, long - track.clientWidth);
    track.classList.toggle("d2-beyond", beyond > 1);
    follow(ticked);
  };
  // Pictures abreast are aligned; below each other each takes only the height that it needs.
  const crop = (alone) => scene.setAttribute("viewBox", alone ? `${x} 0 ${across} ${run.high}` : `${x} ${y} ${across} ${height}`);
  const edges = [...run.begins, TICKS].map((tick) => (tick / TICKS) * run.duration);
  return { root, standing, track, scene, show, scale, crop, edges, mark, carries };
}

// Sets the words of a node if they change.
function tell(node, words) {
  if (node.textContent !== words) node.textContent = words;
}

// Bytes in the unit of the picture.
function amount(bytes, [unit, factor], bare = false) {
  const value = bytes / factor;
  return `${+value.toFixed(value >= 10 ? 0 : value >= 1 ? 1 : 2)}${bare ? "" : `\u00a0${unit}`}`;
}

// The request in "#player:race?at=30ms&show=switch→cpu", also without #; null for other links.
function request(link) {
  const match = /^#?player:([^?]*)(?:\?(.*))?$/.exec(decode(link.getAttribute("href") ?? ""));
  if (!match) return null;
  const pairs = (match[2] ?? "").split("&").map((pair) => pair.split("="));
  const [, value, unit] = /^([\d.]+) *(s|ms|us|µs|ns)$/.exec(pairs.find(([name]) => name === "at")?.[1] ?? "") ?? [];
  const seconds = value && value * { s: 1, ms: 1e-3, us: 1e-6, "µs": 1e-6, ns: 1e-9 }[unit];
  return { name: match[1], at: seconds, show: pairs.filter(([name]) => name === "show").flatMap(([, all = ""]) => all.split(",")) };
}

function decode(words) {
  try {
    return decodeURIComponent(words);
  } catch {
    return words;
  }
}

// A sentence with its values; a number and its unit stay on one line.
function fillIn(words, values) {
  return words.replace(/\{(\w+)\}/g, (_, name) => values[name]).replace(/(\d) (?=[nµm]?s\b)/g, "$1\u00a0");
}

// A time in the unit of the trace's end, with as many digits as the eye can follow.
function format(seconds, end) {
  const [total, unit] = end.split(" ");
  const value = seconds / { s: 1, ms: 1e-3, "µs": 1e-6, ns: 1e-9 }[unit];
  const digits = Math.max(total >= 100 ? 0 : total >= 10 ? 1 : 2, (total.split(".")[1] ?? "").length);
  return `${value.toFixed(digits)} ${unit}`;
}

// Plays `data` in `el`, and returns a function that stops it.
export function play(el, data) {
  const { words, runs } = data;
  let longest = Math.max(...runs.map((run) => run.duration));
  const shortest = Math.min(...runs.map((run) => run.duration || longest));
  const lasts = data.zoom ? LENGTH : Math.max(LENGTH, Math.min(MOST, (LEAST * longest) / (shortest || 1)));
  const stills = pictures(el, data);
  // On paper nothing moves: the original pictures are printed, with their own colors.
  const paper = make("div", { class: "d2-printed", "aria-hidden": "true" });
  paper.attachShadow({ mode: "closed" }).append(...stills.map((picture) => picture.cloneNode(true)));
  const parts = runs.map((run, i) => perform(run, stills[i], data, data.zoom ? run.duration : longest));
  let edges = [...new Set([0, ...parts.flatMap((part) => part.edges), longest])].sort((a, b) => a - b);

  const actions = {
    " ": () => (playing ? pause() : begin()), ArrowLeft: () => step(-1), ArrowRight: () => step(1),
    Home: () => jump(0), End: () => jump(longest),
    "+": () => faster(1), "=": () => faster(1), "-": () => faster(-1), "−": () => faster(-1),
  };
  const button = (name, key) => {
    const icon = make("svg", { viewBox: "0 0 18 18", "aria-hidden": "true" }, make("path", { d: ICONS[name] }));
    const look = { type: "button", class: `d2-${name}`, "aria-label": words[name], title: words[name] };
    const control = make("button", look, icon);
    control.addEventListener("click", actions[key]);
    return control;
  };
  const toggle = button("play", " ");
  const slider = make("input", { type: "range", min: 0, max: 1, step: "any", "aria-label": words.position });
  const speed = make("select", { "aria-label": words.speed, title: words.speed },
    ...SPEEDS.map((value) => make("option", { value }, `${value}×`)));
  speed.value = 1;
  const controls = make("div", { class: "d2-controls" },
    button("restart", "Home"), button("back", "ArrowLeft"), toggle, button("forward", "ArrowRight"), speed, slider);
  // One picture at a time, with a clock of its own: a button for each.
  const levels = data.zoom ? parts.map((part, i) => make("button", { type: "button" }, runs[i].name)) : [];
  function level(chosen) {
    levels.forEach((choice, i) => {
      choice.setAttribute("aria-pressed", i === chosen);
      parts[i].root.hidden = i !== chosen;
    });
    const part = longest ? now / longest : 0;
    [longest, edges] = [runs[chosen].duration, parts[chosen].edges];
    jump(part * longest);
  }
  levels.forEach((choice, i) => choice.addEventListener("click", () => level(i)));
  if (data.zoom) controls.append(make("div", { class: "d2-zoom", role: "group", "aria-label": words.zoom }, make("span", {}, words.zoom), ...levels));
  else if (runs.length > 1) controls.append(make("div", { class: "d2-standings", "aria-hidden": "true" }, ...parts.map((part) => part.standing)));
  // JupyterLab has shortcuts on keys without Ctrl; this attribute turns them off here.
  const look = { class: `d2lps d2-player${runs.length > 1 && !data.zoom ? " d2-race" : ""}`, role: "group", tabindex: 0, lang: data.lang, "aria-label": words.label,
    "aria-description": [...runs.map((run) => run.described), words.keys].join(" "), "data-lm-suppress-shortcuts": "true" };
  // As many pictures side by side as are legible.
  const ratio = data.zoom || !shortest ? 1 : Math.min(4, longest / shortest); // more would take too much space
  const widest = `--d2-natural:${Math.max(...runs.map((run) => run.view[2]))};--d2-ratio:${ratio}`;
  const entries = data.legend.map(([mark, sentence]) => {
    const icon = make("svg", { viewBox: "0 0 26 16", "aria-hidden": "true" });
    icon.innerHTML = mark;
    return make("li", {}, icon, sentence);
  });
  // A race of many nodes shows sums, times and the link that decides; the rest is behind "details".
  const plain = runs.length > 1 && !data.zoom && data.peak > 0 && runs.some((run) => run.nodes.length >= CROWD);
  const numbers = data.peak ? make("span", {}, words.numbers) : "";
  const ideal = runs.filter((run) => run.ideal).map((run) => make("div", {}, make("b", {}, run.name), " ", run.ideal));
  const more = plain || ideal[0] ? [make("details", { class: plain ? "d2-more" : "d2-more d2-aside" }, make("summary", {}, words.details), ...(plain ? [numbers] : ideal))] : [];
  const summary = make("summary", {}, words.legend, ...(numbers && !plain ? [" · ", numbers] : []));
  const legend = make("details", { class: "d2-legend" }, summary, make("ul", {}, ...entries));
  const root = make("div", look, controls, make("div", { class: "d2-where" }, data.where), legend, ...more,
    make("div", { class: "d2-runs", style: widest }, ...parts.map((part) => part.root)));

  let now = 0, playing = false, goal = null, rate = 1, last = 0, frame = 0;

  function go(time) {
    now = Math.max(0, Math.min(longest, time));
    const times = parts.filter((part) => !part.root.hidden).map((part) => part.show(now));
    slider.value = longest ? now / longest : 1;
    if (!playing && goal === null) slider.setAttribute("aria-valuetext", times.join("; "));
  }
  function tick(stamp) {
    const passed = Math.min(0.1, (stamp - last) / 1000);
    last = stamp;
    const next = now + passed * rate, stop = goal ?? longest;
    if (rate > 0 ? next >= stop : next <= stop) return jump(stop);
    go(next);
    frame = requestAnimationFrame(tick);
  }
  function run(to, speed) {
    cancelAnimationFrame(frame);
    [goal, rate] = [to, speed];
    frame = requestAnimationFrame((stamp) => { last = stamp; tick(stamp); });
  }
  function show() {
    const name = playing ? "pause" : "play";
    toggle.setAttribute("aria-label", words[name]);
    toggle.title = `${words[name]}\n${words.keys}`;
    toggle.querySelector("path").setAttribute("d", ICONS[name]);
  }
  function begin() {
    if (now >= longest) go(0);
    playing = true;
    run(null, (longest / lasts) * speed.value);
    show();
  }
  function pause() {
    cancelAnimationFrame(frame);
    playing = false;
    goal = null;
    show();
  }
  function jump(to) {
    pause();
    go(to);
  }
  function step(way) {
    const from = goal ?? now, small = longest * 1e-6;
    const next = way > 0 ? edges.find((edge) => edge > from + small) : edges.findLast((edge) => edge < from - small);
    const to = next ?? (way > 0 ? longest : 0);
    pause();
    if (matchMedia("(prefers-reduced-motion: reduce)").matches) return go(to);
    run(to, (to - now) / GLIDE || 1);
  }
  // Follows a link in the text around the player.
  function follow(event) {
    const link = event.target.closest?.("a[href*='player:']"), wish = link && request(link);
    if (!wish || !data.name || wish.name !== data.name) return;
    event.preventDefault();
    event.stopPropagation();
    pause();
    parts.forEach((part) => part.mark(wish.show));
    if (wish.at !== undefined) go(wish.at);
    // Scroll the requested run into view, below the controls, which stay at the top.
    const most = Math.max(...parts.map((part) => part.carries(wish.show)));
    const { root: run } = parts.find((part) => part.carries(wish.show) === most);
    const above = (parseFloat(getComputedStyle(controls).top) || 0) + controls.offsetHeight;
    run.style.scrollMarginTop = `${above}px`;
    run.scrollIntoView({ block: run.offsetHeight + above > innerHeight ? "start" : "nearest" });
  }
  function faster(way) {
    speed.selectedIndex = Math.max(0, Math.min(SPEEDS.length - 1, speed.selectedIndex + way));
    if (playing) begin();
  }

  slider.addEventListener("input", () => jump(slider.value * longest));
  speed.addEventListener("change", () => playing && begin());
  root.addEventListener("keydown", (event) => {
    const native = event.key === " " && event.target.closest("button, select, summary");
    if (native || event.ctrlKey || event.metaKey || event.altKey || !actions[event.key]) return;
    event.preventDefault();
    event.stopPropagation();
    actions[event.key]();
  });
  for (const { track } of parts) {
    const seek = (event) => {
      const area = track.getBoundingClientRect();
      if (event.buttons) jump(((event.clientX - area.left) / area.width) * longest);
    };
    track.addEventListener("pointerdown", (event) => track.setPointerCapture(event.pointerId));
    for (const name of ["pointerdown", "pointermove"]) track.addEventListener(name, seek);
  }

  document.addEventListener("click", follow, true);
  const watcher = new ResizeObserver(() => {
    parts.forEach((part) => part.scale());
    // Unless all runs are abreast, not all are in view, and each has a line beside the controls.
    const seen = parts.filter((part) => !part.root.hidden);
    root.classList.toggle("d2-stacked", new Set(seen.map((part) => part.root.offsetTop)).size > 1);
    const alone = new Set(seen.map((part) => part.root.offsetLeft)).size === 1;
    parts.forEach((part) => part.crop(alone));
  });
  parts.forEach((part) => { watcher.observe(part.scene); watcher.observe(part.track); });
  el.replaceChildren(...[...el.children].filter((child) => ["STYLE", "SCRIPT"].includes(child.tagName)), root, paper);
  if (data.zoom) level(0);
  go(0);
  show();
  if (data.begins) matchMedia("(prefers-reduced-motion: reduce)").matches ? jump(longest) : begin();
  return () => {
    cancelAnimationFrame(frame);
    watcher.disconnect();
    document.removeEventListener("click", follow, true);
    root.remove();
    paper.remove();
  };
}
