// The data of an exported file, in place of api.js: the same functions, answered from the page itself.

export const LIVE = false;

export class ApiError extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

const MISSING = 'This is not in the file. Open the session with kompakt inspect to see it.';
const block = document.getElementById('kompakt-data');
const loaded = unpack(block.textContent);

// A file of one session starts with it.
if (block.dataset.session && !location.hash) location.hash = `#/s/${encodeURIComponent(block.dataset.session)}`;

async function unpack(text) {
  const bytes = Uint8Array.from(atob(text.trim()), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('deflate'));
  return JSON.parse(await new Response(stream).text());
}

function missing() {
  return new ApiError(404, 'missing', MISSING);
}

export async function get(path, query = {}) {
  const data = await loaded;
  const [, id, part, key] = path.split('/').map(decodeURIComponent);
  if (id === undefined) return list(data.sessions, query);
  const content = Object.hasOwn(data.content, id) ? data.content[id] : null;
  if (!content) throw missing();
  const parts = {
    undefined: () => content.detail,
    growth: () => content.growth,
    context: () => content.context,
    messages: () => (key === undefined ? messages(content, query) : message(content, Number(key))),
    compactions: () => compaction(content.compactions, key, query),
    steps: () => step(content, key),
  };
  const found = Object.hasOwn(parts, part) ? parts[part]() : null;
  if (!found) throw missing();
  return found;
}

function list(all, {query = ''}) {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  const rows = all.filter((row) => {
    const text = [row.id, row.title, row.client, row.model].filter(Boolean).join(' ').toLowerCase();
    return words.every((word) => text.includes(word));
  });
  return {rows, next: null, total: rows.length};
}

function messages({rows: all, detail, notes}, {start = 0, limit = 100, kind = ''}) {
  const rows = kind ? all.filter((row) => row.kind === kind) : all;
  return {rows: rows.slice(start, start + limit), start, total: rows.length, messages: detail.messages, notes, complete: true};
}

/** Without a limit the answer has everything that the compaction removed. */
function compaction(all, id, {start = 0, limit = Infinity}) {
  const found = Object.hasOwn(all, id) ? all[id] : null;
  return found && {...found, removed: found.removed.slice(start, start + limit)};
}

const row = (content, seq) => content.rows.find((one) => one.seq === seq);

function message(content, seq) {
  const found = row(content, seq);
  if (!found) return null;
  const {text = '', total = 0, shown = null} = content.texts[seq] ?? {};
  const left = total > text.length ? `\n\n[This file has the first ${text.length} of ${total} characters.]` : '';
  return {row: found, text: text + left, offset: 0, next: null, total, shown};
}

function step(content, number) {
  const found = content.steps[number];
  if (!found) return null;
  const rows = [];
  for (const [first, last] of found.ranges) {
    for (const one of content.rows) {
      if (one.seq >= first && one.seq <= last) rows.push({...one, tokens: found.sizes[one.seq] ?? one.tokens});
    }
  }
  return {...found, rows, answer: found.answers.map((seq) => row(content, seq)).filter(Boolean)};
}

export async function post() {
  throw new ApiError(403, 'copy', 'This file is a copy. Open the session with kompakt inspect to change it.');
}

export const session = (id, rest = '') => `sessions/${encodeURIComponent(id)}${rest}`;

export function follow() {}
