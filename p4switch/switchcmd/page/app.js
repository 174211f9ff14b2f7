// The page of a switch: what it counts, each second, and what becomes of packets.

import { arcs } from './arcs.js';

const $ = (selector) => document.querySelector(selector);
const most = 100; // packets that are kept
const height = 24; // of a row of the program, in pixels
const every = 1000; // ms between two looks

// The token stands behind the # of the address that the command prints. It is kept in this tab only.
const given = new URLSearchParams(location.hash.slice(1)).get('token');
if (given) {
  sessionStorage.setItem('token', given);
  history.replaceState(null, '', location.pathname);
}

async function ask(path, options = {}) {
  const answer = await fetch(path, { ...options, headers: { Authorization: `Bearer ${sessionStorage.getItem('token')}` } });
  if (!answer.ok) throw new Error((await answer.json()).error);
  return answer;
}

function h(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== false) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

const number = (n) => n.toLocaleString('en');
const per = (n, unit) => {
  if (!(n > 0)) return '';
  const size = n >= 1e9 ? [1e9, ' G'] : n >= 1e6 ? [1e6, ' M'] : n >= 1e3 ? [1e3, ' k'] : [1, ' '];
  const v = n / size[0];
  return `${v >= 100 || size[0] === 1 && v >= 10 ? Math.round(v) : v.toFixed(1)}${size[1]}${unit}`;
};

let program; // the one that is shown
let before; // what was counted a moment ago, and when
let rates = new Map(); // of tables, lookups a second
let packets = []; // the newest first
let chosen; // the packet whose way is shown
let tracing; // ends the trace

const drops = {
  rx_oversize: 'came in too long', rx_offload: 'came in unfinished', rx_short: 'came in too short', rx_full: 'came in while the switch was busy', looped: 'of too many copies',
  tx_full: 'were to leave when there was no room', tx_too_long: 'were to leave too long', tx_down: 'were to leave by an interface that is down', tx_offload: 'were to leave changed in a way that offload forbids',
};

// keep makes the rows of a table stand for items, each of whose cells is [text, class, title].
function keep(body, items, cells, attributes = () => ({})) {
  while (body.rows.length > items.length) body.deleteRow(-1);
  items.forEach((item, i) => {
    const tr = body.rows[i] ?? body.insertRow();
    const wanted = attributes(item);
    for (const name of ['class', 'aria-selected', 'data-port', 'data-table', 'data-packet']) {
      if (wanted[name] === undefined) tr.removeAttribute(name);
      else tr.setAttribute(name, wanted[name]);
    }
    cells(item).forEach(([content, look, title], j) => {
      const td = tr.cells[j] ?? tr.insertCell();
      td.className = look ?? '';
      td.title = title ?? '';
      if (content instanceof Node) td.replaceChildren(content);
      else if (td.textContent !== content) td.textContent = content;
    });
  });
}

function drawState(now, then, seconds) {
  const rate = (a, b, name) => (b && seconds > 0 && a[name] >= b[name] ? (a[name] - b[name]) / seconds : 0);
  const former = new Map((then?.ports ?? []).map((p) => [p.port, p]));
  keep($('#ports tbody'), now.ports, (p) => {
    const old = former.get(p.port);
    const why = Object.entries(drops).filter(([name]) => p[name] > 0);
    return [
      [String(p.port)], [p.interface + (p.up ? '' : ' (down)')],
      [per(8 * rate(p, old, 'rx_bytes'), 'bit/s'), 'number', `${per(rate(p, old, 'rx_packets'), 'packets a second')}`],
      [per(8 * rate(p, old, 'tx_bytes'), 'bit/s'), 'number', `${per(rate(p, old, 'tx_packets'), 'packets a second')}`],
      [number(p.rx_packets), 'number'], [number(p.tx_packets), 'number'],
      [why.length ? number(why.reduce((sum, [name]) => sum + p[name], 0)) : '', 'number bad', why.map(([name, text]) => `${number(p[name])} ${text}`).join('; ')],
    ];
  }, (p) => ({ class: p.up ? undefined : 'down', 'data-port': p.port }));
  const lost = [[now.lost, 'packets were for ports that are not there'], [now.packet_ins_lost, 'packets for a controller got to none']].filter(([n]) => n > 0);
  $('#lost').textContent = lost.map(([n, text]) => `${number(n)} ${text}`).join('; ');
  const tables = new Map((then?.tables ?? []).map((t) => [t.table, t]));
  rates = new Map(now.tables.map((t) => [t.table, rate(t, tables.get(t.table), 'hits') + rate(t, tables.get(t.table), 'misses')]));
  keep($('#tables tbody'), now.tables, (t) => [
    [t.table], [number(t.entries), 'number'], [per(rates.get(t.table), '/s'), 'number'], [number(t.hits), 'number'], [number(t.misses), 'number'],
  ], (t) => ({ 'data-table': t.table }));
  for (const li of document.querySelectorAll('#parts li.table')) {
    const text = per(rates.get(li.dataset.name), '/s');
    if (li.lastChild.textContent !== text) li.lastChild.textContent = text;
  }
  $('#about').textContent = now.executor ? `${program?.graph.source ?? ''} in ${now.executor === 'kernel' ? 'the kernel' : 'Go'}` : 'without a program';
}

