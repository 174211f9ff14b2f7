// The feed of events, in words.

import { $, h, sync, text } from './dom.js';
import { clock, nodeName, plural } from './format.js';

const shown = 120;

let paused = null; // the feed as it was
$('#pause').addEventListener('click', (e) => {
  const on = paused === null;
  paused = on ? [] : null;
  e.target.setAttribute('aria-pressed', on);
  e.target.textContent = on ? 'Go on' : 'Pause';
});

// drawFeed draws the latest events, unless they are paused.
export function drawFeed(state) {
  if (paused?.length === 0) paused = [...state.feed];
  const kinds = $('#kinds').value.split(',');
  const chosen = (paused ?? state.feed).filter((e) => e.gap !== undefined || kinds.some((k) => e.kind.startsWith(k)));
  sync($('.feed'), chosen.slice(0, shown), (e) => e.id, make);
}

// make draws one event; it never changes.
function make(e) {
  if (e.gap !== undefined) {
    return h('li', { class: 'gap' }, e.gap ? `${plural(e.gap, 'event')} passed too fast to show` : 'the Gatekeeper has restarted');
  }
  const li = h('li', { class: tone(e.kind), 'data-kind': e.kind }, h('time', { datetime: e.time }, clock(e.time)), h('div'));
  const [what, detail] = words(e);
  li.lastElementChild.append(h('span', {}, what));
  if (detail) li.lastElementChild.append(h('code', {}, detail));
  return li;
}

function tone(kind) {
  if (kind === 'access.denied' || kind === 'blade.failed' || kind === 'switch.lost' || kind === 'call.ended' || kind === 'node.failed') return 'bad';
  if (['call.refused', 'app.short', 'program.failed', 'blade.draining', 'node.fenced', 'execution.rolledback', 'call.replayed'].includes(kind)) return 'warn';
  if (kind.startsWith('rules.')) return 'dim';
  return '';
}

// words tells an event in words: what, and with which details.
function words(e) {
  const who = nodeName(e.node);
  const method = [e.service, e.method].filter(Boolean).join('.');
  switch (e.kind) {
    case 'switch.connected': return ['The switch obeys'];
    case 'switch.lost': return ['The switch is lost'];
    case 'blade.up': return [`Blade ${e.blade} is up`, e.message];
    case 'blade.failed': return [`Blade ${e.blade} has failed`, e.message];
    case 'switch.reconciled': return ['The switch was read back and put right'];
    case 'blade.draining': return [`Blade ${e.blade} is being drained`, e.message];
    case 'blade.drained': return [`Blade ${e.blade} has run empty`];
    case 'blade.returned': return [`Blade ${e.blade} is put back into service`];
    case 'app.deployed': return [`Deployment ${e.name} changed`];
    case 'app.undeployed': return [`Deployment ${e.name} is being stopped`];
    case 'app.restarted': return [`The programs of ${e.name} are started again`];
    case 'app.rolledout': return [`The new programs of ${e.name} run`];
    case 'app.rolledback': return [`The former programs of ${e.name} come back`, e.message];
    case 'app.short': return [`Deployment ${e.name} lacks blades`, e.message];
    case 'program.started': return [`${e.name} started on ${e.blade}`];
    case 'program.failed': return [`${e.name} did not start on ${e.blade}`, e.message];
    case 'node.joined': return [`${e.blade}/${e.name} joined`, e.node];
    case 'node.left': return [`${e.blade}/${e.name} left`, e.message];
    case 'node.failed': return [`${who} has failed`, e.message];
    case 'node.fenced': return [`${who} is cut off: nothing of it counts any more`];
    case 'node.recovered': return [`${who} is back`, e.message];
    case 'policy.set': return [`Policy of ${method}: ${e.message}`];
    case 'service.exported': return [`${who} exports ${e.service}`];
    case 'region.allocated': return [`${who} allocated on ${e.blade}`, e.region];
    case 'region.freed': return [`${who} freed`, e.region];
    case 'region.reclaimed': return ['Nobody had it any more: reclaimed', e.region];
    case 'call.held': return [`${who} calls ${method}: held`];
    case 'call.released': return [`${who} → ${nodeName(e.peer)}: ${method}`];
    case 'reply.held': return [`Reply of ${method} held`];
    case 'reply.released': return [`Reply of ${method} goes on to ${who}`];
    case 'call.refused': return [`${who}: call ${method ? `of ${method} ` : ''}refused`, e.code];
    case 'call.ended': return [`${method} ended: its callee is gone`];
    case 'call.givenup': return [`${method} is given up`, e.message];
    case 'access.denied': return [`${who} may not ${e.op}`, e.region];
    case 'rules.granted': return [rules('Granted', e.rules)];
    case 'rules.revoked': return [rules('Revoked', e.rules)];
  }
  return [[e.kind, e.blade, e.name].filter(Boolean).join(' '), e.message];
}

// rules tells of rules by node: "Granted s2/arrays: read".
function rules(verb, list = []) {
  const by = new Map();
  for (const r of list) by.set(r.node, (by.get(r.node) ?? new Set()).add(r.op));
  return [...by].map(([node, ops]) => `${verb} ${nodeName(node)}: ${['read', 'write', 'free'].filter((op) => ops.has(op)).join(', ')}`).join('; ');
}
