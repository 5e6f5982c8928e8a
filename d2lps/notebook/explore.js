// Shows positions of sliders that were computed in advance, with a button for each.

async function unpacked(packed) {
  const bytes = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

async function choose(root, play) {
  root.dataset.plays = "";
  const packed = JSON.parse(root.querySelector("script").textContent);
  const stage = root.querySelector(".d2-chosen"), text = stage.nextElementSibling;
  const rows = [...root.querySelectorAll("[role=group]:has(> button[data-shows])")];
  let stop = () => {}, wanted = 0;

  async function show(number) {
    wanted = number;
    const { data, stills, report } = await unpacked(packed[number]);
    if (wanted !== number) return; // another button has been pressed meanwhile
    stop();
    stage.replaceChildren();
    stop = data ? play(stage, { ...data, stills }) : () => {};
    text.innerHTML = report;
    for (const row of rows) {
      const chosen = row.querySelector(`[data-shows="${number}"]`) ?? row.querySelector('[data-shows="0"]');
      for (const button of row.querySelectorAll("button")) button.setAttribute("aria-pressed", button === chosen);
    }
  }
  for (const button of rows.flatMap((row) => [...row.querySelectorAll("button")])) {
    button.addEventListener("click", () => show(+button.dataset.shows));
  }
  await show(0);
}
