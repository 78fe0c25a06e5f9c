// The page: address, top bar, theme, keys. Each screen is a module that returns an element.

import {address, parse} from './address.js';
import {login} from './dialogs.js';
import {button, empty, h, icon, toast} from './dom.js';
import {sessionFrame} from './session.js';
import {sessionList} from './sessions.js';

const main = document.getElementById('main');
let shown = null; // {id, screen, stop}

async function route() {
  if (!/^#?(\/|$)/.test(location.hash)) return; // a link inside the page
  const place = parse(location.hash);
  for (const open of document.querySelectorAll('dialog[open]')) open.close('left');
  if (shown?.id !== place.id || !shown) {
    shown?.stop.abort();
    const stop = new AbortController();
    const screen = place.id === null ? sessionList(place, stop.signal, state) : sessionFrame(place.id, stop.signal, state);
    shown = {id: place.id, screen, stop};
    main.replaceChildren(screen.element);
    window.scrollTo(0, 0);
  }
  trail(place);
  try {
    await shown.screen.show(place);
  } catch (error) {
    if (error.name === 'AbortError') return;
    shown?.stop.abort();
    shown = null;
    main.replaceChildren(h('section', {class: 'page'}, empty('This page could not be shown', error.message), h('p', {class: 'more'}, h('a', {href: '#/', class: 'button', text: 'All sessions'}))));
  }
}

// Top bar ---------------------------------------------------------------------------------------------------------

const crumb = h('nav', {class: 'trail', 'aria-label': 'Position'});
const live = h('span', {class: 'live', text: 'Live', title: 'Changes appear at once', hidden: true});

function state(open) {
  live.hidden = !open;
}

function trail(place) {
  crumb.replaceChildren(...(place.id === null ? [] : [icon('right'), h('a', {href: '#/', text: 'Sessions'})]));
}

const THEMES = ['system', 'light', 'dark'];

function theme(name) {
  if (name === 'system') delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  toggle.title = `Theme: ${name} (t)`;
  toggle.setAttribute('aria-label', `Theme: ${name}`);
}

function stored() {
  try {
    const name = localStorage.getItem('kompakt-theme');
    return THEMES.includes(name) ? name : 'system';
  } catch {
    return 'system';
  }
}

let chosen = stored();
function nextTheme() {
  const dark = matchMedia('(prefers-color-scheme: dark)').matches;
  // The first press changes what is seen; the third returns to the setting of the system.
  const order = dark ? ['system', 'light', 'dark'] : ['system', 'dark', 'light'];
  chosen = order[(order.indexOf(chosen) + 1) % order.length];
  theme(chosen);
  try {
    localStorage.setItem('kompakt-theme', chosen);
  } catch {
    // Without storage the choice lasts until the page is closed.
  }
}

const toggle = button('Theme', {icon: 'theme', bare: true, kind: 'ghost', on: {click: nextTheme}});
const helper = button('Keyboard help', {icon: 'help', bare: true, kind: 'ghost', on: {click: help}});
document.getElementById('top').append(
  h('a', {class: 'brand', href: '#/', 'aria-label': 'kompakt inspector, sessions'}, icon('compact'), h('span', {text: 'kompakt'})),
  crumb, h('span', {class: 'grow'}), live, toggle, helper,
);
theme(chosen);

// Keys ------------------------------------------------------------------------------------------------------------

const KEYS = [
  ['/', 'Search'], ['j / k', 'Next and previous row'], ['Enter', 'Open'], ['Esc', 'Close, or one level up'],
  ['1 – 6', 'Tabs of a session'], ['← / →', 'Steps in the chart'], ['t', 'Theme'], ['?', 'This help'],
];

function help() {
  const dialog = h('dialog', {class: 'dialog', 'aria-labelledby': 'help-title'},
    h('h2', {id: 'help-title', text: 'Keyboard'}),
    h('dl', {class: 'keys'}, KEYS.map(([key, what]) => [h('dt', {}, h('kbd', {text: key})), h('dd', {text: what})])),
    h('form', {method: 'dialog', class: 'dialog-buttons'}, h('button', {class: 'button', text: 'Close', autofocus: true})));
  dialog.addEventListener('close', () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

document.addEventListener('keydown', (event) => {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
  if (document.querySelector('dialog[open]')) return; // a dialog closes itself on Esc
  const typing = event.target.closest('input:not([type=range]), textarea, select');
  if (typing) {
    if (event.key === 'Escape') typing.blur();
    return;
  }
  const screen = shown?.screen;
  const actions = {
    '/': () => (main.querySelector('input[type=search]') ?? recall())?.focus?.(),
    '?': help,
    t: nextTheme,
    j: () => screen?.move?.(1),
    k: () => screen?.move?.(-1),
    Escape: () => screen?.up?.(),
  };
  if (/^[1-6]$/.test(event.key) && screen?.tab) screen.tab(Number(event.key) - 1);
  else if (event.key in actions) actions[event.key]();
  else return;
  event.preventDefault();
});

function recall() {
  if (shown?.id) location.hash = address(shown.id, 'recall');
}

// Requests of a screen that was left end with an AbortError. Any other failure in the background is shown.
addEventListener('unhandledrejection', (event) => {
  event.preventDefault();
  if (event.reason?.name !== 'AbortError') toast(event.reason?.message ?? String(event.reason), 'error');
});
document.addEventListener('key-required', login);
addEventListener('hashchange', route);
route();
