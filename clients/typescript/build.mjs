// Compiles src/ into dist/. npm runs this whenever it installs from this folder. It does not install the compiler if
// the folder is a dependency of another project: then the compiled files of the checkout are used as they are.

import { spawnSync } from "node:child_process";
import { createRequire } from "node:module";

let compiler;
try {
  compiler = createRequire(import.meta.url).resolve("typescript/bin/tsc");
} catch {
  process.exit(0);
}
process.exit(spawnSync(process.execPath, [compiler], { cwd: new URL(".", import.meta.url), stdio: "inherit" }).status ?? 1);
