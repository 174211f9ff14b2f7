// The page: what is drawn when, and what people do with it.

import { token } from './api.js';
import { ask, run, start, state } from './store.js';
import { $, set, text } from './dom.js';
import { isAddress, nodeName } from './format.js';
import { drawFigures, drawCounters } from './figures.js';
import { drawRack } from './rack.js';
import { drawGraph } from './graph.js';
import { drawFeed } from './feed.js';
import { drawApps, drawCalls, drawDenied, drawNodes, drawRegions, drawServices } from './tables.js';
import { drawNews } from './news.js';
import { drawMethods, drawTimelines, drawTrace } from './timelines.js';
import { drawPast } from './past.js';
import { drawPolicies } from './policies.js';

const links = { connecting: 'connecting…', live: 'live', lost: 'connection lost', refused: 'no token' };

function draw() {
  set(text($('#link'), links[state.link]), { 'data-link': state.link });
  const shown = state.link === 'lost' ? `${state.trouble}. What you see is how it was.` : '';
  text($('#trouble'), shown).hidden = !shown;
  $('#forget').hidden = !token.get();
  document.documentElement.dataset.link = state.link;
  const s = state.status;
  text($('#gatekeeper'), s ? `Gatekeeper ${s.version}` : '');
  drawSelection();
  if (!state.ready) return; // names of nodes, say, would be missing
  for (const view of [drawFigures, drawRack, drawGraph, drawFeed, drawCalls, drawRegions, drawDenied, drawNodes, drawServices, drawApps, drawMethods, drawPast, drawTimelines, drawTrace, drawPolicies, drawCounters, drawNews]) view(state);
}

// drawSelection tells what is chosen, and lets it go.
function drawSelection() {
  const place = $('#selection');
  if (place.dataset.node === state.selected) return;
  place.dataset.node = state.selected;
  if (!state.selected) {
    place.replaceChildren('choose a node to see only its calls and regions');
    return;
  }
  const button = document.createElement('button');
  button.type = 'button';
  button.textContent = 'show all';
  button.addEventListener('click', () => select(''));
  place.replaceChildren(`only ${nodeName(state.selected)} `, button);
}

function select(address) {
  state.selected = state.selected === address ? '' : address;
  ask('calls', 'regions', 'timelines');
  change();
}

// change has everything drawn in the next frame.
let asked = false;
function change() {
  if (asked) return;
  asked = true;
  requestAnimationFrame(() => {
    asked = false;
    draw();
  });
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
$('#forget').addEventListener('click', () => {
  token.forget();
  location.reload();
});
document.addEventListener('click', (e) => {
  const node = e.target.closest('[data-select]');
  if (node) select(node.dataset.select);
});
document.addEventListener('keydown', (e) => {
  if (e.key === 'Escape' && state.selected) select('');
});
document.addEventListener('visibilitychange', () => { if (!document.hidden) ask(); });
new ResizeObserver(change).observe($('#main'));
$('#find').addEventListener('submit', (e) => e.preventDefault());
$('#pointer').addEventListener('input', (e) => {
  const given = e.target.value.trim();
  e.target.toggleAttribute('aria-invalid', given !== '' && !isAddress(given));
  state.pointer = isAddress(given) ? given : '';
  ask('regions');
});
$('#regions .more').addEventListener('click', (e) => {
  if (e.target.tagName !== 'BUTTON') return;
  state.limit = 1000;
  ask('regions');
});

$('#failed').addEventListener('change', (e) => {
  state.failed = e.target.checked;
  ask('timelines');
});
$('#timelines tbody').addEventListener('click', (e) => {
  const chosen = e.target.closest('tr[data-call]');
  if (!chosen || e.target.closest('[data-select]')) return;
  state.call = state.call === chosen.dataset.call ? '' : chosen.dataset.call;
  state.trace = null;
  ask('trace');
  change();
});

$('#search').addEventListener('submit', (e) => e.preventDefault());
$('#words').addEventListener('input', (e) => {
  state.words = e.target.value.trim();
  change();
});
$('#methods tbody').addEventListener('click', (e) => {
  const chosen = e.target.closest('[data-trace]');
  if (!chosen) return;
  state.call = chosen.dataset.trace;
  state.trace = null;
  ask('trace');
  change();
});

$('#span').addEventListener('change', change);
$('#pause').addEventListener('click', change);
$('#kinds').addEventListener('change', change);

token.takeFromAddress();
run(change, askToken);
change();
