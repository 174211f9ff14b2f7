// Services and their methods: how many calls, what became of them, and what becomes of them when a node fails.

import { $, changed, h, panel, rows, sync, table, text } from './dom.js';
import { callLink, lasting, methodName, naming, nodeLink, number, serviceLink, to } from './format.js';
import { drawPager, finder, listing, pager } from './lists.js';
import { drawGraph, graphNeeds, graphPanel } from './graph.js';
import { drawCalls, latestNeeds, latestPanel } from './calls.js';
import { policyChoice } from './actions.js';

const columns = [['Method', ''], ['Calls', 'number'], ['Open', 'number wide'], ['Failed', ''], ['Declared', 'number wide'], ['Half within', 'number wide'], ['99 %', 'number']];

// figuresOf are the cells of a method. Exceptions that the IDL declares are no failures.
function figuresOf(m, name) {
  const failed = Object.entries(m.failed ?? {}).map(([why, n]) => `${number(n)} ${why}`).join(', ');
  return [name, number(m.calls), number(m.open), [failed, () => (failed ? h('span', { class: 'bad' }, failed) : '')], [m.declared ?? '', () => h('span', { class: 'quiet' }, number(m.declared ?? 0))],
    m.p50 ? lasting(m.p50) : '', [`${m.p99} ${m.slow}`, () => (m.slow && m.p99 ? callLink(m.slow, lasting(m.p99)) : m.p99 ? lasting(m.p99) : '')]];
}

// services is the list of methods, by service.
export function services(parts, parameters) {
  if (parts.length) return service(parts[0]);
  return {
    title: 'Services',
    needs: { methods: { path: '/v1/methods', parameters: listing(parameters), most: 5000, least: 2000, kinds: ['service.'] }, services: { path: '/v1/services', parameters: listing(parameters), kinds: ['service.', 'node.'], most: 15_000, least: 2000 } },
    build: () => [
      panel('services', 'Services', finder('services', parameters, 'services and methods'), table('services', [['Service', ''], ['Methods', 'prose'], ['Nodes', 'number']]), pager('services')),
      panel('methods', 'Methods', h('p', { class: 'quiet' }, 'since the Gatekeeper started'), table('methods', columns), pager('methods')),
    ],
    draw(state) {
      const { methods, services: list } = state.data;
      if (list && changed($('#services tbody'), list)) {
        rows($('#services'), list.items, (v) => v.name, (v) => [[v.name, () => serviceLink(v.name)], v.methods.map((m) => m.name).slice(0, 8).join(', ') + (v.methods.length > 8 ? `, and ${v.methods.length - 8} more` : ''), number(v.nodes.length)],
          (v) => ({ 'data-service': v.name }), 'No service is exported.');
        drawPager('services', list, 'services', [], parameters);
      }
      if (methods && changed($('#methods tbody'), methods)) {
        rows($('#methods'), methods.items, methodName, (m) => figuresOf(m, [methodName(m), () => (m.service ? h('a', { href: to('services', [m.service]) }, methodName(m)) : methodName(m))]), (m) => ({ 'data-method': methodName(m) }), 'No call has been made.');
        drawPager('methods', methods, 'services', [], parameters);
      }
    },
  };
}

// shareOf tells how many of the 256 values of a call id's last byte go to each node, by the service's first method.
function shareOf(v) {
  const share = new Map(v.nodes.map((n) => [n, 0]));
  for (const r of v.methods[0]?.routes ?? []) share.set(r.node, (share.get(r.node) ?? 0) + 2 ** (8 - r.bits));
  return [...share].map(([node, n]) => ({ node, n })).sort((a, b) => b.n - a.n || (a.node < b.node ? -1 : 1));
}

// service is one service.
function service(name) {
  const path = encodeURIComponent(name);
  const page = { service: name, limit: 100 };
  return {
    title: name,
    needs: {
      service: { path: `/v1/services/${path}`, kinds: ['service.', 'node.'], most: 15_000 }, methods: { path: '/v1/methods', parameters: page, least: 2000, most: 5000 },
      policies: { path: '/v1/policies', parameters: page, kinds: ['policy.', 'app.'], least: 300, most: 15_000 }, graph: graphNeeds({ service: name }), latest: latestNeeds({ service: name }),
    },
    build: () => [
      panel('service', name, h('a', { href: to('calls', [], { service: name }) }, 'its calls'), h('p', { class: 'wrong', role: 'alert' }),
        table('service', [...columns, ['When a node fails', ''], ['Says', 'wide']])),
      graphPanel('Who calls it, and whom it calls', ''),
      panel('shares', 'Nodes', h('p', { class: 'quiet' }, 'share of the calls'), h('ul', { class: 'shares' }), h('p', { class: 'quiet more' })),
      latestPanel({ service: name }),
    ],
    draw(state) {
      const { service: v, methods, policies, graph, latest } = state.data;
      text($('#service .wrong'), state.wrong.service ?? '');
      if (v && methods && policies && changed($('#service tbody'), methods, policies, v)) {
        const figures = new Map(methods.items.map((m) => [m.method, m]));
        rows($('#service'), policies.items, (p) => p.method ?? '', (p) => {
          const m = figures.get(p.method) ?? { method: p.method ?? '', calls: 0, open: 0 };
          return [...figuresOf(m, p.method ?? '(others)'), [p.policy, () => policyChoice(p.service, p.method, p.policy)], p.origin];
        }, (p) => ({ 'data-policy-of': methodName(p) }), 'No method is known.');
      }
      if (v && changed($('.shares'), v, naming.version)) {
        const shares = shareOf(v);
        sync($('.shares'), shares.slice(0, 24), (x) => x.node, () => h('li', { class: 'share' }, h('span'), h('span', { class: 'bar' }, h('span')), h('small')), (li, x) => {
          li.children[0].replaceChildren(nodeLink(x.node));
          li.children[1].firstChild.style.width = `${(100 * x.n) / 256}%`;
          text(li.children[2], v.not_serving.includes(x.node) ? 'not serving' : `${number((100 * x.n) / 256)} %`);
        });
        text($('#shares .more'), shares.length > 24 ? `and ${number(shares.length - 24)} more nodes` : '');
      }
      drawGraph(graph);
      drawCalls('latest', latest, 'None of its calls is remembered.');
    },
  };
}
