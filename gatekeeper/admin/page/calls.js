// Calls: a search among those that are remembered, and one with all that is known of it.

import { $, changed, facts, h, panel, rows, s, same, set, sync, table, text } from './dom.js';
import { addressOf, between, bytes, callLink, clock, code, lasting, methodName, moment, naming, nodeCell, nodeName, number, outcome, serviceLink, to } from './format.js';
import { drawPager, pager, pageSize } from './lists.js';
import { cancelCall } from './actions.js';

const codes = ['ok', 'permission denied', 'no such method', 'deadline exceeded', 'canceled', 'overloaded', 'unavailable', 'bad request', 'not found', 'no space', 'nondeterminism', 'deadlock', 'stale', 'internal', 'application', 'unsupported', 'declared'];

const last = (k) => k.a2 ?? k.steps.at(-1)?.time ?? k.a1;
const took = (k) => (k.over ? lasting(Math.max(0, between(k.a1, last(k)))) : '');
const said = (k) => {
  const { word, tone } = outcome(k);
  return [h('span', { class: tone }, word), k.attempts ? h('small', { class: 'warn' }, ` run again ${k.attempts}×`) : ''];
};

const columns = [['Sent', ''], ['Method', ''], ['Caller', 'wide'], ['Callee', 'wide'], ['Took', 'number'], ['Outcome', '']];

// callTable makes the table of calls, and drawCalls its rows.
export const callTable = (id) => table(id, columns);

export function drawCalls(id, answer, nothing) {
  const section = document.getElementById(id);
  if (!answer || !changed(section.querySelector('tbody'), answer, naming.version)) return;
  rows(section, answer.items, (k) => k.id, (k) => [
    [k.a1, () => [h('time', { datetime: k.a1, title: moment(k.a1) }, clock(k.a1)), k.former ? h('small', { class: 'quiet' }, ' before the restart') : '']],
    [methodName(k), () => callLink(k.id, methodName(k))],
    nodeCell(k.caller),
    nodeCell(k.callee),
    took(k),
    [JSON.stringify(outcome(k)) + (k.attempts ?? 0), () => said(k)],
  ], (k) => ({ 'data-call': k.id }), nothing);
}

// asked is what a search asks the server for. Times are those of this browser's clock, durations milliseconds.
function asked(p) {
  const time = (t) => (t && !Number.isNaN(Date.parse(t)) ? new Date(t).toISOString() : '');
  return {
    limit: pageSize, cursor: p.cursor, service: p.service, method: p.method, code: p.code, caller: p.caller, node: p.node, failed: p.failed, rerun: p.rerun,
    roots: p.roots, longer: Number(p.longer) > 0 ? String(Number(p.longer) / 1000) : '', since: time(p.since), until: time(p.until),
  };
}

const field = (name, label, p, attributes = {}) => h('label', {}, label, h('input', { name, value: p[name] ?? '', autocomplete: 'off', spellcheck: 'false', ...attributes }));
const tick = (name, label, p) => h('label', { class: 'check' }, h('input', { type: 'checkbox', name, value: 'true', checked: p[name] === 'true' }), label);

function form(p) {
  return h('form', { id: 'search', role: 'search', onsubmit: (e) => {
    e.preventDefault();
    const given = Object.fromEntries([...new FormData(e.target)].map(([k, v]) => [k, String(v).trim()]));
    const caller = addressOf(given.caller);
    if (given.caller && !caller) {
      text($('#calls .wrong'), `No node is called ${given.caller}: give BLADE/NAME, or an address.`);
      return;
    }
    location.hash = to('calls', [], { ...given, caller });
  } },
  field('service', 'Service', p), field('method', 'Method', p), field('caller', 'Caller', p, { placeholder: 'BLADE/NAME', value: nodeName(p.caller) }),
  h('label', {}, 'Ended with', h('select', { name: 'code' }, h('option', { value: '' }, 'anything'), codes.map((c) => h('option', { value: c, selected: c === p.code }, c)))),
  field('longer', 'Took at least, ms', p, { type: 'number', min: 0, step: 'any', inputmode: 'decimal' }),
  field('since', 'Sent since', p, { type: 'datetime-local', step: 1 }), field('until', 'Sent before', p, { type: 'datetime-local', step: 1 }),
  tick('failed', 'failed', p), tick('rerun', 'run again', p), tick('roots', 'made by no other call', p),
  h('button', { type: 'submit' }, 'Search'), h('a', { href: to('calls') }, 'all calls'));
}

