// How many calls there were in the last hours and how long they took, also before a restart of the Gatekeeper.

import { $, changed, h, panel, s, set, text } from './dom.js';
import { lasting, number, plural, short } from './format.js';

const bars = 60;
const spans = [[1, 'an hour'], [6, 'six hours'], [24, 'a day']];
const left = 48; // room for the numbers of an axis
const high = 96; // of a chart
const below = 18; // room for times
const series = [['well', 'ok'], ['declared', 'declared exceptions'], ['fail', 'failed']];

const moment = (t) => new Date(t).toLocaleTimeString('en-GB', { hour: '2-digit', minute: '2-digit' });

export const historyNeeds = { path: '/v1/history', least: 5000, most: 5000 };

// chartPanel makes the place of the charts. redraw is called when another span is chosen.
export function chartPanel(redraw) {
  const chart = (id, says) => h('figure', {}, h('figcaption', { class: 'legend' }, says), s('svg', { id, role: 'img', height: high + below }));
  return panel('history', 'Calls over time', [h('p', { id: 'past-says', class: 'quiet' }), h('label', { class: 'hidden', for: 'span' }, 'How far back'),
    h('select', { id: 'span', onchange: redraw }, spans.map(([value, name]) => h('option', { value }, name)))],
  chart('past', series.map(([look, name]) => h('span', { class: `key ${look}` }, name))),
  chart('past-times', [h('span', { class: 'key p50' }, 'half within'), h('span', { class: 'key p99' }, '99 % within')]));
}

// slots are the figures of so many milliseconds each, the last of them now.
function slots(minutes, now, width) {
  const from = Math.floor(now / width) * width - (bars - 1) * width;
  const all = Array.from({ length: bars }, (_, i) => ({ from: from + i * width, calls: 0, declared: 0, failed: 0, p50: 0, p99: 0 }));
  for (const m of minutes) {
    const slot = all[Math.floor((Date.parse(m.time) - from) / width)];
    if (!slot) continue;
    slot.calls += m.calls;
    slot.declared += m.declared ?? 0;
    slot.failed += m.failed ?? 0;
    slot.p50 = Math.max(slot.p50, m.p50 ?? 0);
    slot.p99 = Math.max(slot.p99, m.p99 ?? 0);
  }
  return all;
}

// about says in words what the picture shows, and how far back it goes.
function about(past, all) {
  const sum = (key) => all.reduce((n, slot) => n + slot[key], 0);
  const kept = past.trouble ? `not kept at present: ${past.trouble}` : past.kept ? 'kept over restarts' : 'kept in memory only';
  return [plural(sum('calls'), 'call'), sum('declared') ? `${number(sum('declared'))} with declared exceptions` : '', `${number(sum('failed'))} failed`, kept].filter(Boolean).join(' · ');
}

// nice is the least round number that is not below n, and divides well into four.
function nice(n) {
  const unit = 10 ** Math.floor(Math.log10(Math.max(n, 1e-6)));
  return unit * [1, 2, 4, 8, 10].find((f) => f * unit >= n * (1 - 1e-9));
}

// across is where the i-th bar of a chart begins.
const across = (width) => (i) => left + ((width - left) * i) / bars;

// axes draws lines with numbers, and times below.
function axes(width, top, all, says) {
  const x = across(width);
  const lines = [0, 0.25, 0.5, 0.75, 1].flatMap((part) => {
    const y = high - part * (high - 8);
    return [s('line', { class: 'grid', x1: left, x2: width, y1: y, y2: y }), part % 0.5 ? '' : s('text', { class: 'tick', x: left - 6, y: y + 4, 'text-anchor': 'end' }, says(part * top))];
  });
  const count = width < 500 ? 3 : 6;
  const times = Array.from({ length: count }, (_, i) => Math.round((i * (bars - 1)) / (count - 1))).map((i, at) => s('text', {
    class: 'tick', x: x(i + 0.5), y: high + 14, 'text-anchor': at === 0 ? 'start' : at === count - 1 ? 'end' : 'middle' }, moment(all[i].from)));
  return [...lines, ...times];
}

// drawChart draws how many calls there were, with what became of them, and how long they took.
export function drawChart(past, now) {
  const picture = $('#past');
  if (!past || !picture) return;
  const width = picture.clientWidth || picture.parentElement.clientWidth;
  const span = Number($('#span').value);
  if (!changed(picture, past, width, span)) return;
  const all = slots(past.minutes, now, span * 60_000);
  text($('#past-says'), about(past, all)).classList.toggle('bad', Boolean(past.trouble));
  const x = across(width);
  const each = (width - left) / bars;
  const top = nice(Math.max(4, ...all.map((slot) => slot.calls)));
  const y = (n) => (n / top) * (high - 8);
  const stacks = { well: (v) => [0, v.calls - v.declared - v.failed], declared: (v) => [v.calls - v.declared - v.failed, v.declared], fail: (v) => [v.calls - v.failed, v.failed] };
  const bar = (v, i, [base, n]) => (n > 0 ? `M${x(i) + 0.5} ${high - y(base)}v${-Math.max(1, y(n))}h${each - 1}v${Math.max(1, y(n))}z` : '');
  const began = (Date.parse(past.began) - all[0].from) / (span * 60_000);
  const restart = began > 0 && past.minutes.some((m) => Date.parse(m.time) + 60_000 < Date.parse(past.began));
  picture.replaceChildren(...axes(width, top, all, short).filter(Boolean),
    ...series.map(([look]) => s('path', { class: look, d: all.map((v, i) => bar(v, i, stacks[look](v))).join('') })),
    ...(restart ? [s('line', { class: 'restart', x1: x(began), x2: x(began), y1: 0, y2: high }, s('title', {}, 'the Gatekeeper has restarted'))] : []));
  set(picture, { viewBox: `0 0 ${width} ${high + below}`, 'data-calls': all.reduce((n, v) => n + v.calls, 0), 'data-restart': restart,
    'aria-label': `Calls over time: ${all.filter((v) => v.calls).map((v) => `${moment(v.from)}: ${plural(v.calls, 'call')}, ${v.declared} declared, ${v.failed} failed`).join('; ') || 'none'}` });
  drawTimes(all, width, x);
}

function drawTimes(all, width, x) {
  const picture = $('#past-times');
  const top = nice(Math.max(0.001, ...all.map((v) => v.p99)));
  const line = (key) => all.map((v, i) => (v[key] ? `${all[i - 1]?.[key] ? 'L' : 'M'}${x(i + 0.5)} ${high - (v[key] / top) * (high - 8)}h.01` : '')).join('');
  picture.replaceChildren(...axes(width, top, all, lasting).filter(Boolean), ...['p50', 'p99'].map((key) => s('path', { class: key, d: line(key) })));
  set(picture, { viewBox: `0 0 ${width} ${high + below}`, 'aria-label': `How long calls took: ${all.filter((v) => v.p99).map((v) => `${moment(v.from)}: half within ${lasting(v.p50)}, 99 % within ${lasting(v.p99)}`).join('; ') || 'nothing is known'}` });
}
