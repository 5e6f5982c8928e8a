// Players and sliders are set up when they come near the window; until then a page shows their stills. The data of all
// but the first are in a script beside the page, because a page opened from a file can read no other file.
(() => {
const loaded = {};
const load = (file) => loaded[file] ??= new Promise((done, failed) => {
  const script = document.createElement("script");
  Object.assign(script, { src: file, onload: done, onerror: () => failed(new Error(file)) });
  document.head.append(script);
});

// One after the other, each in a task of its own, so that the page answers in between.
let turn = Promise.resolve();
function start(root) {
  if ("plays" in root.dataset) return turn;
  root.dataset.plays = "";
  watcher.unobserve(root);
  return turn = turn.then(async () => {
    const own = root.querySelector("script"), file = root.dataset.later;
    if (file) {
      if (!window.d2Runs) await load(file);
      own.textContent = JSON.stringify(d2Runs[root.id]);
    }
    await (root.matches(".d2lps-explored") ? choose(root, play) : play(root, JSON.parse(own.textContent)));
    await new Promise((done) => setTimeout(done));
  });
}
const near = (all) => all.filter((each) => each.isIntersecting).forEach((each) => start(each.target));
const watcher = new IntersectionObserver(near, { rootMargin: "30% 0px" });
for (const root of document.querySelectorAll("[data-later]")) watcher.observe(root);

// A link in the text leads to a moment of a player, which may not be there yet.
document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[href^='#player:']"), name = link && /:([\w-]*)/.exec(link.getAttribute("href"))[1];
  const roots = [...document.querySelectorAll("[data-later]:not([data-plays])")].filter((root) => name && root.dataset.name === name);
  if (!roots.length) return;
  event.preventDefault();
  event.stopImmediatePropagation();
  Promise.all(roots.map(start)).then(() => link.click());
}, true);
})();
