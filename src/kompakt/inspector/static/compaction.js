// Compactions: the list, and one of them before and after, with each removed message and what the pivot says about it.

import './rows.js';
import {get, session} from './api.js';
import {KINDS, button, count, dot, empty, h, icon, kindClass, kindName, known, line, moment, number, percent, plain, short} from './dom.js';

export function compactionTable(frame, list) {
  return h('table', {class: 'plain', 'aria-label': 'Compactions'},
    h('thead', {}, h('tr', {}, ['Compaction', 'Before → after', 'Reason', 'When'].map((name) => h('th', {scope: 'col', text: name})))),
    h('tbody', {}, list.map((one) => h('tr', {class: one.undone ? 'undone' : ''},
      h('td', {}, h('a', {class: 'mono', href: frame.link('compactions', one.id)}, line(one.id.length > 14 ? `${one.id.slice(0, 12)}…` : one.id)), one.undone ? h('span', {class: 'tag', text: 'undone'}) : null),
      h('td', {class: 'tabular', text: known(one.tokens_before) ? `${short(one.tokens_before)} → ${short(one.tokens_after)}` : '–'}),
      h('td', {}, line(one.reason || '–')), h('td', {}, moment(one.at))))));
}

export function compactionScreen(frame, place) {
  return place.arg === null ? listScreen(frame) : oneScreen(frame, place);
}

function listScreen(frame) {
  const element = h('div', {class: 'stack'});
  const show = async () => {
    const list = frame.detail.compactions.toReversed();
    element.replaceChildren(list.length ? h('section', {class: 'card'}, h('h2', {text: count(list.length, 'compaction')}), compactionTable(frame, list))
      : empty('No compaction yet', 'Use “Try it” to see what a compaction would do.'));
  };
  return {
    element, show, refresh: show,
    move(by) {
      const links = [...element.querySelectorAll('tbody a')];
      const at = links.indexOf(document.activeElement);
      links[at < 0 ? (by > 0 ? 0 : links.length - 1) : Math.max(0, Math.min(links.length - 1, at + by))]?.focus();
    },
  };
}

/** Bars of the sizes before and after, by kind. */
function shrink(view) {
  const top = Math.max(1, view.tokens_before, view.tokens_after);
  const bar = (kinds, total) => h('span', {class: 'shrink-bar'}, h('span', {class: 'shrink-kinds', vars: {width: `${Math.max(0.5, (total / top) * 100)}%`}},
    KINDS.filter((kind) => kinds[kind]).map((kind) => h('span', {class: kindClass(kind), title: `${kindName(kind)}: ${number(kinds[kind])} tokens`, vars: {'flex-grow': String(kinds[kind])}}))));
  const kinds = KINDS.filter((kind) => view.by_kind_before[kind] || view.by_kind_after[kind]);
  return [
    h('div', {class: 'shrink', role: 'img', 'aria-label': `${number(view.tokens_before)} tokens before, ${number(view.tokens_after)} after`},
      h('span', {class: 'shrink-name', text: 'before'}), bar(view.by_kind_before, view.tokens_before), h('b', {text: number(view.tokens_before)}),
      h('span', {class: 'shrink-name', text: 'after'}), bar(view.by_kind_after, view.tokens_after), h('b', {text: number(view.tokens_after)})),
    h('div', {class: 'split-legend'}, kinds.map((kind) => h('span', {}, h('span', {class: `swatch ${kindClass(kind)}`}), kindName(kind),
      h('b', {text: `${short(view.by_kind_before[kind] ?? 0)} → ${short(view.by_kind_after[kind] ?? 0)}`})))),
  ];
}

