// What became of the latest calls: a list, and of one that is chosen a picture over
// time, with those that belong together with it.

import { $, h, row, s, set, sync, text } from './dom.js';
import { clock, nodeName, number } from './format.js';
import { body, same, who } from './tables.js';

const nameOf = (k) => [k.service, k.method].filter(Boolean).join('.');
const time = (t) => (t ? Date.parse(t) : 0);
// end is the last that is known of a call.
const end = (k) => time(k.a2) || time(k.steps.at(-1)?.time) || time(k.a1);
const took = (k) => (k.over ? `${number(micros(k.a1, k.a2 ?? k.steps.at(-1)?.time) / 1000)} ms` : '');

// micros is the time between two moments, which are written more finely than a Date is.
function micros(from, to) {
  const fraction = (t) => Number((/\.(\d+)/.exec(t)?.[1] ?? '').padEnd(6, '0').slice(3, 6));
  return (time(to) - time(from)) * 1000 + fraction(to) - fraction(from);
}

// outcome says how a call has ended, or how far it has got.
function outcome(k) {
  const again = k.attempts ? `, run again ${k.attempts}×` : '';
  return (k.code || (k.over ? 'ok' : k.b2 ? 'finished' : k.b1 ? 'running' : 'sent')) + again;
}

// earlier says whether a call is of a former run of the Gatekeeper.
const earlier = (k, state) => k.over && time(k.a1) < time(state.history.began);

// drawTimelines lists the latest calls.
export function drawTimelines(state) {
  body('#timelines', state.timelines.filter((k) => found(k, state.words)), (k) => k.id, () => row('', '', 'wide', 'wide', 'number', ''), (tr, k) => {
    set(tr, { 'data-call': k.id, 'aria-selected': state.call === k.id });
    same(tr, 0, `${k.a1} ${earlier(k, state)}`, () => [h('time', { datetime: k.a1 }, clock(k.a1)), ...(earlier(k, state) ? [h('small', { class: 'quiet' }, ' before the restart')] : [])]);
    same(tr, 1, nameOf(k), () => [h('button', { type: 'button', class: 'plain', title: k.id }, nameOf(k))]);
    same(tr, 2, `${k.caller} ${nodeName(k.caller)}`, () => [who(k.caller)]);
    same(tr, 3, `${k.callee} ${nodeName(k.callee)}`, () => [k.callee ? who(k.callee) : '']);
    same(tr, 4, took(k), () => [took(k)]);
    same(tr, 5, outcome(k), () => [h('span', { class: k.code ? 'bad' : '' }, outcome(k)), ...(k.sampled ? [h('small', { class: 'quiet' }, ' sampled')] : [])]);
  }, state.words ? 'None of the latest calls is of such a method.' : state.failed ? 'No call has failed.' : 'No call has been made.');
}

// found says whether all words are in a method's name.
export const found = (k, words) => words.toLowerCase().split(/\s+/).every((w) => nameOf(k).toLowerCase().includes(w));

// drawMethods lists what has become of the calls of each method.
export function drawMethods(state) {
  const some = state.methods.filter((m) => found(m, state.words));
  body('#methods', some, nameOf, () => row('', 'number', 'number', 'number wide', '', 'number', 'number wide', 'number'), (tr, m) => {
    const failed = Object.entries(m.failed ?? {}).map(([why, n]) => `${n} ${why}`).join(', ');
    same(tr, 0, `${nameOf(m)} ${m.slow ?? ''}`, () => [m.slow ? h('button', { type: 'button', class: 'plain', 'data-trace': m.slow, title: 'Show one of the slowest' }, nameOf(m)) : nameOf(m)]);
    [m.calls, m.open, m.queued].forEach((n, i) => same(tr, i + 1, String(n), () => [number(n)]));
    same(tr, 4, failed, () => (failed ? [h('span', { class: 'bad' }, failed)] : []));
    [m.p50, m.p95, m.p99].forEach((t, i) => same(tr, i + 5, String(t), () => [t ? `${number(t * 1000)} ms` : '']));
  }, state.words ? 'No method has such a name.' : 'No call has been made.');
}

// drawAxis writes the times below which a trace's bars begin and end.
function drawAxis(whole, shown) {
  const axis = $('#axis');
  axis.hidden = !shown;
  const says = shown ? String(whole) : '';
  if (axis.dataset.says === says) return;
  axis.dataset.says = says;
  axis.replaceChildren(...[0, 0.25, 0.5, 0.75, 1].map((part) => h('span', {}, `${number(part * whole / 1000)} ms`)));
}

// drawTrace draws the calls that belong together with the chosen one.
export function drawTrace(state) {
  const list = $('#trace');
  const calls = state.trace?.calls ?? [];
  list.hidden = calls.length === 0;
  if (!calls.length) {
    drawAxis(0, false);
    return;
  }
  const from = calls[0].a1;
  const last = calls.reduce((m, k) => Math.max(m, end(k)), 0);
  const whole = Math.max(1, calls.reduce((m, k) => Math.max(m, ...k.steps.map((t) => micros(from, t.time))), last - time(from)));
  drawAxis(whole, true);
  sync(list, calls, (k) => k.id, () => h('li', {}, h('span', {}, h('b'), ' ', h('small')), s('svg', { viewBox: '0 0 1000 10', preserveAspectRatio: 'none', role: 'img' }), h('span', { class: 'number' })),
    (li, k) => drawCall(li, k, from, whole));
}

// ranElsewhere says on which blades a call ran, if its node is on another one now.
function ranElsewhere(k) {
  const on = [...new Set(k.steps.filter((t) => t.blade && t.node === k.callee).map((t) => t.blade))];
  return on.length === 0 || on.length === 1 && nodeName(k.callee).startsWith(`${on[0]}/`) ? '' : ` (ran on ${on.join(', ')})`;
}

function drawCall(li, k, from, whole) {
  const [name, svg, duration] = li.children;
  set(li, { 'data-call': k.id, 'data-depth': k.depth, 'data-outcome': outcome(k) });
  name.style.paddingLeft = `${k.depth * 16}px`;
  text(name.children[0], nameOf(k));
  text(name.children[1], `${nodeName(k.caller)} → ${nodeName(k.callee)}${ranElsewhere(k)} · ${k.policy} · ${outcome(k)}`);
  text(duration, took(k));
  const says = JSON.stringify([k, whole]);
  if (svg.dataset.says === says) return;
  svg.dataset.says = says;
  const at = (t) => (1000 * micros(from, t)) / whole;
  const ends = k.over ? at(k.a2 ?? k.steps.at(-1).time) : 1000;
  const bar = (kind, a, b) => s('rect', { class: kind, x: a, y: 0, width: Math.max(2, b - a), height: 10 });
  const bars = [bar('sent', at(k.a1), k.b1 ? at(k.b1) : ends)];
  if (k.b1) bars.push(bar('run', at(k.b1), k.b2 ? at(k.b2) : ends));
  if (k.b2) bars.push(bar('back', at(k.b2), ends));
  for (const t of k.steps) {
    if (t.kind === 'refused') bars.push(s('rect', { class: 'fail', x: at(t.time), y: 0, width: 4, height: 10 }));
  }
  const steps = k.steps.map((t) => `+${number(micros(from, t.time) / 1000)} ms ${t.kind}`).join(', ');
  set(svg, { 'aria-label': steps });
  svg.replaceChildren(s('title', {}, steps), ...bars);
}
