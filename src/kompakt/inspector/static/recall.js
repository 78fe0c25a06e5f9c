// Recall: the same tool that the model has, with the same answer.

import {get, session} from './api.js';
import {button, copy, empty, h, icon, loading, plain, short} from './dom.js';

export function recallScreen(frame, place) {
  const box = h('input', {type: 'search', 'aria-label': 'Recall query', placeholder: 'Words, a file name, or a reference such as m7f3a', value: place.params.query ?? '', autocomplete: 'off', spellcheck: 'false'});
  const answer = h('div', {'aria-live': 'polite'});
  const form = h('form', {class: 'recall-form', role: 'search', on: {submit: (event) => {
    event.preventDefault();
    ask();
  }}}, h('label', {class: 'search'}, icon('search'), box, h('kbd', {text: '/'})), h('button', {class: 'button primary', text: 'Recall'}));
  const element = h('div', {class: 'stack'}, form, answer);

  async function ask() {
    const query = box.value.trim();
    frame.note({query});
    if (!query) {
      answer.replaceChildren(empty('Ask as the model does', 'Search what left the context, or give a reference to get that message back exactly.'));
      return;
    }
    answer.replaceChildren(loading('Searching'));
    try {
      const found = await get(session(frame.id, '/recall'), {query}, frame.signal);
      answer.replaceChildren(h('section', {class: 'card flush'},
        h('h2', {}, 'Answer of the recall tool', h('span', {class: 'faint', text: found.tokens ? `${short(found.tokens)} tokens` : 'exactly as the model gets it'}), button('Copy the answer', {icon: 'copy', bare: true, kind: 'ghost small', on: {click: () => copy(found.text, 'the answer')}})),
        found.seqs.length ? h('div', {class: 'meta pad-small'}, 'Messages', found.seqs.slice(0, 24).map((seq) => h('button', {type: 'button', class: 'link', text: `#${seq}`, 'aria-label': `Open message ${seq}`, on: {click: () => frame.message(seq)}}))) : null,
        h('div', {class: 'text', tabindex: 0, role: 'region', 'aria-label': 'Answer'}, h('pre', {class: 'chunk', dir: 'auto'}, plain(found.text)))));
    } catch (error) {
      if (error.name !== 'AbortError') answer.replaceChildren(empty('Recall did not answer', error.message));
    }
  }

  return {element, show: async (wanted) => {
    box.value = wanted.params.query ?? box.value;
    await ask();
    if (!box.value) box.focus();
  }};
}
