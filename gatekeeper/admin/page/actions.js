// What people do to the rack: everything is asked about before it is sent, and its end is told.

import { send } from './api.js';
import { ask } from './store.js';
import { $, h, text } from './dom.js';

// confirmed shows the dialog, and sends what it asks about if somebody agrees. The dialog stays open with the reason if that fails, and
// closes otherwise. It returns whether it was done.
export function confirmed({ title, what, yes, method, path, body, cause }) {
  const dialog = $('#sure');
  text($('#sure-title'), title);
  text($('#sure-what'), what);
  text($('#sure-wrong'), '');
  text($('#sure-yes'), yes);
  $('#sure-cause').closest('label').hidden = !cause;
  $('#sure-cause').value = '';
  dialog.showModal();
  (cause ? $('#sure-cause') : $('#sure-no')).focus();
  return new Promise((resolve) => {
    let done = false;
    const decide = async (e) => {
      e.preventDefault();
      $('#sure-yes').disabled = true;
      try {
        const why = $('#sure-cause').value.trim();
        await send(method, path, cause && why ? { cause: why } : body);
        done = true;
        text($('#news'), `Done: ${title.replace(/\?$/, '')}`);
        finish();
      } catch (error) {
        text($('#sure-wrong'), `Nothing was done: ${error.message}`);
      }
      $('#sure-yes').disabled = false;
    };
    // The dialog tells late that it is closed: it may be open again, for something else.
    const closed = () => { if (!dialog.open) finish(); };
    const finish = () => {
      dialog.removeEventListener('submit', decide);
      dialog.removeEventListener('cancel', finish);
      dialog.removeEventListener('close', closed);
      if (dialog.open) dialog.close();
      ask();
      resolve(done);
    };
    dialog.addEventListener('submit', decide);
    dialog.addEventListener('cancel', finish);
    dialog.addEventListener('close', closed);
    $('#sure-no').onclick = finish;
  });
}

// action is a button that asks, and does it.
export const action = (label, what) => h('button', { type: 'button', 'data-action': label, onclick: () => confirmed(what) }, label);

const blade = (name, verb) => `/v1/blades/${encodeURIComponent(name)}/${verb}`;

export const drain = (name) => action('Drain', {
  title: `Drain ${name}?`, yes: 'Drain it', method: 'POST', path: blade(name, 'drain'), cause: true,
  what: 'It takes nothing new. Its programs move to other blades when they have finished their calls. “Return” undoes that.',
});
export const giveBack = (name) => action('Return', {
  title: `Return ${name} to service?`, yes: 'Return it', method: 'POST', path: blade(name, 'return'), what: 'It takes programs and memory again. Its daemon must have said hello.',
});
export const failBlade = (name) => action('Fail', {
  title: `Take ${name} out of service at once?`, yes: 'Take it out', method: 'POST', path: blade(name, 'fail'), cause: true,
  what: 'Its nodes are cut off, and start elsewhere where they can. What only its memory has is lost.',
});
export const cancelCall = (id, name) => action('Cancel', {
  title: `Cancel ${name}?`, yes: 'Cancel it', method: 'POST', path: `/v1/calls/${id}/cancel`,
  what: 'The context of its handler ends. What the handler then returns is the answer, usually the error “canceled”.',
});
export const restartApp = (name) => action('Restart', {
  title: `Restart ${name}?`, yes: 'Restart it', method: 'POST', path: `/v1/apps/${encodeURIComponent(name)}/restart`,
  what: 'Its nodes are stopped and started again, one of each program after the other, when they have finished their calls.',
});
export const rollBack = (name) => action('Roll back', {
  title: `Roll back ${name}?`, yes: 'Roll it back', method: 'POST', path: `/v1/apps/${encodeURIComponent(name)}/rollback`,
  what: 'The programs that it had before come back, node by node. The states of its services stay what they are.',
});
export const forget = (address, name) => action('Forget', {
  title: `Forget ${name}?`, yes: 'Forget it', method: 'DELETE', path: `/v1/nodes/${address}`,
  what: 'It waits for its program. Its states, durable mains and regions are lost, and calls to it fail.',
});

export const freeRegion = (region) => action('Free', {
  title: `Free ${region}?`, yes: 'Free it', method: 'DELETE', path: `/v1/pointers/${region.split('/')[0]}`,
  what: 'Nobody can say whose it is, and no program can reach it. What is in it is lost.',
});

// meanings are what becomes of a call when a node fails.
const meanings = {
  recover: 'A call that was cut off runs again: each takes effect exactly once.',
  'fate-share': 'A call that was cut off runs again, and its callers and callees restart with it.',
  tainted: 'A call that was cut off runs again, and whoever has seen what it changed restarts with it.',
  none: 'A call that is cut off fails with “unavailable”. It may have run.',
  default: 'What the deployment or the IDL says applies again.',
};

// policyChoice is a field that shows a method's policy, and sets another one if that is confirmed.
export function policyChoice(service, method, policy) {
  const name = [service, method].filter(Boolean).join('.');
  const path = ['/v1/policies', service, method].filter(Boolean).map((part, i) => (i ? encodeURIComponent(part) : part)).join('/');
  const options = Object.keys(meanings).map((c) => h('option', { value: c, selected: c === policy }, c === 'default' ? 'as by default' : c));
  const choose = async (e) => {
    const wanted = e.target.value;
    const asDefault = wanted === 'default';
    e.target.value = policy;
    await confirmed({
      title: asDefault ? `Set ${name} as by default?` : `Set ${name} to ${wanted}?`, yes: 'Set it', what: `${meanings[wanted]} It holds for calls from now on.`,
      method: asDefault ? 'DELETE' : 'PUT', path, body: asDefault ? undefined : { policy: wanted },
    });
  };
  return h('select', { 'aria-label': `Policy of ${name}`, onchange: choose }, options);
}
