// What becomes of calls when nodes fail, and a way to set it.

import { send } from './api.js';
import { ask } from './store.js';
import { $, h, row, set, text } from './dom.js';
import { body, same } from './tables.js';

// meanings are what becomes of a call when a node fails.
const meanings = {
  recover: 'A call that was cut off runs again: each takes effect exactly once.',
  'fate-share': 'A call that was cut off runs again, and its callers and callees restart with it.',
  tainted: 'A call that was cut off runs again, and whoever has seen what it changed restarts with it.',
  none: 'A call that is cut off fails with “unavailable”. It may have run.',
  default: 'What the deployment or the IDL says applies again.',
};
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

// sure asks before a policy is set.
function sure(what, policy) {
  const dialog = $('#sure');
  text($('#sure-title'), policy === 'default' ? `Set ${what} as by default?` : `Set ${what} to ${policy}?`);
  text($('#sure-what'), `${meanings[policy]} It holds for calls from now on.`);
  dialog.returnValue = 'no'; // Escape leaves it, too
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener('close', () => resolve(dialog.returnValue === 'yes'), { once: true });
  });
}

// choose sets the policy of a row, if that is confirmed.
async function choose(tr, select) {
  if (!await sure([tr.dataset.service, tr.dataset.method].filter(Boolean).join('.'), select.value)) {
    select.value = select.dataset.shown;
    return;
  }
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
