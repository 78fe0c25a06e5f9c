// All messages of a session: a list over pages of the server, with the text of the chosen one beside it.

import './rows.js';
import {get, session} from './api.js';
import {messagePane} from './dialogs.js';
import {KINDS, count, dot, empty, h, icon, kindName, known, line, number, short} from './dom.js';

const STATES = {
  replaced: 'A compaction replaced it: the model no longer reads it, recall returns it', shortened: 'The model reads a shorter form of it',
  undone: 'It was taken back: the model no longer reads it',
};

/** The cells of a message in a list. */
export function messageCells(row) {
  return [
    h('span', {class: 'cell-seq', text: known(row.seq) ? row.seq : ''}), dot(row.kind),
    h('span', {class: 'cell-kind'}, row.tool ? line(row.tool) : kindName(row.kind)),
    line(row.title, {class: 'cell-title'}),
    row.pinned ? h('span', {class: 'tag accent'}, icon('pin'), 'pinned') : null,
    STATES[row.state] ? h('span', {class: `tag state-${row.state}`, text: row.state, title: STATES[row.state]}) : null,
    h('span', {class: 'cell-tokens', text: short(row.tokens), title: `${number(row.tokens)} tokens`}),
  ].filter(Boolean);
}

/** What the cells of a list of messages are; the list itself names them for screen readers. */
export const messageHead = () => h('div', {class: 'row-head', 'aria-hidden': true},
  h('span', {class: 'cell-seq', text: '#'}), h('span', {class: 'cell-kind', text: 'Kind or tool'}), h('span', {class: 'cell-title', text: 'Content'}), h('span', {class: 'cell-tokens', text: 'Tokens'}));

export function messagesScreen(frame, place) {
  let kind = place.params.kind ?? '';
  const wide = matchMedia('(min-width: 960px)');
  const list = h('k-rows', {id: 'messages', class: 'list tall', 'aria-label': 'Messages', on: {
    choose: (event) => wide.matches && pane(event.detail.row.seq),
    open: (event) => (wide.matches ? pane(event.detail.row.seq) : frame.message(event.detail.row.seq)),
  }});
  const beside = h('aside', {class: 'beside card flush', 'aria-label': 'Chosen message'}, empty('No message chosen', 'Choose one with a click or with j and k.'));
  const kinds = h('div', {class: 'chips', role: 'group', 'aria-label': 'Kind of message'}, ['', ...KINDS.filter((one) => one !== 'tools')].map((one) =>
    h('button', {type: 'button', class: 'chip', 'aria-pressed': one === kind, 'data-kind': one, on: {click: () => choose(one)}}, one ? dot(one) : null, one ? kindName(one) : 'All')));
  const total = h('span', {class: 'faint', role: 'status'});
  const jump = h('input', {type: 'number', class: 'jump', min: 0, placeholder: 'Go to #', 'aria-label': 'Go to message number', on: {change: () => jump.value !== '' && to(Number(jump.value))}});
  const element = h('div', {class: 'stack'}, h('div', {class: 'bar'}, kinds, h('span', {class: 'grow'}), total, jump),
    h('div', {class: 'beside-layout'}, h('div', {class: 'card flush'}, messageHead(), list), beside));
  let stop = null, chosen = null;

  const page = (start, limit) => get(session(frame.id, '/messages'), {start, limit, kind}, frame.signal);

  function choose(wanted) {
    kind = wanted;
    for (const chip of kinds.children) chip.setAttribute('aria-pressed', chip.dataset.kind === kind);
    frame.note({kind});
    load();
  }

  async function load() {
    const first = await page(0, 100);
    tell(first);
    list.show({
      total: first.total, first: first.rows, height: 40, draw: messageCells,
      load: async (start, limit) => (await page(start, limit)).rows,
    });
  }

  function tell(answer) {
    const others = answer.total - answer.messages - answer.notes;
    const all = [count(answer.messages, 'message'), answer.notes ? `${count(answer.notes, 'note')} by kompakt` : '', others > 0 ? `${number(others)} taken back` : ''];
    total.textContent = kind ? `${number(answer.total)}${answer.complete ? '' : ' so far'}` : answer.complete ? all.filter(Boolean).join(' · ') : all[0];
    if (!answer.complete) setTimeout(() => frame.signal.aborted || refresh(), 400);
  }

  async function refresh() {
    const first = await page(0, 1);
    tell(first);
    list.refresh(first.total);
  }

  function pane(seq) {
    if (chosen === seq) return;
    chosen = seq;
    stop?.abort();
    stop = new AbortController();
    frame.signal.addEventListener('abort', () => stop.abort());
    frame.note({m: seq});
    beside.replaceChildren(messagePane(frame.id, seq, {can: frame.can, ready: frame.ready, signal: stop.signal, changed: () => { frame.reload(); }}));
  }

  /** Go to a message by its number. */
  async function to(seq) {
    if (kind) choose('');
    let low = 0, high = list.total;
    const first = await page(Math.min(seq, Math.max(0, high - 1)), 1);
    if (first.rows[0]?.seq === seq) low = high = Math.min(seq, high - 1);
    while (low < high) {
      const middle = Math.floor((low + high) / 2);
      const row = (await page(middle, 1)).rows[0];
      if (!row || row.seq >= seq) high = middle;
      else low = middle + 1;
    }
    list.select(low, {middle: true});
  }

  return {
    element,
    show: async () => { if (!list.total) await load(); },
    refresh,
    move: (by) => { list.focus(); list.move(by); },
    messages(seq) {
      if (!wide.matches) return false;
      if (chosen !== Number(seq)) to(Number(seq));
      return true;
    },
  };
}
