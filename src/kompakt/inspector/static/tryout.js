// Try it: what a compaction to some budget would do. Nothing is written.

import './rows.js';
import {post, session} from './api.js';
import {button, count, debounce, h, icon, known, line, number, percent, plain, short} from './dom.js';
import {messageCells, messageHead} from './messages.js';

export function tryScreen(frame, place) {
  const detail = frame.detail;
  const most = Math.max(2000, detail.window ?? 0, detail.tokens ?? 0);
  const ceiling = Math.max(2000, Math.min(most, Math.ceil((detail.tokens ?? most) * 1.1)));
  const floor = Math.min(1000, ceiling);
  const wanted = Number(place.params.budget) || Math.round((detail.tokens ?? ceiling) / 2);
  const start = Math.min(ceiling, Math.max(floor, wanted));
  const slider = h('input', {type: 'range', id: 'budget', min: floor, max: ceiling, step: Math.max(1, Math.round((ceiling - floor) / 500)), value: start, 'aria-label': 'Budget in tokens'});
  const exact = h('input', {type: 'number', min: 1, max: most, value: start, 'aria-label': 'Exact budget in tokens'});
  const policy = h('select', {'aria-label': 'Policy'}, detail.policies.map((name) => h('option', {value: name, text: name, selected: name === (place.params.policy ?? detail.policies[0])})));
  const result = h('div', {class: 'stack', 'aria-live': 'polite', 'aria-busy': 'false'});
  const apply = frame.can('compact') ? button('Compact with these settings', {icon: 'compact', kind: 'primary', on: {click: run}}) : null;
  const element = h('div', {class: 'stack'},
    h('section', {class: 'card'},
      h('div', {class: 'controls'},
        h('label', {class: 'control wide', for: 'budget'}, h('span', {text: 'Budget'}), slider),
        h('label', {class: 'control'}, h('span', {text: 'Tokens'}), exact),
        h('label', {class: 'control'}, h('span', {text: 'Policy'}), policy), apply),
      h('p', {class: 'faint note', text: 'A dry run with the session’s own messages. Nothing is written and no model is called.'})),
    result);
  let stop = null;

  const budget = () => Number(exact.value) || start;

  async function preview() {
    stop?.abort();
    stop = new AbortController();
    frame.signal.addEventListener('abort', () => stop.abort());
    frame.note({budget: budget(), policy: policy.value});
    result.setAttribute('aria-busy', 'true');
    try {
      draw(await post(session(frame.id, '/preview'), {budget: budget(), policy: policy.value}, stop.signal));
    } catch (error) {
      if (error.name === 'AbortError') return;
      result.replaceChildren(h('p', {class: 'verdict bad', role: 'alert'}, icon('warn'), plain(error.message)));
    }
    result.setAttribute('aria-busy', 'false');
  }

  function draw(view) {
    const whole = Math.ceil(view.tokens_before * 1.1); // a transcript starts from more than the current context
    if (whole > Number(slider.max)) {
      slider.max = exact.max = whole;
      slider.step = Math.max(1, Math.round((whole - floor) / 500));
      slider.value = exact.value;
    }
    const rows = view.removed;
    const top = Math.max(view.tokens_before, view.budget ?? 0, 1);
    const share = (value) => `${Math.max(0.5, (value / top) * 100)}%`;
    const list = h('k-rows', {id: 'would', class: 'list', 'aria-label': 'Messages that would be replaced', on: {open: (event) => frame.message(event.detail.row.seq)}});
    result.replaceChildren(
      h('section', {class: 'card'},
        h('div', {class: 'bar'}, view.fits ? h('span', {class: 'tag good'}, icon('check'), 'fits') : h('span', {class: 'tag bad'}, icon('warn'), 'does not fit'),
          h('strong', {text: `${number(view.tokens_before)} → ${number(view.tokens_after)} tokens`}), h('span', {class: 'grow'}),
          h('span', {class: 'faint', text: known(view.seconds) ? `computed in ${Math.max(1, Math.round(view.seconds * 1000))} ms` : ''})),
        h('div', {class: 'shrink', role: 'img', 'aria-label': `${number(view.tokens_before)} tokens before, ${number(view.tokens_after)} after, budget ${number(view.budget)}`},
          h('span', {class: 'shrink-name', text: 'before'}), h('span', {class: 'shrink-bar'}, h('span', {vars: {width: share(view.tokens_before)}})), h('b', {text: number(view.tokens_before)}),
          h('span', {class: 'shrink-name', text: 'after'}), h('span', {class: 'shrink-bar after'}, h('span', {vars: {width: share(view.tokens_after)}}), h('i', {class: 'budget-mark', title: `Budget ${number(view.budget)}`, vars: {left: `${Math.min(100, (view.budget / top) * 100)}%`}})), h('b', {text: number(view.tokens_after)})),
        view.note ? h('p', {class: 'faint note', text: view.note}) : null,
        view.problems.map((problem) => h('p', {class: 'problem'}, line(problem)))),
      h('div', {class: 'sides'},
        h('section', {class: 'card flush side'}, h('h2', {}, 'Would be replaced', h('span', {class: 'faint', text: `${count(view.removed_count, 'message')} · ${short(view.removed_tokens)} tokens${view.removed_count > rows.length ? `, the first ${rows.length} shown` : ''}`})), messageHead(), list),
        h('section', {class: 'card flush side'}, h('h2', {}, 'Pivot', h('span', {class: 'faint', text: 'as the model would read it'})),
          h('div', {class: 'text pivot-scroll', tabindex: 0, role: 'region', 'aria-label': 'Pivot as the model would read it'}, view.pivot ? h('pre', {class: 'chunk', dir: 'auto'}, plain(view.pivot)) : h('p', {class: 'faint pad', text: 'No pivot: nothing has to be replaced.'})))));
    list.show({total: rows.length, load: (from, limit) => rows.slice(from, from + limit), draw: messageCells, height: 40});
  }

  async function run() {
    const done = await frame.act({action: 'compact', budget: budget(), policy: policy.value}, {
      title: 'Compact this session now?', label: 'Compact now',
      text: `Policy ${policy.value}, budget ${number(budget())} tokens. The next request carries the pivot. Every message stays in the store, and you can undo this.`,
    });
    if (done) await preview();
  }

  const later = debounce(preview, 80);
  slider.addEventListener('input', () => {
    exact.value = slider.value;
    later();
  });
  exact.addEventListener('input', () => {
    slider.value = exact.value;
    later();
  });
  policy.addEventListener('change', preview);

  return {element, show: () => (result.firstChild ? null : preview()), move: (by) => element.querySelector('k-rows')?.move(by)};
}
