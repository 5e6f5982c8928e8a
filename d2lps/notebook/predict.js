// A guess on a page without a kernel: it is read as entries.py does, judged as predict.py does, shown as reveal.py does.

const fill = (words, values) => words.replace(/\{(\w+)\}/g, (_, name) => values[name]);

// As Python's f"{value:.{digits}g}": what lies exactly between two numbers becomes the even one.
function short(value, digits) {
  let [mantissa, exponent] = value.toExponential(digits - 1).split("e");
  const exact = value.toExponential(99), down = exact.slice(0, digits + 1);
  if (/^50*e/.test(exact.slice(digits + 1)) && "02468".includes(down.at(-1))) mantissa = down;
  if (exponent >= -4 && exponent < digits) return String(+`${mantissa}e${exponent}`);
  return `${+mantissa}e${exponent[0]}${exponent.slice(1).padStart(2, "0")}`;
}

const quantity = (value, unit) => short(value, 4) + (unit === "%" ? unit : unit && ` ${unit}`);

// The number that was entered, or a sentence about what was entered instead.
function number({ names, units, within: [low, high], never_zero, words }, at, entry) {
  const unit = units[at], entered = [...entry].slice(0, 40).join("");
  const told = { what: names[at], entry: entered, unit, quantity: `${entered} ${unit}`.trim() };
  const wrong = (reason, more) => fill(words[reason], { ...told, ...more });
  const written = entry.normalize("NFKC").trim().replaceAll("−", "-").replaceAll("。", ".");
  if (!written) return wrong("empty");
  if (/\d,\d/.test(written)) return wrong("comma");
  const [, digits, rest] = /^([-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d{1,3})?)\s*(.*)$/i.exec(written) ?? [];
  const value = Number(digits ?? NaN);
  if (!Number.isFinite(value)) return wrong("no-number");
  if (rest) return wrong(unit ? "with-unit" : "with-words");
  if (value < 0 || (value === 0 && never_zero[at])) return wrong("negative");
  const can = (each) => low <= each && each <= (high ?? Infinity);
  if (can(value)) return value;
  for (const [reason, meant] of [["too-small-unit", value * 1000], ["too-large-unit", value / 1000]]) {
    if (unit !== "" && unit !== "%" && can(meant)) {
      return wrong(reason, { meant: quantity(meant, ""), intended: quantity(meant, unit) });
    }
  }
  return wrong("outside", { low: quantity(low, unit), high: quantity(high, unit) });
}

// `truths`: by the model, and as measured, if it was.
function thought(own, truths, known, { near, words }) {
  const [right] = truths, close = (other) => Math.abs(own - other) <= near * Math.abs(other);
  if (truths.some(close)) return words.right;
  for (const [guess, sentence] of known) if (close(guess)) return sentence;
  if (!own || !right) return words.wrong;
  const times = Math.max(own, right) / Math.min(own, right);
  const whole = times % 1 === 0.5 ? 2 * Math.round(times / 2) : Math.round(times);
  return fill(own > right ? words.above : words.below, { factor: times < 99.5 ? short(times, 2) : whole });
}

// The guess beside what is true, instead of what was folded away.
function reveal(root, guess, page) {
  const { bars, right, thoughts, wide, colour } = JSON.parse(root.querySelector("script").textContent);
  const { units } = page, said = {}, longest = {};
  for (const each of root.querySelectorAll(":scope > p, :scope > details")) each.style.display = "none";
  root.querySelector(".d2lps-answer")?.remove();
  const answer = document.createElement("div"), table = root.querySelector("table").cloneNode(true);
  answer.className = "d2lps-answer";
  answer.append(table);
  guess.forEach((own, at) => {
    const group = table.tBodies[at], first = group.rows[0], you = first.cloneNode(true);
    first.querySelector("[scope=rowgroup]").remove();
    you.querySelector("[scope=rowgroup]").rowSpan += 1;
    you.querySelector("[scope=row]").textContent = page.words.you;
    you.querySelector("td > span").style.background = colour;
    you.querySelector("td").lastChild.data = quantity(own, units[at]);
    group.prepend(you);
    longest[units[at]] = Math.max(longest[units[at]] ?? 0, ...[own, ...bars[at]].map(Math.abs));
    (said[thought(own, right[at], thoughts[at], page)] ??= []).push(page.names[at]);
  });
  guess.forEach((own, at) => [own, ...bars[at]].forEach((value, row) => {
    const part = Math.abs(value) / (longest[units[at]] || 1);
    table.tBodies[at].rows[row].querySelector("td > span").style.width = `calc(${wide}*${part})`;
  }));
  for (const [sentence, names] of Object.entries(said)) {
    const line = answer.appendChild(document.createElement("p"));
    line.textContent = names.join(page.words.between) + page.words.colon + sentence;
  }
  root.append(answer);
}

function ask(root) {
  root.dataset.asks = "";
  const page = JSON.parse(root.querySelector("script").textContent), place = `d2lps-guess-${page.name}`;
  const said = root.querySelector("[role=status]"), { words } = page, isWrong = (each) => typeof each === "string";
  root.insertAdjacentHTML("beforeend", page.form);
  const form = root.querySelector("form"), button = form.querySelector("button");
  const fields = [...form.querySelectorAll("input")], errors = [...form.querySelectorAll("[data-error]")];
  form.append(said); // below the button, where the reader looks

  function open(opened) {
    for (const field of fields) field.readOnly = !opened;
    button.textContent = opened ? words.commit : words.again;
  }
  function commit(guess) {
    fields.forEach((field, at) => { field.value = guess[at]; });
    const each = guess.map((own, at) => `${page.names[at]} ${quantity(own, page.units[at])}`);
    said.textContent = fill(words.yours, { guess: each.join(words.between) });
    root.dataset.guessed = "";
    for (const answer of document.querySelectorAll(`.d2lps-revealed[data-of="${page.name}"]`)) reveal(answer, guess, page);
    open(false);
  }
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (fields[0].readOnly) {
      open(true);
      fields[0].focus();
      return;
    }
    const guess = fields.map((field, at) => number(page, at, field.value));
    guess.forEach((each, at) => {
      errors[at].textContent = isWrong(each) ? `✗ ${each}` : "";
      fields[at].setAttribute("aria-invalid", isWrong(each));
    });
    if (guess.some(isWrong)) {
      fields[guess.findIndex(isWrong)].focus();
      return;
    }
    try {
      localStorage.setItem(place, JSON.stringify({ asked: page.asked, guess }));
    } catch {} // then it is known for as long as the page is open
    commit(guess);
  });
  let kept = null;
  try {
    kept = JSON.parse(localStorage.getItem(place));
  } catch {} // nothing sensible, or nothing may be kept here
  if (JSON.stringify(kept?.asked) === JSON.stringify(page.asked)) {
    const guess = page.names.map((_, at) => number(page, at, String(kept.guess?.[at])));
    if (!guess.some(isWrong)) commit(guess);
  }
}
