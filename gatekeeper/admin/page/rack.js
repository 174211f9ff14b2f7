// The rack: compute blades above the switch, memory blades below, each with its
// cable, and the calls under way as curves between the nodes.

import { $, h, s, set, sync, text } from './dom.js';
import { bytes, nodeName, plural } from './format.js';

const manyBlades = 18; // from here on they are small, scroll, and share one cable
const shownNodes = (many) => (many ? 3 : 6); // of a blade; the table has all

// drawRack draws blades, cables and calls.
export function drawRack(state) {
  const of = (kind) => state.blades.filter((b) => b.kind === kind);
  const busy = calls(state);
  for (const kind of ['compute', 'memory']) {
    const list = $(`.blades.${kind}`);
    const blades = of(kind);
    const many = blades.length > manyBlades;
    list.classList.toggle('many', many);
    sync(list, blades, (b) => b.name, makeBlade, (e, b) => drawBlade(e, b, state, busy, shownNodes(many)));
  }
  const sw = state.status.switch;
  set(text($('#switch'), sw.connected ? 'connected' : 'not connected'), { 'data-connected': sw.connected });
  drawCables(state);
}

// calls counts for each node those that it makes and serves.
function calls(state) {
  const count = new Map();
  const add = (address, what) => {
    const c = count.get(address) ?? { makes: 0, serves: 0 };
    c[what]++;
    count.set(address, c);
  };
  for (const k of state.calls.items) {
    add(k.caller, 'makes');
    add(k.callee, 'serves');
  }
  return count;
}

function makeBlade(b) {
  const inner = b.kind === 'memory'
    ? [h('div', { class: 'meter', role: 'meter', 'aria-label': `memory of ${b.name}`, 'aria-valuemin': 0 }, h('span')), h('p', { class: 'used quiet' }), h('p', { class: 'copies quiet' })]
    : [h('ul', { class: 'chips', 'aria-label': `nodes on ${b.name}` }), h('p', { class: 'used quiet' })];
  return h('li', { class: 'blade', 'data-blade': b.name },
    h('header', {}, h('h3', {}, b.name), h('span', { class: 'pill' })), ...inner, h('p', { class: 'cause' }));
}

function drawBlade(e, b, state, busy, most) {
  set(e, { 'data-status': b.status, title: `${b.kind} blade ${b.name}, ${b.address}${b.port ? `, port ${b.port}` : ''}` });
  text(e.querySelector('.pill'), b.status);
  text(e.querySelector('.cause'), b.cause ?? '');
  if (b.kind === 'memory') {
    const share = b.capacity ? Math.min(1, b.used / b.capacity) : 0;
    set(e.querySelector('.meter'), { 'aria-valuemax': b.capacity, 'aria-valuenow': b.used, 'aria-valuetext': `${bytes(b.used)} of ${bytes(b.capacity)}` });
    e.querySelector('.meter span').style.width = `${b.used ? Math.max(2, 100 * share) : 0}%`;
    text(e.querySelector('.used'), `${bytes(b.used)} / ${bytes(b.capacity)}`);
    const m = state.machines.find((x) => x.blades.includes(b.name));
    set(text(e.querySelector('.copies'), m ? copies(m, b.name) : ''), { 'data-single': Boolean(m) && m.in_service < 2 });
    return;
  }
  const nodes = state.nodes.filter((n) => n.blade === b.name && !n.awaited);
  sync(e.querySelector('.chips'), nodes.slice(0, most), (n) => n.address, makeChip, (li, n) => {
    const c = busy.get(n.address) ?? { makes: 0, serves: 0 };
    const button = li.firstElementChild;
    set(button, {
      'aria-pressed': state.selected === n.address, 'data-busy': c.makes + c.serves > 0,
      title: `${nodeName(n.address)}, ${n.address}: makes ${plural(c.makes, 'call')}, serves ${c.serves}`,
    });
    text(button, n.name);
  });
  const more = nodes.length - most;
  text(e.querySelector('.used'), more > 0 ? `and ${more} more` : nodes.length ? '' : 'no node');
}

const makeChip = (n) => h('li', {}, h('button', { type: 'button', class: 'chip', 'data-select': n.address, 'data-node': n.address }));

// copies says what a blade has of its memory machine: who else holds a copy, how far it is
// filled, or why nobody does.
function copies(m, blade) {
  if (m.filling) {
    const share = m.filling.total ? Math.floor((100 * Math.min(m.filling.done, m.filling.total)) / m.filling.total) : 0;
    const left = m.filling.left_seconds > 0 ? `, ${Math.ceil(m.filling.left_seconds)} s left` : '';
    return `${m.filling.blade} is filled: ${share} % of ${bytes(m.filling.total)}${left}`;
  }
  const others = m.copies.filter((name) => name !== blade);
  if (!m.copies.includes(blade)) return `no copy: ${m.why || 'not filled yet'}`;
  if (others.length && m.in_service > 1) return `mirrored with ${others.join(', ')}`;
  return `one copy${m.why ? `: ${m.why}` : ''}`;
}

// drawCables draws over the blades' places, as they are laid out now.
function drawCables(state) {
  const area = $('.rack').getBoundingClientRect();
  const place = (element) => {
    const r = element.getBoundingClientRect();
    return { x: r.x - area.x + r.width / 2, top: r.y - area.y, bottom: r.y - area.y + r.height };
  };
  const sw = place($('.switch'));
  const lines = [];
  for (const e of document.querySelectorAll('.blades.many, .blades:not(.many) .blade')) {
    const p = place(e);
    const above = p.bottom <= sw.top;
    lines.push({
      key: e.dataset.blade ?? e.className, status: e.dataset.status ?? 'trunk', d: above ? `M${p.x} ${p.bottom}V${sw.top}` : `M${p.x} ${p.top}V${sw.bottom}`,
    });
  }
  const svg = $('.cables');
  set(svg, { viewBox: `0 0 ${area.width} ${area.height}`, width: area.width, height: area.height });
  const chips = new Map(Array.from(document.querySelectorAll('.blades:not(.many) .chip'), (c) => [c.dataset.node, place(c)]));
  const ways = new Map();
  for (const k of state.calls.items) {
    const from = chips.get(k.caller);
    const to = chips.get(k.callee);
    const key = `call ${k.caller} ${k.callee}`;
    if (from && to && !ways.has(key)) ways.set(key, { key, call: true, d: curve(from, to, sw.top + 8) });
  }
  sync(svg, [...lines, ...ways.values()], (l) => l.key, (l) => s('path', { class: l.call ? 'way' : 'cable' }),
    (path, l) => set(path, { d: l.d, 'data-status': l.status }));
}

// curve leads from one node down to the switch and up to another.
function curve(from, to, depth) {
  return `M${from.x} ${from.bottom}C${from.x} ${depth} ${to.x} ${depth} ${to.x} ${to.bottom}`;
}
