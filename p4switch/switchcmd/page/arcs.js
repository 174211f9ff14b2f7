// The lines beside the rows of a part of the program: straight ones to the row below, others by the lane that the switch has given them.

const space = 'http://www.w3.org/2000/svg';
const lane = 8; // pixels from one to the next

function s(tag, attributes) {
  const element = document.createElementNS(space, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

// arcs draws them for rows of a height.
export function arcs(part, height) {
  const x = lane * part.lanes + 8;
  const y = (row) => height * row + height / 2;
  const svg = s('svg', { width: x + 8, height: height * part.rows.length, 'aria-hidden': 'true' });
  part.edges.forEach((e, i) => {
    const out = y(e.from) + 4;
    const into = y(e.to) + (e.to > e.from ? -4 : 4);
    const way = e.lane === 0 ? `M${x} ${y(e.from)}V${y(e.to)}` : `M${x} ${y(e.from)}L${x - 4} ${out}H${x - lane * e.lane}V${into}H${x - 4}L${x} ${y(e.to)}`;
    const path = s('path', { d: way, 'data-edge': i });
    const title = s('title', {});
    title.textContent = [...(e.when ?? []), ...(e.otherwise && e.when ? ['anything else'] : [])].join(', ');
    path.append(title);
    svg.append(path);
  });
  part.rows.forEach((row, i) => svg.append(s('circle', { cx: x, cy: y(i), r: row.kind === 'end' ? 2.5 : 3.5 })));
  return svg;
}
