// Markdown as models write it, safely and while it streams: text in, elements out, never markup. Only the
// block that is still open is made again when more text comes. It knows nothing of runs and sessions.
//
//   markdownView(root)     -> {write(text)}: shows the text so far, a moment later when showing it takes
//                          long; what was closed before stays the same elements
//   new Blocks()           -> {push(text) -> {keep, blocks}}: the first `keep` blocks are as they were,
//                          `blocks` follow them
//   parse(text)            the whole text as blocks (markdown-blocks.js has their form)

import { h, icon } from "./dom.js";
import { paced } from "./frame.js";
import { Blocks, parse } from "./markdown-blocks.js";
import { inFull, t } from "./texts.js";

export { Blocks, parse };

const DIRECTION_MARKS = /[\u202a-\u202e\u2066-\u2069\u200e\u200f\u061c]/u;

export function markdownView(root) {
  const blocks = new Blocks();
  let openCode = null;

  function show(text) {
    const { keep, blocks: fresh } = blocks.push(text);
    if (goesOn(keep, fresh)) {
      return;
    }
    while (root.children.length > keep) {
      root.lastElementChild.remove();
    }
    for (const block of fresh) {
      root.append(blockElement(block));
    }
    const last = fresh[fresh.length - 1];
    openCode =
      last?.type === "code"
        ? { index: root.children.length - 1, language: last.language, length: last.text.length }
        : null;
  }

  /** A long code block grows by text alone: making it again for each piece would cost ever more. */
  function goesOn(keep, fresh) {
    const [block] = fresh;
    const same = openCode && fresh.length === 1 && keep === openCode.index && block.type === "code";
    if (!same || block.language !== openCode.language || block.text.length < openCode.length) {
      return false;
    }
    const piece = block.text.slice(openCode.length);
    if (DIRECTION_MARKS.test(piece)) {
      return false;
    }
    root.children[keep].querySelector("code").append(piece);
    openCode.length = block.text.length;
    return true;
  }

  return { write: paced(show) };
}

function blockElement(block) {
  switch (block.type) {
    case "code":
      return codeElement(block);
    case "heading":
      // The page has headings of its own; an answer's begin below them.
      return h(`h${Math.min(6, block.level + 2)}`, { dir: "auto" }, inline(block.inline));
    case "rule":
      return h("hr");
    case "quote":
      return h("blockquote", { dir: "auto" }, block.blocks.map(blockElement));
    case "list":
      return listElement(block);
    case "table":
      return tableElement(block);
    default:
      return h("p", { dir: "auto" }, inline(block.inline));
  }
}

function listElement(block) {
  const items = block.items.map((item) => {
    const box =
      item.checked === null ? null : h("input", { type: "checkbox", disabled: true, checked: item.checked });
    // A tight list's items are lines, not paragraphs.
    const [first, ...rest] = item.blocks;
    const lead =
      block.tight && first?.type === "paragraph" ? inline(first.inline) : first && blockElement(first);
    return h("li", { dir: "auto", class: box && "task" }, box, lead, rest.map(blockElement));
  });
  return block.ordered
    ? h("ol", { start: block.start === 1 ? null : block.start }, items)
    : h("ul", null, items);
}

function tableElement(block) {
  const cell = (tag) => (content, column) =>
    h(tag, { dir: "auto", class: block.align[column] }, inline(content));
  return h(
    "div",
    { class: "table-frame", tabindex: "0" },
    h(
      "table",
      null,
      h("thead", null, h("tr", null, block.head.map(cell("th")))),
      h(
        "tbody",
        null,
        block.rows.map((row) => h("tr", null, row.map(cell("td")))),
      ),
    ),
  );
}

/**
 * A code block with its copy button. Marks that would turn text around are spelt out, so that what is copied
 * is what was seen.
 */
function codeElement(block) {
  const code = h("code", null, honest(block.text));
  const button = h(
    "button",
    { class: "copy", type: "button", "aria-label": t("turn.copy"), title: t("turn.copy") },
    icon("copy"),
  );
  return h(
    "pre",
    { dir: "ltr", tabindex: "0", data: { language: block.language || undefined } },
    block.language && h("span", { class: "language" }, block.language),
    button,
    code,
  );
}

function honest(text) {
  return DIRECTION_MARKS.test(text) ? inFull(text).replaceAll("\\t", "\t") : text;
}

function inline(nodes) {
  return nodes.map((node) => {
    switch (node.type) {
      case "code":
        return h("code", null, honest(node.text));
      case "break":
        return h("br");
      case "link":
        return linkElement(node);
      case "text":
        return node.text;
      default:
        return h(node.type, null, inline(node.children));
    }
  });
}

function linkElement(node) {
  const link = h(
    "a",
    { href: node.href, title: node.href, rel: "noopener noreferrer nofollow", target: "_blank" },
    inline(node.children),
  );
  // A text that looks like one address and leads to another is shown with where it leads.
  const pretended = /^\s*(?:https?:\/\/)?([\w-]+(?:\.[\w-]+)+)/i.exec(link.textContent);
  const host = new URL(node.href).host;
  return pretended && host && pretended[1].toLowerCase() !== host.toLowerCase() ? [link, ` (${host})`] : link;
}
