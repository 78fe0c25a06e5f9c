// One session: header, tabs, and the overview with its steps.

import './chart.js';
import {address, parse} from './address.js';
import {LIVE, follow, get, session} from './api.js';
import {compactionScreen, compactionTable} from './compaction.js';
import {contextScreen} from './context.js';
import {UNPIN, act, drawer} from './dialogs.js';
import {KINDS, button, count, debounce, empty, h, kindClass, kindName, known, line, loading, meter, moment, money, number, percent, plain, short} from './dom.js';
import {messageCells, messageHead, messagesScreen} from './messages.js';
import {recallScreen} from './recall.js';
import {tryScreen} from './tryout.js';

const TABS = [
  ['overview', 'Overview', overviewScreen], ['messages', 'Messages', messagesScreen], ['context', 'Context', contextScreen],
  ['compactions', 'Compactions', compactionScreen],
  ...(LIVE ? [['try', 'Try it', tryScreen], ['recall', 'Recall', recallScreen]] : []),
];
const PARENTS = {steps: 'overview'};
const NEEDS_DETAIL = ['overview', 'compactions', 'try'];
const SCREENS = {...Object.fromEntries(TABS.map(([name, , screen]) => [name, screen])), steps: stepScreen};

export function sessionFrame(id, signal, state) {
  const head = h('header', {class: 'session-head'});
  const panel = h('div', {class: 'panel', role: 'tabpanel', id: 'panel', tabindex: -1});
  const tabs = h('div', {class: 'tabs', role: 'tablist', 'aria-label': 'Views of the session'}, TABS.map(([name, label]) =>
    h('a', {role: 'tab', id: `tab-${name}`, 'aria-controls': 'panel', href: address(id, name), on: {keydown: arrows}}, label)));
  head.append(h('div', {class: 'session-title'}, h('h1', {}, line(id)), h('div', {class: 'meta'}, h('span', {text: ' '}))));
  document.title = `${id} · kompakt inspector`;
  const element = h('section', {class: 'page'}, head, tabs, panel);
  let detail = null, reading = null, place = null, current = null, open = null, turns = 0;

  const frame = {
    id, signal,
    get detail() { return detail; },
    get ready() { return reading; },
    /** Whether an action is allowed on this session. */
    can: (action) => Boolean(detail?.writable && detail.actions.includes(action)),
    link: (tab, arg, params) => address(id, tab, arg, params),
    /** Change the address without a new screen. */
    note(params) {
      const all = {...place.params, ...params};
      place = {...place, params: all};
      history.replaceState(null, '', address(id, place.tab, place.arg, all));
    },
    /** Show one message beside the screen. Back closes it. */
    message(seq) {
      history.pushState(null, '', location.hash);
      frame.note({m: seq});
      showMessage(seq);
    },
    async act(action, question) {
      const done = await act(id, action, question);
      if (done) await reload();
      return done;
    },
    reload: () => reload(),
  };

  function showMessage(seq) {
    if (open) return;
    open = drawer(id, seq, {can: frame.can, ready: reading, changed: reload}, () => {
      open = null;
      frame.note({m: ''});
    });
    open.addEventListener('close', () => { open = null; });
  }

  /** The session with the fields of its row; the number of compactions is `compacted`. */
  async function read() {
    const answer = await get(session(id), {}, signal);
    return {...answer.row, ...answer, compacted: answer.row.compactions};
  }

  /** Read the session for the first time. Screens that need nothing of it do not wait. */
  async function begin() {
    detail = await read();
    drawHead();
    document.title = `${detail.title || id} · kompakt inspector`;
    if (detail.live) follow(session(id, '/events'), signal, debounce(reload, 250), state);
  }

  async function reload() {
    const before = JSON.stringify(detail);
    try {
      detail = await read();
    } catch (error) {
      if (error.status === 404) location.hash = '#/';
      return;
    }
    if (JSON.stringify(detail) === before) return; // nothing is drawn again, so that the focus stays
    drawHead();
    await current?.screen.refresh?.();
  }

  function drawHead() {
    const facts = [detail.client, detail.model, detail.format].filter((one, index, all) => one && all.indexOf(one) === index);
    const focused = head.contains(document.activeElement) ? document.activeElement.textContent : null;
    head.replaceChildren(
      h('div', {class: 'session-title'}, h('h1', {}, line(detail.title || detail.id)),
        h('div', {class: 'meta'}, facts.map((fact) => line(fact)), line(detail.id, {class: 'mono'}),
          detail.parent ? h('a', {href: address(detail.parent), text: 'parent session'}) : null, h('span', {}, 'active ', moment(detail.last_activity)))),
      detail.writable ? actions(frame) : h('span', {class: 'tag quiet', text: 'read only', title: detail.read_only_reason}));
    if (focused !== null) [...head.querySelectorAll('button, a')].find((one) => one.textContent === focused)?.focus();
    const made = detail.compactions.length;
    const tab = tabs.querySelector('#tab-compactions');
    tab.replaceChildren('Compactions', made ? h('span', {class: 'badge', text: made}) : '');
    tab.setAttribute('aria-label', `Compactions, ${made}`);
  }

  return {
    element,
    async show(wanted) {
      const same = place && current && place.tab === wanted.tab && place.arg === wanted.arg;
      const turn = ++turns;
      place = wanted;
      reading ??= begin();
      const name = PARENTS[place.tab] ?? place.tab;
      for (const tab of tabs.children) {
        const selected = tab.id === `tab-${name}`;
        tab.setAttribute('aria-selected', selected);
        tab.tabIndex = selected ? 0 : -1;
        if (!selected) continue;
        panel.setAttribute('aria-labelledby', tab.id);
        const inner = tab.getBoundingClientRect(), outer = tabs.getBoundingClientRect();
        // Not scrollIntoView: it also scrolls a page that embeds this one.
        tabs.scrollLeft += Math.min(0, inner.left - outer.left) + Math.max(0, inner.right - outer.right);
      }
      if (!same) {
        current?.stop.abort();
        const stop = new AbortController();
        signal.addEventListener('abort', () => stop.abort());
        const build = SCREENS[place.tab];
        if (!build) {
          panel.replaceChildren(empty('There is no such view', 'Choose one of the tabs.'));
          current = null;
          return;
        }
        if (!detail && NEEDS_DETAIL.includes(place.tab)) {
          current = null;
          panel.replaceChildren(loading('Reading the session'));
          await reading;
          if (turn !== turns) return;
        }
        const screen = build(Object.create(frame, {signal: {value: stop.signal}}), place);
        current = {screen, stop};
        panel.replaceChildren(screen.element);
        if (!screen.element.firstChild) screen.element.append(loading('Reading the session'));
        window.scrollTo(0, 0);
      }
      try {
        await current.screen.show?.(place);
      } catch (error) {
        if (error.name === 'AbortError') return;
        panel.replaceChildren(empty('This view could not be shown', error.message));
        current = null;
        return;
      }
      if (turn !== turns) return;
      if (place.params.m && !current.screen.messages?.(place.params.m)) showMessage(Number(place.params.m));
    },
    tab: (index) => { if (TABS[index]) location.hash = address(id, TABS[index][0]); },
    move: (by) => current?.screen.move?.(by),
    up() {
      const {tab, arg} = parse(location.hash);
      if (arg) location.hash = address(id, PARENTS[tab] ?? tab);
      else if (tab && tab !== 'overview') location.hash = address(id, 'overview');
      else location.hash = '#/';
    },
  };

  function arrows(event) {
    const by = {ArrowLeft: -1, ArrowRight: 1}[event.key];
    if (!by) return;
    event.preventDefault();
    const all = [...tabs.children];
    const next = all[(all.indexOf(event.currentTarget) + by + all.length) % all.length];
    next.focus();
    location.hash = next.getAttribute('href');
  }
}

