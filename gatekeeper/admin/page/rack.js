// Blades, nodes, and memory.

import { $, changed, facts, h, panel, rows, same, set, table, text } from './dom.js';
import { addressCell, bladeLink, bytes, callLink, clock, code, copies, isAddress, lasting, methodName, moment, naming, nodeCell, nodeLink, number, plural, serviceLink, to } from './format.js';
import { drawPager, finder, listing, pager, pageSize } from './lists.js';
import { drawCalls, latestNeeds, latestPanel } from './calls.js';
import { drawEvents } from './feed.js';
import { drain, failBlade, forget, freeRegion, giveBack } from './actions.js';

const pill = (status) => h('span', { class: `pill ${status.replace(' ', '-')}` }, status);

// ownEvents is the place of the latest events of one thing.
const ownEvents = () => panel('own-events', 'Latest events', '', h('ol', { class: 'feed own' }));

function drawOwnEvents(events) {
  if (events && changed($('.feed.own'), events, naming.version)) drawEvents($('.feed.own'), [...events.items].reverse());
}

// blades is the list of blades.
export function blades(parts, parameters) {
  if (parts.length) return blade(parts[0]);
  return {
    title: 'Blades',
    needs: { blades: { path: '/v1/blades', parameters: listing(parameters), kinds: ['blade.', 'machine.', 'node.'], most: 3000 } },
    build: () => [panel('blades', 'Blades', finder('blades', parameters, 'blades'), table('blades', [['Blade', ''], ['Kind', 'wide'], ['Status', ''], ['Nodes', 'number'], ['Memory', 'wide'], ['Cause', '']]), pager('blades'))],
    draw(state) {
      const list = state.data.blades;
      if (!list || !changed($('#blades tbody'), list)) return;
      rows($('#blades'), list.items, (b) => b.name, (b) => [[b.name, () => bladeLink(b.name)], b.kind, [b.status, () => pill(b.status)], b.kind === 'compute' ? `${number(b.nodes.length)} of ${number(b.capacity)}` : '',
        b.kind === 'memory' ? `${bytes(b.used)} of ${bytes(b.capacity)}` : '', b.cause ?? ''], (b) => ({ 'data-blade': b.name, 'data-status': b.status }), 'No blade has registered.');
      drawPager('blades', list, 'blades', [], parameters);
    },
  };
}

// blade is one blade, with what can be done to it.
function blade(name) {
  return {
    title: name,
    needs: {
      blade: { path: `/v1/blades/${encodeURIComponent(name)}`, kinds: ['blade.', 'machine.', 'node.'], least: 500, most: 3000 }, machines: { path: '/v1/machines', kinds: ['machine.', 'blade.'], most: 3000 },
      nodes: { path: '/v1/nodes', parameters: { match: `${name}/`, limit: pageSize }, kinds: ['node.', 'service.'], most: 15_000 }, events: { path: '/v1/events/recent', parameters: { blade: name, limit: 30 }, kinds: ['blade.', 'machine.', 'node.', 'program.'], most: 10_000 },
      domain: { path: `/v1/blades/${encodeURIComponent(name)}/domain`, most: 10_000, least: 3000, kinds: ['node.', 'blade.'] },
    },
    build: () => [
      panel('blade', `Blade ${name}`, h('span', { class: 'actions' }), h('p', { class: 'wrong', role: 'alert' }), h('dl', { class: 'facts' })),
      panel('nodes', 'Nodes', '', table('nodes', [['Node', ''], ['Exports', 'prose']])),
      ownEvents(),
    ],
    draw(state) {
      const { blade: b, machines, nodes, events, domain } = state.data;
      text($('#blade .wrong'), state.wrong.blade ?? '');
      if (b && changed($('#blade .facts'), b, machines, domain)) {
        const machine = machines?.items.find((m) => m.blades.includes(name));
        const out = b.status === 'draining' || b.status === 'failed';
        same($('#blade .actions'), b.status, () => [out ? giveBack(name) : drain(name), b.status === 'failed' ? '' : failBlade(name)]);
        facts($('#blade .facts'), [['Status', [b.status, () => pill(b.status)]], ['Cause', b.cause], ['Kind', b.kind], ['Address', addressCell(b)], ['Port', b.port ? String(b.port) : ''],
          ['Memory', b.kind === 'memory' ? `${bytes(b.used)} of ${bytes(b.capacity)}` : ''], ['Copies', machine ? copies(machine, name) : ''], ['Ledgers', b.ledgers ? `${bytes(b.ledgers.used)} of ${bytes(b.ledgers.total)}, ${number(b.ledgers.count)} of them` : ''],
          ['Nodes', b.kind === 'compute' ? `${number(b.nodes.length)} of ${number(b.capacity)}` : ''],
          ['If it fails', domain ? `${plural(domain.rerun.length, 'call')} would run again, ${number(domain.cut.length)} would fail, ${plural(domain.regions.length, 'region')} could not be reached${domain.missing ? `; not complete: no answer from ${domain.missing.join(', ')}` : ''}` : '']]);
      }
      drawNodes(nodes, 'No node is here.');
      drawOwnEvents(events);
    },
  };
}

