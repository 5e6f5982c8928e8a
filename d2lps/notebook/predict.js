// A guess on a page without a kernel: read by the rules of entries.py, judged as in predict.py, shown as in reveal.py.

const fill = (words, values) => words.replace(/\{(\w+)\}/g, (_, name) => values[name]);

// The same as show_number of units.py, which rounds a tie to the even digit.
function short(value, digits = 4) {
  let [mantissa, exponent] = value.toExponential(digits - 1).split("e");
  const exact = value.toExponential(99), down = exact.slice(0, digits + 1);
  if (/^50*e/.test(exact.slice(digits + 1)) && "02468".includes(down.at(-1))) mantissa = down;
  if (exponent >= -4 && exponent < digits) return String(+`${mantissa}e${exponent}`);
  if (exponent > 0 && exponent < 9) {
    const whole = String(+`${mantissa}e${exponent}`);
    return exponent > 3 ? whole.replace(/\B(?=(\d{3})+$)/g, "\u00a0") : whole; // four digits stay together
  }
  const raised = [...String(+exponent)].map((sign) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(sign)]).join("");
  return `${{ 1: "", "-1": "-" }[+mantissa] ?? `${+mantissa}·`}10${raised}`;
}

const quantity = (value, unit) => short(value) + (unit === "%" ? unit : unit && ` ${unit}`);

// The number that was entered, or a sentence with the mistake in the entry.
function number({ names, units, within: [low, high], rules, words }, at, entry) {
  const unit = units[at], shown = [...entry].slice(0, 40).join(""), { never_zero, slips } = rules.units[at];
  const values = { what: names[at], entry: shown, unit, quantity: `${shown} ${unit}`.trim() };
  const error = (reason, more) => fill(words[reason], { ...values, ...more });
  let written = entry.normalize("NFKC").trim();
  for (const [sign, plain] of Object.entries(rules.replace)) written = written.replaceAll(sign, plain);
  written = written.replace(new RegExp(rules.spaced, "g"), "$1");
  if (!written) return error("empty");
  if (new RegExp(rules.comma).test(written)) return error("comma");
  const [, digits, rest] = new RegExp(`^${rules.number}$`, "i").exec(written) ?? [];
  const value = Number(digits ?? NaN);
  if (!Number.isFinite(value)) return error("no-number");
  if (rest) return error(unit ? "with-unit" : "with-words");
  if (value < 0 || (value === 0 && never_zero)) return error("negative");
  const plausible = (number) => low <= number && number <= (high ?? Infinity);
  if (plausible(value)) return value;
  for (const [reason, factor, divisor] of slips) {
    const meant = value * factor / divisor;
    if (plausible(meant)) return error(reason, { meant: quantity(meant, ""), intended: quantity(meant, unit) });
  }
  return error("outside", { low: quantity(low, unit), high: quantity(high, unit) });
}

// `truths`: the model's number, and the measured one if there is one; `known`: [wrong number, sentence] pairs.
function thought(guess, truths, known, { near, words }) {
  const [right] = truths, close = (other) => Math.abs(guess - other) <= near * Math.abs(other);
  if (truths.some(close)) return words.right;
  for (const [wrong, sentence] of known) if (close(wrong)) return sentence;
  if (!guess || !right) return words.wrong;
  const times = Math.max(guess, right) / Math.min(guess, right);
  return fill(guess > right ? words.above : words.below, { factor: short(times, times < 99.5 ? 2 : 3) });
}

