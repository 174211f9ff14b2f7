// What the page knows of the rack, and how it keeps that up to date: a view says what it needs. The stream of events tells what may have
// changed, and that is asked for again, but none of it more often than its interval; what changes without an event is asked for anyway.

import { events, get, Problem } from './api.js';
import { know, naming } from './format.js';

export const state = {
  link: 'connecting', // live, lost, or refused for want of the token
  trouble: '', // why it is not live
  status: null,
  before: null, // the status before, for rates
  feed: [], // the latest events, newest first, and gaps
  data: {}, // what the view needs, by name; undefined until it is known
  wrong: {}, // why it is not known, by name
};

// most is how many events the page keeps, and rate how many a second it asks for.
const most = 120;
const rate = 100;

// fresh is a need that nothing has been asked for.
const fresh = (r) => ({ kinds: [], dirty: true, asked: -Infinity, asking: null, ...r });

// always is what every view needs. least and most are milliseconds between requests: at least (after an event), and at most.
const always = {
  status: fresh({ path: '/v1/status', least: 1000, most: 1000 }),
  names: fresh({ path: '/v1/names', least: 2000, most: Infinity }),
};
let needs = { ...always };

let changed = () => {};
let refused = () => {};

// use says what a view needs: by name the path, its parameters, the intervals and the beginnings of the kinds of events that change it.
export function use(wanted) {
  for (const r of Object.values(needs)) if (!Object.values(always).includes(r)) r.asking?.abort();
  needs = { ...always };
  for (const [name, r] of Object.entries(wanted)) needs[name] = fresh({ least: 1000, most: 5000, ...r });
  state.data = {};
  state.wrong = {};
  tick();
}

// run keeps the state up to date for good. onChange is called after changes, onRefused when the token is missing or wrong.
export function run(onChange, onRefused) {
  changed = onChange;
  refused = onRefused;
  setInterval(tick, 100);
  follow();
}

// ask has everything asked for as soon as possible.
export function ask() {
  for (const r of Object.values(needs)) Object.assign(r, { dirty: true, asked: -Infinity });
  tick();
}

// tick asks for what is due. A page that nobody sees does not ask.
function tick() {
  if (state.link === 'refused' || document.hidden) return;
  const now = performance.now();
  if (naming.missing) needs.names.dirty = true;
  for (const [name, r] of Object.entries(needs)) {
    const age = now - r.asked;
    if (!r.asking && (age >= r.most || r.dirty && age >= r.least)) refresh(name, r, now);
  }
}

async function refresh(name, r, now) {
  const asking = new AbortController();
  Object.assign(r, { asking, dirty: false, asked: now });
  if (name === 'names') naming.missing = false;
  try {
    const answer = await get(r.path, r.parameters, asking.signal);
    if (asking.signal.aborted) return;
    delete state.wrong[name];
    keep(name, answer);
  } catch (error) {
    if (asking.signal.aborted) return;
    if (error instanceof Problem && error.status !== 401 && error.status < 500) {
      state.wrong[name] = error.message;
      delete state.data[name];
    } else {
      failed(error);
    }
  }
  r.asking = null;
  changed();
}

function keep(name, answer) {
  if (name === 'status') Object.assign(state, { before: state.status, status: answer });
  else if (name === 'names') answer.items.forEach(know);
  else state.data[name] = answer;
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
      state.feed = [{ id: `gap-${state.feed[0]?.id ?? ''}-${m.data.missed}`, gap: m.data.missed }, ...state.feed.slice(0, most)];
      for (const r of Object.values(needs)) r.dirty ||= r !== always.names;
      break;
    case 'message':
      last = m.id;
      if (m.data.kind === 'node.joined') know({ address: m.data.node, ...m.data });
      state.feed = [m.data, ...state.feed.slice(0, most)];
      for (const r of Object.values(needs)) r.dirty ||= r.kinds.some((k) => m.data.kind.startsWith(k));
      break;
  }
  changed();
}
