// Shows positions of sliders that were computed in advance, with a button or a slider for each.

async function unpacked(packed) {
  const bytes = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

// The contents in a file beside the page: a script, because a page from a disk may read no other file.
const loaded = {};
function load(file) {
  return loaded[file] ??= new Promise((done) => {
    const script = document.createElement("script");
    script.addEventListener("load", () => done(window.d2Positions[file]));
    script.src = file;
    document.head.append(script);
  });
}

async function choose(root, play) {
  root.dataset.plays = "";
  const packed = JSON.parse(root.querySelector("script").textContent), { more } = root.dataset;
  const stage = root.querySelector(".d2-chosen"), text = root.querySelector(".d2-verdict") ?? stage.nextElementSibling;
  const rows = [...root.querySelectorAll("[role=group]:has(> button[data-shows])")];
  const dials = [...root.querySelectorAll(".d2-dials input")];
  let stop = () => {}, wanted = null;

  async function show(number, begins) {
    wanted = number;
    const { data, stills, report } = await unpacked(packed[number] ?? (await load(more))[number]);
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
  await (dials.length ? turn(false) : show(0));
  if (more) load(more);
}
