// The page's small helpers: light or dark, the switch of language, where one is. Nothing asks the network for anything.
const root = document.documentElement;
const remember = (name, value) => { try { localStorage.setItem(name, value); } catch {} };

const theme = document.querySelector("button.theme"), system = matchMedia("(prefers-color-scheme: dark)");
const dark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
const pressed = () => theme.setAttribute("aria-pressed", dark());
theme.addEventListener("click", () => {
  root.dataset.theme = dark() ? "light" : "dark";
  remember("d2-theme", root.dataset.theme);
  pressed();
});
system.addEventListener("change", pressed);
pressed();

// The section that is being read: the last one that begins above the upper third of the window.
const sections = [...document.querySelectorAll("main section[id]")];
const reading = () => sections.findLast((each) => each.getBoundingClientRect().top < innerHeight / 3)?.id ?? "";
for (const link of document.querySelectorAll(".languages a")) {
  const there = () => { link.hash = reading(); };
  link.addEventListener("pointerdown", there);
  link.addEventListener("focus", there);
  link.addEventListener("click", there);
}
// The package's page is in English alone: around it, the links lead to where its reader comes from.
if (document.body.classList.contains("api")) {
  let own = null;
  try { own = localStorage.getItem("d2-language"); } catch {}
  if (/^[a-z]{2}$/.test(own ?? "") && document.querySelector(`.languages a[href*="/${own}/"]`)) {
    for (const each of document.querySelectorAll(".brand, .chapters a, .bar form")) {
      const name = each.action ? "action" : "href", to = each.getAttribute(name);
      each.setAttribute(name, to.replace("../en/", `../${own}/`));
    }
  }
}
const links = new Map([...document.querySelectorAll(".here a")].map((each) => [each.hash.slice(1), each]));
const mark = () => { const id = reading(); links.forEach((each, key) => each.classList.toggle("now", key === id)); };
if (links.size) {
  addEventListener("scroll", mark, { passive: true });
  mark();
}
const fold = (query, place) => matchMedia(query).matches && document.querySelectorAll(`${place} details`).forEach((each) => { each.open = false; });
fold("(max-width: 1150px)", ".here");
fold("(max-width: 899px)", ".chapters");

addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select, [contenteditable]")) return;
  event.preventDefault();
  document.querySelector("input[type=search]").focus();
});
