// What is deployed, how it does, and what can be done about it.

import { $, changed, h, panel, rows, same, set, table, text } from './dom.js';
import { bladeLink, moment, number, plural, to } from './format.js';
import { drawPager, finder, listing, pager } from './lists.js';
import { restartApp, rollBack } from './actions.js';

const all = 40; // instances of an app, up to which all are listed; of a larger one only those that are not what they are to be
const most = 60; // of these

// standing says how an app does, in one line.
function standing(a) {
  const r = a.rollout;
  if (a.removed) return ['it is being undeployed', 'warn'];
  if (r?.stuck) return [`stuck: ${r.stuck}`, 'bad'];
  if (a.state === 'rolled back') return [`rolled back: ${r.back}`, 'bad'];
  if (r && !r.done) return [`rolling out revision ${r.revision}: ${r.ready} of ${r.nodes} nodes${r.first ? `; ${r.first} is watched` : ''}`, 'warn'];
  const waiting = a.instances.filter((i) => i.blocked);
  if (waiting.length) return [`${plural(waiting.length, 'node')} cannot start: ${waiting[0].why}`, 'bad'];
  return [r ? `revision ${r.revision}` : '', 'quiet'];
}

// deployments is the list of apps.
export function deployments(parts, parameters) {
  if (parts.length) return deployment(parts[0]);
  return {
    title: 'Deployments',
    needs: { apps: { path: '/v1/apps', parameters: listing(parameters), kinds: ['app.', 'program.', 'node.'], least: 1000, most: 5000 } },
    build: () => [panel('apps', 'Deployments', finder('deployments', parameters, 'deployments'), table('apps', [['App', ''], ['Programs', 'number wide'], ['Nodes', 'number'], ['State', '']]), pager('apps'))],
    draw(state) {
      const list = state.data.apps;
      if (!list || !changed($('#apps tbody'), list)) return;
      rows($('#apps'), list.items, (a) => a.name, (a) => {
        const [says, tone] = standing(a);
        return [[a.name, () => h('a', { href: to('deployments', [a.name]) }, a.name)], number(a.programs.length), `${number(a.instances.filter((i) => i.settled).length)} of ${number(a.instances.length)}`,
          [`${says} ${tone}`, () => h('span', { class: tone }, says)]];
      }, (a) => ({ 'data-app': a.name }), 'Nothing is deployed.');
      drawPager('apps', list, 'deployments', [], parameters);
    },
  };
}

// deployment is one app with its programs.
function deployment(name) {
  return {
    title: name,
    needs: { app: { path: `/v1/apps/${encodeURIComponent(name)}`, kinds: ['app.', 'program.', 'node.'], least: 1000, most: 5000 } },
    build: () => [panel('app', name, h('span', { class: 'actions' }), h('p', { class: 'wrong', role: 'alert' }), h('p', { class: 'standing' }), table('app', [['Program', ''], ['Wanted', 'number'], ['Instances', 'prose']]))],
    draw(state) {
      text($('#app .wrong'), state.wrong.app ?? '');
      const a = state.data.app;
      if (!a || !changed($('#app tbody'), a)) return;
      const [says, tone] = standing(a);
      set(text($('#app .standing'), says), { class: `standing ${tone}` });
      same($('#app .actions'), `${a.removed} ${a.rollout?.former}`, () => (a.removed ? [] : [restartApp(name), a.rollout?.former ? rollBack(name) : '']));
      const troubled = a.instances.filter((i) => !i.settled || i.failures).slice(0, most);
      const listed = a.instances.length <= all ? a.instances : troubled;
      rows($('#app'), a.programs, (p) => p.name, (p) => programCells(p, a, listed.filter((i) => i.program === p.name)), (p) => ({ 'data-program': `${name}/${p.name}` }), 'It has no program.');
    },
  };
}

function programCells(p, a, listed) {
  const mine = a.instances.filter((i) => i.program === p.name);
  const says = JSON.stringify(listed.map((i) => [i.name, i.status, i.blade, i.why, i.failure, i.failures])) + mine.length;
  return [p.name, number(a.removed ? 0 : p.nodes), [says, () => [...listed.map(instance), mine.length > listed.length ? h('div', { class: 'quiet' }, `${listed.length ? 'and ' : ''}${plural(mine.length - listed.length, 'node')}${a.instances.length > all ? ', as they are to be' : ''}`) : '']]];
}

function instance(i) {
  const e = h('div', {}, `${i.name.split('/').pop()} on `, i.blade ? bladeLink(i.blade) : 'no blade yet', ' ', h('span', { class: `stage ${i.status}` }, i.status),
    i.why ? h('span', { class: 'warn' }, ` waits: ${i.why}`) : '', i.failure ? h('span', { class: i.settled ? 'quiet' : 'bad' }, ` last failure ${moment(i.failed)}: ${i.failure}${i.failures > 1 ? ` (${i.failures} in a row)` : ''}`) : '');
  return set(e, { 'data-instance': i.name, 'data-status': i.status });
}
