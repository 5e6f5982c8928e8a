// Searches the text of every section: all words must be there, without regard to case, nor, unless the query has them,
// to diacritics. Chinese needs no taking apart: what is looked for stands in the text as it is typed.

// What counts as equal, in all languages and in one: the index, the query and the marks are folded by the same table.
// A replacement is as long as what it replaces, so that places in a folded text are places in the text.
const NONE = (piece) => "\0".repeat(piece.length);
const FOLDINGS = {
  "": [
    [/[\u00ad\u200b-\u200d\u2060\ufeff]/g, NONE], // signs that take no room
    [/ *[−+=<>≤≥≈≠≪≫×·∈] */g, (piece) => piece.replaceAll(" ", "\0")], // 2(n − 1) is typed without spaces
    [/[‐‑‒–—―−﹣－]/g, "-"],
    [/-+(?<=\p{L}{2}\0*-+)\0*(?=\p{L}{2})/gu, NONE], // reduce-scatter, reducescatter
    [/[‘’]/g, "'"],
    [/[“”]/g, '"'],
  ],
  vi: [[/(o[áàảãạéèẻẽẹ]|u[ýỳỷỹỵ])/giu, ([first, second]) => { // khoá, khóa
    const [vowel, tone] = second.normalize("NFD");
    return (first + tone).normalize("NFC") + vowel;
  }]],
};
const folding = [...FOLDINGS[""], ...(FOLDINGS[document.documentElement.lang] ?? [])];
const folded = (text) => folding.reduce((now, [from, to]) => now.replace(from, to), text.normalize("NFC"));
const toPlain = (text) => text.toLowerCase().normalize("NFKD").replace(/[\p{M}\0]/gu, "").replaceAll("đ", "d");
const toKept = (text) => text.toLowerCase().normalize("NFKC").replaceAll("\0", "");
const plain = (text) => toPlain(folded(text)), kept = (text) => toKept(folded(text));
const told = (word) => (plain(word) === kept(word).normalize("NFKD") ? [plain(word), true] : [kept(word), false]);

// The words of a query; a hyphen between spaces is a minus there, and one at the end of a word is of another word.
function queried(query) {
  const formula = folded(query.replace(/\s+/g, " ").replaceAll(" - ", " − ")).replaceAll("\0", "");
  return formula.split(" ").map((word) => word.replace(/^-+(?=\p{L}{2})|(?<=\p{L}{2})-+$/gu, "")).filter(Boolean);
}

// Where a word stands; a single Latin letter only where it is a word.
function places(text, word) {
  const alone = /^\p{Script=Latin}$/u.test(word), found = [];
  for (let at = text.indexOf(word); at >= 0; at = text.indexOf(word, at + word.length)) {
    if (!alone || !/[\p{Script=Latin}\p{N}_]/u.test(text.slice(Math.max(0, at - 1), at) + text.slice(at + 1, at + 2))) found.push(at);
  }
  return found;
}

function find(query) {
  const words = queried(query), name = plain(words.join(" "));
  // The words as one first: «máy chủ tham số» is a term.
  const tests = words.map(told), whole = tests.every(([, folded]) => folded) ? [name, true] : [kept(words.join(" ")), false];
  const scored = [];
  for (const section of window.D2_SECTIONS) {
    const forms = section.plain ??= [plain(section.title), plain(section.text), plain(section.page)];
    const exact = whole[1] ? forms : (section.kept ??= [kept(section.title), kept(section.text), kept(section.page)]);
    const seen = ([word, folded]) => (folded ? forms : exact).map((text) => places(text, word).length);
    let score = 0;
    for (const test of tests) {
      const [named, times, above] = seen(test);
      if (!named && !times && !above) { score = 0; break; }
      score += Math.min(times, 5) + (named ? 20 : 0);
      if (above) score += 0.5;
    }
    if (!score) continue;
    const [named, times] = seen(whole);
    section.defined ??= plain(section.defines);
    score += section.defined.includes(`|${name}|`) ? 1e5 : 0;
    score += (forms[0] === name ? 1e6 : 0) + (named ? 1040 : 0) + (times ? 1000 + 4 * Math.min(times, 5) : 0);
    scored.push([score, section]);
  }
  return [scored.sort((a, b) => b[0] - a[0]).map(([, section]) => section), tests, whole];
}

