// The feed of events, in words.

import { $, changed, h, panel, set, sync, text } from './dom.js';
import { clock, naming, nodeName, plural } from './format.js';
import { state } from './store.js';

const shown = 40;

let paused = null; // the feed as it was

const choices = [['', 'everything'], ['blade.,node.,service.,switch.,app.,program.,policy.', 'rack'], ['call.', 'calls'], ['region.,machine.', 'memory'],
  ['access.denied,call.refused', 'refusals'], ['node.failed,node.fenced,node.recovered,program.failed,call.givenup,blade.,machine.', 'failures']];

// feedPanel makes the place of events as they happen.
export function feedPanel() {
  paused = null;
  const pause = h('button', { type: 'button', id: 'pause', 'aria-pressed': 'false', onclick: () => {
    paused = paused ? null : state.feed;
    set(pause, { 'aria-pressed': Boolean(paused) });
    text(pause, paused ? 'Go on' : 'Pause');
    drawFeed();
  } }, 'Pause');
  return panel('events', 'Events', [h('label', { class: 'hidden', for: 'kinds' }, 'Which events'),
    h('select', { id: 'kinds', onchange: drawFeed }, choices.map(([value, name]) => h('option', { value }, name))), pause],
  h('ol', { class: 'feed', 'aria-labelledby': 'events-title', tabindex: 0 }));
}

// drawFeed draws the latest events, unless they are paused.
export function drawFeed() {
  const feed = paused ?? state.feed;
  const kinds = $('#kinds').value.split(',');
  if (!changed($('.feed'), feed, kinds.join(), naming.version)) return;
  const chosen = feed.filter((e) => e.gap !== undefined || kinds.some((k) => e.kind.startsWith(k)));
  drawEvents($('.feed'), chosen.slice(0, shown));
}

// drawEvents draws a list of events, the latest first.
export const drawEvents = (list, items) => sync(list, items, (e) => e.id, make);

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
  if (kind === 'access.denied' || kind === 'blade.failed' || kind === 'switch.lost' || kind === 'node.failed') return 'bad';
  if (['call.refused', 'app.short', 'program.failed', 'blade.draining', 'node.fenced', 'call.givenup', 'app.rolledback'].includes(kind)) return 'warn';
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
    case 'program.failed': return [`${e.name} has failed on ${e.blade}`, e.message];
    case 'node.joined': return [`${e.blade}/${e.name} joined`, e.node];
    case 'node.left': return [`${e.blade}/${e.name} left`, e.message];
    case 'node.failed': return [`${who} has failed`, e.message];
    case 'node.fenced': return [`${who} is cut off: nothing of it counts any more`];
    case 'node.recovered': return [`${who} is back`, e.message];
    case 'policy.set': return [`Policy of ${method}: ${e.message}`];
    case 'service.exported': return [`${who} exports ${e.service}`];
    case 'region.frozen': return ['Nobody can say whose it is: frozen', e.region];
    case 'region.reclaimed': return ['Nobody had it any more: reclaimed', e.region];
    case 'call.refused': return [`${who}: call ${method ? `of ${method} ` : ''}refused`, e.code];
    case 'call.givenup': return [`${method} is given up`, e.message];
    case 'access.denied': return [`${who} may not ${e.op}`, e.region];
  }
  return [[e.kind, e.blade, e.name].filter(Boolean).join(' '), e.message];
}
