// The tables.

import { $, h, row, set, sync } from './dom.js';
import { bytes, clock, nodeName, number } from './format.js';

// body draws a table's rows, or that there is nothing.
export function body(section, items, key, make, change, nothing) {
  const tbody = $(`${section} tbody`);
  const rows = items.length ? items : [{ nothing }];
  sync(tbody, rows, (item) => (item.nothing ? '' : key(item)),
    (item) => (item.nothing ? h('tr', { class: 'nothing' }, h('td', { colspan: 9 }, item.nothing)) : make(item)),
    (tr, item) => { if (!item.nothing) change(tr, item); });
}

// code is something to be read letter by letter. Where there is no room for all of it,
// its end is what tells it from others.
export const code = (value) => h('code', { title: value }, h('span', {}, value.slice(0, -9)), h('span', {}, value.slice(-9)));

// who is a node as a button that chooses it.
export const who = (address) => (address
  ? h('button', { type: 'button', class: 'plain', 'data-select': address, title: address }, nodeName(address)) : h('span', { class: 'quiet' }, 'gone'));

// same keeps a cell's elements, and the focus in them, while they say the same.
export function same(tr, i, says, make) {
  const cell = tr.children[i];
  if (cell.dataset.says === says) return;
  cell.dataset.says = says;
  cell.replaceChildren(...make());
}

const named = (addresses) => addresses.map((a) => `${a} ${nodeName(a)}`).join();

// drawCalls lists the calls under way.
export function drawCalls(state) {
  body('#calls', state.calls.items, (k) => k.id, () => row('', '', '', '', '', ''), (tr, k) => {
    set(tr, { 'data-call': k.id });
    same(tr, 0, k.id, () => [code(k.id)]);
    const method = [k.service, k.method].filter(Boolean).join('.');
    same(tr, 1, method, () => [method]);
    same(tr, 2, named([k.caller]), () => [who(k.caller)]);
    same(tr, 3, named([k.callee]), () => [who(k.callee)]);
    same(tr, 4, k.stage, () => [h('span', { class: `stage ${k.stage}` }, k.stage)]);
    same(tr, 5, k.parent ?? '', () => (k.parent ? [code(k.parent)] : []));
  }, 'No call is under way.');
}

// drawRegions lists regions with their controllers and lessees.
export function drawRegions(state) {
  body('#regions', state.regions.items, (r) => r.region, () => row('', 'number', 'wide', '', ''), (tr, r) => {
    set(tr, { 'data-region': r.region, 'data-leases': r.leases.length });
    same(tr, 0, `${r.region} ${r.freeing}`, () => [code(r.region), ...(r.freeing ? [h('span', { class: 'pill' }, 'freeing')] : [])]);
    same(tr, 1, String(r.size), () => [bytes(r.size)]);
    same(tr, 2, r.blade ?? '', () => [r.blade ?? '']);
    same(tr, 3, named([r.controller]), () => [who(r.controller)]);
    const readers = [...new Set(r.leases.map((l) => l.node))];
    same(tr, 4, named(readers), () => readers.map(who));
  }, state.pointer ? 'No region holds this pointer.' : 'No region is allocated.');
  const more = $('#regions .more');
  const says = state.regions.next ? (state.limit < 1000 ? 'more' : 'many') : '';
  if (more.dataset.says === says) return;
  more.dataset.says = says;
  more.replaceChildren(...{
    '': [], more: [`The first ${state.limit}. `, h('button', { type: 'button' }, 'Show more')],
    many: [`The first ${number(state.limit)}: find others by a pointer, or choose a node.`],
  }[says]);
}

