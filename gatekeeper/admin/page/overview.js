// The rack at a glance.

import { $, changed, h, panel, s, set, sync, text } from './dom.js';
import { bytes, copies, number, plural, to } from './format.js';
import { chartPanel, drawChart, historyNeeds } from './chart.js';
import { drawFeed, feedPanel } from './feed.js';
import { drawGraph, graphNeeds, graphPanel } from './graph.js';

const minute = 60; // samples, one a second
const tiles = 48; // blades of a kind that are drawn

// rate is how much of a counter there was a second, between two statuses.
function rate(state, counter) {
  const { status: now, before } = state;
  if (!before || before.boot !== now.boot) return 0;
  const seconds = (new Date(now.time) - new Date(before.time)) / 1000;
  return seconds > 0 ? (now.counters[counter] - before.counters[counter]) / seconds : 0;
}

const figures = [
  { key: 'nodes', label: 'nodes', title: 'programs that have joined', value: (st) => st.status.counts.nodes },
  { key: 'services', label: 'services', title: 'services that a node exports', value: (st) => st.status.counts.services },
  { key: 'calls', label: 'calls', title: 'calls under way', value: (st) => st.status.counts.calls },
  { key: 'regions', label: 'regions', title: 'regions that are allocated', value: (st) => st.status.counts.regions },
  { key: 'held', label: 'held / s', title: 'packets that the switch holds, a second', value: (st) => rate(st, 'held'), past: [] },
  { key: 'denied', label: 'denied', title: 'memory accesses that the switch has denied', value: (st) => st.status.counters.denied, alarm: true },
  { key: 'full', label: 'full states', title: 'nodes whose states have more than 80 % of what they may have', value: (st) => st.status.counts.full_states, alarm: true },
];
let sampled = '';

// sample notes a status, whatever is shown.
export function sample(state) {
  if (!state.status || sampled === state.status.time) return;
  sampled = state.status.time;
  for (const f of figures.filter((f) => f.past)) f.past = [...f.past, f.value(state)].slice(-minute);
}

function drawFigures(state) {
  if (!changed($('.figures'), state.status)) return;
  sync($('.figures'), figures, (f) => f.key, (f) => h('div', { class: 'figure', 'data-figure': f.key, title: f.title }, h('dt', {}, f.label), h('dd'),
    f.past && s('svg', { class: 'spark', viewBox: '0 0 100 24', preserveAspectRatio: 'none', 'aria-hidden': 'true' }, s('polyline'))), (element, f) => {
    const value = f.value(state);
    set(text(element.querySelector('dd'), number(f.past ? Math.round(value) : value)), { 'data-value': value });
    element.classList.toggle('alarm', Boolean(f.alarm && value > 0));
    const top = f.past && Math.max(1, ...f.past);
    if (f.past) set(element.querySelector('polyline'), { points: f.past.map((v, i) => `${(100 * (minute - f.past.length + i)) / (minute - 1)},${23 - (22 * v) / top}`).join(' ') });
  });
}

const urgency = { failed: 0, draining: 1 };

// drawRack draws the blades: those that need somebody first, if there is no room for all.
function drawRack(state) {
  const { blades, machines } = state.data;
  if (!blades || !machines || !changed($('.rack'), blades, machines, state.status?.switch.connected)) return;
  for (const kind of ['compute', 'memory']) {
    const all = blades.items.filter((b) => b.kind === kind).sort((a, b) => (urgency[a.status] ?? 2) - (urgency[b.status] ?? 2) || a.name.localeCompare(b.name, 'en', { numeric: true }));
    const list = $(`.blades.${kind}`);
    list.classList.toggle('many', all.length > 12);
    sync(list, all.slice(0, tiles), (b) => b.name, (b) => h('li', { class: 'blade', 'data-blade': b.name }, h('a', { href: to('blades', [b.name]) }, b.name), h('span', { class: 'pill' }), h('p', { class: 'used quiet' }), h('p', { class: 'cause' })),
      (e, b) => {
        set(e, { 'data-status': b.status, title: `${b.kind} blade ${b.name}, ${b.address}${b.port ? `, port ${b.port}` : ''}` });
        text(e.children[1], b.status);
        text(e.children[2], kind === 'memory' ? `${bytes(b.used)} of ${bytes(b.capacity)}` : plural(b.nodes.length, 'node'));
        const machine = machines.items.find((m) => m.blades.includes(b.name));
        text(e.children[3], [b.cause, kind === 'memory' && machine ? copies(machine, b.name) : ''].filter(Boolean).join('; '));
        set(e.children[3], { 'data-single': Boolean(machine) && machine.in_service < 2 });
      });
    const more = $(`#more-${kind}`);
    set(text(more, all.length > tiles ? `and ${number(all.length - tiles)} more` : ''), { hidden: all.length <= tiles });
  }
  const connected = state.status?.switch.connected;
  set(text($('#switch'), connected ? 'connected' : 'not connected'), { 'data-connected': Boolean(connected) });
}

// overview is the first view. by says what stands in the graph.
export function overview(parts, parameters, { redraw }) {
  const by = parameters.by === 'node' ? 'node' : 'service';
  const other = (value, name) => h('a', { href: to('', [], { by: value === 'service' ? '' : value }), 'aria-current': by === value ? 'true' : false }, name);
  return {
    title: 'Rack',
    needs: {
      blades: { path: '/v1/blades', kinds: ['blade.', 'machine.', 'node.'], most: 3000 }, machines: { path: '/v1/machines', kinds: ['blade.', 'machine.'], most: 3000 },
      graph: graphNeeds({ by }), history: historyNeeds,
    },
    build: () => [
      h('section', { id: 'figures', 'aria-label': 'At a glance' }, h('dl', { class: 'figures' })),
      panel('rack', 'Blades', h('a', { href: to('blades') }, 'all'), h('div', { class: 'rack' }, h('ul', { class: 'blades compute', 'aria-label': 'Compute blades' }), h('a', { id: 'more-compute', href: to('blades'), hidden: true }),
        h('div', { class: 'switch' }, h('strong', {}, 'Switch'), ' ', h('span', { id: 'switch' })), h('ul', { class: 'blades memory', 'aria-label': 'Memory blades' }), h('a', { id: 'more-memory', href: to('blades'), hidden: true }))),
      feedPanel(),
      graphPanel('Who calls whom', h('nav', { class: 'switcher', 'aria-label': 'What the graph shows' }, other('service', 'services'), other('node', 'nodes'))),
      chartPanel(redraw),
    ],
    draw(state) {
      if (state.status) drawFigures(state);
      drawRack(state);
      drawGraph(state.data.graph);
      if (state.status) drawChart(state.data.history, Date.parse(state.status.time));
      drawFeed();
    },
  };
}
