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
  return [...found.values()].sort((a, b) => b.count - a.count || a.key.localeCompare(b.key));
}

const makeEdge = () => s('g', {}, s('path'), s('text'));

function drawEdge(g, e, at, box) {
  const from = at.get(e.from);
  const to = at.get(e.to);
  const stage = [...e.stages].sort((a, b) => b[1] - a[1])[0]?.[0] ?? 'past';
  set(g, { class: `edge ${stage}`, 'data-edge': e.key, 'data-count': e.count });
  const x1 = from.x + box.w;
  const y1 = from.y + box.h / 2;
  const x2 = to.x;
  const y2 = to.y + box.h / 2;
  const bend = Math.max(24, (x2 - x1) / 2);
  const back = x2 <= x1; // a circle, or a node that calls itself
  const d = back ? `M${x1} ${y1}C${x1 + 40} ${y1 + 50} ${x2 - 40} ${y2 + 50} ${x2} ${y2}` : `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`;
  const [path, label] = g.children;
  set(path, { d, 'stroke-width': Math.min(6, 1.5 + Math.log2(Math.max(1, e.count))) });
  // Nearer to the end with fewer lines there is more room; the middle is a fair guess.
  set(text(label, describe(e, x2 - x1)), { x: (x1 + x2) / 2, y: (y1 + y2) / 2 - 6 + (back ? 40 : 0) });
}

// describe says what is called, as far as there is room.
function describe(e, room) {
  if (e.count === 0) return '';
  const methods = [...e.methods].sort((a, b) => b[1] - a[1]).map(([name, n]) => (n > 1 ? `${name} ×${n}` : name)).join(', ');
  return methods.length * 7 < room ? methods : `×${e.count}`;
}
