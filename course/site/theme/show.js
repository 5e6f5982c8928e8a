// A lecture without slides: the pictures and predictions of a chapter one by one, in large type. Arrow keys go on.
(() => {
const button = document.querySelector("button.show"), QUESTION = /[?？]/;
const pictures = "main figure, main .cell > .shown:has(svg, img, canvas, .d2lps-asked)";
const slides = [...document.querySelectorAll(pictures)].filter((each) => !each.closest("details")).map(parts);
if (!button || !slides.length) return;
const dialog = Object.assign(document.createElement("dialog"), { className: "slide", tabIndex: -1 });
const [title, place, count] = ["h2", "div", "p"].map((name) => document.createElement(name));
let at = 0, moved = [];
dialog.setAttribute("aria-label", button.textContent);
count.setAttribute("role", "status");
dialog.append(title, place, count);
document.body.append(dialog);
button.hidden = false;

// A prediction comes with its question: what stands before it, from the last sentence that asks.
function parts(picture) {
  const all = [picture];
  if (!picture.querySelector(".d2lps-asked")) return all;
  for (let each = picture.parentElement.previousElementSibling; each && !/^H\d$/.test(each.tagName) && all.length < 6;) {
    all.unshift(each);
    each = QUESTION.test(each.textContent) ? null : each.previousElementSibling;
  }
  return all;
}
function back() {
  moved.forEach(([each, mark]) => mark.replaceWith(each));
  moved = [];
}
function show(number) {
  at = Math.min(Math.max(number, 0), slides.length - 1);
  back();
  const [first] = slides[at], section = first.closest("section") || document.querySelector("main");
  title.textContent = section.querySelector("h1, h2").firstChild.textContent;
  count.textContent = `${at + 1} / ${slides.length}`;
  moved = slides[at].map((each) => {
    const mark = document.createComment("");
    each.replaceWith(mark);
    return [each, mark];
  });
  place.replaceChildren(...slides[at]);
}
button.addEventListener("click", () => {
  dialog.showModal();
  dialog.focus();
  show(at);
  document.documentElement.requestFullscreen?.().catch(() => {});
});
dialog.addEventListener("close", () => {
  const [last] = slides[at];
  back();
  if (document.fullscreenElement) document.exitFullscreen();
  last.scrollIntoView({ block: "center" });
});
document.addEventListener("fullscreenchange", () => document.fullscreenElement || dialog.close());
dialog.addEventListener("keydown", ({ key, target }) => {
  const steps = { PageDown: 1, PageUp: -1, ...(target.closest("input, select, textarea") ? {} : { ArrowRight: 1, ArrowLeft: -1 }) };
  if (steps[key]) show(at + steps[key]);
});
})();