// calls is the search. What is searched for is in the address.
export function calls(parts, parameters) {
  if (parts.length) return call(parts[0]);
  return {
    title: 'Calls',
    needs: { calls: { path: '/v1/timelines', parameters: asked(parameters), kinds: parameters.cursor ? [] : ['call.', 'reply.'], least: 2000, most: parameters.cursor ? Infinity : 3000 } },
    build: () => [panel('calls', 'Calls', h('p', { class: 'quiet' }, 'the latest of those that are remembered'), form(parameters), h('p', { class: 'wrong', role: 'alert' }), callTable('calls'), pager('calls'))],
    draw(state) {
      text($('#calls .wrong'), state.wrong.calls ?? '');
      drawCalls('calls', state.data.calls, 'No call that is remembered is like that.');
      if (state.data.calls) drawPager('calls', state.data.calls, 'calls', [], parameters);
    },
  };
}

// call is one call.
function call(id) {
  return {
    title: `Call ${id.slice(0, 8)}…`,
    needs: {
      trace: { path: `/v1/calls/${id}/timeline`, kinds: ['call.', 'reply.', 'execution.'], most: 3000 }
    },
    build: () => [
      panel('call', 'Call', h('span', { id: 'call-actions', class: 'actions' }), h('p', { id: 'call-wrong', class: 'wrong', role: 'alert' }), h('dl', { class: 'facts' })),
      panel('trace-panel', 'With the calls that it belongs to', h('p', { class: 'legend', 'aria-hidden': 'true' }, [['sent', 'on its way'], ['run', 'with its callee'], ['back', 'answer on its way'], ['again', 'run again']].map(([look, name]) => h('span', { class: `key ${look}` }, name))),
        h('div', { id: 'axis', class: 'axis quiet', 'aria-hidden': 'true' }), h('ol', { id: 'trace', 'aria-label': 'What became of the calls, over time' }), h('p', { id: 'trace-more', class: 'quiet' })),
      panel('steps', 'Steps and attempts', '', table('steps', [['After', 'number'], ['Attempt', 'number'], ['What', ''], ['Where', ''], ['Blade', 'wide'], ['Why', '']])),
    ],
    draw(state) {
      text($('#call-wrong'), state.wrong.trace ?? '');
      const { trace } = state.data;
      if (!trace || !changed($('#trace'), trace, naming.version)) return;
      const k = trace.calls.find((c) => c.id === id) ?? trace.calls[0];
      drawFacts(k);
      drawTrace(trace, id);
      drawSteps(k);
    },
  };
}

// exception is what a call has ended with, in words.
const exception = (k) => [[k.code, k.exception].filter(Boolean).join(' '), k.text].filter(Boolean).join(': ');

function drawFacts(k) {
  text($('#call-title'), methodName(k));
  same($('#call-actions'), k.over, () => (k.over ? [] : [cancelCall(k.id, methodName(k))]));
  facts($('#call .facts'), [
    ['Outcome', [JSON.stringify(outcome(k)) + k.attempts, () => said(k)]], ['Took', k.over ? took(k) : `under way for ${lasting(Math.max(0, (Date.now() - Date.parse(k.a1)) / 1000))}`],
    ['Exception', exception(k) && [exception(k), () => h('span', { class: outcome(k).tone }, exception(k))]],
    ['Arguments', k.arguments ? bytes(k.arguments) : ''], ['Answer', k.answer ? bytes(k.answer) : ''],
    ['Headers', k.headers && [JSON.stringify(k.headers), () => k.headers.map((v) => h('div', { 'data-header': v.name }, code(v.name), ` ${v.value}`))]],
    ['Service', [k.service, () => (k.service ? serviceLink(k.service) : '–')]], ['Method', [k.method]], ['Caller', nodeCell(k.caller)], ['Callee', nodeCell(k.callee)],
    ['On behalf of', [k.parent ?? '', () => (k.parent ? callLink(k.parent, code(k.parent)) : 'nobody: a program made it')]],
    ['Policy', k.policy + (k.oneway ? ', one-way' : '')], ['Sent', [k.a1, () => `${moment(k.a1)}`]], ['Call', [k.id, () => code(k.id)]],
    ['Like it', [methodName(k), () => h('a', { href: to('calls', [], { service: k.service, method: k.method }) }, 'other calls of the method')]],
    ['Of a former run', k.former ? 'the Gatekeeper has restarted since' : ''],
  ]);
}