// drawDenied lists denied accesses, the latest first.
export function drawDenied(state) {
  body('#denied', [...state.denied].reverse().slice(0, 100), (d) => `${d.time} ${d.node} ${d.pointer}`, () => row('', '', '', ''), (tr, d) => {
    set(tr, { 'data-pointer': d.pointer, 'data-op': d.op, 'data-who': d.node });
    same(tr, 0, d.time, () => [h('time', { datetime: d.time }, clock(d.time))]);
    same(tr, 1, named([d.node]), () => [who(d.node)]);
    same(tr, 2, d.op, () => [h('span', { class: 'bad' }, d.op)]);
    same(tr, 3, d.pointer, () => [code(d.pointer)]);
  }, 'Nothing has been denied.');
}

// drawNodes lists the nodes.
export function drawNodes(state) {
  const nodes = [...state.nodes].sort((a, b) => a.blade.localeCompare(b.blade) || a.name.localeCompare(b.name));
  body('#nodes', nodes, (n) => n.address, () => row('', '', 'wide', ''), (tr, n) => {
    set(tr, { 'data-address': n.address });
    same(tr, 0, `${n.name} ${n.incarnation} ${state.selected === n.address}`, () => [
      h('button', { type: 'button', class: 'plain', 'data-select': n.address, 'aria-pressed': state.selected === n.address }, n.name),
      ...(n.incarnation > 1 ? [h('small', { class: 'quiet' }, ` incarnation ${n.incarnation}`)] : [])]);
    same(tr, 1, n.blade, () => [n.blade]);
    same(tr, 2, n.address, () => [code(n.address)]);
    const does = n.awaited ? `waits for its program since ${new Date(n.awaited).toLocaleString('en-GB')}` : n.services.join(', ');
    same(tr, 3, does, () => [does]);
  }, 'No node has joined.');
}

// drawApps lists the programs that are deployed; without any, nobody is told.
export function drawApps(state) {
  $('#apps').hidden = state.apps.length === 0;
  const programs = state.apps.flatMap((a) => a.programs.map((p) => ({
    key: `${a.name}/${p.name}`, wanted: a.removed ? 0 : p.nodes, instances: a.instances.filter((i) => i.program === p.name),
  })));
  body('#apps', programs, (p) => p.key, () => row('', 'number', ''), (tr, p) => {
    set(tr, { 'data-program': p.key });
    same(tr, 0, p.key, () => [p.key]);
    same(tr, 1, String(p.wanted), () => [number(p.wanted)]);
    same(tr, 2, p.instances.map((i) => `${i.name} ${i.status} ${i.blade}`).join(), () => p.instances.map((i) => h('div', {},
      `${i.name.split('/').pop()} on ${i.blade || 'no blade yet'} `, h('span', { class: `stage ${i.status}` }, i.status))));
  }, 'Nothing is deployed.');
}

// drawServices lists services, and how the switch spreads their calls.
export function drawServices(state) {
  body('#services', state.services, (v) => v.name, () => row('', 'prose', ''), (tr, v) => {
    set(tr, { 'data-service': v.name });
    same(tr, 0, v.name, () => [h('b', { title: v.address }, v.name)]);
    const methods = v.methods.map((m) => m.name).join(', ');
    same(tr, 1, methods, () => [methods]);
    const shares = shareOf(v);
    same(tr, 2, shares.map(([a, n]) => `${a} ${nodeName(a)} ${n}`).join(), () => shares.map(([a, n]) => h('div', { class: 'share' },
      who(a), h('span', { class: 'bar' }, sized(n)), h('small', {}, `${number((100 * n) / 256)} %`))));
  }, 'No service is exported.');
}

function sized(n) {
  const bar = h('span');
  bar.style.width = `${(100 * n) / 256}%`;
  return bar;
}

// shareOf tells how many of the 256 values of a call id's last byte go to each node,
// by the service's first method.
function shareOf(service) {
  const share = new Map();
  for (const r of service.methods[0]?.routes ?? []) share.set(r.node, (share.get(r.node) ?? 0) + 2 ** (8 - r.bits));
  return [...share].sort((a, b) => nodeName(a[0]).localeCompare(nodeName(b[0])));
}
