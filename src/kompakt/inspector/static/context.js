// The current context: a treemap, its largest messages and repeated content.

import './treemap.js';
import './rows.js';
import {get, session} from './api.js';
import {KINDS, count, empty, h, kindClass, kindName, known, line, number, percent, short} from './dom.js';
import {messageCells, messageHead} from './messages.js';

export function contextScreen(frame) {
  const map = h('k-treemap', {on: {open: (event) => known(event.detail.seq) && frame.message(event.detail.seq)}});
  const largest = h('k-rows', {id: 'largest', class: 'list', 'aria-label': 'Largest messages', on: {open: (event) => frame.message(event.detail.row.seq)}});
  const top = h('div');
  const twice = h('section', {class: 'card'});
  const parts = [top, h('section', {class: 'card'}, h('h2', {text: 'What the model reads'}), map),
    h('div', {class: 'columns'}, h('section', {class: 'card flush'}, h('h2', {text: 'Largest messages'}), messageHead(), largest), twice)];
  const element = h('div', {class: 'stack'});

  async function show() {
    const context = await get(session(frame.id, '/context'), {}, frame.signal);
    if (!context.total) {
      element.replaceChildren(empty('The context is empty', 'It fills with the first request.'));
      return;
    }
    if (!map.isConnected) element.replaceChildren(...parts);
    top.replaceChildren(usage(context));
    twice.replaceChildren(h('h2', {text: 'Repeated content'}), repeated(frame, context.repeated));
    map.tree = context.tree;
    largest.show({total: context.largest.length, load: (start, limit) => context.largest.slice(start, start + limit), draw: messageCells, height: 40});
  }

  return {element, show, refresh: show, move: (by) => element.querySelector('k-rows')?.move(by)};
}


function usage(context) {
  const parts = [...KINDS.map((kind) => [kindClass(kind), kindName(kind), context.tokens[kind]]),
    ['use-free', 'Free', context.free], ['use-reserve', 'Reserve for the answer', context.reserve]].filter(([, , size]) => size);
  return h('section', {class: 'card'},
    h('h2', {text: known(context.window) ? `${percent(context.total / context.window)} of ${number(context.window)} tokens` : `${number(context.total)} tokens`}),
    h('div', {class: 'split tall', role: 'img', 'aria-label': parts.map(([, name, size]) => `${name} ${number(size)} tokens`).join(', ')},
      parts.map(([kind, , size]) => h('span', {class: kind, vars: {'flex-grow': String(size)}}))),
    h('div', {class: 'split-legend'}, parts.map(([kind, name, size]) => h('span', {}, h('span', {class: `swatch ${kind}`}), name, h('b', {text: number(size)})))));
}

function repeated(frame, list) {
  if (!list.length) return h('p', {class: 'faint', text: 'Nothing of size is in the context twice.'});
  return h('table', {class: 'plain', 'aria-label': 'Repeated content'},
    h('thead', {}, h('tr', {}, h('th', {scope: 'col', text: 'Content'}), h('th', {scope: 'col', class: 'numeric', text: 'Times'}), h('th', {scope: 'col', class: 'numeric', text: 'Tokens'}))),
    h('tbody', {}, list.map((one) => h('tr', {},
      h('td', {}, line(one.title, {class: 'clip'}), h('div', {class: 'meta'}, one.seqs.slice(0, 12).map((seq) => h('button', {type: 'button', class: 'link', text: `#${seq}`, 'aria-label': `Open message ${seq}`, on: {click: () => frame.message(seq)}})), one.seqs.length > 12 ? h('span', {text: `and ${count(one.seqs.length - 12, 'other')}`}) : null)),
      h('td', {class: 'numeric', text: number(one.count)}), h('td', {class: 'numeric', text: short(one.tokens)})))));
}
