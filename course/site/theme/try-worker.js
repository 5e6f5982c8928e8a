// Python in the reader's browser: a worker that runs the cells of one page, and asks the network for nothing.
let python, cells, passed;
const ran = new Set();

// `parts`: file → ArrayBuffer. Modules become blobs, and what Pyodide would fetch is handed to it.
async function begin({ parts, language }) {
  const address = (name) => URL.createObjectURL(new Blob([parts[name]], { type: "text/javascript" }));
  const types = { wasm: "application/wasm", zip: "application/zip" };
  self.fetch = async (url) => {
    const name = String(url?.url ?? url).split("/").at(-1);
    if (!(name in parts)) throw new TypeError(`${name} is not among the parts of this page`);
    return new Response(parts[name], { headers: { "Content-Type": types[name.split(".").at(-1)] } });
  };
  // Pages opened from files may start classic workers only. Pyodide refuses those, which it knows by importScripts;
  // it needs module workers for nothing but import(), which classic ones have, too.
  self.importScripts = () => { throw new TypeError("modules only"); };
  const [{ loadPyodide }, { default: createPyodideModule }] = await Promise.all(
    ["pyodide.mjs", "pyodide.asm.mjs"].map((name) => import(address(name))));
  const lockFileContents = new TextDecoder().decode(parts["pyodide-lock.json"]);
  python = await loadPyodide({ indexURL: "https://none.invalid/", lockFileContents, createPyodideModule, packageBaseUrl: "https://none.invalid/" });
  python.unpackArchive(parts["course.zip"], "zip", { extractDir: "/course" });
  python.runPython("import sys; sys.path.insert(0, '/course')");
  const course = python.pyimport("in_browser");
  cells = course.begin(language);
  passed = course.passed;
}

function plain(value) {
  const copy = value.toJs({ dict_converter: Object.fromEntries });
  value.destroy();
  return copy;
}

onmessage = async ({ data: { kind, id, source, needs, ...given } }) => {
  try {
    if (kind === "begin") await begin(given);
    else {
      for (const [earlier, code] of needs) if (!ran.has(earlier)) { ran.add(earlier); plain(cells.run(code)); }
      ran.add(id);
      postMessage({ kind: "done", outputs: plain(cells.run(source)), passed: plain(passed()) });
      return;
    }
    postMessage({ kind: "ready" });
  } catch (error) {
    postMessage({ kind: "failed", error: String(error.message ?? error) });
  }
};
