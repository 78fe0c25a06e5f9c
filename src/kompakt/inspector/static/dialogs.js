// Dialogs: confirmation of actions and the drawer with the text of one message.

import {get, post, session} from './api.js';
import {button, copy, dot, h, kindName, line, moment, number, plain, toast} from './dom.js';

/** Ask before an action; resolves to `true` or, with a `field`, to its text; `null` when it is cancelled. */
export function confirm({title, text, label, danger = false, field = null}) {
  return new Promise((resolve) => {
    const input = field ? h('textarea', {class: 'mono', rows: field.rows ?? 14, 'aria-label': field.label, value: field.value, spellcheck: 'false'}) : null;
    const dialog = h('dialog', {class: `dialog ${field ? 'wide' : ''}`, 'aria-labelledby': 'confirm-title', 'aria-describedby': 'confirm-text'},
      h('h2', {id: 'confirm-title', text: title}),
      h('p', {id: 'confirm-text'}, plain(text)),
      input,
      h('form', {method: 'dialog', class: 'dialog-buttons'},
        h('button', {class: 'button', value: 'no', text: 'Cancel', autofocus: danger || undefined}),
        h('button', {class: `button ${danger ? 'danger' : 'primary'}`, value: 'yes', text: label, autofocus: danger ? undefined : true})));
    dialog.addEventListener('close', () => {
      dialog.remove();
      resolve(dialog.returnValue === 'yes' ? (input ? input.value : true) : null);
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

/** Ask for the key of a gateway until it is accepted; then load the page again. */
export function login() {
  if (document.querySelector('dialog.login')) return;
  const key = h('input', {type: 'password', 'aria-label': 'Key', autocomplete: 'off', autofocus: true});
  const problem = h('p', {class: 'problem', role: 'alert'});
  const form = h('form', {class: 'recall-form', on: {submit: async (event) => {
    event.preventDefault();
    try {
      await post('login', {key: key.value});
      location.reload();
    } catch (error) {
      problem.replaceChildren(plain(error.message));
      key.select();
    }
  }}}, key, h('button', {class: 'button primary', text: 'Log in'}));
  const dialog = h('dialog', {class: 'dialog login', 'aria-labelledby': 'login-title'}, h('h2', {id: 'login-title', text: 'This gateway needs a key'}),
    h('p', {text: 'Enter a key of the gateway. The browser keeps it until it is closed.'}), form, problem);
  dialog.addEventListener('cancel', (event) => event.preventDefault());
  document.body.append(dialog);
  dialog.showModal();
}

/** Confirm and run an action on a session; reports its result. Returns whether it was done. */
export async function act(id, action, question) {
  const given = await confirm(question);
  if (given === null) return false;
  try {
    const body = question.field ? {...action, [question.field.name]: given} : action;
    const result = await post(session(id, '/actions'), {...body, confirm: true});
    toast(result.message ?? 'Done.', 'good');
    return true;
  } catch (error) {
    toast(error.message, 'error');
    return false;
  }
}

export const UNPIN = {title: 'Unpin this?', text: 'The next compaction may replace it.', label: 'Unpin'};

/** The text of one message, loaded in pages while it is scrolled. */
export function messagePane(id, seq, {can = () => false, ready = null, signal, changed = () => {}, close = null}) {
  const text = h('div', {class: 'text', tabindex: 0, role: 'region', 'aria-label': 'Text of the message'});
  const facts = h('div', {class: 'meta'});
  const title = h('h2', {text: `Message ${seq}`});
  const tools = h('div', {class: 'pane-tools'});
  const foot = h('div', {class: 'pane-foot', hidden: true});
  const element = h('article', {class: 'pane', 'aria-label': `Message ${seq}`},
    h('header', {class: 'pane-head'}, title, tools, close ? button('Close', {icon: 'close', bare: true, kind: 'ghost', on: {click: close}}) : null, facts), text, foot);
  let next = 0, whole = '', busy = false, row = null;

  async function load() {
    if (busy || next === null) return;
    busy = true;
    try {
      const page = await get(session(id, `/messages/${seq}`), {offset: next}, signal);
      if (page.offset === 0) {
        head(page.row);
        if (page.shown) text.append(h('section', {class: 'shown', 'aria-label': 'What the model reads instead'}, h('h3', {text: 'The model reads'}), h('pre', {dir: 'auto'}, plain(page.shown)), h('h3', {text: 'Original'})));
        ready?.then(() => head(row), () => {}); // what is allowed may be known later than the text
      }
      whole += page.text;
      text.append(h('pre', {class: 'chunk', dir: 'auto'}, plain(page.text)));
      next = page.next ?? null;
      foot.hidden = next === null;
      foot.replaceChildren(`${number(whole.length)} of ${number(page.total)} characters`,
        h('button', {type: 'button', class: 'button small', text: 'Load more', on: {click: load}}));
    } catch (error) {
      if (error.name !== 'AbortError') text.append(h('p', {class: 'problem'}, plain(error.message)));
      next = null;
    }
    busy = false;
  }

  function head(given) {
    row = given;
    title.replaceChildren(dot(row.kind), ` ${kindName(row.kind)}${row.tool ? ' · ' : ''}`, row.tool ? line(row.tool) : '');
    facts.replaceChildren(
      h('span', {text: `#${seq}`}), row.ref ? line(row.ref, {class: 'mono'}) : '', h('span', {text: `${number(row.tokens)} tokens`}),
      row.subject ? line(row.subject, {class: 'mono'}) : '',
      row.state && row.state !== 'sent' ? h('span', {class: 'tag', text: row.state}) : '', row.at ? moment(row.at) : '');
    tools.replaceChildren(
      button('Copy the loaded text', {icon: 'copy', bare: true, kind: 'ghost', on: {click: () => copy(whole, 'the text')}}),
      row.pinned && !can('unpin') ? h('span', {class: 'tag accent', text: 'pinned'}) : '',
      can(row.pinned ? 'unpin' : 'pin') ? button(row.pinned ? 'Unpin' : 'Pin', {icon: 'pin', kind: 'small', on: {click: pin}}) : '');
  }

  async function pin() {
    const done = await act(id, {action: row.pinned ? 'unpin' : 'pin', seq: row.seq}, row.pinned ? UNPIN : {title: 'Pin this message?', text: 'Compactions keep it as it is, and it takes its tokens in every request.', label: 'Pin'});
    if (!done) return;
    head({...row, pinned: !row.pinned});
    changed();
  }

  text.addEventListener('scroll', () => {
    if (text.scrollTop + text.clientHeight > text.scrollHeight - 600) load();
  }, {passive: true});
  load();
  return element;
}

/** Show a message beside the page; `left` is called when it is closed. */
export function drawer(id, seq, options, left) {
  const stop = new AbortController();
  const dialog = h('dialog', {class: 'drawer', 'aria-label': `Message ${seq}`});
  dialog.append(messagePane(id, seq, {...options, signal: stop.signal, close: () => dialog.close()}));
  dialog.addEventListener('click', (event) => event.target === dialog && dialog.close());
  dialog.addEventListener('close', () => {
    stop.abort();
    dialog.remove();
    if (dialog.returnValue !== 'left') left();
  });
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

