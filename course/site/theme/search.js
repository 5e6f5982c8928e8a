// Searches the text of every section: all words must be there, without regard to case, nor, unless the query has them,
// to diacritics. Chinese needs no taking apart: what is looked for stands in the text as it is typed.

// What counts as equal, in all languages and in one: the index, the query and the marks are folded by the same table.
// A replacement is as long as what it replaces, so that places in a folded text are places in the text.
const NONE = (piece) => "\0".repeat(piece.length);
// Traditional characters, each before the simplified one.
const PAIRS =
  "參参與与專专臨临舉举麼么義义習习爭争傳传體体儲储優优關关內内寫写衝冲準准劃划動动務务區区單单壓压雙双發发變变疊叠臺台葉叶號号後后啟启員员圍围圖图塊块執执擴扩" +
  "撲扑報报擬拟擁拥擇择損损換换據据備备複复頭头學学實实寬宽導导爾尔層层帶带並并廣广庫库開开異异張张強强歸归錄录徑径徵征態态總总戶户數数斷断舊旧時时顯显機机" +
  "權权構构標标樹树檢检氣气測测潰溃點点熱热狀状環环碼码確确離离積积稱称簡简係系約约級级線线練练組组細细終终結结絡络統统緩缓編编縮缩網网腦脑節节範范薦荐虛虚" +
  "計计訂订訓训記记設设訪访識识試试詢询語语誤误請请課课調调負负軌轨載载較较輸输達达進进遠远連连遲迟遞递選选鄰邻鐘钟鉤钩鏈链銷销鎖锁錯错鍵键長长門门問问閒闲" +
  "間间閱阅隊队階阶陳陈隨随隱隐頂顶預预領领頸颈額额飛飞饋馈驗验齊齐為为個个雲云億亿們们會会來来兩两嚴严丟丢亂乱書书從从決决況况減减幾几處处歷历聽听響响國国" +
  "聲声夠够對对將将嘗尝師师應应戰战護护擔担撥拨擠挤揮挥擺摆無无術术雜杂條条極极樣样檔档橋桥畢毕匯汇溝沟沒没淺浅瀏浏濾滤滯滞潛潜現现電电畫画監监蓋盖盤盘種种" +
  "競竞筆笔類类緊紧純纯縱纵絕绝續续維维羅罗聯联營营雖虽補补裝装觀观規规視视覽览覺觉觸触證证譯译詞词該该詳详說说讀读誰谁責责敗败質质賽赛趨趋躍跃車车軟软輪轮" +
  "邊边輯辑過过運运這这適适邏逻遺遗釋释針针閉闭陸陆際际險险難难須须順顺頻频題题風风復复";
const SIMPLIFIED = new Map(PAIRS.match(/../gu).map(([from, to]) => [from, to]));
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
  "zh-Hans": [[/\p{Script=Han}/gu, (letter) => SIMPLIFIED.get(letter) ?? letter]],
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
  const words = queried(query), name = plain(words.join(" ")), joined = name.replaceAll(" ", "");
  // The words as one first: «máy chủ tham số» is a term. So are all-reduce and NumPy for who types two words.
  const tests = words.map(told), whole = tests.every(([, folded]) => folded) ? [name, true] : [kept(words.join(" ")), false];
  const scored = [];
  for (const section of window.D2_SECTIONS) {
    const parts = [section.title, section.text, section.page, section.defines];
    const forms = section.plain ??= parts.map(plain), exact = whole[1] ? forms : (section.kept ??= parts.map(kept));
    const seen = ([word, folded]) => (folded ? forms : exact).map((text) => places(text, word).length);
    let score = 0;
    for (const test of tests) {
      const [named, times, above, known] = seen(test);
      if (!named && !times && !above && !known) { score = 0; break; }
      score += Math.min(times, 5) + (named || known ? 20 : 0);
      if (above) score += 0.5;
    }
    if (!score) continue;
    const [named, times] = [seen(whole), seen([joined, true])].sort(([a, b], [c, d]) => c - a || d - b)[0];
    const defines = [name, joined].some((each) => forms[3].includes(`|${each}|`));
    score += defines ? (section.url.startsWith("glossary") ? 2e6 : 1e5) : 0; // a term before a name of the package
    score += (forms[0] === name ? 1e6 : 0) + (named ? 1040 : 0) + (times ? 1000 + 4 * Math.min(times, 5) : 0);
    scored.push([score, section]);
  }
  return [scored.sort((a, b) => b[0] - a[0]).map(([, section]) => section), tests, whole];
}

// Whether two words differ by one letter: another one, one more or less, or two that are exchanged.
function isNear(one, other) {
  if (Math.abs(one.length - other.length) > 1) return false;
  let start = 0, end = 0;
  while (start < one.length && one[start] === other[start]) start++;
  while (end < Math.min(one.length, other.length) - start && one.at(-1 - end) === other.at(-1 - end)) end++;
  const [a, b] = [one, other].map((word) => word.slice(start, word.length - end));
  return Math.max(a.length, b.length) <= 1 || (a.length === 2 && a === [...b].reverse().join(""));
}
// How many of the pairs of letters of two words are the same, from 0 to 1.
function likeness(one, other) {
  const pairs = (word) => new Set(Array.from(word, (_, i) => word.slice(i, i + 2)).filter((pair) => pair.length === 2));
  const [a, b] = [pairs(one), pairs(other)];
  return (2 * [...a].filter((pair) => b.has(pair)).length) / (a.size + b.size || 1);
}
// All words of the course as they are written, by their plain form: names of the glossary first, then titles, then texts.
let vocabulary;
function written() {
  if (vocabulary) return vocabulary;
  vocabulary = new Map();
  const all = window.D2_SECTIONS, split = (text) => text.match(/[\p{L}\p{M}\p{N}_–-]{2,}/gu) ?? [];
  const names = all.flatMap(({ url, defines }) => (url.startsWith("glossary") ? defines.split("|") : []));
  for (const word of [...names, ...all.flatMap(({ title }) => split(title)), ...all.flatMap(({ text }) => split(text))]) {
    const form = plain(word);
    if (form.length > 1 && !vocabulary.has(form)) vocabulary.set(form, word.toLowerCase());
  }
  return vocabulary;
}
// The query with each word that stands nowhere replaced by one that differs by a letter; else the name most like it.
function corrected(query) {
  const whole = plain(query.trim()), all = [...written()];
  const near = (form) => form.length > 2 || /\p{Script=Han}{2}/u.test(form) ? all.find(([each]) => isNear(form, each))?.[1] : undefined;
  const words = queried(query).map((word) => (find(word)[0].length ? word : near(plain(word))));
  const one = near(whole) ?? (words.every(Boolean) ? words.join(" ") : undefined);
  if (one && find(one)[0].length) return [one, true];
  const [best] = all.map(([form, word]) => [likeness(whole, form), word]).sort((a, b) => b[0] - a[0]);
  return best?.[0] >= 0.4 ? [best[1], false] : [];
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
  let [hits, tests, whole] = find(query);
  found.textContent = hits.length ? found.dataset.found.replace("{n}", hits.length) : found.dataset.none;
  if (!hits.length) {
    const [other, same] = corrected(query);
    if (!other) return;
    found.textContent = found.dataset[same ? "near" : "like"].replace("{query}", query.trim()).replace("{other}", other);
    [hits, tests, whole] = find(other);
  }
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
