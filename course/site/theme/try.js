// "Try it": a cell of the page becomes a field with its code, which Python runs in the reader's own browser.
(() => {
const own = document.currentScript, given = JSON.parse(document.querySelector("#d2lps-try > script").textContent);
const { words } = given, WAIT = 180_000, SIGN = 2; // milliseconds until Python must have begun; seconds until a sign moves
const parts = ["pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json", "course.zip"];
const embedded = (name) => document.querySelector(`script[data-part="${name}"]`);
const element = (name, properties = {}, ...children) => {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
};

async function unpacked(script) {
  const packed = Uint8Array.from(atob(script.textContent), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();
}

// Its digest is in the address, so a browser that has kept a file asks for it no more. `got` hears of each piece.
async function part(name, got = () => {}) {
  const script = embedded(name);
  if (script) return unpacked(script);
  const answer = await fetch(new URL(`python/${name}?${given.parts[name][1]}`, own.src), { cache: "force-cache" });
  if (!answer.ok) throw new Error(`${name}: ${answer.status}`);
  const pieces = [], reader = answer.body.getReader();
  for (let next = await reader.read(); !next.done; next = await reader.read()) {
    pieces.push(next.value);
    got(next.value.length);
  }
  return new Blob(pieces).arrayBuffer();
}

async function text(name) { return new TextDecoder().decode(await part(name)); }

// The cells of the chapter, with what each needs: a script of its own, because pages opened from files load no others.
let chapter;
const code = () => chapter ??= window.d2lpsCells ? Promise.resolve() : new Promise((done, failed) => {
  document.head.append(element("script", { src: given.cells, onload: done, onerror: () => failed(new Error(given.cells)) }));
});

let worker, waiting;
function stop(error) {
  worker?.then((running) => running.terminate(), () => {});
  worker = undefined;
  waiting?.reject(error);
  waiting = undefined;
}

function ask(running, message, transfer = []) {
  return new Promise((resolve, reject) => {
    waiting = { reject };
    running.onmessage = ({ data }) => data.kind === "failed" ? reject(new Error(data.error)) : resolve(data);
    running.onerror = (event) => reject(new Error(event.message ?? "Worker"));
    running.postMessage(message, transfer);
  });
}

const MB = (bytes) => Math.round(bytes / 1e6);
const total = parts.reduce((sum, name) => sum + (given.parts[name]?.[0] ?? 0), 0);
function begun(say) {
  return worker ??= (async () => {
    let done = 0;
    const got = (bytes) => say(words.fetching.replace("{done}", MB(done += bytes)).replace("{all}", MB(total)));
    const files = Object.fromEntries(await Promise.all(parts.map(async (name) => [name, await part(name, got)])));
    say(words.starting);
    const running = new Worker(URL.createObjectURL(new Blob([await text("try-worker.js")], { type: "text/javascript" })));
    const late = setTimeout(() => stop(new Error(words.late)), WAIT);
    await ask(running, { kind: "begin", parts: files, language: document.documentElement.dataset.language }, Object.values(files));
    clearTimeout(late);
    return running;
  })();
}

function shown(output) {
  if ("html" in output) {
    const place = element("div", { className: "shown", innerHTML: output.html });
    for (const old of place.querySelectorAll("script:not([type='application/json'])")) {
      old.replaceWith(element("script", { type: old.type, textContent: old.textContent }));
    }
    return place;
  }
  const [kind] = Object.keys(output);
  return element("pre", { className: `printed ${kind}`, tabIndex: 0, textContent: output[kind] });
}

// One run at a time: another cell waits for its turn.
let turn = Promise.resolve();

function open(cell, button) {
  const id = cell.id.replace(/^cell-/, ""), pre = cell.querySelector("pre.code");
  const book = [...cell.children].filter((child) => child.matches(".shown, .printed"));
  const field = element("textarea", { spellcheck: false, autocapitalize: "off", ariaLabel: words.edit, title: words.edit });
  const state = element("span"), clock = element("i", { ariaHidden: "true" }), results = element("div", { className: "tried" });
  state.setAttribute("role", "status");
  const action = (label, does) => element("button", { type: "button", textContent: label, onclick: does });
  const start = action(words.run, () => run());
  const halt = action(words.stop, () => stop(new Error(words.stopped)));
  halt.hidden = true;
  const reset = action(words.again, () => { field.value = d2lpsCells.sources[id]; fit(); });
  const close = action(words.close, () => { form.remove(); pre.hidden = button.hidden = false; book.forEach((one) => { one.hidden = false; }); });
  const form = element("div", { className: "try" }, field, element("p", {}, start, halt, reset, close, state, clock), results);
  const fit = () => { field.rows = Math.max(3, field.value.split("\n").length); };
  pre.after(form);
  pre.hidden = button.hidden = true;
  field.oninput = fit;
  field.onkeydown = (event) => {
    if (event.key === "Enter" && event.shiftKey) { event.preventDefault(); run(); }
    if (event.key === "Tab" && !event.shiftKey && field.selectionStart === field.selectionEnd && /(^|\n)[ ]*$/.test(field.value.slice(0, field.selectionStart))) {
      event.preventDefault();
      field.setRangeText("    ", field.selectionStart, field.selectionEnd, "end");
    }
  };
  code().then(() => { field.value = d2lpsCells.sources[id]; fit(); field.focus(); start.disabled = false; }, (error) => { state.textContent = `${words.failed} ${error.message}`; });
  start.disabled = true;

  function run() {
    if (start.disabled) return;
    start.disabled = true;
    halt.hidden = false;
    const began = performance.now(); // whoever waits longer sees that it goes on
    const ticks = setInterval(() => {
      const seconds = Math.floor((performance.now() - began) / 1000);
      clock.textContent = seconds < SIGN ? "" : `${seconds} s`;
    }, 200);
    const mine = async () => {
      const say = (phase) => { if (state.textContent !== phase) state.textContent = phase; };
      say(words.starting);
      const running = await begun(say);
      state.textContent = words.running;
      const needs = d2lpsCells.needs[id].map((earlier) => [earlier, d2lpsCells.sources[earlier]]);
      const { outputs, passed } = await ask(running, { kind: "run", id, source: field.value, needs });
      book.forEach((one) => { one.hidden = true; });
      results.replaceChildren(...outputs.map(shown));
      document.dispatchEvent(new Event("d2lps-shown"));
      document.dispatchEvent(new CustomEvent("d2lps-passed", { detail: passed }));
      state.textContent = "";
    };
    turn = turn.then(mine).catch((error) => {
      if (worker) stop(error);
      state.textContent = error.message === words.stopped || error.message === words.late ? error.message : `${words.failed} ${error.message}`;
    }).finally(() => {
      clearInterval(ticks);
      clock.textContent = "";
      start.disabled = false;
      halt.hidden = true;
    });
  }
}

const fromFile = location.protocol === "file:" && !embedded(parts[0]);
for (const cell of document.querySelectorAll(".cell[data-try]")) {
  const pre = cell.querySelector("pre.code"), button = element("button", { type: "button", className: "try", textContent: words.try });
  if (!pre) continue;
  button.onclick = () => {
    if (fromFile) {
      const alone = element("a", { href: given.alone, textContent: given.alone });
      button.replaceWith(element("p", { className: "try" }, `${words["from-file"]} `, alone));
      return;
    }
    open(cell, button);
  };
  pre.after(button);
}
})();