function actions(frame) {
  const {can_undo: undo, can_redo: redo} = frame.detail;
  const run = (action, question) => () => frame.act(action, question);
  const shown = {
    compact: () => button('Compact now', {icon: 'compact', on: {click: run({action: 'compact'}, {
      title: 'Compact this session now?', text: 'The next request carries the pivot instead of the messages it replaces. Every message stays in the store, and you can undo this.', label: 'Compact now',
    })}}),
    undo: () => button('Undo', {icon: 'undo', disabled: !undo, on: {click: run({action: 'undo'}, {
      title: 'Undo the newest change?', text: 'This takes back the newest edit of a pivot, or else the newest compaction: the next request then carries the original messages again.', label: 'Undo',
    })}}),
    redo: () => button('Redo', {icon: 'redo', disabled: !redo, on: {click: run({action: 'redo'}, {
      title: 'Redo what was undone last?', text: 'The compaction or the edit counts again from the next request on.', label: 'Redo',
    })}}),
    delete: () => button('Delete session', {icon: 'trash', bare: true, on: {click: async () => {
      const done = await act(frame.id, {action: 'delete'}, {
        title: 'Delete this session?', text: 'Its messages, compactions and pins are removed from the store. This cannot be undone.', label: 'Delete', danger: true,
      });
      if (done) location.hash = '#/';
    }}}),
  };
  return h('div', {class: 'actions', role: 'group', 'aria-label': 'Actions'}, Object.keys(shown).filter(frame.can).map((name) => shown[name]()));
}

