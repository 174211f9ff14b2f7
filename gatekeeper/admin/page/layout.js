// Where things stand in the call graph: callers left of their callees, in columns, and every edge on a way of its own between boxes. It
// computes and draws nothing. Only who calls whom counts, not how often: so everything stays in its place while counts change.

const gap = 14; // between boxes of a column
const lane = 16; // height of an edge's place at a box, or on its way past one
const gutter = 84; // between columns, at least: room for a label and for edges that lead back
const narrowest = 104; // a box
const widest = 190;

// columns gives every name in edges [{from, to}] a column: one more than the
// farthest of its callers. Edges that close a circle do not count.
export function columns(edges) {
  const next = new Map();
  for (const { from, to } of edges) {
    if (!next.has(from)) next.set(from, new Set());
    if (!next.has(to)) next.set(to, new Set());
    if (from !== to) next.get(from).add(to);
  }
  const order = [];
  const mark = new Map(); // 1: being visited, 2: done
  const forward = new Map();
  const visit = (node) => {
    mark.set(node, 1);
    forward.set(node, []);
    for (const to of [...next.get(node)].sort()) {
      if (mark.get(to) === 1) continue; // closes a circle
      forward.get(node).push(to);
      if (!mark.has(to)) visit(to);
    }
    mark.set(node, 2);
    order.unshift(node);
  };
  for (const node of [...next.keys()].sort()) if (!mark.has(node)) visit(node);
  const column = new Map(order.map((node) => [node, 0]));
  for (const node of order) {
    for (const to of forward.get(node)) column.set(to, Math.max(column.get(to), column.get(node) + 1));
  }
  return column;
}

// arrange puts boxes, and the places of edges that pass a column, from top to bottom: at first by name, then each near the middle of
// those that it is connected with.
function arrange(column, edges) {
  const lists = [];
  const near = new Map();
  const put = (id, c) => {
    (lists[c] ??= []).push(id);
    near.set(id, []);
  };
  for (const [name, c] of [...column].sort((a, b) => (a[0] < b[0] ? -1 : 1))) put(name, c);
  for (const e of edges) {
    const [a, b] = [column.get(e.from), column.get(e.to)];
    e.back = b <= a;
    e.stops = [];
    if (e.back) continue;
    for (let c = a + 1; c < b; c++) {
      const id = `${e.from}\n${e.to}\n${c}`;
      put(id, c);
      e.stops.push(id);
    }
    const way = [e.from, ...e.stops, e.to];
    way.slice(1).forEach((id, i) => {
      near.get(id).push(way[i]);
      near.get(way[i]).push(id);
    });
  }
  for (let pass = 0; pass < 6; pass++) {
    const height = new Map();
    for (const list of lists) list.forEach((id, i) => height.set(id, (i + 0.5) / list.length));
    for (const list of pass % 2 ? [...lists].reverse() : lists) {
      const wanted = new Map(list.map((id) => [id, near.get(id).length ? near.get(id).reduce((sum, n) => sum + height.get(n), 0) / near.get(id).length : height.get(id)]));
      list.sort((a, b) => wanted.get(a) - wanted.get(b) || (a < b ? -1 : 1));
      list.forEach((id, i) => height.set(id, (i + 0.5) / list.length));
    }
  }
  return lists;
}

// layout returns where boxes stand, by name, and for each edge its path and where its label ends; null if there are no edges, or their columns
// do not fit into the width.
export function layout(given, width) {
  if (!given.length) return null;
  const edges = given.map((e) => ({ ...e })).sort((a, b) => (a.from < b.from || a.from === b.from && a.to < b.to ? -1 : 1));
  const column = columns(edges);
  const lists = arrange(column, edges);
  const backs = edges.filter((e) => e.back);
  const left = backs.some((e) => column.get(e.to) === 0) ? gutter - 10 : 0;
  const right = backs.length ? 12 + 5 * backs.length : 0;
  const room = width - left - right;
  const w = Math.min(widest, (room - gutter * (lists.length - 1)) / lists.length);
  if (w < narrowest) return null;
  const step = lists.length > 1 ? Math.min((room - w) / (lists.length - 1), w + 260) : 0;
  const boxes = place(lists, edges, column, { left, w, step });
  const bottom = Math.max(...[...boxes.values()].map((b) => b.y + b.h));
  return { boxes, ways: ways(edges, boxes, bottom), height: bottom + (backs.length ? 10 * backs.length + 8 : 0) };
}

// place stacks every column.
function place(lists, edges, column, { left, w, step }) {
  const count = (name, end) => edges.filter((e) => e[end] === name).length;
  const tall = (id) => (column.has(id) ? Math.max(34, lane * Math.max(count(id, 'from'), count(id, 'to')) + 4) : lane);
  const heights = lists.map((list) => list.reduce((sum, id) => sum + tall(id) + gap, -gap));
  const tallest = Math.max(...heights);
  const boxes = new Map();
  lists.forEach((list, c) => {
    let y = (tallest - heights[c]) / 2;
    for (const id of list) {
      boxes.set(id, { x: left + c * step, y, w, h: tall(id), stop: !column.has(id) });
      y += tall(id) + gap;
    }
  });
  return boxes;
}

// ports gives each edge its place at an end's boxes, in the order of the other ends.
function ports(edges, boxes, end, other) {
  const at = new Map();
  for (const [name, b] of boxes) {
    const mine = edges.filter((e) => e[end] === name);
    const height = (e) => (e.back ? Infinity : boxes.get(other(e)).y);
    mine.sort((a, b) => height(a) - height(b)).forEach((e, i) => at.set(e, b.y + b.h / 2 + lane * (i - (mine.length - 1) / 2)));
  }
  return at;
}

// ways draws every edge from the right side of its caller's box to the left side of its callee's.
function ways(edges, boxes, bottom) {
  const out = ports(edges, boxes, 'from', (e) => e.stops[0] ?? e.to);
  const into = ports(edges, boxes, 'to', (e) => e.stops.at(-1) ?? e.from);
  let backs = 0;
  return edges.map((e) => {
    const from = boxes.get(e.from);
    const to = boxes.get(e.to);
    let [x, y] = [from.x + from.w, out.get(e)];
    const end = { x: to.x, y: into.get(e) };
    let d = `M${x} ${y}`;
    if (e.back) {
      const turn = 8 + 5 * backs;
      d += `H${x + turn}V${bottom + 10 + 10 * backs}H${end.x - 62 - (turn % 16)}V${end.y}H${end.x}`;
      backs++;
    } else {
      const curve = (tx, ty) => {
        d += `C${(x + tx) / 2} ${y} ${(x + tx) / 2} ${ty} ${tx} ${ty}`;
        [x, y] = [tx, ty];
      };
      for (const stop of e.stops.map((id) => boxes.get(id))) {
        curve(stop.x, stop.y + stop.h / 2);
        x = stop.x + stop.w;
        d += `H${x}`;
      }
      curve(end.x, end.y);
    }
    return { key: `${e.from}\n${e.to}`, d, label: { x: end.x - 9, y: end.y - 3 } };
  });
}
