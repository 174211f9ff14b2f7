// The call graph: nodes in columns, callers to the left; one line for all calls
// between two nodes, with what they call and how far they have come. Calls that
// were under way a moment ago fade.

import { $, h, s, set, sync, text } from './dom.js';
import { nodeName } from './format.js';
import { arrange } from './layout.js';

const linger = 3000; // ms
const most = 40; // lines

// drawGraph draws it as wide as there is room.
export function drawGraph(state) {
  const place = $('.graph');
  if (!place.firstChild) place.append(s('svg', { 'aria-hidden': 'true' }), h('ul', { 'aria-label': 'Nodes with calls under way' }), h('p', { class: 'empty quiet' }));
  const [svg, list, note] = place.children;
  const all = edges(state);
  const shown = all.slice(0, most);
  text(note, all.length === 0 ? 'No call is under way.' : all.length > most ? `and ${all.length - most} more lines: see the table` : '');
  const lists = arrange(shown, nodeName);
  const tallest = Math.max(0, ...lists.map((l) => l.length));
  const width = place.clientWidth;
  const height = Math.max(1, tallest) * 58;
  const box = { w: Math.min(150, width / Math.max(1, lists.length) - 14), h: 34 };
  const at = new Map();
  lists.forEach((nodes, c) => nodes.forEach((node, i) => at.set(node, {
    x: lists.length > 1 ? (c * (width - box.w)) / (lists.length - 1) : (width - box.w) / 2,
    y: ((i + 0.5) * height) / nodes.length - box.h / 2,
  })));
  list.style.height = all.length ? `${height}px` : '0';
  set(svg, { width, height: all.length ? height : 0, viewBox: `0 0 ${width} ${height}` });
  sync(list, [...at.keys()], (node) => node, makeNode, (li, node) => {
    const p = at.get(node);
    Object.assign(li.style, { left: `${p.x}px`, top: `${p.y}px`, width: `${box.w}px` });
    const [blade, name] = nodeName(node).split('/');
    text(li.querySelector('b'), name ?? blade);
    text(li.querySelector('small'), name ? blade : '');
    set(li.firstElementChild, { 'aria-pressed': state.selected === node });
  });
  sync(svg, shown, (e) => e.key, makeEdge, (g, e) => drawEdge(g, e, at, box));
}

const makeNode = (node) => h('li', {}, h('button', { type: 'button', 'data-select': node }, h('b'), h('small')));

// edges puts calls with the same ends together, the busiest first.
function edges(state) {
  const found = new Map();
  for (const k of state.calls.items) {
    const key = `${k.caller} ${k.callee}`;
    const e = found.get(key) ?? { key, from: k.caller, to: k.callee, count: 0, methods: new Map(), stages: new Map() };
    e.count++;
    e.methods.set(k.method, (e.methods.get(k.method) ?? 0) + 1);
    e.stages.set(k.stage, (e.stages.get(k.stage) ?? 0) + 1);
    found.set(key, e);
  }
  const now = Date.now();
  for (const [key, time] of state.recent) {
    if (now - time > linger) state.recent.delete(key);
    else if (!found.has(key) && !state.selected) {
      const [from, to] = key.split(' ');
      found.set(key, { key, from, to, count: 0, methods: new Map(), stages: new Map() });
    }
  }
  const all = [...found.values()].sort((a, b) => b.count - a.count || a.key.localeCompare(b.key));
  for (const e of all) e.early = all.filter((o) => o.from === e.from).length < all.filter((o) => o.to === e.to).length;
  return all;
}

const makeEdge = () => s('g', {}, s('path'), s('text'));

function drawEdge(g, e, at, box) {
  const stage = [...e.stages].sort((a, b) => b[1] - a[1])[0]?.[0] ?? 'past';
  set(g, { class: `edge ${stage}`, 'data-edge': e.key, 'data-count': e.count });
  const c = curve(at.get(e.from), at.get(e.to), box);
  const [path, label] = g.children;
  set(path, {
    d: `M${c[0].x} ${c[0].y}C${c[1].x} ${c[1].y} ${c[2].x} ${c[2].y} ${c[3].x} ${c[3].y}`,
    'stroke-width': Math.min(6, 1.5 + Math.log2(Math.max(1, e.count))),
  });
  const p = point(c, e.early ? 0.3 : 0.7); // where lines are farther apart
  set(text(label, describe(e, c[3].x - c[0].x)), { x: p.x, y: p.y - 5 });
}

// curve is the Bezier curve from a node's right side to another's left. A call that
// goes back, or to its own node, leads around below.
function curve(from, to, box) {
  const a = { x: from.x + box.w, y: from.y + box.h / 2 };
  const b = { x: to.x, y: to.y + box.h / 2 };
  const back = b.x <= a.x;
  const bend = back ? 40 : (b.x - a.x) / 2;
  const down = back ? 50 : 0;
  return [a, { x: a.x + bend, y: a.y + down }, { x: b.x - bend, y: b.y + down }, b];
}

// point is where a Bezier curve is after a part of its way.
function point([a, b, c, d], t) {
  const u = 1 - t;
  const mix = (k) => u ** 3 * a[k] + 3 * u * u * t * b[k] + 3 * u * t * t * c[k] + t ** 3 * d[k];
  return { x: mix('x'), y: mix('y') };
}

// describe says what is called, as far as there is room.
function describe(e, room) {
  if (e.count === 0) return '';
  const methods = [...e.methods].sort((a, b) => b[1] - a[1]).map(([name, n]) => (n > 1 ? `${name} ×${n}` : name)).join(', ');
  if (methods.length * 6.5 < room * 0.8) return methods;
  return e.count > 1 ? `×${e.count}` : '';
}