// Overview --------------------------------------------------------------------------------------------------------

function overviewScreen(frame) {
  const tiles = h('div', {class: 'tiles'});
  const chart = h('k-growth', {on: {
    step: (event) => { location.hash = frame.link('steps', event.detail); },
    compaction: (event) => { location.hash = frame.link('compactions', event.detail); },
  }});
  const chartCard = card('Growth of the context', chart);
  const below = h('div', {class: 'columns'});
  const element = h('div', {class: 'stack'}, tiles, chartCard, below);

  async function show() {
    drawTiles();
    if (!chart.firstChild) chart.append(loading('Counting the requests'));
    const growth = await get(session(frame.id, '/growth'), {}, frame.signal);
    if (growth.points.length) chart.data = growth;
    else chart.replaceChildren(empty('No steps yet', 'The chart starts with the first request.'));
    below.replaceChildren(...[
      cacheCard(frame.detail), compactionsCard(frame), pinsCard(frame)].filter(Boolean));
    if (!frame.detail.complete) frame.reload(); // the chart is drawn, so the numbers are known now
  }

  function drawTiles() {
    const detail = frame.detail;
    const tile = (name, value, note, extra) => h('div', {class: 'tile-card'}, h('div', {class: 'tile-label', text: name}), h('div', {class: 'tile-value', text: value}), extra ?? null, note ? h('div', {class: 'tile-note', text: note}) : null);
    const later = detail.complete ? null : 'being counted';
    tiles.replaceChildren(
      tile('Context', known(detail.fullness) ? percent(detail.fullness) : short(detail.tokens),
        known(detail.window) ? `${number(detail.tokens)} of ${number(detail.window)} tokens` : `${number(detail.tokens)} tokens, window unknown`,
        known(detail.fullness) ? meter(detail.fullness, 'Context in use') : null),
      tile('Steps', number(detail.steps), `${count(detail.messages, 'message')} · ${later ?? count(detail.turns, 'turn')}`),
      tile('Compactions', number(detail.compacted), later ?? `${count(detail.recallable, 'message')} in recall`),
      tile('Tokens saved', short(detail.tokens_saved), 'removed by compactions'),
      tile('Money saved', money(detail.money_saved), later ?? (known(detail.money_saved) ? 'estimated from list prices' : 'price of the model unknown')));
  }

  return {element, show, refresh: show};
}

export function card(title, ...content) {
  return h('section', {class: 'card'}, h('h2', {text: title}), content);
}

const CLASSES = [['cached', 'Read from cache'], ['written', 'Written to cache'], ['fresh', 'Not cached']];

function cacheCard(detail) {
  const cache = detail.cache;
  const values = CLASSES.map(([name, label]) => ({name, label, tokens: cache[name], money: cache[`money_${name}`]}));
  const total = values.reduce((sum, one) => sum + one.tokens, 0);
  if (!total) return null;
  return card('Input by cache class',
    h('div', {class: 'split', role: 'img', 'aria-label': values.map((one) => `${one.label} ${percent(one.tokens / total)}`).join(', ')},
      values.map((one) => h('span', {class: `cache-${one.name}`, vars: {'flex-grow': String(one.tokens)}}))),
    h('p', {class: 'faint small-text', text: cache.reported ? 'As the provider reported it.' : 'Estimated: a request reads from the cache what it shares with the previous one.'}),
    h('table', {class: 'plain', 'aria-label': 'Input by cache class'}, h('thead', {}, h('tr', {}, ['Class', 'Tokens', 'Share', 'Money'].map((name, index) => h('th', {scope: 'col', class: index ? 'numeric' : '', text: name})))),
      h('tbody', {}, values.map((one) => h('tr', {}, h('th', {scope: 'row'}, h('span', {class: `dot cache-${one.name}`}), ` ${one.label}`),
        h('td', {class: 'numeric', text: number(one.tokens)}), h('td', {class: 'numeric', text: percent(one.tokens / total)}), h('td', {class: 'numeric', text: money(one.money)}))))));
}

