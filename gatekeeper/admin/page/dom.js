// Making and changing elements, without HTML text: the page's policy forbids that.

const svgSpace = 'http://www.w3.org/2000/svg';

// h makes an element with attributes and children (elements, texts, or nothing).
// An attribute that is false or undefined is left out; on… adds a listener.
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

// s makes an SVG element.
export function s(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(svgSpace, tag), attributes, children);
}

function fill(element, attributes, children) {
  set(element, attributes);
  element.append(...children.filter((c) => c !== undefined && c !== null && c !== ''));
  return element;
}

// set changes attributes.
export function set(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else if (value === false || value === undefined || value === null) element.removeAttribute(name);
    else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
  }
  return element;
}

// text changes an element's text, if that is another one.
export function text(element, value) {
  if (element.textContent !== value) element.textContent = value;
  return element;
}

export const $ = (selector) => document.querySelector(selector);

// sync makes the children of parent stand for items, in their order. Those that
// stay are kept, and with them focus and selection: make gets an item, change an
// element and its item.
export function sync(parent, items, key, make, change) {
  const old = new Map(Array.from(parent.children, (c) => [c.dataset.key, c]));
  let at = parent.firstElementChild;
  for (const item of items) {
    const k = String(key(item));
    let element = old.get(k);
    if (element) {
      old.delete(k);
    } else {
      element = make(item);
      element.dataset.key = k;
    }
    if (element === at) at = at.nextElementSibling;
    else parent.insertBefore(element, at);
    change?.(element, item);
  }
  for (const gone of old.values()) gone.remove();
}

// row makes a table row of as many cells as there are classes.
export function row(...classes) {
  return h('tr', {}, ...classes.map((c) => h('td', c ? { class: c } : {})));
}
