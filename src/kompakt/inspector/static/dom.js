// Elements, icons, numbers and untrusted text. Data becomes text nodes only; nothing here parses HTML.

const SVG = 'http://www.w3.org/2000/svg';

/** Create an element. `props`: class, text, on (listeners), vars (CSS properties), hidden and other attributes. */
export function h(tag, props = {}, ...children) {
  return build(document.createElement(tag), props, children);
}

export function svg(tag, props = {}, ...children) {
  return build(document.createElementNS(SVG, tag), props, children);
}

function build(node, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || (value === false && !name.startsWith('aria-'))) continue;
    if (name === 'class') node.setAttribute('class', value);
    else if (name === 'text') node.append(String(value));
    else if (name === 'on') for (const [type, listener] of Object.entries(value)) node.addEventListener(type, listener);
    else if (name === 'vars') for (const [key, one] of Object.entries(value)) node.style.setProperty(key, one);
    else if (name === 'value' && 'value' in node) node.value = value;
    else node.setAttribute(name, value === true && !name.startsWith('aria-') ? '' : String(value));
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

const ICONS = {
  search: 'M7 12A5 5 0 1 0 7 2a5 5 0 0 0 0 10ZM10.6 10.6 14 14',
  theme: 'M8 1.5a6.5 6.5 0 1 0 0 13ZM8 1.5a6.5 6.5 0 0 1 0 13',
  help: 'M6 6a2 2 0 1 1 2.8 1.8c-.5.3-.8.7-.8 1.4M8 11.6v.1M8 14.5a6.5 6.5 0 1 0 0-13 6.5 6.5 0 0 0 0 13Z',
  close: 'm4 4 8 8M12 4l-8 8',
  check: 'm3 8.5 3.2 3L13 4.5',
  warn: 'M8 2 1.5 13.5h13ZM8 6.5v3.2M8 11.7v.1',
  pin: 'M6 2h4l-.5 4L12 8.5H4L6.5 6ZM8 8.5V14',
  undo: 'M5.5 3 2.5 6l3 3M2.5 6H10a3.5 3.5 0 0 1 0 7H6',
  redo: 'm10.5 3 3 3-3 3M13.5 6H6a3.5 3.5 0 0 0 0 7h4',
  copy: 'M6 5.5h7v8.5H6ZM10 5.5V2H3v8.5h3',
  right: 'm6 3.5 4.5 4.5L6 12.5',
  arrow: 'M2.5 8h11M9.5 4l4 4-4 4',
  compact: 'M3 2.5h10M3 13.5h10M8 4.5V7M8 11.5V9M5.5 8h5',
  trash: 'M3 4.5h10M6.5 4V2.5h3V4M4.5 4.5l.6 9h5.800l.6-9',
  edit: 'M10.5 2.5 13.5 5.5 5.5 13.5H2.5V10.5Z',
  list: 'M5.5 4H14M5.5 8H14M5.5 12H14M2.5 4v.1M2.5 8v.1M2.5 12v.1',
};

export function icon(name) {
  return svg('svg', {class: 'icon', viewBox: '0 0 16 16', 'aria-hidden': 'true'}, svg('path', {d: ICONS[name]}));
}

/** A button; `label` is its accessible name, shown unless `bare`. */
export function button(label, {icon: name, bare = false, kind = '', ...props} = {}) {
  const shown = bare ? {'aria-label': label, title: label} : {};
  return h('button', {type: 'button', class: `button ${kind} ${bare ? 'bare' : ''}`, ...shown, ...props},
    name ? icon(name) : null, bare ? null : label);
}