// Show the guess beside the truth, in place of the folded answer.
function reveal(root, guesses, page) {
  const { bars, right, thoughts, width, colour } = JSON.parse(root.querySelector("script").textContent);
  const { units } = page, sentences = {}, sizes = {}, lows = {};
  for (const hidden of root.querySelectorAll(":scope > p, :scope > details")) hidden.style.display = "none";
  root.querySelector(".d2lps-answer")?.remove();
  const answer = document.createElement("div"), table = root.querySelector("table").cloneNode(true);
  answer.className = "d2lps-answer";
  answer.append(table);
  guesses.forEach((guess, at) => {
    const group = table.tBodies[at], first = group.rows[0], you = first.cloneNode(true);
    first.querySelector("[scope=rowgroup]").remove();
    you.querySelector("[scope=rowgroup]").rowSpan += 1;
    you.querySelector("[scope=row]").textContent = page.words.you;
    you.querySelector("td > span").style.background = colour;
    you.querySelector("td").lastChild.data = quantity(guess, units[at]);
    group.prepend(you);
    (sizes[units[at]] ??= []).push(...[guess, ...bars[at]].map(Math.abs));
    (sentences[thought(guess, right[at], thoughts[at], page)] ??= []).push(page.names[at]);
  });
  for (const [unit, all] of Object.entries(sizes)) { // as in _scale of reveal.py
    const least = Math.min(...all.filter((size) => size));
    lows[unit] = Math.max(...all) > 30 * least ? 10 ** (Math.ceil(Math.log10(least)) - 1) : 0;
  }
  guesses.forEach((guess, at) => [guess, ...bars[at]].forEach((value, row) => {
    const low = lows[units[at]], high = Math.max(...sizes[units[at]]) || 1, size = Math.abs(value);
    const part = low && size ? Math.log10(size / low) / Math.log10(high / low) : size / high;
    const { style } = table.tBodies[at].rows[row].querySelector("td > span"), tenfold = `${width}/${Math.log10(high / low)}`;
    style.width = `calc(${width}*${part})`;
    style.maskImage = low ? `repeating-linear-gradient(90deg,#000 0 calc(${tenfold} - 2px),#0000 0 calc(${tenfold}))` : "";
  }));
  table.deleteCaption();
  const begins = Object.entries(lows).filter(([, low]) => low).map(([unit, low]) => quantity(low, unit));
  if (begins.length) {
    const caption = table.createCaption();
    caption.style.cssText = "caption-side:bottom;text-align:left";
    caption.textContent = fill(page.words.log, { low: begins.join(page.words.between) });
  }
  for (const [sentence, names] of Object.entries(sentences)) {
    const line = answer.appendChild(document.createElement("p"));
    line.textContent = names.join(page.words.between) + page.words.colon + sentence;
  }
  root.append(answer);
}

function ask(root) {
  root.dataset.asks = "";
  const page = JSON.parse(root.querySelector("script").textContent), place = `d2lps-guess-${page.name}`;
  const status = root.querySelector("[role=status]"), { words } = page, isError = (value) => typeof value === "string";
  root.insertAdjacentHTML("beforeend", page.form);
  const form = root.querySelector("form"), button = form.querySelector("button");
  const fields = [...form.querySelectorAll("input")], errors = [...form.querySelectorAll("[data-error]")];
  form.append(status); // below the button, where the reader looks

  function open(opened) {
    for (const field of fields) field.readOnly = !opened;
    button.textContent = opened ? words.commit : words.again;
  }
  let committed = null;
  function commit(guess) {
    committed = guess;
    fields.forEach((field, at) => { field.value = guess[at]; });
    const parts = guess.map((value, at) => `${page.names[at]} ${quantity(value, page.units[at])}`);
    status.textContent = fill(words.yours, { guess: parts.join(words.between) });
    root.dataset.guessed = "";
    for (const answer of document.querySelectorAll(`.d2lps-revealed[data-of="${page.name}"]`)) reveal(answer, guess, page);
    open(false);
  }
  // A page on which cells run shows further answers later, and says so.
  document.addEventListener("d2lps-shown", () => { if (committed && root.isConnected) commit(committed); });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (fields[0].readOnly) {
      open(true);
      fields[0].focus();
      return;
    }
    const guess = fields.map((field, at) => number(page, at, field.value));
    guess.forEach((value, at) => {
      errors[at].textContent = isError(value) ? `✗ ${value}` : "";
      fields[at].setAttribute("aria-invalid", isError(value));
    });
    if (guess.some(isError)) {
      fields[guess.findIndex(isError)].focus();
      return;
    }
    try {
      localStorage.setItem(place, JSON.stringify({ asked: page.asked, guess }));
    } catch {} // then it is remembered only while the page is open
    commit(guess);
  });
  let stored = null;
  try {
    stored = JSON.parse(localStorage.getItem(place));
  } catch {} // the entry is damaged, or storage is not allowed
  if (JSON.stringify(stored?.asked) === JSON.stringify(page.asked)) {
    const guess = page.names.map((_, at) => number(page, at, String(stored.guess?.[at])));
    if (!guess.some(isError)) commit(guess);
  }
}
