// Tests of the markdown parser and of throttled rendering.

import assert from "node:assert/strict";
import { test } from "node:test";

import { throttleByCost } from "../js/throttle.js";
import { IncrementalParser, parse } from "../js/markdown-blocks.js";
import { parseInline, safeUrl } from "../js/markdown-inline.js";

const text = (value) => ({ type: "text", text: value });

test("paragraphs, headings, rules", () => {
  assert.deepEqual(parse("One\ntwo\n\n# Head #\n---\nend"), [
    { type: "paragraph", inline: [text("One"), { type: "break" }, text("two")] },
    { type: "heading", level: 1, inline: [text("Head")] },
    { type: "rule" },
    { type: "paragraph", inline: [text("end")] },
  ]);
});

test("code keeps every character and its language", () => {
  assert.deepEqual(parse("```rust\nfn a() {\n\n  **x** <b>\n}\n```\nafter"), [
    { type: "code", language: "rust", text: "fn a() {\n\n  **x** <b>\n}" },
    { type: "paragraph", inline: [text("after")] },
  ]);
  assert.deepEqual(parse("~~~\n```\n~~~"), [{ type: "code", language: "", text: "```" }]);
  assert.deepEqual(parse("```\nopen"), [{ type: "code", language: "", text: "open" }]);
});

test("lists nest, keep numbers and contain other blocks", () => {
  const [list] = parse("3. a\n   - b\n   - [x] c\n4. d\n\n   more\n\n   ```\n   code\n   ```");
  assert.equal(list.ordered, true);
  assert.equal(list.start, 3);
  assert.equal(list.items.length, 2);
  const nested = list.items[0].blocks[1];
  assert.equal(nested.type, "list");
  assert.deepEqual(
    nested.items.map((item) => item.checked),
    [null, true],
  );
  assert.deepEqual(
    list.items[1].blocks.map((block) => block.type),
    ["paragraph", "paragraph", "code"],
  );
  assert.equal(list.items[1].blocks[2].text, "code");
  assert.equal(parse("- a\n- b")[0].tight, true);
  assert.equal(parse("- a\n\n- b")[0].tight, false);
  assert.equal(parse("a\n2. b").length, 1, "a number inside a sentence begins no list");
});

test("tables", () => {
  const [table] = parse("| a | b\\|c |\n|:--|--:|\n| 1 | `2` |\n| 3 |\n\nend");
  assert.deepEqual(table.align, ["left", "right"]);
  assert.deepEqual(table.head, [[text("a")], [text("b|c")]]);
  assert.deepEqual(table.rows, [
    [[text("1")], [{ type: "code", text: "2" }]],
    [[text("3")], []],
  ]);
});

test("quotes contain blocks and end", () => {
  const blocks = parse("> # a\n> - b\nlazy\n\nafter");
  assert.deepEqual(
    blocks.map((block) => block.type),
    ["quote", "paragraph"],
  );
  assert.deepEqual(
    blocks[0].blocks.map((block) => block.type),
    ["heading", "list"],
  );
});

test("emphasis closes in order and never loses text", () => {
  assert.deepEqual(parseInline("**a *b***"), [
    { type: "strong", children: [text("a "), { type: "em", children: [text("b")] }] },
  ]);
  assert.deepEqual(parseInline("***x***"), [
    { type: "strong", children: [{ type: "em", children: [text("x")] }] },
  ]);
  assert.deepEqual(parseInline("snake_case_name 2 * 3 * 4 **open"), [
    text("snake_case_name 2 * 3 * 4 **open"),
  ]);
  assert.deepEqual(parseInline("~~no~~ ~one~"), [{ type: "del", children: [text("no")] }, text(" ~one~")]);
  assert.deepEqual(parseInline("\\*a\\* `` b`c ``"), [text("*a* "), { type: "code", text: "b`c" }]);
});

test("markup is text", () => {
  const hostile = "<script>alert(1)</script><img src=x onerror=alert(1)>";
  assert.deepEqual(parse(hostile), [{ type: "paragraph", inline: [text(hostile)] }]);
});

test("links have http, https or mailto URLs, or are text", () => {
  assert.deepEqual(parseInline('[a](https://example.org/x_(y) "t")'), [
    { type: "link", href: "https://example.org/x_(y)", children: [text("a")] },
  ]);
  assert.deepEqual(parseInline("see https://example.org/a_b_c, (https://example.org)."), [
    text("see "),
    { type: "link", href: "https://example.org/a_b_c", children: [text("https://example.org/a_b_c")] },
    text(", ("),
    { type: "link", href: "https://example.org/", children: [text("https://example.org")] },
    text(")."),
  ]);
  for (const target of [
    "javascript:alert(1)",
    "JaVaScRiPt:alert(1)",
    "data:text/html,x",
    "file:///etc/passwd",
    "/relative",
    " vbscript:x",
  ]) {
    assert.equal(safeUrl(target), null, target);
    assert.deepEqual(
      parseInline(`[a](${target})`).filter((node) => node.type === "link"),
      [],
      target,
    );
  }
  assert.deepEqual(
    parseInline("![pic](https://example.org/p.png)")[0].type,
    "link",
    "nothing is loaded from elsewhere",
  );
});

