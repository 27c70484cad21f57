// Asks a model server from Pyodide under Node:
//
//     cp svir.py examples/pyodide/ && cd examples/pyodide && npm install
//     npm start -- http://127.0.0.1:1234 qwen3-4b "Why is the sky blue?"
import { readFileSync, writeSync } from "node:fs";
import { loadPyodide } from "pyodide";

const read = (name) => readFileSync(new URL(name, import.meta.url));
const [url, model, question = "Why is the sky blue?", script = "ask.py"] = process.argv.slice(2);
const pyodide = await loadPyodide();
// By default a line is held back until it is whole.
pyodide.setStdout({ write: (bytes) => writeSync(1, bytes) });
for (const name of ["svir.py", "fetch_backend.py"]) pyodide.FS.writeFile(name, read(name));
for (const [name, value] of Object.entries({ url, model, question })) pyodide.globals.set(name, value);
await pyodide.runPythonAsync(read(script).toString());
