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
  element.append(...children.flat().filter((c) => c !== undefined && c !== null && c !== '' && c !== false));
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

// panel makes a part of the page with a heading; more stands beside that.
export function panel(id, title, more, ...children) {
  return h('section', { id, class: 'panel', 'aria-labelledby': `${id}-title` }, h('header', {}, h('h2', { id: `${id}-title` }, title), more), ...children);
}

// table makes one without rows. Of columns [name, class] the class also says how cells look.
export function table(id, columns) {
  return h('div', { class: 'scroll', tabindex: 0, role: 'group', 'aria-labelledby': `${id}-title` },
    h('table', {}, h('thead', {}, h('tr', {}, columns.map(([name, look]) => h('th', { scope: 'col', class: look }, name)))), h('tbody')));
}

// rows draws the rows of the table in a section. cells gives of an item, by column, what the cell says and what makes its content; a cell
// that says the same is left alone. attributes are the row's.
export function rows(section, items, key, cells, attributes, nothing) {
  const looks = Array.from(section.querySelectorAll('th'), (th) => th.className);
  const list = items.length ? items : [{ nothing }];
  sync(section.querySelector('tbody'), list, (item) => (item.nothing ? '' : key(item)),
    (item) => (item.nothing ? h('tr', { class: 'nothing' }, h('td', { colspan: looks.length }, item.nothing))
      : h('tr', {}, looks.map((look) => h('td', look ? { class: look } : {})))),
    (tr, item) => {
      if (item.nothing) return;
      set(tr, attributes(item));
      cells(item).forEach((cell, i) => draw(tr.children[i], cell));
    });
}

// facts draws names and what is so, each cell as rows does.
export function facts(list, items) {
  sync(list, items.filter(([, says]) => says !== undefined && says !== ''), ([name]) => name, ([name]) => h('div', {}, h('dt', {}, name), h('dd')),
    (e, [, says]) => draw(e.lastElementChild, says));
}

// draw draws a cell: what it says, or that and what makes its content.
const draw = (element, cell) => same(element, ...(Array.isArray(cell) ? cell : [cell]));

// same keeps an element's children, and the focus in them, while they say the same. Without make they are the text.
export function same(element, says, make) {
  const now = String(says ?? '');
  if (element.dataset.says === now) return;
  element.dataset.says = now;
  element.replaceChildren(...(make ? [make()].flat().filter((c) => c || c === 0) : [now]));
}

// changed tells whether what an element was last drawn from is something else now.
const drawn = new WeakMap();
export function changed(element, ...from) {
  const before = drawn.get(element);
  if (before && before.length === from.length && before.every((v, i) => v === from[i])) return false;
  drawn.set(element, from);
  return true;
}
