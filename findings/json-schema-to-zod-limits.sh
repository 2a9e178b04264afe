#!/usr/bin/env bash
# @dmitryrechkin/json-schema-to-zod 1.0.1, which makes Zod schemas of JSON schemas, as agents need them to check the
# arguments that a model wrote for tools of others (MCP).
# Expected: its documentation shows `minimum: 0` and a `pattern` and speaks of validation, so arguments that do not
#           fit are refused.
# Seen:     `minimum`, `maximum`, `exclusiveMinimum`, `multipleOf`, `pattern`, `minLength`, `maxLength`, `const`,
#           `$ref` and choices that are numbers are dropped without a word, so that every number and text passes.
#           `{"type": "object"}` without `properties`, as tools have it for free-form options, admits the empty object
#           alone. A list's `minItems` and choices of texts are held. zod-from-json-schema 0.5.6 does all of it
#           rightly.
source "$(dirname "$0")/begin.sh"
from_npm @dmitryrechkin/json-schema-to-zod@1.0.1 zod@3.25.76 zod-from-json-schema@0.5.6
cat > check.mjs <<'JS'
import { JSONSchemaToZod } from "@dmitryrechkin/json-schema-to-zod";
import { convertJsonSchemaToZod } from "zod-from-json-schema";
const $defs = { day: { type: "string", enum: ["monday", "friday"] } };
const cases = [ // what describes an argument, an argument, whether it fits, whether it is admitted
  [{ type: "array", items: { type: "string" }, minItems: 1 }, [], false, false],
  [{ type: "string", enum: ["a", "b"] }, "c", false, false],
  [{ type: "number", minimum: 0 }, -1, false, true],
  [{ type: "integer", minimum: 1, maximum: 5 }, 600, false, true],
  [{ type: "number", exclusiveMinimum: 0 }, 0, false, true],
  [{ type: "integer", multipleOf: 5 }, 7, false, true],
  [{ type: "string", pattern: "^[A-Z]{3}$" }, "euro", false, true],
  [{ type: "string", minLength: 1 }, "", false, true],
  [{ type: "string", maxLength: 2 }, "abc", false, true],
  [{ type: "integer", enum: [1, 2] }, 3, false, true],
  [{ const: "a" }, "b", false, true],
  [{ $ref: "#/$defs/day" }, 7, false, true],
  [{ type: "object" }, {}, true, true],
  [{ type: "object" }, { unit: "celsius" }, true, false],
];
console.log("@dmitryrechkin/json-schema-to-zod 1.0.1");
for (const [about, value, fits, expected] of cases) {
  const schema = { type: "object", properties: { a: about }, required: ["a"], ...(about.$ref && { $defs }) };
  const seen = JSONSchemaToZod.convert(schema).safeParse({ a: value }).success;
  console.log(`${JSON.stringify(about)}: ${JSON.stringify(value)} fits ${fits}, admitted ${seen}`);
  if (seen !== expected) throw new Error("changed");
  if (convertJsonSchemaToZod(schema).safeParse({ a: value }).success !== fits) throw new Error("changed");
}
JS
node check.mjs
