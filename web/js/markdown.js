// Renders markdown while it streams: text in, elements out, never HTML. Only the open block is rendered again.
//
//   markdownView(root)        {write(text)}: shows the whole text so far, delayed when rendering takes long
//   IncrementalParser, parse  of markdown-blocks.js

import { h, icon } from "./dom.js";
import { IncrementalParser, parse } from "./markdown-blocks.js";
import { escapeInvisible, t } from "./texts.js";
import { throttleByCost } from "./throttle.js";

export { IncrementalParser, parse };

const DIRECTION_MARKS = /[\u202a-\u202e\u2066-\u2069\u200e\u200f\u061c]/u;

export function markdownView(root) {
  const blocks = new IncrementalParser();
  let openCode = null;

  function render(text) {
    const { keep, blocks: added } = blocks.push(text);
    if (appendToOpenCode(keep, added)) {
      return;
    }
    while (root.children.length > keep) {
      root.lastElementChild.remove();
    }
    for (const block of added) {
      root.append(blockElement(block));
    }
    const last = added[added.length - 1];
    openCode =
      last?.type === "code"
        ? { index: root.children.length - 1, language: last.language, length: last.text.length }
        : null;
  }

  /** Appends to a code block that is still open, instead of rendering it again for each piece of text. */
  function appendToOpenCode(keep, added) {
    const [block] = added;
    const same = openCode && added.length === 1 && keep === openCode.index && block.type === "code";
    if (!same || block.language !== openCode.language || block.text.length < openCode.length) {
      return false;
    }
    const newText = block.text.slice(openCode.length);
    if (DIRECTION_MARKS.test(newText)) {
      return false;
    }
    root.children[keep].querySelector("code").append(newText);
    openCode.length = block.text.length;
    return true;
  }

  return { write: throttleByCost(render) };
}

function blockElement(block) {
  switch (block.type) {
    case "code":
      return codeElement(block);
    case "heading":
      // Below the headings of the page.
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
    // Items of a tight list are no paragraphs.
    const [first, ...rest] = item.blocks;
    const firstContent =
      block.tight && first?.type === "paragraph" ? inline(first.inline) : first && blockElement(first);
    return h("li", { dir: "auto", class: box && "task" }, box, firstContent, rest.map(blockElement));
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

/** A code block with its copy button. Bidirectional controls are escaped, so that the copy equals what is seen. */
function codeElement(block) {
  const code = h("code", null, escapeDirectionMarks(block.text));
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

function escapeDirectionMarks(text) {
  return DIRECTION_MARKS.test(text) ? escapeInvisible(text).replaceAll("\\t", "\t") : text;
}

function inline(nodes) {
  return nodes.map((node) => {
    switch (node.type) {
      case "code":
        return h("code", null, escapeDirectionMarks(node.text));
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
  // Show the real host when the link text looks like another one.
  const displayedHost = /^\s*(?:https?:\/\/)?([\w-]+(?:\.[\w-]+)+)/i.exec(link.textContent);
  const host = new URL(node.href).host;
  return displayedHost && host && displayedHost[1].toLowerCase() !== host.toLowerCase()
    ? [link, ` (${host})`]
    : link;
}
