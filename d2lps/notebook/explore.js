// Shows positions of sliders that were computed in advance, with a button or a slider for each.

async function unpacked(packed) {
  const bytes = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

// The contents in files beside the page: scripts, because a page from a disk may read no other file.
const loaded = {};
function load(more, part) {
  return loaded[part] ??= new Promise((done) => {
    const script = document.createElement("script");
    script.addEventListener("load", () => done(window.d2Positions[part]));
    script.src = `${more}-${part}.js`;
    document.head.append(script);
  });
}

async function choose(root, play, begins = false) {
  root.dataset.plays = "";
  const packed = JSON.parse(root.querySelector("script").textContent), { more, per } = root.dataset;
  const stage = root.querySelector(".d2-chosen"), text = root.querySelector(".d2-verdict") ?? stage.nextElementSibling;
  const rows = [...root.querySelectorAll("[role=group]:has(> button[data-shows])")];
  const dials = [...root.querySelectorAll(".d2-dials input")];
  let stop = () => {}, wanted = null;

  async function show(number, begins) {
    wanted = number;
    const { data, stills, report } = await unpacked(packed[number] ?? (await load(more, Math.floor(number / per)))[number % per]);
    if (wanted !== number) return; // another position has been chosen meanwhile
    stop();
    if (text.innerHTML !== report) text.innerHTML = report;
    stage.replaceChildren();
    stop = data ? play(stage, { ...data, stills, begins }) : () => {};
    for (const row of rows) {
      const chosen = row.querySelector(`[data-shows="${number}"]`) ?? row.querySelector('[data-shows="0"]');
      for (const button of row.querySelectorAll("button")) button.setAttribute("aria-pressed", button === chosen);
    }
  }
  function turn(begins) {
    for (const dial of dials) {
      const label = JSON.parse(dial.dataset.labels)[dial.value];
      dial.setAttribute("aria-valuetext", label);
      dial.previousElementSibling.textContent = label;
    }
    return show(dials.reduce((number, dial) => number * (+dial.max + 1) + +dial.value, 0), begins);
  }
  for (const dial of dials) dial.addEventListener("input", () => turn(true));
  for (const button of rows.flatMap((row) => [...row.querySelectorAll("button")])) {
    button.addEventListener("click", () => show(+button.dataset.shows));
  }
  await (dials.length ? turn(begins) : show(0, begins));
}

// First a bet, then the race, and then what decides: nothing gives the answer away before.
function bet(root, play) {
  root.dataset.plays = "";
  root.dataset.state = "begins";
  const cards = [...root.querySelectorAll(".d2-cards button")], outcome = root.querySelector(".d2-outcome"), took = new Map();
  let chosen;
  root.querySelector(".d2-ask").addEventListener("click", () => {
    root.dataset.state = "asks";
    for (const card of cards) card.disabled = false;
    cards[0].focus();
  });
  for (const card of cards) card.addEventListener("click", () => {
    chosen = card.value;
    root.dataset.state = "races";
    for (const each of cards) {
      each.disabled = true;
      each.setAttribute("aria-pressed", each === card);
    }
    choose(root, play, true);
    card.parentNode.scrollIntoView();
  });
  root.addEventListener("d2-over", ({ detail: { name, end, duration } }) => {
    const card = cards.find((each) => each.value === name);
    if (!card || root.dataset.state !== "races") return;
    card.querySelector("output").textContent = `⚑ ${end}`;
    took.set(name, duration);
    const [[first]] = [...took].sort((a, b) => a[1] - b[1]);
    outcome.textContent = (chosen === first ? outcome.dataset.right : outcome.dataset.wrong).replace("{name}", first);
    if (took.size === cards.length) root.dataset.state = "raced";
  });
}
