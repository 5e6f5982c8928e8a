// Shows what was worked out in advance: a button for each position that a slider can be moved to, alone.

async function unpacked(packed) {
  const bytes = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

async function choose(root, play) {
  root.dataset.plays = "";
  const packed = JSON.parse(root.querySelector("script").textContent);
  const stage = root.querySelector(".d2-chosen"), told = stage.nextElementSibling;
  const rows = [...root.querySelectorAll("[role=group]:has(> button[data-shows])")];
  let stop = () => {}, wanted = 0;

  async function show(number) {
    wanted = number;
    const { data, stills, told: words } = await unpacked(packed[number]);
    if (wanted !== number) return; // another button has been pressed meanwhile
    stop();
    stage.replaceChildren();
    stop = data ? play(stage, { ...data, stills }) : () => {};
    told.innerHTML = words;
    for (const row of rows) {
      const own = row.querySelector(`[data-shows="${number}"]`) ?? row.querySelector('[data-shows="0"]');
      for (const each of row.querySelectorAll("button")) each.setAttribute("aria-pressed", each === own);
    }
  }
  for (const row of rows) {
    for (const each of row.querySelectorAll("button")) each.addEventListener("click", () => show(+each.dataset.shows));
  }
  await show(0);
}
