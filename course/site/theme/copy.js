// A button above each piece of code copies it, without prompts and results. Without a clipboard, a selection is copied.
(() => {
const { copy, copied } = document.body.dataset, SHOWN = 2000; // milliseconds for which it says so
function lines(pre) {
  const all = pre.cloneNode(true);
  all.querySelectorAll(".gp, .go").forEach((each) => each.remove());
  return all.textContent.replace(/\n{2,}(?=\S)/g, pre.querySelector(".gp") ? "\n" : "$&").replace(/\s+$/, "") + "\n";
}
async function put(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const field = Object.assign(document.createElement("textarea"), { value: text });
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    if (!done) throw new Error(copy);
  }
}
for (const pre of document.querySelectorAll("main pre.code")) {
  const button = Object.assign(document.createElement("button"), { type: "button", className: "copy" });
  const said = Object.assign(document.createElement("span"), { textContent: copy });
  said.setAttribute("aria-live", "polite");
  button.append(said);
  button.addEventListener("click", () => put(lines(pre)).then(() => {
    said.textContent = copied;
    button.focus();
    setTimeout(() => { said.textContent = copy; }, SHOWN);
  }, () => {}));
  if (!pre.parentElement.matches(".cell")) {
    const box = Object.assign(document.createElement("div"), { className: "boxed" });
    pre.before(box);
    box.append(pre);
  }
  pre.before(button);
}
})();
