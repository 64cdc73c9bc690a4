// Reads lists of UI messages as JSON from standard input, and says of each what the npm package `ai` says of it.
// The folder whose node_modules holds the package is the first argument.
import { createRequire } from "node:module";
import { join } from "node:path";
import { text } from "node:stream/consumers";
import { pathToFileURL } from "node:url";

const found = createRequire(join(process.argv[2], "package.json")).resolve("ai");
const { convertToModelMessages, safeValidateUIMessages } = await import(pathToFileURL(found).href);
const out = [];
for (const messages of JSON.parse(await text(process.stdin))) {
  const checked = await safeValidateUIMessages({ messages });
  if (!checked.success) {
    out.push({ error: String(checked.error).slice(0, 2000) });
    continue;
  }
  const request = await convertToModelMessages(checked.data);
  out.push({ data: checked.data, request });
}
console.log(JSON.stringify(out));