const what = { sent: 'sent (a1)', delivered: 'received (b1)', replied: 'finished (b2)', answered: 'answered (a2)', replayed: 'run again', recalled: 'answered again' };

// drawSteps lists what has happened to a call: why it was run again, and how it has ended.
function drawSteps(k) {
  const steps = k.steps.map((t, i) => ({ ...t, i, why: t.why ?? (i === k.steps.length - 1 ? exception(k) : '') }));
  rows($('#steps'), steps, (t) => t.i, (t) => [
    lasting(Math.max(0, between(k.a1, t.time))), t.attempt ? number(t.attempt + 1) : '1', what[t.kind] ?? t.kind,
    nodeCell(t.node), t.blade ?? '', t.why,
  ], (t) => ({ 'data-step': t.kind }), 'Nothing is known.');
}

// drawTrace draws the calls that belong together, as bars over time.
function drawTrace(trace, id) {
  const all = trace.calls.slice(0, 40);
  const from = all[0].a1;
  const whole = Math.max(1e-6, ...all.map((k) => Math.max(between(from, last(k)), ...k.steps.map((t) => between(from, t.time)))));
  same($('#axis'), whole, () => [0, 0.25, 0.5, 0.75, 1].map((part) => h('span', {}, lasting(part * whole))));
  text($('#trace-more'), trace.more || all.length < trace.calls.length ? `and others: only the first ${number(all.length)} are drawn` : '');
  sync($('#trace'), all, (k) => k.id, () => h('li', {}, h('span', {}, h('b'), ' ', h('small')), s('svg', { viewBox: '0 0 1000 10', preserveAspectRatio: 'none', role: 'img' }), h('span', { class: 'number' })),
    (li, k) => drawBars(li, k, from, whole, id));
}

function drawBars(li, k, from, whole, id) {
  const [name, svg, duration] = li.children;
  set(li, { 'data-call': k.id, 'data-depth': k.depth, 'data-outcome': outcome(k).word, 'aria-current': k.id === id ? 'true' : false });
  name.style.paddingLeft = `${Math.min(8, k.depth) * 14}px`;
  same(name.children[0], k.id, () => callLink(k.id, methodName(k)));
  text(name.children[1], `${nodeName(k.caller)} → ${nodeName(k.callee)} · ${outcome(k).word}`);
  text(duration, took(k));
  const at = (t) => (1000 * between(from, t)) / whole;
  const ends = k.over ? at(last(k)) : 1000;
  const bar = (kind, a, b) => s('rect', { class: kind, x: a, y: 0, width: Math.max(3, b - a), height: 10 });
  const bars = [bar('sent', at(k.a1), k.b1 ? at(k.b1) : ends)];
  if (k.b1) bars.push(bar(outcome(k).tone === 'bad' && !k.b2 ? 'fail' : 'run', at(k.b1), k.b2 ? at(k.b2) : ends));
  if (k.b2) bars.push(bar('back', at(k.b2), ends));
  for (const t of k.steps.filter((t) => t.kind === 'refused' || t.kind === 'replayed')) bars.push(s('rect', { class: t.kind === 'refused' ? 'fail' : 'again', x: at(t.time), y: 0, width: 5, height: 10 }));
  const steps = k.steps.map((t) => `+${lasting(Math.max(0, between(from, t.time)))} ${t.kind}`).join(', ');
  set(svg, { 'aria-label': steps });
  svg.replaceChildren(s('title', {}, steps), ...bars);
}

// latest is the part of a view that shows the latest calls of something, with the way to all of them.
export const latestNeeds = (parameters) => ({ path: '/v1/timelines', parameters: { limit: 15, ...parameters }, kinds: ['call.', 'reply.'], least: 2000, most: 5000 });
export const latestPanel = (parameters) => panel('latest', 'Latest calls', h('a', { href: to('calls', [], parameters) }, 'search'), callTable('latest'));
