// How things are written.

import { h } from './dom.js';

const numbers = new Intl.NumberFormat('en', { maximumFractionDigits: 1 });

export const number = (n) => numbers.format(n);

// short writes a count where there is little room.
const compact = new Intl.NumberFormat('en', { notation: 'compact', maximumFractionDigits: 1 });
export const short = (n) => compact.format(n);

// bytes writes a size with the largest unit that leaves a number of 1 or more.
export function bytes(n) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];
  let i = 0;
  while (n >= 1024 && i < units.length - 1) {
    n /= 1024;
    i++;
  }
  return `${number(n)} ${units[i]}`;
}

// lasting writes a time that is given in seconds.
export function lasting(seconds) {
  if (seconds < 0.001) return `${number(seconds * 1e6)} µs`;
  if (seconds < 1) return `${number(seconds * 1000)} ms`;
  return seconds < 120 ? `${number(seconds)} s` : `${number(seconds / 60)} min`;
}

// clock writes the time of day, to the second.
const clocks = new Intl.DateTimeFormat('en-GB', { timeStyle: 'medium' });
export const clock = (time) => clocks.format(new Date(time));

// moment writes a date with the time of day.
export const moment = (time) => new Date(time).toLocaleString('en-GB', { dateStyle: 'medium', timeStyle: 'medium' });

// between is the seconds from one moment to another, which are written more finely than a Date is.
export function between(from, to) {
  const fraction = (t) => Number((/\.(\d+)/.exec(t)?.[1] ?? '').padEnd(9, '0').slice(3, 9));
  return (Date.parse(to) - Date.parse(from)) / 1000 + (fraction(to) - fraction(from)) / 1e9;
}

// isAddress tells an IPv6 address, such as a global pointer.
export const isAddress = (value) => value.includes(':') && URL.canParse(`http://[${value}]`);

// plural writes a number of things.
export const plural = (n, thing) => `${number(n)} ${thing}${n === 1 ? '' : 's'}`;

// Names of nodes: those that are there, and those that were.
const names = new Map();
export const naming = { version: 0, missing: false };

// know remembers a node's name; nodes keep their addresses for good.
export function know(node) {
  const name = `${node.blade}/${node.name}`;
  if (!node.address || !node.name || names.get(node.address) === name) return;
  names.set(node.address, name);
  naming.version++;
}

// nodeName is BLADE/NAME, or the address of a node that is not known: then the names are asked for.
export function nodeName(address) {
  if (!address) return '';
  if (!names.has(address)) naming.missing = true;
  return names.get(address) ?? address;
}

// addressOf is the address of a node that has this name, or '' if none is known.
export function addressOf(name) {
  if (isAddress(name)) return name;
  for (const [address, known] of names) if (known === name) return address;
  return '';
}

export const methodName = (k) => [k.service, k.method].filter(Boolean).join('.');

// to is the address of a view, behind the # of the page's.
export function to(view, parts = [], parameters = {}) {
  const query = new URLSearchParams(Object.entries(parameters).filter(([, v]) => v));
  return `#/${[view, ...parts.map((part) => encodeURIComponent(part).replaceAll('%3A', ':'))].join('/')}${query.size ? `?${query}` : ''}`;
}

// Links to what has a view of its own.
export const nodeLink = (address) => (address ? h('a', { href: to('nodes', [address]), title: address }, nodeName(address)) : h('span', { class: 'quiet' }, '–'));
export const bladeLink = (name) => h('a', { href: to('blades', [name]) }, name);
export const serviceLink = (name) => h('a', { href: to('services', [name]) }, name);
export const callLink = (id, says) => h('a', { href: to('calls', [id]), title: id }, says);

// code is something to be read letter by letter. Where there is no room for all of it, its end is what tells it from others.
export const code = (value) => h('code', { title: value }, h('span', {}, value.slice(0, -9)), h('span', {}, value.slice(-9)));

// Cells that rows and facts draw.
export const addressCell = (n) => [n.address, () => code(n.address)];
export const nodeCell = (address) => [`${address} ${nodeName(address)}`, () => nodeLink(address)];

// copies says what a blade has of its memory machine: who else holds a copy, how far it is filled, or why nobody does.
export function copies(m, blade) {
  if (m.filling) {
    const share = m.filling.total ? Math.floor((100 * Math.min(m.filling.done, m.filling.total)) / m.filling.total) : 0;
    const remains = m.filling.left_seconds > 0 ? `, ${Math.ceil(m.filling.left_seconds)} s left` : '';
    return `${m.filling.blade} is filled: ${share} % of ${bytes(m.filling.total)}${remains}`;
  }
  const others = m.copies.filter((name) => name !== blade);
  if (!m.copies.includes(blade)) return `no copy: ${m.why || 'not filled yet'}`;
  if (others.length && m.in_service > 1) return `mirrored with ${others.join(', ')}`;
  return `one copy${m.why ? `: ${m.why}` : ''}`;
}

// outcome says how a call has ended, or how far it has got, and in which tone. Exceptions that the IDL declares are answers.
export function outcome(k) {
  const word = k.code || (k.over ? 'ok' : k.b2 ? 'finished' : k.b1 ? 'running' : 'sent');
  const tone = !k.over ? 'open' : k.code === 'declared' ? 'quiet' : k.code && k.code !== 'ok' ? 'bad' : '';
  return { word, tone };
}
