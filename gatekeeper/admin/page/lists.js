// Lists that the server has in pages: a field for words, and a way to the next page. Where a page begins is in the address.

import { h, set, text } from './dom.js';
import { number, to } from './format.js';

export const pageSize = 50;

// listing is the parameters of a page that the address asks for.
export const listing = (parameters) => ({ limit: pageSize, match: parameters.match, cursor: parameters.cursor });

// finder is the field for words.
export function finder(view, parameters, what) {
  const field = h('input', { type: 'search', id: `find-${view}`, name: 'match', value: parameters.match ?? '', placeholder: `find ${what}`, autocomplete: 'off', spellcheck: 'false' });
  return h('form', { class: 'find', role: 'search', onsubmit: (e) => {
    e.preventDefault();
    location.hash = to(view, [], { match: field.value.trim() });
  } }, h('label', { class: 'hidden', for: `find-${view}` }, `Find ${what}`), field);
}

// pager is the way to other pages. drawPager sets it after each answer.
export const pager = (id) => h('p', { id: `${id}-pager`, class: 'pager quiet' }, h('span'), h('a', { hidden: true }, 'first page'), h('a', { hidden: true }, 'next page'));

export function drawPager(id, answer, view, parts, parameters) {
  const [says, first, next] = document.getElementById(`${id}-pager`).children;
  text(says, answer.total > answer.items.length ? `${number(answer.items.length)} of ${number(answer.total)}` : '');
  set(first, { hidden: !parameters.cursor, href: to(view, parts, { ...parameters, cursor: '' }) });
  set(next, { hidden: !answer.next, href: to(view, parts, { ...parameters, cursor: answer.next }) });
}
