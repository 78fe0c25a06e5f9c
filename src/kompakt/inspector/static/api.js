// The JSON API of the inspector and its events.

const PAGE = location.pathname.endsWith('/') ? location.pathname : `${location.pathname}/`;
export const BASE = new URL(`${PAGE}api/`, location.origin);

/** Whether recall and previews can be asked; an exported file answers from its own data, see offline.js. */
export const LIVE = true;

export class ApiError extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

function address(path, query = {}) {
  const url = new URL(path, BASE);
  for (const [name, value] of Object.entries(query)) {
    if (value !== null && value !== undefined && value !== '') url.searchParams.set(name, value);
  }
  return url;
}

async function answer(response) {
  let body = null;
  try {
    body = await response.json();
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    // An answer without JSON is reported by its status.
  }
  if (response.ok && body !== null) return body;
  const error = body?.error ?? {};
  if (response.status === 401) document.dispatchEvent(new CustomEvent('key-required'));
  throw new ApiError(response.status, error.code ?? 'http', error.message ?? `The server answered ${response.status}.`);
}

async function send(url, init) {
  try {
    return await fetch(url, {cache: 'no-store', credentials: 'same-origin', ...init});
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new ApiError(0, 'offline', 'The inspector does not answer. Is it still running?');
  }
}

export async function get(path, query, signal) {
  return answer(await send(address(path, query), {signal}));
}

export async function post(path, body, signal) {
  const headers = {'content-type': 'application/json', 'x-kompakt-inspect': '1'};
  return answer(await send(address(path), {method: 'POST', headers, body: JSON.stringify(body), signal}));
}

export const session = (id, rest = '') => `sessions/${encodeURIComponent(id)}${rest}`;

/** Call `changed` when the server starts to watch and with each change, until `signal` aborts; `state` hears whether the stream is open. */
export function follow(path, signal, changed, state = () => {}) {
  const source = new EventSource(address(path));
  source.addEventListener('open', () => state(true));
  source.addEventListener('error', () => state(false));
  source.addEventListener('failed', () => state(false)); // the browser connects again
  source.addEventListener('watching', () => changed({}));
  source.addEventListener('changed', (event) => {
    try {
      changed(JSON.parse(event.data));
    } catch {
      changed({});
    }
  });
  signal.addEventListener('abort', () => {
    source.close();
    state(false);
  });
}
