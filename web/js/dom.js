// Creates and updates elements. Text is always set as text, never parsed as HTML.
//
//   h(tag, props?, ...children)      an element; see `setProp` for the props; children are nodes, texts, numbers
//                                    or arrays; null and false are skipped
//   icon(name)                       a symbol of index.html (<symbol id="i-NAME">), hidden from screen readers
//   byId(id)                         the element; throws when there is none
//   setText(element, text)           writes only a change, so that screen readers announce nothing twice
//   reconcileChildren(parent, items, keyOf, make, update?)   one child for each item, kept by its key, in order
//   listen(target, type, fn, options?)   adds a listener; returns the function that removes it
//   isComposing(event)               whether a key event belongs to an input method
//   isSecondClick(event)             whether it is the second click of a double click; a third click counts again

const SVG = "http://www.w3.org/2000/svg";
const SVG_TAGS = new Set([
  "svg",
  "use",
  "g",
  "rect",
  "line",
  "path",
  "text",
  "title",
  "pattern",
  "defs",
  "circle",
  "clipPath",
]);

/**
 * Props: `class`, `data` (dataset), `style` (properties by name), `on` (listeners by type). All other names are
 * attributes: `true` sets an empty one, `false` and null set none.
 */
export function h(tag, props, ...children) {
  const element = SVG_TAGS.has(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag);
  if (props) {
    for (const [name, value] of Object.entries(props)) {
      setProp(element, name, value);
    }
  }
  appendChildren(element, children);
  return element;
}

function setProp(element, name, value) {
  if (value === null || value === undefined || value === false) {
    return;
  }
  if (name === "data") {
    for (const [key, item] of Object.entries(value)) {
      if (item !== undefined && item !== null) {
        element.dataset[key] = item;
      }
    }
  } else if (name === "style") {
    for (const [key, item] of Object.entries(value)) {
      element.style.setProperty(key, item);
    }
  } else if (name === "on") {
    for (const [type, listener] of Object.entries(value)) {
      element.addEventListener(type, listener);
    }
  } else {
    element.setAttribute(name, value === true ? "" : value);
  }
}

function appendChildren(element, children) {
  for (const child of children) {
    if (Array.isArray(child)) {
      appendChildren(element, child);
    } else if (child !== null && child !== undefined && child !== false) {
      element.append(child);
    }
  }
}

export function icon(name) {
  return h("svg", { class: "icon", "aria-hidden": "true" }, h("use", { href: `#i-${name}` }));
}

export function byId(id) {
  const element = document.getElementById(id);
  if (!element) {
    throw new Error(`index.html has no #${id}`);
  }
  return element;
}

export function setText(element, text) {
  if (element.textContent !== text) {
    element.textContent = text;
  }
}

const KEY = Symbol("key");

/**
 * Keyed list reconciliation: a child stays the same element while its key is present, and moves only when its
 * position changed, so that focus and open details survive. Other children of `parent` are removed.
 */
export function reconcileChildren(parent, items, keyOf, make, update) {
  const byKey = new Map();
  for (const child of [...parent.children]) {
    byKey.set(child[KEY], child);
  }
  let next = parent.firstElementChild;
  const seenKeys = new Set();
  for (const item of items) {
    const key = keyOf(item);
    if (seenKeys.has(key)) {
      continue;
    }
    seenKeys.add(key);
    let child = byKey.get(key);
    if (!child) {
      child = make(item);
      child[KEY] = key;
    }
    if (update) {
      update(child, item);
    }
    if (child === next) {
      next = next.nextElementSibling;
    } else {
      parent.insertBefore(child, next);
    }
  }
  for (const child of [...parent.children]) {
    if (!seenKeys.has(child[KEY])) {
      child.remove();
    }
  }
}

export function listen(target, type, fn, options) {
  target.addEventListener(type, fn, options);
  return () => target.removeEventListener(type, fn, options);
}

/** Some browsers report the key that ends a composition with code 229 and without `isComposing`. */
export function isComposing(event) {
  return event.isComposing || event.keyCode === 229;
}

export function isSecondClick({ detail }) {
  return detail === 2;
}
