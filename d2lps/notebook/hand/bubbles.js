// Schedules of a pipeline on one axis of time. The idle time of a row is its bed, which the tasks cover; pushed together
// to the left, they leave it as one pile at the end.
function bubbles(root, { words, rows, at, hues }) {
  let now = at, piled = false, timer = 0;
  const most = rows[0].runs.length, marks = [...Array(most).keys()].map((k) => k + 1);
  const [line, tell] = track({ name: words.micro, marks, at, least: 1, moved: turn,
    label: (k) => `m = ${k + 1}: ` + rows.map(({ name, runs }) => `${name} ${runs[k].bubble ?? "–"}`).join(", ") });
  const button = make("button", { type: "button", "aria-pressed": "false" }, words.pile);
  button.addEventListener("click", () => pile(!piled));
  const shown = rows.map(({ name }) => {
    const lanes = make("div", { class: "hand-lanes", "aria-hidden": "true" });
    const said = make("span", { class: "hand-said" });
    return { lanes, said, row: make("div", { class: "hand-schedule" }, make("p", {}, make("b", {}, name), " ", said), lanes) };
  });
  root.append(make("div", { class: "hand-reins" }, make("b", { class: "hand-m" }), line, button), ...shown.map(({ row }) => row),
    make("p", { class: "hand-key" }, words.key));

  function draw() {
    root.querySelector(".hand-m").textContent = fill(words.m, { m: now + 1 });
    const longest = Math.max(...rows.map(({ runs }) => runs[now].length ?? 0)), percent = (slots) => `${(100 * slots) / longest}%`;
    rows.forEach(({ runs, work }, r) => {
      const { tasks, length, share, bubble, saved, refused } = runs[now], { lanes, said } = shown[r];
      said.textContent = refused ?? fill(words.row, { bubble, saved });
      lanes.replaceChildren(...(tasks ?? []).map(([kinds, batches, starts]) => {
        let busy = 0;
        const cells = starts.map((start, k) => {
          const kind = kinds[k], batch = batches[k], hue = batch % hues.length, wide = work[kind];
          const cell = make("i", { class: `hand-task-${kind} d2-on${hues[hue][kind]}`,
            style: `--hue:var(--d2-w${hue});--at:${percent(start)};--piled:${percent(busy)};width:${percent(wide)}` },
            wide / longest > 0.03 ? String(batch) : "");
          busy += wide;
          return cell;
        });
        const bed = make("span", { class: "hand-bed", style: `width:${percent(length)}` });
        return make("div", {}, bed, ...cells);
      }));
      if (refused) return;
      const idle = make("span", { class: "hand-pile", style: `left:${percent(length * (1 - share))};width:${percent(length * share)}` }, make("b", {}, bubble));
      lanes.append(idle);
    });
  }
  function pile(to) {
    piled = to;
    button.setAttribute("aria-pressed", piled);
    root.classList.toggle("hand-piled", piled);
  }
  // Shows the schedules as they run, and then pushes them together.
  function turn(to) {
    now = to;
    clearTimeout(timer);
    root.classList.remove("hand-piled");
    draw();
    piled = true;
    button.setAttribute("aria-pressed", "true");
    timer = setTimeout(() => pile(piled), 450);
  }
  draw();
  tell();
}
