// Numbers: a few at a glance, with the last minute of those that change all the
// time, and all counters.

import { $, h, s, set, sync, text } from './dom.js';
import { number } from './format.js';

const minute = 60; // samples, one a second

// rate is how much of a counter there was a second, between two statuses.
function rate(state, counter) {
  const { status: now, before } = state;
  if (!before || before.boot !== now.boot) return 0;
  const seconds = (new Date(now.time) - new Date(before.time)) / 1000;
  return seconds > 0 ? (now.counters[counter] - before.counters[counter]) / seconds : 0;
}

const figures = [
  { key: 'nodes', label: 'nodes', title: 'programs that have joined', value: (st) => st.status.counts.nodes },
  { key: 'regions', label: 'regions', title: 'regions that are allocated', value: (st) => st.status.counts.regions },
  { key: 'calls', label: 'calls', title: 'calls under way', value: (st) => st.status.counts.calls },
  { key: 'waiting', label: 'waiting', title: 'allocations, calls, replies and frees that wait for rules', value: (st) => st.status.counts.waiting },
  { key: 'held', label: 'held / s', title: 'packets that the switch holds, a second', value: (st) => rate(st, 'held'), past: [] },
  { key: 'rules', label: 'rules / s', title: 'rules written to the switch, a second', value: (st) => rate(st, 'rules_written'), past: [] },
  { key: 'denied', label: 'denied', title: 'memory accesses that the switch has denied', value: (st) => st.status.counters.denied, alarm: true },
];

let sampled = '';

// drawFigures draws the row of figures.
export function drawFigures(state) {
  if (sampled !== state.status.time) {
    sampled = state.status.time;
    for (const f of figures.filter((f) => f.past)) f.past = [...f.past, f.value(state)].slice(-minute);
  }
  sync($('.figures'), figures, (f) => f.key, makeFigure, (element, f) => {
    const value = f.value(state);
    set(text(element.querySelector('dd'), number(f.past ? Math.round(value) : value)), { 'data-value': value });
    element.classList.toggle('alarm', Boolean(f.alarm && value > 0));
    if (f.past) set(element.querySelector('polyline'), { points: line(f.past) });
  });
}

function makeFigure(f) {
  return h('div', { class: 'figure', 'data-figure': f.key, title: f.title }, h('dt', {}, f.label), h('dd'),
    f.past && s('svg', { class: 'spark', viewBox: '0 0 100 24', preserveAspectRatio: 'none', 'aria-hidden': 'true' }, s('polyline')));
}

// line is the points of a curve that ends on the right.
function line(past) {
  const top = Math.max(1, ...past);
  return past.map((v, i) => `${(100 * (minute - past.length + i)) / (minute - 1)},${23 - (22 * v) / top}`).join(' ');
}

// drawCounters draws all counters, as the API names them.
export function drawCounters(state) {
  sync($('.counters'), Object.entries(state.status.counters), ([name]) => name,
    ([name]) => h('div', { 'data-counter': name }, h('dt', {}, name.replaceAll('_', ' ')), h('dd')),
    (element, [, value]) => set(text(element.querySelector('dd'), number(value)), { 'data-value': value }));
}
