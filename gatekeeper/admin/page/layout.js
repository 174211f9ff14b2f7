// Where the nodes of the call graph stand: callers left of their callees, in
// columns. It computes and draws nothing.

// columns gives every node of edges [{from, to}] a column: one more than the
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
    for (const to of next.get(node)) {
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

// arrange returns the nodes of each column from top to bottom: at first by name,
// then each near the middle of those that it is connected with.
export function arrange(edges, name) {
  const column = columns(edges);
  const lists = [];
  for (const [node, c] of column) (lists[c] ??= []).push(node);
  for (const list of lists) list.sort((a, b) => name(a).localeCompare(name(b)));
  const near = new Map(Array.from(column.keys(), (node) => [node, []]));
  for (const { from, to } of edges) {
    near.get(from).push(to);
    near.get(to).push(from);
  }
  for (let pass = 0; pass < 4; pass++) {
    const height = new Map();
    for (const list of lists) list.forEach((node, i) => height.set(node, (i + 0.5) / list.length));
    const wanted = (node) => near.get(node).reduce((sum, n) => sum + height.get(n), 0) / near.get(node).length;
    const order = pass % 2 ? [...lists].reverse() : lists;
    for (const list of order) {
      const at = new Map(list.map((node) => [node, wanted(node)]));
      list.sort((a, b) => at.get(a) - at.get(b) || name(a).localeCompare(name(b)));
      list.forEach((node, i) => height.set(node, (i + 0.5) / list.length));
    }
  }
  return lists;
}