function oneScreen(frame, place) {
  const element = h('div', {class: 'stack'});
  const chosen = h('div', {class: 'chosen', role: 'status'});
  const list = h('k-rows', {id: 'removed', class: 'list tall', 'aria-label': 'Removed messages', on: {
    choose: (event) => choose(event.detail.row),
    open: (event) => choose(event.detail.row),
  }});
  const pivot = h('ol', {class: 'pivot', 'aria-label': 'Pivot, as the model reads it'});
  let view = null, seen = null;

  async function show() {
    seen = frame.detail.events;
    draw(await get(path(), {}, frame.signal));
  }

  const path = () => session(frame.id, `/compactions/${encodeURIComponent(place.arg)}`);

  function draw(read) {
    view = read;
    element.replaceChildren(head(), verdict(),
      h('p', {class: 'faint small-text', text: 'The pivot is the text that the model reads instead of the replaced messages. Choose a message to see what the pivot says about it, or an underlined line to see its originals.'}),
      h('div', {class: 'sides'},
        h('section', {class: 'card flush side'}, h('h2', {}, 'Before', h('span', {class: 'faint', text: `${count(view.removed_count, 'message')} replaced · ${count(view.kept, 'message')} kept`})), list),
        h('section', {class: 'card flush side'}, h('h2', {}, 'After', h('span', {class: 'faint', text: `pivot of ${count(view.pivot.length, 'line')} · ${count(view.kept, 'message')} kept`}), frame.can('edit') ? button('Edit', {icon: 'edit', kind: 'small', 'aria-label': 'Edit the pivot', on: {click: edit}}) : null),
          h('div', {class: 'pivot-scroll', tabindex: 0, role: 'region', 'aria-label': 'Pivot'}, pivot))),
      chosen);
    list.show({total: view.removed_count, load: removed, draw: cells, height: 56});
    pivot.replaceChildren(...view.pivot.map(pivotLine));
    clear();
    const at = view.removed.findIndex((one) => String(one.ref) === place.params.item);
    if (at >= 0) list.select(at, {middle: true});
  }

  /** Return removed messages; the first answer has the first of them. */
  function removed(start, limit) {
    if (start + limit <= view.removed.length) return view.removed.slice(start, start + limit);
    return get(path(), {start, limit}, frame.signal).then((page) => page.removed);
  }

  function head() {
    const saved = known(view.tokens_before) && known(view.tokens_after) ? view.tokens_before - view.tokens_after : null;
    return h('section', {class: 'card'},
      h('div', {class: 'bar'}, h('h2', {}, 'Compaction ', line(view.id, {class: 'mono'})), view.undone ? h('span', {class: 'tag', text: 'undone'}) : null, h('span', {class: 'grow'}), moment(view.at),
        frame.can('undo') && !view.undone ? button('Undo this compaction', {icon: 'undo', kind: 'small', on: {click: undo}}) : null),
      known(view.tokens_before) ? shrink(view) : null,
      h('div', {class: 'meta'}, view.reason ? h('span', {}, 'Reason: ', line(view.reason)) : null, view.policy ? h('span', {}, 'Policy: ', line(view.policy)) : null,
        saved ? h('span', {text: `${number(saved)} tokens less in every request (${percent(saved / view.tokens_before)})`}) : null));
  }

  function verdict() {
    const lost = view.unrecoverable;
    if (!lost.length) return h('p', {class: 'verdict good'}, icon('check'), h('strong', {text: 'Unrecoverable items: none'}), h('span', {class: 'faint', text: `Recall was asked for ${view.removed_count === 1 ? 'the replaced message' : `all ${number(view.removed_count)} replaced messages`} and returned each of them.`}));
    return h('div', {class: 'verdict bad', role: 'alert'}, icon('warn'), h('strong', {text: `Unrecoverable items: ${number(lost.length)}`}), h('ul', {}, lost.map((ref) => h('li', {}, line(ref, {class: 'mono'})))));
  }

  function cells(row) {
    const lines = row.pivot_lines;
    return [
      dot(row.kind),
      h('span', {class: 'two'},
        h('span', {class: 'two-first'}, line(row.title, {class: 'cell-title'}), h('span', {class: 'cell-tokens', text: short(row.tokens)})),
        h('span', {class: 'two-second'}, line(row.ref, {class: 'mono'}), line(row.why), lines.length ? h('span', {class: 'tag quiet', text: lines.length === 1 ? `pivot line ${lines[0]}` : `pivot lines ${lines.slice(0, 3).join(', ')}${lines.length > 3 ? ' …' : ''}`}) : null,
          row.recallable ? h('span', {class: 'tag good'}, icon('check'), 'recall') : h('span', {class: 'tag bad', text: 'not recallable'}))),
    ];
  }

  function pivotLine(one) {
    const {refs} = one;
    const node = h('li', {'data-line': one.line, value: one.line});
    const content = h('span', {dir: 'auto', class: 'pivot-text'}, plain(one.text));
    node.append(refs.length ? h('button', {type: 'button', class: 'pivot-line', 'aria-label': `Line ${one.line}: ${one.text.slice(0, 200)}. Refers to ${count(refs.length, 'message')}`, on: {click: () => chooseLine(one)}}, content)
      : h('span', {class: one.text.startsWith('#') ? 'pivot-line pivot-heading' : 'pivot-line'}, content));
    return node;
  }

  function light(lines) {
    const wanted = new Set(lines);
    for (const node of pivot.children) node.classList.toggle('marked', wanted.has(Number(node.dataset.line)));
    const first = pivot.querySelector('.marked'), pane = pivot.parentElement;
    if (first) pane.scrollTop = first.offsetTop - pane.clientHeight / 4;
  }

  /** Scroll the page so that the details do not cover what was chosen. */
  function uncover(node) {
    const covered = node ? node.getBoundingClientRect().bottom - chosen.getBoundingClientRect().top + 8 : 0;
    if (covered > 0) scrollBy(0, covered);
  }

  function clear() {
    chosen.replaceChildren();
    list.mark([]);
    light([]);
  }

  const dismiss = () => button('Close details', {icon: 'close', bare: true, kind: 'ghost small', on: {click: clear}});

  function choose(row) {
    light(row.pivot_lines);
    list.mark([]);
    frame.note({item: row.ref});
    const lines = view.pivot.filter((one) => row.pivot_lines.includes(one.line));
    chosen.replaceChildren(h('div', {class: 'card chosen-card'},
      h('div', {class: 'bar'}, dot(row.kind), h('strong', {}, line(row.title)), h('span', {class: 'grow'}), button('Show original', {kind: 'small', on: {click: () => frame.message(row.seq)}}), dismiss()),
      h('dl', {class: 'facts'},
        h('dt', {text: 'Message'}), h('dd', {}, line(row.ref, {class: 'mono'}), ` · ${kindName(row.kind)} · ${number(row.tokens)} tokens`),
        h('dt', {text: 'Why'}), h('dd', {}, line(row.why), row.strategy ? h('span', {class: 'faint'}, ' · ', line(row.strategy)) : null),
        h('dt', {text: 'Pivot says'}), h('dd', {}, lines.length ? lines.slice(0, 6).map((one) => h('div', {class: 'quote', dir: 'auto'}, plain(one.text))) : h('span', {class: 'faint', text: 'Nothing about this message alone. Recall finds it.'})),
        h('dt', {text: 'Recall'}), h('dd', {}, row.recallable ? h('span', {class: 'good-text'}, icon('check'), ' returns it byte for byte') : h('span', {class: 'bad-text', text: 'does not return it'})))));
    uncover(list.node(list.active));
  }

  function chooseLine(one) {
    light([one.line]);
    const wanted = new Set(one.seqs);
    const found = view.removed.map((row, index) => [row, index]).filter(([row]) => wanted.has(row.seq) || row.pivot_lines.includes(one.line));
    list.mark(found.map(([, index]) => index));
    if (found.length) list.select(found[0][1], {middle: true, quiet: true});
    const there = new Set(found.map(([row]) => row.seq));
    const missing = one.seqs.filter((seq) => !there.has(seq));
    chosen.replaceChildren(h('div', {class: 'card chosen-card'},
      h('div', {class: 'bar'}, h('strong', {text: `Line ${one.line} of the pivot`}), h('span', {class: 'grow'}), h('span', {class: 'faint', text: one.seqs.length ? `from ${count(one.seqs.length, 'message')}` : ''}), dismiss()),
      h('div', {class: 'quote', dir: 'auto'}, plain(one.text)),
      h('ul', {class: 'refs'}, found.slice(0, 20).map(([row]) => h('li', {}, h('button', {type: 'button', class: 'link', on: {click: () => frame.message(row.seq)}}, line(row.ref, {class: 'mono'}), ' ', line(row.title)))),
        missing.slice(0, 20).map((seq) => h('li', {}, h('button', {type: 'button', class: 'link', text: `Message ${number(seq)}`, on: {click: () => frame.message(seq)}}), h('span', {class: 'faint', text: ' not replaced by this compaction'}))))));
    uncover(pivot.querySelector('.marked'));
  }

  async function undo() {
    const all = frame.detail.compactions;
    const newer = all.slice(all.findIndex((one) => one.id === view.id) + 1).filter((one) => !one.undone).length;
    const also = newer ? ` It also takes back ${count(newer, 'newer compaction')}, made from its result.` : '';
    const done = await frame.act({action: 'undo', compaction: view.id}, {
      title: 'Undo this compaction?', text: `The next request carries the messages again that it replaced.${also} Redo takes this back.`, label: 'Undo',
    });
    if (done) await refresh();
  }

  async function edit() {
    const done = await frame.act({action: 'edit', compaction: view.id}, {
      title: 'Edit the pivot', text: 'The model reads this text from the next request on. The prompt cache starts anew once.', label: 'Save',
      field: {name: 'text', label: 'Text of the pivot', value: view.pivot.map((one) => one.text).join('\n')},
    });
    if (done) await refresh();
  }

  /** Read the compaction again if it may have been undone or edited. What did not change is not drawn again. */
  async function refresh() {
    if (!view || frame.detail.events === seen || !frame.detail.compactions.some((one) => one.id === view.id)) return;
    seen = frame.detail.events;
    const now = await get(path(), {}, frame.signal);
    if (JSON.stringify(now) !== JSON.stringify(view)) draw(now);
  }

  return {element, show, refresh, move: (by) => { list.focus(); list.move(by); }};
}
