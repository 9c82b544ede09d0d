// Builds and updates elements. Text goes in as text, never as markup: there is no HTML string anywhere on
// this page. It knows nothing of what the page shows.
//
//   h(tag, props?, ...children)      an element; see `set` for the props; children: nodes, texts, numbers,
//                                    arrays; null and false are skipped
//   icon(name)                       one of the drawings of index.html (<symbol id="i-NAME">), hidden from
//                                    screen readers
//   byId(id)                         the element, which must exist
//   setText(element, text)           writes only when it differs, so that nothing is announced twice
//   keyed(parent, items, keyOf, make, update?)   one child per item, kept by its key, in the items' order
//   listen(target, type, fn, options?)           adds a listener; gives the function that removes it
//   isComposing(event)                           of a key that belongs to the keyboard: letters are being put
//                                                together
//   isSecondHalf(event)                          of a double click: it was not meant for what the first one
//                                                has put in its place; a third click is meant again

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
 * Makes an element. Props: `class`, `data` (dataset), `style` (custom properties and plain ones), `on`
 * (listeners by type); all other names are attributes: `true` makes an empty one, `false` and null none.
 */
export function h(tag, props, ...children) {
  const element = SVG_TAGS.has(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag);
  if (props) {
    for (const [name, value] of Object.entries(props)) {
      set(element, name, value);
    }
  }
  add(element, children);
  return element;
}

function set(element, name, value) {
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

function add(element, children) {
  for (const child of children) {
    if (Array.isArray(child)) {
      add(element, child);
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
 * Makes the children of `parent` those of `items`: a child stays the same element as long as its key is
 * there, and is moved only when its place changed, so focus and unfolded details survive. Children that
 * this function did not make are removed.
 */
export function keyed(parent, items, keyOf, make, update) {
  const known = new Map();
  for (const child of [...parent.children]) {
    known.set(child[KEY], child);
  }
  let place = parent.firstElementChild;
  const seen = new Set();
  for (const item of items) {
    const key = keyOf(item);
    if (seen.has(key)) {
      continue;
    }
    seen.add(key);
    let child = known.get(key);
    if (!child) {
      child = make(item);
      child[KEY] = key;
    }
    if (update) {
      update(child, item);
    }
    if (child === place) {
      place = place.nextElementSibling;
    } else {
      parent.insertBefore(child, place);
    }
  }
  for (const child of [...parent.children]) {
    if (!seen.has(child[KEY])) {
      child.remove();
    }
  }
}

export function listen(target, type, fn, options) {
  target.addEventListener(type, fn, options);
  return () => target.removeEventListener(type, fn, options);
}

/** 229 is what some browsers say of the key that ends it, when they call it ended already. */
export function isComposing(event) {
  return event.isComposing || event.keyCode === 229;
}

export function isSecondHalf({ detail }) {
  return detail === 2;
}
