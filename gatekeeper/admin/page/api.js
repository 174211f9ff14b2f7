// The Gatekeeper's admin API: requests with the token, and the stream of events.

const key = 'bifrost.admin.token';

// The token is kept in this tab. It may come in the page's address, behind #, which
// no server ever sees; it is taken out of there at once.
export const token = {
  get: () => sessionStorage.getItem(key) ?? '',
  set: (value) => sessionStorage.setItem(key, value),
  forget: () => sessionStorage.removeItem(key),
  takeFromAddress() {
    const given = new URLSearchParams(location.hash.slice(1)).get('token');
    if (!given) return false;
    this.set(given);
    history.replaceState(null, '', `${location.pathname}#/`);
    return true;
  },
};

// Problem is an answer that is an error (RFC 9457).
export class Problem extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

async function request(path, headers, signal, more = {}) {
  const given = token.get();
  if (given) headers.Authorization = `Bearer ${given}`;
  const response = await fetch(path, { headers, signal, cache: 'no-store', ...more });
  if (response.ok) return response;
  const problem = await response.json().catch(() => ({}));
  throw new Problem(response.status, problem.detail ?? response.statusText);
}

// get asks for something. Parameters without a value are left out.
export async function get(path, parameters = {}, signal = undefined) {
  const query = new URLSearchParams(Object.entries(parameters).filter(([, v]) => v));
  const response = await request(query.size ? `${path}?${query}` : path, {}, AbortSignal.any([AbortSignal.timeout(20_000), ...(signal ? [signal] : [])]));
  return response.json();
}

// send changes something: PUT or POST with a body, or DELETE.
export async function send(method, path, body) {
  const headers = body ? { 'Content-Type': 'application/json' } : {};
  const response = await request(path, headers, AbortSignal.timeout(20_000), { method, body: body && JSON.stringify(body) });
  return response.json();
}

// events yields the messages of one stream of events, {id, type, data}, behind the
// event of id last. It ends when the stream does.
export async function* events(parameters, last, signal) {
  const headers = last ? { 'Last-Event-ID': last } : {};
  const response = await request(`/v1/events?${new URLSearchParams(parameters)}`, headers, signal);
  yield { type: 'open' };
  let rest = '';
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const messages = (rest + value).split('\n\n');
    rest = messages.pop();
    for (const message of messages) {
      const m = parse(message);
      if (m.data) yield { ...m, data: JSON.parse(m.data) };
    }
  }
}

// parse reads one server-sent event.
function parse(message) {
  const m = { type: 'message' };
  for (const line of message.split('\n')) {
    const colon = line.indexOf(':');
    const value = line.slice(colon + 1).trimStart();
    switch (line.slice(0, colon)) {
      case 'id': m.id = value; break;
      case 'event': m.type = value; break;
      case 'data': m.data = value; break;
    }
  }
  return m;
}
