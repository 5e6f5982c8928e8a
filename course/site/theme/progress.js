// What was read and solved, kept in this browser beside the guesses: "d2lps-read-CHAPTER" and "d2lps-passed-EXERCISE",
// each with its day. A page of a chapter keeps it, the map on the first page shows it. Nothing is sent anywhere.
(() => {
const day = (kind, name) => { try { return localStorage.getItem(`d2lps-${kind}-${name}`); } catch { return null; } };
const keep = (kind, name) => {
  try {
    if (day(kind, name) === null) localStorage.setItem(`d2lps-${kind}-${name}`, new Date().toISOString().slice(0, 10));
  } catch {} // storage is full or not allowed: then the map stays as it is
};

// A chapter is read when each of its sections has been in the upper three quarters of the window, in one visit or
// several: a jump to the last one passes the others by.
const chapter = document.querySelector(".way[data-chapter]")?.dataset.chapter;
const sections = chapter ? [...document.querySelectorAll("main section[id]")] : [];
if (sections.length) {
  const place = `d2lps-seen-${chapter}`;
  let seen = new Set();
  try { seen = new Set(JSON.parse(localStorage.getItem(place) ?? "[]")); } catch {}
  const watching = new IntersectionObserver((entries) => {
    for (const each of entries) if (each.isIntersecting) seen.add(each.target.id);
    try { localStorage.setItem(place, JSON.stringify([...seen])); } catch {}
    if (!sections.every((each) => seen.has(each.id))) return;
    keep("read", chapter);
    watching.disconnect();
  }, { rootMargin: "-72px 0px -25% 0px" }); // not what the bar hides, and what a jump leaves above its goal
  for (const each of sections) watching.observe(each);
}
document.addEventListener("d2lps-passed", ({ detail }) => detail.forEach((id) => keep("passed", id)));

const map = document.querySelector(".course-map");
if (!map) return;
const { words, exercises } = JSON.parse(map.querySelector("script").textContent);
const fill = (sentence, values) => sentence.replace(/\{(\w+)\}/g, (_, name) => values[name]);
function show() {
  let read = 0, passed = 0, all = 0;
  for (const link of map.querySelectorAll("a[data-chapter]")) {
    const own = exercises[link.dataset.chapter] ?? [], done = own.filter((id) => day("passed", id) !== null).length;
    const reached = day("read", link.dataset.chapter) !== null;
    const parts = [...(reached ? [words.read] : []), ...(done ? [fill(words.solved, { passed: done, exercises: own.length })] : [])];
    link.querySelector(".d2-mark").textContent = parts.join(" · ");
    link.classList.toggle("d2-reached", reached);
    read += reached;
    passed += done;
    all += own.length;
  }
  const sum = map.querySelector(".progress");
  sum.hidden = !read && !passed;
  sum.textContent = fill(words.sum, { read, chapters: Object.keys(exercises).length, passed, exercises: all });
}
addEventListener("pageshow", show); // also when the reader comes back to the page
addEventListener("storage", show);
})();
