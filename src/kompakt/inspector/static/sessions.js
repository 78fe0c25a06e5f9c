// The list of sessions.

import {follow, get} from './api.js';
import {count, debounce, empty, h, icon, known, line, meter, moment, money, number, percent, short} from './dom.js';

export function sessionList(place, signal, state) {
  const search = h('input', {
    type: 'search', placeholder: 'Search title, client, model or id', 'aria-label': 'Search sessions', value: place.params.query ?? '',
    autocomplete: 'off', spellcheck: 'false', on: {input: debounce(() => changed(), 180)},
  });
  const body = h('tbody');
  const found = h('p', {class: 'found', role: 'status'});
  const more = h('button', {type: 'button', class: 'button', text: 'Show more', hidden: true, on: {click: () => load(next)}});
  const head = ['Session', 'Context', 'Steps', 'Compactions', 'Saved', 'Cached', 'Last activity'].map((name, index) =>
    h('th', {scope: 'col', class: [2, 3, 5].includes(index) ? 'numeric' : '', text: name}));
  const table = h('table', {class: 'sessions', 'aria-label': 'Sessions'}, h('thead', {}, h('tr', {}, head)), body);
  const element = h('section', {class: 'page'},
    h('div', {class: 'page-head'}, h('h1', {text: 'Sessions'}), found),
    h('label', {class: 'search'}, icon('search'), search, h('kbd', {text: '/'})),
    table, h('div', {class: 'more'}, more));
  const rows = new Map();
  let next = null;
  let asked = 0;
  let loaded = false;

  function changed() {
    const query = search.value.trim();
    history.replaceState(null, '', query ? `#/?${new URLSearchParams({query})}` : '#/');
    load(null);
  }

  async function load(cursor, limit = 50) {
    const turn = ++asked;
    let page;
    try {
      page = await get('sessions', {query: search.value.trim(), cursor, limit}, signal);
    } catch (error) {
      if (error.name === 'AbortError') return;
      found.replaceChildren();
      element.querySelector('.empty')?.remove();
      table.hidden = true;
      table.after(empty('The sessions cannot be read', error.message));
      return;
    }
    loaded = true;
    if (turn !== asked) return;
    if (!cursor) show(page.rows);
    else page.rows.forEach(add);
    next = page.next;
    more.hidden = !next;
    found.textContent = known(page.total) ? count(page.total, 'session') : '';
    element.querySelector('.empty')?.remove();
    table.hidden = rows.size === 0;
    if (!rows.size) table.after(search.value.trim() ? empty('No session matches', 'Change the search to see more.') : empty('No sessions yet', 'A session appears here with its first request.'));
  }

  /** Show these rows; mark those that changed and keep the focus. */
  function show(wanted) {
    const focused = document.activeElement?.closest('tr')?.dataset.id;
    const old = new Map(rows);
    rows.clear();
    body.replaceChildren();
    for (const row of wanted) {
      add(row);
      const before = old.get(row.id);
      if (before && before.text !== rows.get(row.id).text) rows.get(row.id).node.classList.add('fresh');
    }
    rows.get(focused)?.node.querySelector('a').focus();
  }

  function add(row) {
    const node = drawn(row);
    rows.get(row.id)?.node.remove();
    rows.set(row.id, {node, text: JSON.stringify(row)});
    body.append(node);
  }

  const refresh = debounce(() => load(null, Math.max(50, Math.min(200, rows.size))), 250);

  let watched = false;
  function watch() {
    if (watched || !loaded || signal.aborted) return;
    watched = true;
    follow('events', signal, refresh, state);
  }

  return {
    element,
    show: () => {
      document.title = 'Sessions · kompakt inspector';
      return load(null).then(watch);
    },
    move(by) {
      const links = [...body.querySelectorAll('a')];
      const at = links.indexOf(document.activeElement);
      links[at < 0 ? (by > 0 ? 0 : links.length - 1) : Math.max(0, Math.min(links.length - 1, at + by))]?.focus();
    },
    up: () => document.activeElement?.blur(),
  };
}

function drawn(row) {
  const facts = [row.client, row.model, row.client ? null : row.format].filter((one, index, all) => one && all.indexOf(one) === index);
  const title = row.title || row.id;
  return h('tr', {'data-id': row.id},
    h('td', {class: 'title-cell'},
      h('a', {class: 'row-link', href: `#/s/${encodeURIComponent(row.id)}`}, row.parent ? h('span', {class: 'faint', text: '↳ ', title: `Part of ${row.parent}`}) : null, line(title)),
      h('div', {class: 'meta'}, facts.map((fact) => line(fact)), row.title ? line(row.id, {class: 'mono'}) : null)),
    h('td', {class: 'fill-cell', 'data-label': 'Context'},
      meter(row.fullness, `Context of ${title}`),
      h('div', {class: 'fill-text'}, h('b', {text: known(row.fullness) ? percent(row.fullness) : short(row.tokens)}),
        h('span', {class: 'faint', text: known(row.window) ? `${short(row.tokens)} of ${short(row.window)}` : 'window unknown'}))),
    h('td', {class: 'numeric', 'data-label': 'Steps', text: number(row.steps)}),
    h('td', {class: 'numeric', 'data-label': 'Compactions', text: number(row.compactions)}),
    h('td', {'data-label': 'Saved'}, saved(row)),
    h('td', {class: 'numeric', 'data-label': 'Cached', text: known(row.cached) ? percent(row.cached) : '–', title: 'Share of all input that was read from the prompt cache'}),
    h('td', {'data-label': 'Last activity'}, moment(row.last_activity)));
}

function saved(row) {
  if (!row.tokens_saved) return h('span', {class: 'faint', text: '–'});
  return h('div', {}, `${short(row.tokens_saved)} tokens`, known(row.money_saved) ? h('div', {class: 'faint small-text', text: money(row.money_saved), title: 'Estimated from list prices'}) : null);
}