function compactionsCard(frame) {
  const list = frame.detail.compactions;
  return card('Compactions', list.length ? compactionTable(frame, list.toReversed().slice(0, 8)) : h('p', {class: 'faint', text: frame.detail.fullness > 1 ? 'None yet. The context is larger than the window.' : 'None yet.'}));
}

function pinsCard(frame) {
  const {pins} = frame.detail;
  if (!pins.length) return null;
  return card('Pinned', h('ul', {class: 'refs'}, pins.map((pin) => h('li', {}, line(pin, {class: 'clip'}),
    frame.can('unpin') ? button(`Unpin ${pin.slice(0, 60)}`, {icon: 'close', bare: true, kind: 'ghost small', on: {click: () => frame.act({action: 'unpin', text: pin}, UNPIN)}}) : null))));
}

// A step ----------------------------------------------------------------------------------------------------------

/** JSON with indentation; a text that was cut stays as it is. */
function indented(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

function stepScreen(frame, place) {
  const n = Number(place.arg);
  const element = h('div', {class: 'stack'});

  async function show() {
    const step = await get(session(frame.id, `/steps/${n}`), {}, frame.signal);
    const rows = [...step.rows, ...step.answer].map((row) => ({...row, state: 'sent'}));
    const isNext = step.step > step.steps;
    const answers = new Set(step.answer.map((row) => row.seq));
    const list = h('k-rows', {id: 'sent', class: 'list tall', 'aria-label': `Messages of request ${n}`, on: {open: (event) => frame.message(event.detail.row.seq)}});
    const sizes = KINDS.filter((kind) => step.tokens[kind]);
    element.replaceChildren(
      h('div', {class: 'bar'},
        h('h2', {text: isNext ? 'Next request, as it would be sent' : `Request ${n} as sent`}),
        h('div', {class: 'meta'}, step.model ? line(step.model) : null, h('span', {text: `${number(step.total)} tokens`}), h('span', {text: `${percent(step.total ? step.cached / step.total : 0)} from cache`}), step.at ? moment(step.at) : null,
          step.compaction ? h('a', {href: frame.link('compactions', step.compaction), text: 'contains a pivot'}) : null),
        h('span', {class: 'grow'}),
        h('nav', {class: 'pair', 'aria-label': 'Requests'},
          n > 1 ? h('a', {class: 'button small', href: frame.link('steps', n - 1), text: 'Previous'}) : null,
          isNext ? null : h('a', {class: 'button small', href: frame.link('steps', n + 1), text: 'Next'}))),
      h('section', {class: 'card'},
        h('div', {class: 'split', role: 'img', 'aria-label': sizes.map((kind) => `${kindName(kind)} ${number(step.tokens[kind])} tokens`).join(', ')}, sizes.map((kind) => h('span', {class: kindClass(kind), vars: {'flex-grow': String(step.tokens[kind])}}))),
        h('div', {class: 'split-legend'}, sizes.map((kind) => h('span', {}, h('span', {class: `swatch ${kindClass(kind)}`}), kindName(kind), h('b', {text: number(step.tokens[kind])}))))),
      h('div', {class: 'sides'},
        h('section', {class: 'card flush side'}, h('h2', {}, 'Messages', h('span', {class: 'faint', text: `${number(step.rows.length + step.left_out)} sent${step.left_out ? `, the newest ${number(step.rows.length)} shown` : ''} · ${count(step.answer.length, 'answer')}`})), messageHead(), list),
        h('section', {class: 'card flush side'}, h('h2', {}, 'Request body', h('span', {class: 'faint', text: step.body_chars > step.body.length ? `the first ${number(step.body.length)} of ${number(step.body_chars)} characters` : `${number(step.body_chars)} characters, indented here`})),
          h('div', {class: 'text pivot-scroll', tabindex: 0, role: 'region', 'aria-label': 'Request body'}, h('pre', {class: 'chunk', dir: 'auto'}, plain(indented(step.body)))))));
    const cells = (row) => (answers.has(row.seq) ? [...messageCells(row), h('span', {class: 'tag accent', text: 'answer'})] : messageCells(row));
    list.show({total: rows.length, load: (start, limit) => rows.slice(start, start + limit), draw: cells, height: 40});
  }

  return {element, show, move: (by) => element.querySelector('k-rows')?.move(by)};
}