const SAMPLES = [
  "# T\n\nText with **bold** and `code`.\n\n- a\n  - b\n    1. c\n\n  more\n- d\n\n```js\nlet a = `x`;\n\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n> q\n> r\n\nend\n---\nlast",
  "a\n- b\n-\n- c\n* * *\n1. x\n2) y\n```inline``` text\n```\ncode",
  "p\n|a|b|\n|-|-|\n|1|2|\nno pipe\n#nothead\n# head\n>q\nlazy\n\n    indented\n",
];

test("streamed text is parsed like the whole text", () => {
  let seed = 7;
  const chance = (most) => {
    seed = (seed * 1103515245 + 12345) % 2147483648;
    return 1 + (seed % most);
  };
  for (const sample of SAMPLES) {
    for (let round = 0; round < 60; round += 1) {
      const blocks = new IncrementalParser();
      let shown = [];
      for (let end = chance(5); ; end = Math.min(sample.length, end + chance(9))) {
        const { keep, blocks: fresh } = blocks.push(sample.slice(0, end));
        shown = [...shown.slice(0, keep), ...fresh];
        assert.deepEqual(shown, parse(sample.slice(0, end)), JSON.stringify(sample.slice(0, end)));
        if (end === sample.length) {
          break;
        }
      }
    }
  }
});

test("replaced text is parsed from the start", () => {
  const blocks = new IncrementalParser();
  blocks.push("one\n\ntwo\n\nthree");
  const { keep, blocks: fresh } = blocks.push("other");
  assert.equal(keep, 0);
  assert.deepEqual(fresh, parse("other"));
});

test("hostile text is parsed in linear time", () => {
  const hostile = [
    "[".repeat(50_000),
    "*a ".repeat(30_000),
    "`".repeat(9) + "` ``".repeat(20_000),
    ">".repeat(50_000),
    "- ".repeat(20_000),
    "**".repeat(30_000),
    "|-".repeat(30_000),
    "<http".repeat(20_000),
    "https://".repeat(10_000),
    "![](".repeat(20_000),
    Array.from({ length: 400 }, (_, depth) => `${" ".repeat(depth)}- x`).join("\n"),
  ];
  for (const attack of hostile) {
    const began = performance.now();
    parse(attack);
    const took = performance.now() - began;
    assert.ok(took < 1500, `${attack.slice(0, 12)}… took ${took} ms`);
  }
});

test("twice the text takes twice the time, not four times", () => {
  const attacks = {
    "addresses that are none": (n) => "http://%".repeat(n),
    "brackets behind an address": (n) => `http://a${")".repeat(n * 8)}`,
    "links that do not end": (n) => "[a](http://".repeat(n),
    "a line of a table that is none": (n) => `a | b\n-${"\t".repeat(n * 4)}x`,
    "titles that are none": (n) => `[](x${" ".repeat(1900)}y)`.repeat(n / 100),
    "runs of backticks, each longer": (n) =>
      Array.from({ length: Math.sqrt(n * 16) }, (_, length) => "`".repeat(length + 1)).join(" "),
    "a fence that is none": (n) => `\`\`\`${" ".repeat(n * 4)}\``,
    "a heading across a separator": (n) => `# ${" ".repeat(n * 4)}\u2028x`,
  };
  const fastest = (text) =>
    Math.min(
      ...[1, 2, 3].map(() => {
        const began = performance.now();
        parse(text);
        return performance.now() - began;
      }),
    );
  for (const [name, of] of Object.entries(attacks)) {
    const [once, twice] = [fastest(of(8_000)), fastest(of(16_000))];
    assert.ok(twice < 3 * once + 30, `${name}: ${once} ms, then ${twice} ms`);
  }
});

test("trailing punctuation is not part of a URL", () => {
  const shown = (word) => parseInline(word).find((node) => node.type === "link")?.children[0].text;
  assert.equal(shown("https://example.org/a_(b))."), "https://example.org/a_(b)");
  assert.equal(shown("https://example.org/a).)!"), "https://example.org/a");
  assert.equal(shown("https://example.org/(a"), "https://example.org/(a");
  assert.equal(shown("http://% http://b.org"), "http://b.org");
});

test("slow renderings are throttled and the newest text is shown", () => {
  let clock = 0;
  const [drawn, waiting] = [[], []];
  const write = throttleByCost(
    (text) => {
      drawn.push(text);
      clock += text.length;
    },
    () => clock,
    (fn, ms) => waiting.push([fn, ms]),
  );
  write("a".repeat(10));
  write("b");
  write("c");
  assert.deepEqual([drawn.length, waiting.length, waiting[0][1]], [1, 1, 80]);
  clock += 80;
  waiting.shift()[0]();
  assert.equal(drawn.at(-1), "c");
  clock += 8;
  write("d".repeat(1000));
  assert.equal(drawn.length, 3);
  write("e");
  assert.equal(waiting[0][1], 500, "however long it took");
});