function drawNodes(list, nothing) {
  if (!list || !changed($('#nodes tbody'), list)) return;
  const exported = (n) => (n.awaited ? `waits for its program since ${moment(n.awaited)}` : n.services.slice(0, 6).join(', ') + (n.services.length > 6 ? `, and ${n.services.length - 6} more` : ''));
  rows($('#nodes'), list.items, (n) => n.address, (n) => [[`${n.blade}/${n.name}`, () => h('a', { href: to('nodes', [n.address]), title: n.address }, `${n.blade}/${n.name}`)], exported(n)],
    (n) => ({ 'data-address': n.address }), nothing);
}

// nodes is the list of nodes.
export function nodes(parts, parameters) {
  if (parts.length) return node(parts[0]);
  return {
    title: 'Nodes',
    needs: { nodes: { path: '/v1/nodes', parameters: listing(parameters), kinds: ['node.', 'service.'], most: 15_000 } },
    build: () => [panel('nodes', 'Nodes', finder('nodes', parameters, 'nodes'), table('nodes', [['Node', ''], ['Exports', 'prose']]), pager('nodes'))],
    draw(state) {
      drawNodes(state.data.nodes, 'No node is like that.');
      if (state.data.nodes) drawPager('nodes', state.data.nodes, 'nodes', [], parameters);
    },
  };
}

// node is one node.
function node(address) {
  return {
    title: 'Node',
    needs: {
      node: { path: `/v1/nodes/${address}`, kinds: ['node.', 'service.'], most: 15_000 }, open: { path: '/v1/calls', parameters: { node: address, limit: pageSize }, kinds: ['call.', 'reply.'], most: 3000 },
      regions: { path: '/v1/regions', parameters: { node: address, limit: pageSize }, kinds: ['region.', 'rules.'], most: 5000 }, latest: latestNeeds({ node: address }), events: { path: '/v1/events/recent', parameters: { node: address, limit: 30 }, kinds: ['node.', 'access.'], most: 10_000 },
    },
    build: () => [
      panel('node', 'Node', h('span', { class: 'actions' }), h('p', { class: 'wrong', role: 'alert' }), h('dl', { class: 'facts' })),
      panel('open', 'Calls under way', '', table('open', [['Method', ''], ['Caller', ''], ['Callee', ''], ['For', 'number']])),
      latestPanel({ node: address }),
      panel('regions', 'Its regions', '', regionTable()),
      ownEvents(),
    ],
    draw(state) {
      const { node: n, open, regions, latest, events } = state.data;
      text($('#node .wrong'), state.wrong.node ? `${state.wrong.node}: it has left, or never was` : '');
      if (n && changed($('#node .facts'), n)) {
        text($('#node-title'), `${n.blade}/${n.name}`);
        same($('#node .actions'), Boolean(n.awaited), () => (n.awaited ? [forget(address, n.name)] : []));
        facts($('#node .facts'), [['Address', addressCell(n)], ['Blade', [n.blade, () => bladeLink(n.blade)]], ['Incarnation', number(n.incarnation)], ['Exports', [n.services.join(), () => n.services.flatMap((v, i) => [i ? ', ' : '', serviceLink(v)])]],
          ['Room in its ledger', n.ledger_room === undefined ? '' : bytes(n.ledger_room)],
          ['States', n.max_states && [`${n.states} ${n.max_states}`, () => h('span', { class: (n.states ?? 0) > 0.8 * n.max_states ? 'warn' : '' }, `${bytes(n.states ?? 0)} of ${bytes(n.max_states)}`)]], ['Waits for its program since', n.awaited ? moment(n.awaited) : '']]);
      }
      if (open && changed($('#open tbody'), open, naming.version)) {
        rows($('#open'), open.items, (k) => k.id, (k) => [[methodName(k), () => callLink(k.id, methodName(k))], nodeCell(k.caller), nodeCell(k.callee), k.b1 ? lasting(Math.max(0, (Date.now() - Date.parse(k.b1)) / 1000)) : ''],
          (k) => ({ 'data-call': k.id }), 'No call is under way.');
      }
      drawCalls('latest', latest, 'None of its calls is remembered.');
      drawRegions(regions, 'It has no region.');
      drawOwnEvents(events);
    },
  };
}