// Characters that change how text is shown or that show nothing: controls, direction marks, invisible characters.
const HIDDEN =
  /(?:[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u00ad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|\r(?!\n)|[\u{e0000}-\u{e007f}])+/gu;

function named(character) {
  const code = character.codePointAt(0);
  if (code < 0x20) return String.fromCodePoint(0x2400 + code);
  return `U+${code.toString(16).toUpperCase().padStart(4, '0')}`;
}

/** Return untrusted text as nodes, with hidden characters replaced by their names. */
export function plain(text) {
  const all = document.createDocumentFragment();
  const given = String(text ?? '');
  let from = 0;
  for (const found of given.matchAll(HIDDEN)) {
    if (found.index > from) all.append(given.slice(from, found.index));
    const names = [...found[0].slice(0, 40)].map(named);
    all.append(h('span', {class: 'hidden-character', text: names.join(names[0].length > 1 ? ' ' : '')}));
    from = found.index + found[0].length;
  }
  if (from < given.length) all.append(given.slice(from));
  return all;
}

/** One line of untrusted text, isolated from the direction of the text around it. */
export function line(text, props = {}) {
  return h('bdi', props, plain(text));
}

const NUMBER = new Intl.NumberFormat('en-US');
const COMPACT = new Intl.NumberFormat('en-US', {notation: 'compact', maximumFractionDigits: 1});
const TIME = new Intl.DateTimeFormat('en-GB', {dateStyle: 'medium', timeStyle: 'medium'});
const AGO = new Intl.RelativeTimeFormat('en', {numeric: 'auto', style: 'short'});

export const known = (value) => value !== null && value !== undefined;
export const number = (value) => (known(value) ? NUMBER.format(value) : '–');
export const short = (value) => (!known(value) ? '–' : Math.abs(value) < 1000 ? NUMBER.format(value) : COMPACT.format(value).toLowerCase().replace('b', 'bn'));
export const percent = (share) => (known(share) ? (share > 0 && share < 0.01 ? '<1%' : `${Math.round(share * 100)}%`) : '–');
export const count = (value, one, many = `${one}s`) => `${number(value)} ${value === 1 ? one : many}`;

export function money(value) {
  if (!known(value)) return '–';
  const size = Math.abs(value);
  return `${value < 0 ? '−' : ''}$${size === 0 ? '0' : size < 0.01 ? size.toFixed(4) : size.toFixed(2)}`;
}

/** A moment as `<time>`: how long ago, with the full time as its title. */
export function moment(iso) {
  const at = iso ? new Date(iso) : null;
  if (!at || Number.isNaN(at.getTime())) return h('span', {class: 'faint', text: '–'});
  const seconds = (at.getTime() - Date.now()) / 1000;
  const [unit, size] = [['year', 31557600], ['month', 2629800], ['week', 604800], ['day', 86400], ['hour', 3600], ['minute', 60]]
    .find(([, length]) => Math.abs(seconds) >= length) ?? ['second', 1];
  return h('time', {datetime: at.toISOString(), title: TIME.format(at), text: AGO.format(Math.round(seconds / size), unit)});
}

export const KINDS = ['system', 'tools', 'user', 'assistant', 'tool_results', 'ledger'];
const NAMES = {
  system: 'System', tools: 'Tool definitions', user: 'User', assistant: 'Assistant', tool_results: 'Tool results',
  tool_result: 'Tool results', ledger: 'Summary', tool: 'Tool results', summary: 'Summary', pivot: 'Summary',
};
const CLASSES = {tool: 'tool_results', tool_result: 'tool_results', summary: 'ledger', pivot: 'ledger'};
export const kindName = (kind) => NAMES[kind] ?? String(kind ?? '');
/** The class that sets the colour of a kind. */
export const kindClass = (kind) => {
  const known = CLASSES[kind] ?? kind;
  return KINDS.includes(known) ? `kind-${known}` : 'kind-other';
};
export const dot = (kind) => h('span', {class: `dot ${kindClass(kind)}`, title: kindName(kind), 'aria-hidden': true});

/** A bar that shows how full the window is. */
export function meter(share, label) {
  const shown = known(share) ? Math.max(0, Math.min(1, share)) : 0;
  const level = shown >= 0.9 ? 'full' : shown >= 0.7 ? 'high' : '';
  return h('div', {
    class: `meter ${level}`, role: 'meter', 'aria-label': label, 'aria-valuemin': 0, 'aria-valuemax': 100,
    'aria-valuenow': Math.round(shown * 100), 'aria-valuetext': known(share) ? percent(share) : 'unknown',
  }, h('span', {vars: {width: `${shown * 100}%`}}));
}

export function toast(message, kind = '') {
  const shown = h('div', {class: `toast ${kind}`}, plain(message));
  document.getElementById('toasts').append(shown);
  setTimeout(() => shown.remove(), kind === 'error' ? 12000 : 5000);
}

export async function copy(text, what) {
  try {
    await navigator.clipboard.writeText(text);
    toast(`Copied ${what}.`);
  } catch {
    toast(`The browser did not allow copying ${what}.`, 'error');
  }
}

/** Run `action` after `wait` ms without another call. */
export function debounce(action, wait) {
  let timer = 0;
  const call = (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => action(...given), wait);
  };
  call.cancel = () => clearTimeout(timer);
  return call;
}

/** A sign that something is being read. It appears only when that takes a moment. */
export function loading(text) {
  return h('div', {class: 'loading', role: 'status'}, h('span', {class: 'loading-bar'}), text);
}

export function empty(title, text) {
  return h('div', {class: 'empty'}, h('strong', {text: title}), text ? h('p', {}, plain(text)) : null);
}
