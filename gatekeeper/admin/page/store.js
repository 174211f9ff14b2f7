// What the page knows of the rack, and how it keeps that up to date: the stream of
// events tells what may have changed, and that is asked for again, but none of it
// more often than its interval; what changes without an event is asked for anyway.

import { events, get, Problem } from './api.js';
import { know } from './format.js';

export const state = {
  link: 'connecting', // live, lost, or refused for want of the token
  trouble: '', // why it is not live
  status: null,
  before: null, // the status before, for rates
  blades: [], machines: [], nodes: [], services: [], denied: [], apps: [],
  regions: { items: [] }, calls: { items: [] },
  feed: [], // the latest events, newest first, and gaps
  recent: new Map(), // calls that were under way a moment ago: edge to time
  ready: false, // everything was asked for once
  selected: '', // a node's address: only its regions and calls
  pointer: '', // only its region
  limit: 100, // of regions
  timelines: [], policies: [], methods: [], history: { minutes: [] },
  words: '', // only methods, and latest calls of methods, whose names have these
  failed: false, // only timelines of calls that have failed
  call: '', // whose trace is shown
  trace: null,
};

// most is how many events the page keeps, and rate how many a second it asks for.
const most = 300;
const rate = 100;

// resources are what is asked for: path and parameters, how to keep the answer,
// milliseconds between requests at least (after an event) and at most.
const resources = {
  status: { path: '/v1/status', keep: (s) => { state.before = state.status; state.status = s; }, least: 1000, most: 1000 },
  blades: { path: '/v1/blades', keep: (l) => { state.blades = l.items; }, least: 500, most: 2000 },
  machines: { path: '/v1/machines', keep: (l) => { state.machines = l.items; }, least: 500, most: 2000 },
  nodes: { path: '/v1/nodes', keep: (l) => { state.nodes = l.items; l.items.forEach(know); }, least: 500, most: 15_000 },
  services: { path: '/v1/services', keep: (l) => { state.services = l.items; }, least: 500, most: 15_000 },
  apps: { path: '/v1/apps', keep: (l) => { state.apps = l.items; }, least: 500, most: 15_000 },
  denied: { path: '/v1/denied', keep: (l) => { state.denied = l.items; }, least: 500, most: 15_000 },
  policies: { path: '/v1/policies', keep: (l) => { state.policies = l.items; }, least: 300, most: 15_000 },
  methods: { path: '/v1/methods', keep: (l) => { state.methods = l.items; }, least: 1000, most: 5000 },
  history: { path: '/v1/history', keep: (p) => { state.history = p; }, least: 5000, most: 5000 },
  timelines: {
    path: '/v1/timelines', parameters: () => ({ limit: 50, node: state.selected, failed: state.failed ? 'true' : '', roots: state.failed ? '' : 'true' }),
    keep: (l) => { state.timelines = l.items; }, least: 1000, most: 5000,
  },
  trace: {
    path: () => `/v1/calls/${state.call}/timeline`, keep: (t) => { state.trace = t.call === state.call ? t : state.trace; },
    unless: () => !state.call, gone: () => { state.trace = null; }, least: 500, most: 5000,
  },
  calls: { path: '/v1/calls', parameters: () => ({ limit: 300, node: state.selected }), keep: (l) => { state.calls = l; }, least: 300, most: 3000 },
  regions: {
    path: '/v1/regions', parameters: () => ({ limit: state.limit, node: state.selected, pointer: state.pointer }),
    keep: (l) => { state.regions = l; }, least: 500, most: 5000,
  },
};

// touched lists what an event of a kind may have changed, by the kind's beginning.
const touched = {
  'switch.': ['status'], 'machine.': ['machines', 'blades'], 'blade.': ['blades', 'machines', 'nodes', 'services', 'regions'], 'node.': ['nodes', 'blades', 'services', 'regions', 'apps'],
  'app.': ['apps', 'policies'], 'program.': ['apps'], 'policy.': ['policies'],
  'service.': ['services', 'nodes', 'policies'], 'region.': ['regions', 'blades'], 'call.': ['calls', 'regions', 'timelines', 'methods', 'trace'], 'reply.': ['calls', 'regions', 'timelines', 'methods', 'trace'], 'execution.': ['timelines', 'trace'],
  'rules.': ['regions'], 'access.': ['denied'],
};

