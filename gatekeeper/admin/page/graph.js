// The call graph: who has called whom of late, the busiest edges; the others are one number.

import { $, changed, h, panel, s, set, sync, text } from './dom.js';
import { number, plural, short, to } from './format.js';
import { layout } from './layout.js';

const most = 24; // edges
const sticky = 1.5; // how many times busier another edge must be to take the place of one that is shown
const alarming = 0.05; // the share of failed calls from which on an edge is red
let shown = new Set(); // keys of the edges in the picture
let about = ''; // what picture that is

export const graphNeeds = (parameters) => ({ path: '/v1/graph', parameters: { limit: 3 * most, ...parameters }, least: 2000, most: 5000 });

// graphPanel makes the picture's place; more stands beside its title.
export function graphPanel(title, more) {
  return panel('graph', title, more,
    h('p', { class: 'legend', 'aria-hidden': 'true' }, h('span', { class: 'key run' }, 'calls'), h('span', { class: 'key fail' }, 'more than 5 % failed'), h('span', { class: 'key open' }, 'some are under way')),
    h('div', { class: 'graph' }, s('svg', { 'aria-hidden': 'true' }, s('defs', {}, s('marker', { id: 'tip', viewBox: '0 0 8 8', refX: 7, refY: 4, markerWidth: 8, markerHeight: 8, markerUnits: 'userSpaceOnUse', orient: 'auto' },
      s('path', { d: 'M0 0L8 4L0 8z' }))), s('g')), h('ul', { 'aria-label': 'Who calls whom' })),
    h('p', { class: 'folded quiet' }));
}

const key = (e) => `${e.from}\n${e.to}`;
const label = (name) => name.replace(/\/$/, '');

// choose picks the edges to show: those that are in the picture stay, unless others are much busier.
function choose(graph, picture) {
  if (about !== picture) [shown, about] = [new Set(), picture];
  const weight = (e) => e.calls * (shown.has(key(e)) ? sticky : 1);
  const edges = [...graph.edges].sort((a, b) => weight(b) - weight(a) || (key(a) < key(b) ? -1 : 1)).slice(0, most);
  shown = new Set(edges.map(key));
  return edges;
}

// drawGraph draws it as wide as there is room: in columns, or as a list of edges where that is too narrow.
export function drawGraph(graph) {
  const place = $('.graph');
  if (!graph || !place || !changed(place, graph, place.clientWidth)) return;
  const [svg, list] = place.children;
  const edges = choose(graph, location.hash);
  const whole = layout(edges, place.clientWidth);
  place.classList.toggle('narrow', edges.length > 0 && !whole);
  set(place, { 'data-edges': edges.length });
  const calls = graph.calls - edges.reduce((sum, e) => sum + e.calls, 0);
  const folded = graph.edges.length + graph.folded.edges - edges.length;
  text($('#graph .folded'), edges.length === 0 ? 'No call in the last five minutes.' : folded > 0 ? `and ${plural(folded, 'edge')} with ${plural(calls, 'call')}: choose a service or node to see its own` : '');
  const kinds = new Map(graph.vertices.map((v) => [v.name, v]));
  if (!whole) {
    set(svg, { width: 0, height: 0 });
    list.style.height = '';
    svg.lastElementChild.replaceChildren();
    sync(list, edges, (e) => `e${key(e)}`, () => h('li', { class: 'pair' }, h('span'), h('span', { class: 'arrow' }), h('span')), (li, e) => drawPair(li, e, kinds));
    return;
  }
  set(svg, { width: place.clientWidth, height: whole.height, viewBox: `0 0 ${place.clientWidth} ${whole.height}` });
  list.style.height = `${whole.height}px`;
  const boxes = [...whole.boxes].filter(([, b]) => !b.stop);
  sync(list, boxes, ([name]) => `b${name}`, ([name]) => h('li', {}, box(kinds.get(name))), (li, [, b]) => Object.assign(li.style, { left: `${b.x}px`, top: `${b.y}px`, width: `${b.w}px`, height: `${b.h}px` }));
  const by = new Map(edges.map((e) => [key(e), e]));
  sync(svg.lastElementChild, whole.ways, (w) => w.key, () => s('g', {}, s('path', { 'marker-end': 'url(#tip)' }), s('text')), (g, w) => {
    const e = by.get(w.key);
    set(g, { class: look(e), 'data-edge': w.key.replace('\n', ' → '), 'data-calls': e.calls });
    set(g.children[0], { d: w.d, 'stroke-width': Math.min(5, 1 + Math.log10(Math.max(1, e.calls))) });
    set(text(g.children[1], short(e.calls)), w.label);
  });
}

// look is red where more than a few calls have failed, dashed where some are under way.
const look = (e) => `edge${(e.failed ?? 0) > alarming * e.calls ? ' failed' : ''}${e.open ? ' open' : ''}`;

// box is what stands for a service, program or node: a link to its view, if it has one.
function box(vertex) {
  const { name, kind, node } = vertex;
  const [blade, ...rest] = label(name).split('/');
  const says = kind === 'node' && rest.length ? [h('b', {}, rest.join('/')), h('small', {}, blade)] : [h('b', {}, label(name))];
  if (kind === 'service') return h('a', { class: `box ${kind}`, href: to('services', [name]), title: name }, says);
  if (kind === 'node' && node) return h('a', { class: `box ${kind}`, href: to('nodes', [node]), title: label(name) }, says);
  return h('span', { class: `box ${kind}`, title: `${label(name)}: makes calls, and serves none` }, says);
}

// drawPair draws an edge as a line of text between its boxes.
function drawPair(li, e, kinds) {
  set(li, { class: `pair ${look(e)}`, 'data-edge': `${e.from} → ${e.to}`, 'data-calls': e.calls });
  const [from, arrow, callee] = li.children;
  if (!from.firstChild) {
    from.append(box(kinds.get(e.from)));
    callee.append(box(kinds.get(e.to)));
  }
  text(arrow, `${short(e.calls)} →`);
  set(arrow, { title: `${number(e.calls)} calls, ${number(e.failed ?? 0)} failed` });
}
