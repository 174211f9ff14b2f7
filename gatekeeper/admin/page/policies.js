// What becomes of calls when nodes fail, and a way to set it.

import { send } from './api.js';
import { ask } from './store.js';
import { $, h, row, set, text } from './dom.js';
import { body, same } from './tables.js';

const choices = ['recover', 'fate-share', 'tainted', 'none'];

// drawPolicies lists the policies of all methods.
export function drawPolicies(state) {
  body('#policies', state.policies, (p) => `${p.service}.${p.method ?? ''}`, make, (tr, p) => {
    set(tr, { 'data-policy-of': `${p.service}.${p.method ?? ''}`, 'data-service': p.service, 'data-method': p.method ?? '' });
    same(tr, 0, p.service, () => [h('b', {}, p.service)]);
    same(tr, 1, p.method ?? '(others)', () => [p.method ?? '(others)']);
    const select = tr.children[2].firstElementChild;
    set(select, { 'aria-label': `Policy of ${p.service}.${p.method ?? ''}` });
    if (select.dataset.shown !== p.policy) select.value = p.policy; // else somebody may be choosing
    select.dataset.shown = p.policy;
    same(tr, 3, p.origin, () => [p.origin]);
  }, 'No service is exported.');
}

function make() {
  const tr = row('', '', '', '');
  const options = choices.map((c) => h('option', { value: c }, c));
  tr.children[2].append(h('select', { onchange: (e) => choose(tr, e.target) }, ...options, h('option', { value: 'default' }, 'as by default')));
  return tr;
}

// choose sets the policy of a row.
async function choose(tr, select) {
  const path = ['/v1/policies', tr.dataset.service, tr.dataset.method].filter(Boolean).map((part, i) => (i ? encodeURIComponent(part) : part)).join('/');
  try {
    if (select.value === 'default') await send('DELETE', path);
    else await send('PUT', path, { policy: select.value });
    text($('#policies-wrong'), '');
  } catch (error) {
    text($('#policies-wrong'), `The policy was not set: ${error.message}`);
  }
  delete select.dataset.shown;
  ask('policies');
}
