// node pyodide.mjs PYODIDE ARCHIVE PROGRAM ARGUMENTS…: unpack a zip file and run a program of it in Python for WebAssembly.
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [folder, archive, program, ...given] = process.argv.slice(2);
const { loadPyodide } = await import(pathToFileURL(`${folder}/pyodide.mjs`));
const python = await loadPyodide({ indexURL: `${folder}/`, args: [program, ...given] });
python.unpackArchive(new Uint8Array(readFileSync(archive)), "zip", { extractDir: "/course" });
python.globals.set("given", python.toPy(given));
process.exitCode = python.runPython(python.FS.readFile(`/course/${program}`, { encoding: "utf8" }));