// The letters of a text, and from which to which of them each of the words stands; letters are counted so that what is
// folded and what is shown stay side by side.
function marked(text, tests) {
  const letters = [...text.normalize("NFC")], shapes = [...folded(text)], spots = [];
  for (const isPlain of new Set(tests.map(([, each]) => each))) {
    const folds = shapes.map(isPlain ? toPlain : toKept), starts = [];
    let length = 0;
    for (const each of folds) { starts.push(length); length += each.length; }
    starts.push(length);
    const all = folds.join("");
    for (const [word] of tests.filter(([, each]) => each === isPlain)) {
      for (const at of places(all, word)) spots.push([starts.findLastIndex((start) => start <= at), starts.findIndex((start) => start >= at + word.length)]);
    }
  }
  return [letters, spots.sort((a, b) => a[0] - b[0])];
}

function fill(node, letters, spots) {
  let from = 0;
  for (const [first, end] of spots) {
    if (first < from) continue;
    const hit = document.createElement("mark");
    hit.textContent = letters.slice(first, end).join("");
    node.append(letters.slice(from, first).join(""), hit);
    from = end;
  }
  node.append(letters.slice(from).join(""));
  return node;
}

// Around where it stands first; no word is cut.
function passage({ text }, tests) {
  const rough = Math.min(...tests.map(([word, folded]) => places((folded ? plain : kept)(text), word)[0] ?? Infinity));
  const start = Number.isFinite(rough) ? Math.max(0, rough - 400) : 0;
  const [letters, spots] = marked(text.slice(start, start + 800), tests);
  const [first, end] = spots[0] ?? [0, 60];
  const space = (at, way, most) => { for (let i = 0; i < most; i++) if (letters[at - 1 + i * way] === " ") return at + i * way; return at; };
  const from = first <= 60 ? 0 : space(first - 60, 1, 20), cut = end + 110;
  const to = cut >= letters.length ? letters.length : space(cut, -1, 20);
  const piece = letters.slice(from, to).join("").trimEnd();
  const more = start + to < text.length && !/[.!?。！？…]$/.test(piece);
  const p = document.createElement("p");
  p.append(from || start ? "…" : "");
  fill(p, [...piece], spots.filter(([at, last]) => at >= from && last <= to).map(([at, last]) => [at - from, last - from]));
  p.append(more ? "…" : "");
  return p;
}

const results = document.getElementById("results"), found = document.getElementById("found");
function show(query) {
  results.replaceChildren();
  found.textContent = "";
  if (!query.trim()) return;
  const [hits, tests, whole] = find(query);
  found.textContent = hits.length ? found.dataset.found.replace("{n}", hits.length) : found.dataset.none;
  for (const section of hits.slice(0, 60)) {
    const item = document.createElement("li"), link = document.createElement("a");
    link.href = section.url;
    const title = section.title === section.page ? section.page : `${section.page} › ${section.title}`;
    const there = (text) => (places((whole[1] ? plain : kept)(text), whole[0]).length ? [whole] : tests);
    item.append(fill(link, ...marked(title, there(title))), passage(section, there(section.text)));
    results.append(item);
  }
}

// The results follow what is typed, except between the keys of one letter.
const query = new URLSearchParams(location.search).get("q") ?? "";
let soon = 0;
for (const box of document.querySelectorAll("input[name=q]")) {
  box.value = query;
  box.addEventListener("input", (event) => {
    clearTimeout(soon);
    if (!event.isComposing) soon = setTimeout(show, 120, box.value);
  });
  box.addEventListener("compositionend", () => show(box.value));
}
show(query);
