// The page: which view is shown, and when it is drawn. The view is in the address, behind its #, so that each can be linked to.

import { token } from './api.js';
import { ask, run, start, state, use } from './store.js';
import { $, h, set, text } from './dom.js';
import { number } from './format.js';
import { overview, sample } from './overview.js';
import { calls } from './calls.js';
import { services } from './services.js';
import { blades, memory, nodes } from './rack.js';
import { deployments } from './deployments.js';

const links = { connecting: 'connecting…', live: 'live', lost: 'connection lost', refused: 'no token' };
const views = { '': overview, calls, services, nodes, blades, memory, deployments };
const often = 250; // ms between two drawings, at least

let view = null;

// show builds the view that the address names.
function show() {
  const [path, query = ''] = location.hash.replace(/^#\/?/, '').split('?');
  const [name, ...parts] = path.split('/').map(decodeURIComponent);
  const make = views[name] ?? (() => ({ title: 'Nothing', needs: {}, build: () => [h('p', { class: 'panel' }, 'There is no such view.')], draw: () => {} }));
  view = make(parts.filter(Boolean), Object.fromEntries(new URLSearchParams(query)), { redraw: draw });
  document.title = `${view.title} – Bifröst`;
  $('#main').replaceChildren(...view.build());
  set($('#main'), { 'data-view': name || 'overview', 'aria-label': view.title });
  for (const a of document.querySelectorAll('#views a')) set(a, { 'aria-current': a.dataset.view === name ? 'page' : false });
  scrollTo(0, 0);
  use(view.needs);
  draw();
}

function draw() {
  set(text($('#link'), links[state.link]), { 'data-link': state.link });
  const shown = state.link === 'lost' ? `${state.trouble}. What you see is how it was.` : '';
  text($('#trouble'), shown).hidden = !shown;
  $('#forget').hidden = !token.get();
  document.documentElement.dataset.link = state.link;
  text($('#gatekeeper'), state.status ? `Gatekeeper ${state.status.version}` : '');
  sample(state);
  tell();
  view.draw(state);
}

// tell says what somebody who does not see the page has to hear, in few words.
const heard = { failed: null, connected: null, denied: null };
function tell() {
  if (!state.status) return;
  const { counts, counters, switch: sw } = state.status;
  const news = [];
  if (heard.connected !== null && heard.connected !== sw.connected) news.push(`The switch is ${sw.connected ? 'connected' : 'lost'}.`);
  if (heard.failed !== null && heard.failed !== counts.blades.failed) news.push(`Blades that have failed: ${number(counts.blades.failed)}.`);
  if (heard.denied !== null && counters.denied > heard.denied) news.push(`Denied accesses: ${number(counters.denied - heard.denied)}.`);
  Object.assign(heard, { connected: sw.connected, failed: counts.blades.failed, denied: counters.denied });
  if (news.length) text($('#news'), news.join(' '));
}

// change has the view drawn soon, and not too often.
let asked = false;
let drawnAt = -Infinity;
function change() {
  if (asked) return;
  asked = true;
  setTimeout(() => requestAnimationFrame(() => {
    asked = false;
    drawnAt = performance.now();
    draw();
  }), Math.max(0, drawnAt + often - performance.now()));
}

// askToken shows the dialog; the token given is tried at once.
function askToken(why) {
  const dialog = $('#ask');
  text($('#ask-wrong'), token.get() ? why : '');
  $('#token').value = '';
  if (!dialog.open) dialog.showModal();
}

$('#ask').addEventListener('submit', () => {
  token.set($('#token').value.trim());
  start();
});
$('#ask').addEventListener('cancel', (e) => e.preventDefault()); // nothing to see without
$('#skip').addEventListener('click', () => $('#main').focus()); // a link would be another view
$('#forget').addEventListener('click', () => {
  token.forget();
  location.reload();
});
document.addEventListener('visibilitychange', () => { if (!document.hidden) ask(); });
window.addEventListener('hashchange', () => {
  show();
  $('#main').focus({ preventScroll: true }); // what had the focus is gone
});
let width = innerWidth;
window.addEventListener('resize', () => {
  if (width !== innerWidth) change();
  width = innerWidth;
});

token.takeFromAddress();
show();
run(change, askToken);
