// Searches the text of every section: all words must be there, without regard to case, nor, unless the query has them,
// to diacritics. Chinese needs no taking apart: what is looked for stands in the text as it is typed.
const plain = (text) => text.toLowerCase().normalize("NFKD").replace(/\p{M}/gu, "").replaceAll("đ", "d");
const kept = (text) => text.toLowerCase().normalize("NFKC");

function find(query) {
  const words = query.trim().split(/\s+/).filter(Boolean);
  // The words as one first: «máy chủ tham số» is a term.
  const tests = words.map((word) => (plain(word) === kept(word).normalize("NFKD") ? [plain(word), true] : [kept(word), false]));
  const whole = tests.every(([, folded]) => folded) ? [plain(words.join(" ")), true] : [kept(words.join(" ")), false];
  const scored = [];
  for (const section of window.D2_SECTIONS) {
    section.kept ??= [kept(section.title), kept(section.text)];
    section.plain ??= [plain(section.title), plain(section.text)];
    let score = 0;
    for (const [word, folded] of tests) {
      const [title, text] = folded ? section.plain : section.kept;
      const times = text.split(word).length - 1, named = title.includes(word);
      if (!times && !named) { score = 0; break; }
      score += Math.min(times, 5) + (named ? 20 : 0);
    }
    if (!score) continue;
    const [title, text] = whole[1] ? section.plain : section.kept;
    const times = text.split(whole[0]).length - 1, named = title.includes(whole[0]);
    score += (named ? 1040 : 0) + (times ? 1000 + 4 * Math.min(times, 5) : 0);
    scored.push([score, section]);
  }
  return [scored.sort((a, b) => b[0] - a[0]).map(([, section]) => section), tests, whole];
}

// Around where it stands; letters are counted so that what is folded and what is shown stay side by side.
function passage({ text }, [word, folded]) {
  const letters = [...text.normalize("NFC")];
  const folds = letters.map(folded ? plain : kept);
  const starts = [];
  let length = 0;
  for (const each of folds) { starts.push(length); length += each.length; }
  const at = folds.join("").indexOf(word);
  const p = document.createElement("p");
  if (at < 0) {
    p.textContent = letters.slice(0, 160).join("") + "…";
    return p;
  }
  const first = starts.findLastIndex((start) => start <= at);
  const end = starts.findIndex((start) => start >= at + word.length);
  const last = end < 0 ? letters.length : end;
  const hit = document.createElement("mark");
  hit.textContent = letters.slice(first, last).join("");
  const from = Math.max(0, first - 60), to = Math.min(letters.length, last + 110);
  p.append(from ? "…" : "", letters.slice(from, first).join(""), hit, letters.slice(last, to).join(""), to < letters.length ? "…" : "");
  return p;
}

const results = document.getElementById("results"), found = document.getElementById("found");
const query = new URLSearchParams(location.search).get("q") ?? "";
document.querySelectorAll("input[name=q]").forEach((box) => { box.value = query; });
if (query.trim()) {
  const [hits, tests, whole] = find(query);
  found.textContent = hits.length ? found.dataset.found.replace("{n}", hits.length) : found.dataset.none;
  for (const section of hits.slice(0, 60)) {
    const item = document.createElement("li"), link = document.createElement("a");
    link.href = section.url;
    link.textContent = section.title === section.page ? section.page : `${section.page} › ${section.title}`;
    const [title, text] = whole[1] ? section.plain : section.kept;
    item.append(link, passage(section, title.includes(whole[0]) || text.includes(whole[0]) ? whole : tests[0]));
    results.append(item);
  }
}
