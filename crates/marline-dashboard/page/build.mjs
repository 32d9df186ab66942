// Builds dist/ from src/ for embedding in the program. The build is reproducible.
import { mkdir, readFile } from "node:fs/promises";
import { build } from "esbuild";

const out = process.argv[2] ?? "dist";
await mkdir(out, { recursive: true });
// Its license requires the text in every copy.
const licence = await readFile("node_modules/uplot/LICENSE", "utf8");
await build({
  entryPoints: { page: "src/main.ts" },
  outdir: out,
  bundle: true,
  minify: true,
  format: "iife",
  target: "es2022",
  charset: "utf8",
  legalComments: "none",
  banner: { js: `/*! With uPlot (github.com/leeoniya/uPlot):\n${licence.trim()}\n*/` },
  logLevel: "warning",
});