// drawProgram draws rows and lines; drawWay marks those where the packet was.
function drawProgram() {
  $('#parts').replaceChildren(...(program?.graph.parts ?? []).flatMap((part, i) => [
    h('h3', {}, part.name),
    h('div', { class: 'part', 'data-part': i }, arcs(part, height), h('ol', {}, ...part.rows.map((row) => h('li', { class: row.kind, 'data-name': row.name, title: [row.kind, row.name, ...(row.key ?? [])].join(' ') },
      h('span', { class: 'what' }, row.name), h('span', { class: 'said' }), h('span', { class: 'rate' }))))),
  ]));
}

function drawWay() {
  const way = chosen?.program === program?.number ? chosen?.way ?? [] : [];
  $('#parts').classList.toggle('traced', way.length > 0);
  $('#parts').classList.toggle('only-met', $('#only').checked);
  const said = new Map();
  const edges = new Set();
  for (const v of way) {
    const at = `${v.part} ${v.row}`;
    said.set(at, [...(said.get(at) ?? []), ...(v.says ?? [])]);
    if (v.edge >= 0) edges.add(`${v.part} ${v.edge}`);
  }
  document.querySelectorAll('#parts .part').forEach((part, p) => {
    part.querySelectorAll('li').forEach((li, r) => {
      const lines = said.get(`${p} ${r}`);
      li.classList.toggle('met', lines !== undefined);
      li.children[1].textContent = (lines ?? []).join(' · ');
      li.children[1].title = (lines ?? []).join('\n');
    });
    part.querySelectorAll('circle').forEach((c, r) => c.classList.toggle('met', said.has(`${p} ${r}`)));
    part.querySelectorAll('path').forEach((path) => path.classList.toggle('met', edges.has(`${p} ${path.dataset.edge}`)));
  });
}

// outcome is how a packet and its copies ended.
function outcome(packet) {
  const ends = packet.steps.filter((s) => s.kind === 'out' || s.kind === 'drop').map((s) => (s.kind === 'out' ? `port ${s.port}, ${s.bytes} bytes` : `dropped: ${s.name}`));
  return (ends.join('; ') || 'nothing') + (packet.cut ? ' (there was more)' : '');
}

function drawPackets() {
  const first = packets.at(-1)?.packet.time_ns ?? 0;
  keep($('#packets tbody'), packets, (p) => [
    [h('button', { type: 'button', onclick: () => choose(p) }, String(p.packet.packet))],
    [((p.packet.time_ns - first) / 1e9).toFixed(3), 'number'], [String(p.packet.port), 'number'], [number(p.packet.bytes), 'number'], [outcome(p.packet)],
  ], (p) => ({ 'aria-selected': p === chosen, 'data-packet': p.packet.packet }));
}

function choose(packet) {
  chosen = packet;
  drawPackets();
  drawWay();
}

// take keeps a packet that has come, and shows its way if none is shown.
function take(packet) {
  packets = [packet, ...packets].slice(0, most);
  if (!packets.includes(chosen)) choose(packet);
  else drawPackets();
}

async function watch() {
  const stop = new AbortController();
  tracing = stop;
  [packets, chosen] = [[], undefined];
  drawPackets();
  drawWay();
  $('#start').textContent = 'Stop';
  $('#says').textContent = 'The trace begins; for a large program the kernel takes seconds.';
  try {
    const answer = await ask('/api/trace', {
      method: 'POST', signal: stop.signal,
      body: JSON.stringify({ filter: $('#filter').value.split(/\s+/).filter(Boolean), sample: Number($('#sample').value), rate: Number($('#rate').value) }),
    });
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = '';
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      const lines = (rest + value).split('\n');
      rest = lines.pop();
      for (const line of lines) {
        const told = JSON.parse(line);
        if (told.error) throw new Error(told.error);
        if (told.packet) take(told);
        else $('#says').textContent = 'Tracing.';
      }
    }
    $('#says').textContent = 'The trace has ended.';
  } catch (e) {
    $('#says').textContent = stop.signal.aborted ? `Stopped. ${packets.length ? '' : 'No packet came that the filter lets through.'}` : e.message;
  }
  if (tracing === stop) {
    tracing = undefined;
    $('#start').textContent = 'Trace';
  }
}

$('#watch').addEventListener('submit', (event) => {
  event.preventDefault();
  if (tracing) tracing.abort();
  else watch();
});
$('#only').addEventListener('change', drawWay);

async function look() {
  try {
    const now = await (await ask('/api/state')).json();
    const at = performance.now();
    if (now.program !== (program?.number ?? 0)) {
      program = now.program ? await (await ask('/api/program')).json() : undefined;
      before = undefined;
      drawProgram();
      drawWay();
    }
    drawState(now, before?.now, before ? (at - before.at) / 1000 : 0);
    before = { now, at };
    $('#link').textContent = 'live';
    $('#link').dataset.link = 'live';
    $('#trouble').hidden = true;
  } catch (e) {
    before = undefined;
    $('#link').textContent = 'lost';
    $('#link').dataset.link = 'lost';
    $('#trouble').textContent = e.message;
    $('#trouble').hidden = false;
  }
  setTimeout(look, every);
}
look();
