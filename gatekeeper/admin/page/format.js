// How things are written.

const numbers = new Intl.NumberFormat('en', { maximumFractionDigits: 1 });

export const number = (n) => numbers.format(n);

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

// clock writes the time of day, to the second.
export const clock = (time) => new Date(time).toLocaleTimeString('en-GB');

// isAddress tells an IPv6 address, such as a global pointer.
export const isAddress = (value) => value.includes(':') && URL.canParse(`http://[${value}]`);

// plural writes a number of things.
export const plural = (n, thing) => `${number(n)} ${thing}${n === 1 ? '' : 's'}`;

// Names of nodes: those that are there, and those that were.
const names = new Map();

// know remembers a node's name; nodes keep their addresses for good.
export function know(node) {
  if (node.address && node.name) names.set(node.address, `${node.blade}/${node.name}`);
}

// nodeName is BLADE/NAME, or the address of a node that is not known.
export const nodeName = (address) => names.get(address) ?? address ?? '';