const regionTable = () => h('div', {}, h('p', { id: 'regions-missing', class: 'warn', role: 'status', hidden: true }),
  table('regions', [['Region', ''], ['Size', 'number'], ['Blade', 'wide'], ['Controller', ''], ['Leased to', '']]));

function drawRegions(list, nothing) {
  if (!list || !changed($('#regions tbody'), list, naming.version)) return;
  const missing = $('#regions-missing');
  set(missing, { hidden: !list.missing });
  missing.textContent = `Not complete: no answer from ${(list.missing ?? []).join(', ')}.`;
  rows($('#regions'), list.items, (r) => r.region, (r) => {
    const readers = [...new Set(r.leases.map((l) => l.node))];
    const standing = r.leases.filter((l) => l.standing);
    return [[r.region, () => code(r.region)], bytes(r.size), r.blade ?? '', r.frozen ? ['frozen', () => ['frozen ', freeRegion(r.region)]] : nodeCell(r.controller),
      [`${readers.join()} ${standing.length} ${naming.version}`, () => [...readers.slice(0, 3).flatMap((a, i) => [i ? ', ' : '', nodeLink(a)]), readers.length > 3 ? `, and ${readers.length - 3} more` : '', standing.length ? ` (${standing.length === r.leases.length ? '' : `${standing.length} by `}standing lease${standing.length > 1 ? 's' : ''})` : '']]];
  }, (r) => ({ 'data-region': r.region, 'data-leases': r.leases.length }), nothing);
}

// memory is machines, regions and what was denied.
export function memory(parts, parameters) {
  const pointer = parameters.pointer ?? '';
  const find = h('input', { type: 'search', id: 'pointer', value: pointer, placeholder: 'find a pointer', autocomplete: 'off', spellcheck: 'false', 'aria-invalid': pointer && !isAddress(pointer) ? 'true' : false });
  return {
    title: 'Memory',
    needs: {
      machines: { path: '/v1/machines', parameters: { limit: pageSize }, kinds: ['machine.', 'blade.'], most: 3000 }, denied: { path: '/v1/denied', kinds: ['access.'], most: 15_000 },
      regions: { path: '/v1/regions', parameters: { limit: pageSize, pointer: isAddress(pointer) ? pointer : '', cursor: parameters.cursor }, kinds: ['region.', 'rules.', 'call.', 'reply.'], least: 1000, most: 5000 },
    },
    build: () => [
      panel('machines', 'Memory machines', '', table('machines', [['Machine', ''], ['Blades', ''], ['Used', 'number'], ['Copies', 'prose']])),
      panel('regions', 'Regions', h('form', { class: 'find', role: 'search', onsubmit: (e) => {
        e.preventDefault();
        location.hash = to('memory', [], { pointer: find.value.trim() });
      } }, h('label', { class: 'hidden', for: 'pointer' }, 'Find the region of a pointer'), find), regionTable(), pager('regions')),
      panel('denied', 'Denied accesses', h('p', { class: 'quiet' }, 'the latest'), table('denied', [['Time', ''], ['Who', ''], ['What', ''], ['Pointer', '']])),
    ],
    draw(state) {
      const { machines, regions, denied } = state.data;
      if (machines && changed($('#machines tbody'), machines)) {
        rows($('#machines'), machines.items, (m) => m.machine, (m) => [String(m.machine), [m.blades.join(), () => m.blades.flatMap((b, i) => [i ? ' + ' : '', bladeLink(b)])], `${bytes(m.used)} of ${bytes(m.capacity)}`,
          [`${m.in_service} ${copies(m, m.blades[0])}`, () => h('span', { class: m.in_service < 2 ? 'warn' : '' }, copies(m, m.copies[0] ?? m.blades[0]))]], (m) => ({ 'data-machine': m.machine }), 'There is no memory.');
      }
      drawRegions(regions, pointer ? 'No region holds this pointer.' : 'No region is allocated.');
      if (regions) drawPager('regions', regions, 'memory', [], parameters);
      if (denied && changed($('#denied tbody'), denied, naming.version)) {
        rows($('#denied'), denied.items.slice(-pageSize).reverse(), (d) => `${d.time} ${d.node} ${d.pointer}`, (d) => [[d.time, () => h('time', { datetime: d.time }, clock(d.time))], nodeCell(d.node), [d.op, () => h('span', { class: 'bad' }, d.op)], [d.pointer, () => code(d.pointer)]],
          (d) => ({ 'data-pointer': d.pointer, 'data-op': d.op }), 'Nothing has been denied.');
      }
    },
  };
}
