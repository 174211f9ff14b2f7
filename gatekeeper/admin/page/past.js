// How many calls there were in the last hours, also before a restart of the Gatekeeper.

import { $, h, s, set, text } from './dom.js';
import { number, plural } from './format.js';

const bars = 60;

const moment = (t) => new Date(t).toLocaleTimeString('en-GB', { hour: '2-digit', minute: '2-digit' });

// slots are the figures of so many minutes each, the last of them now.
function slots(minutes, now, width) {
  const from = Math.floor(now / width) * width - (bars - 1) * width;
  const all = Array.from({ length: bars }, (_, i) => ({ from: from + i * width, calls: 0, failed: 0, p99: 0 }));
  for (const m of minutes) {
    const slot = all[Math.floor((Date.parse(m.time) - from) / width)];
    if (!slot) continue;
    slot.calls += m.calls;
    slot.failed += m.failed ?? 0;
    slot.p99 = Math.max(slot.p99, m.p99 ?? 0);
  }
  return all;
}

const says = (slot) => `${moment(slot.from)}: ${plural(slot.calls, 'call')}${slot.failed ? `, ${number(slot.failed)} failed` : ''}${slot.p99 ? `, 99 % within ${number(slot.p99 * 1000)} ms` : ''}`;

// about says in words what the picture shows, and how far back it goes.
function about(past, all) {
  const sum = (key) => all.reduce((n, slot) => n + slot[key], 0);
  const kept = past.trouble ? `not kept at present: ${past.trouble}` : past.kept ? 'kept over restarts' : 'kept in memory only';
  const since = past.since ? `since ${new Date(past.since).toLocaleString('en-GB', { dateStyle: 'medium', timeStyle: 'short' })}` : '';
  const slowest = Math.max(...all.map((slot) => slot.p99));
  return [`${plural(sum('calls'), 'call')}, ${number(sum('failed'))} failed`, slowest ? `99 % within ${number(slowest * 1000)} ms` : '', since, kept].filter(Boolean).join(' · ');
}

// drawPast draws the calls over time, and where the Gatekeeper began anew.
export function drawPast(state) {
  const width = Number($('#span').value) * 60_000;
  const all = slots(state.history.minutes, Date.parse(state.status.time), width);
  const picture = $('#past');
  const now = JSON.stringify([all, state.history.began]);
  text($('#past-says'), about(state.history, all)).classList.toggle('bad', Boolean(state.history.trouble));
  if (picture.dataset.says === now) return;
  picture.dataset.says = now;
  const top = Math.max(1, ...all.map((slot) => slot.calls));
  const high = (n) => (n ? Math.max(1.5, (58 * n) / top) : 0);
  const bar = (kind, i, n) => s('rect', { class: kind, x: 10 * i + 1, y: 60 - high(n), width: 8, height: high(n) });
  const began = Date.parse(state.history.began) - all[0].from;
  const restart = state.history.minutes.some((m) => Date.parse(m.time) + 60_000 < Date.parse(state.history.began)) && began > 0;
  picture.replaceChildren(
    ...all.map((slot, i) => s('g', {}, s('title', {}, says(slot)), s('rect', { class: 'slot', x: 10 * i, y: 0, width: 10, height: 60 }), bar('well', i, slot.calls), bar('fail', i, slot.failed))),
    ...(restart ? [s('rect', { class: 'restart', x: (10 * began) / width, y: 0, width: 1.5, height: 60 }, s('title', {}, 'the Gatekeeper has restarted'))] : []),
  );
  set(picture, { 'aria-label': `Calls over time: ${all.filter((slot) => slot.calls).map(says).join('; ') || 'none'}`, 'data-calls': all.reduce((n, slot) => n + slot.calls, 0), 'data-restart': restart });
  $('#past-top').textContent = `${number(top)} a ${$('#span').value === '1' ? 'minute' : `${$('#span').value} minutes`}`;
  $('#past-axis').replaceChildren(...[0, 15, 30, 45, 59].map((i) => h('span', {}, moment(all[i].from))));
}