let changed = () => {};
let refused = () => {};

// run keeps the state up to date for good. onChange is called after changes, at most
// once a frame; onRefused when the token is missing or wrong.
export function run(onChange, onRefused) {
  changed = onChange;
  refused = onRefused;
  for (const r of Object.values(resources)) Object.assign(r, { dirty: true, asked: -Infinity, asking: false });
  setInterval(tick, 100);
  follow();
}

// ask has resources asked for as soon as possible, all if none is named.
export function ask(...names) {
  for (const name of names.length ? names : Object.keys(resources)) Object.assign(resources[name], { dirty: true, asked: -Infinity });
  tick();
}

// tick asks for what is due. A page that nobody sees does not ask.
function tick() {
  if (state.link === 'refused' || document.hidden) return;
  const now = performance.now();
  for (const r of Object.values(resources)) {
    const age = now - r.asked;
    if (r.unless?.()) continue;
    if (!r.asking && (age >= r.most || r.dirty && age >= r.least)) refresh(r, now);
  }
}

async function refresh(r, now) {
  Object.assign(r, { asking: true, dirty: false, asked: now });
  try {
    r.keep(await get(typeof r.path === 'function' ? r.path() : r.path, r.parameters?.()));
    r.known = true;
    state.ready ||= Object.values(resources).every((o) => o.known || o.unless?.());
  } catch (error) {
    if (error instanceof Problem && error.status === 404 && r.gone) r.gone();
    else failed(error);
  }
  r.asking = false;
  changed();
}

// failed tells why something could not be asked.
function failed(error) {
  if (error instanceof Problem && error.status === 401) refuse(error.message);
  else lost(error.message);
}

function refuse(why) {
  const first = state.link !== 'refused';
  Object.assign(state, { link: 'refused', trouble: '' });
  changed();
  if (first) refused(why);
}

function lost(why) {
  if (state.link === 'refused') return;
  Object.assign(state, { link: 'lost', trouble: why });
  changed();
}

// start goes on after the token was missing.
export function start() {
  state.link = 'connecting';
  ask();
  follow();
}

let last = ''; // id of the last event
let following = false;

// follow reads events for good, one stream after the other.
async function follow() {
  if (following) return;
  following = true;
  while (state.link !== 'refused') {
    try {
      for await (const m of events({ rate, replay: last ? 0 : 100 }, last, undefined)) take(m);
      throw new Error('the Gatekeeper has closed the connection');
    } catch (error) {
      failed(error);
    }
    await new Promise((resume) => setTimeout(resume, 1500));
  }
  following = false;
}

// take keeps a message of the stream.
function take(m) {
  switch (m.type) {
    case 'open':
      Object.assign(state, { link: 'live', trouble: '' });
      ask();
      break;
    case 'gap': // anything may have changed
      state.feed.unshift({ id: `gap-${state.feed[0]?.id ?? ''}-${m.data.missed}`, gap: m.data.missed });
      Object.values(resources).forEach((r) => { r.dirty = true; });
      break;
    case 'message':
      last = m.id;
      if (!again(m.data)) state.feed.unshift(m.data);
      note(m.data);
      break;
  }
  state.feed.length = Math.min(state.feed.length, most);
  changed();
}

// again tells that a packet was only let through once more, because it was sent once
// more. Nobody wants to read that.
const again = (e) => e.kind.endsWith('.released') && state.feed.slice(0, 60).some((o) => o.kind === e.kind && o.call === e.call);

// note draws conclusions from an event.
function note(e) {
  if (e.kind === 'node.joined') know({ address: e.node, ...e });
  if (e.kind === 'call.released' && e.node && e.peer) state.recent.set(edge(e.node, e.peer), Date.now());
  for (const [kind, names] of Object.entries(touched)) {
    if (e.kind.startsWith(kind)) names.forEach((name) => { resources[name].dirty = true; });
  }
}

// edge names the way between two nodes.
export const edge = (from, to) => `${from} ${to}`;
