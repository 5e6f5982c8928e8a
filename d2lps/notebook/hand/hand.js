// What the pictures of d2lps.notebook.hand share. Every number and sentence comes with the data, and no kernel is needed.

// Shows the picture in `el`, in place of its still.
export function handle(el, data) {
  const root = make("div", { class: `d2lps d2-hand d2-${data.kind}`, lang: data.lang, "data-lm-suppress-shortcuts": "true" });
  el.replaceChildren(...[...el.children].filter((child) => ["STYLE", "SCRIPT"].includes(child.tagName)), root);
  return { bubbles, vessel, wires, story }[data.kind](root, data);
}

export default { render: ({ model, el }) => handle(el, model.get("data")) };

function make(name, look = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(look)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

const fill = (words, values) => words.replace(/\{(\w+)\}/g, (_, name) => values[name]);

// Makes `knob` a slider. `where` returns the position below the pointer, of an event and of where the drag began (x, at);
// `moved` gets the new position, `label` puts one into words. Returns a function that reads the words
// anew, at another position if there is one.
function slider(knob, { name, count, label, at, least = 0, upright = false, where, moved }) {
  let now = at, from;
  const look = { role: "slider", tabindex: 0, "aria-label": name, "aria-valuemin": least, "aria-valuemax": least + count - 1,
    "aria-orientation": upright ? "vertical" : "horizontal" };
  for (const [key, value] of Object.entries(look)) knob.setAttribute(key, value);
  const tell = (to = now) => {
    now = to;
    knob.setAttribute("aria-valuenow", least + now);
    knob.setAttribute("aria-valuetext", label(now));
  };
  const go = (to) => {
    const next = Math.max(0, Math.min(count - 1, Math.round(to)));
    if (next === now) return;
    now = next;
    moved(now);
    tell();
  };
  knob.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key];
    const to = { Home: 0, End: count - 1 }[event.key] ?? (by && now + by);
    if (to === undefined || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    event.stopPropagation();
    go(to);
  });
  knob.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    event.preventDefault();
    knob.setPointerCapture(event.pointerId);
    knob.focus({ preventScroll: true });
    from = { x: event.clientX, at: now };
    go(where(event, from));
  });
  knob.addEventListener("pointermove", (event) => {
    if (knob.hasPointerCapture(event.pointerId)) go(where(event, from));
  });
  tell();
  return tell;
}

// A slider as a track with a mark for each position; upright, the first position is at the bottom.
function track({ marks, moved, upright = false, ...settings }) {
  const count = marks.length, place = (at) => 100 * (count > 1 ? at / (count - 1) : 0);
  const from = upright ? "bottom" : "left", knob = make("i", { class: "hand-knob" });
  const line = make("div", { class: `hand-track${upright ? " hand-upright" : ""}` },
    make("span", { class: "hand-rail" }, ...marks.map((mark, at) => make("span", { style: `${from}:${place(at)}%` }, String(mark))), knob));
  const put = (at) => (knob.style[from] = `${place(at)}%`);
  const where = ({ clientX, clientY }) => {
    const { left, bottom, width, height } = line.firstChild.getBoundingClientRect();
    return (count - 1) * (upright ? (bottom - clientY) / height : (clientX - left) / width);
  };
  put(settings.at);
  const follow = slider(line, { ...settings, count, upright, where, moved: (at) => { put(at); moved(at); } });
  const tell = (to) => {
    if (to !== undefined) put(to);
    follow(to);
  };
  return [line, tell];
}
