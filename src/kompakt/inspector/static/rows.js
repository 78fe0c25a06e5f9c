// <k-rows>: a list that shows only the rows in view and loads them in pages.

import {h} from './dom.js';

const PAGE = 100, KEPT = 40, SPARE = 8;

class Rows extends HTMLElement {
  #source = null;
  #total = 0;
  #pages = new Map();
  #shown = new Map();
  #active = -1;
  #marked = new Set();
  #field = h('div', {class: 'rows-field', role: 'presentation'});
  #frame = 0;
  #resize = new ResizeObserver(() => this.#later());

  connectedCallback() {
    if (!this.hasAttribute('role')) this.setAttribute('role', 'listbox');
    this.tabIndex = 0;
    this.append(this.#field);
    this.#resize.observe(this);
    this.addEventListener('scroll', this.#later, {passive: true});
    this.addEventListener('keydown', this.#keys);
    this.addEventListener('click', this.#click);
  }

  disconnectedCallback() {
    this.#resize.disconnect();
    cancelAnimationFrame(this.#frame);
  }

  /**
   * Show `total` rows. `load(start, limit)` returns rows, at once or as a promise; `draw(row, index)` fills one.
   * Events: `choose` (a row becomes active) and `open` (Enter or click), each with `{row, index}`.
   */
  show({total, load, draw, height = 36, first = null}) {
    this.#source = {load, draw, height};
    this.#total = total;
    this.#pages.clear();
    this.#marked.clear();
    if (first) this.#pages.set(0, first);
    this.#active = Math.min(this.#active, total - 1);
    this.#clear();
    this.#field.style.setProperty('height', `${total * height}px`);
    this.#paint();
  }

  get total() {
    return this.#total;
  }

  get active() {
    return this.#active;
  }

  /** The element of a row that is in view. */
  node(index) {
    return this.#shown.get(index);
  }

  /** Load rows again, without losing the position; a list that shows its end keeps showing it. */
  refresh(total) {
    const atEnd = this.#total > 0 && this.scrollTop + this.clientHeight >= this.#total * this.#source.height - 4;
    const grown = total !== this.#total;
    this.#total = total;
    this.#pages.clear();
    this.#field.style.setProperty('height', `${total * this.#source.height}px`);
    if (atEnd && grown && this.scrollTop > 0) this.scrollTop = this.scrollHeight;
    this.#paint();
  }

  /** Mark rows by index, e.g. those that a line of the pivot refers to. */
  mark(indices) {
    this.#marked = new Set(indices);
    for (const [index, node] of this.#shown) node.classList.toggle('marked', this.#marked.has(index));
  }

  move(by) {
    this.select(this.#active < 0 ? (by > 0 ? 0 : this.#total - 1) : this.#active + by);
  }

  /** Make a row active and bring it into view. */
  select(index, {middle = false, quiet = false} = {}) {
    if (!this.#total) return;
    this.#active = Math.max(0, Math.min(this.#total - 1, index));
    const {height} = this.#source;
    const from = this.#active * height, room = this.clientHeight;
    if (middle) this.scrollTop = from - room / 2 + height / 2;
    else if (from < this.scrollTop) this.scrollTop = from;
    else if (from + height > this.scrollTop + room) this.scrollTop = from + height - room;
    this.#paint();
    this.#state();
    if (!quiet) this.#tell('choose');
  }

  async open() {
    if (this.#active >= 0) await this.#tell('open');
  }

  async #tell(type) {
    const index = this.#active;
    const row = await this.#row(index);
    if (row && index === this.#active) this.dispatchEvent(new CustomEvent(type, {detail: {row, index}}));
  }

  async #row(index) {
    const page = Math.floor(index / PAGE);
    return (await this.#page(page))?.[index - page * PAGE];
  }

  #page(number) {
    if (!this.#pages.has(number)) {
      if (this.#pages.size >= KEPT) this.#pages.delete(this.#pages.keys().next().value);
      const limit = Math.min(PAGE, this.#total - number * PAGE);
      const loaded = this.#source.load(number * PAGE, limit);
      this.#pages.set(number, loaded);
      if (loaded instanceof Promise) {
        const pages = this.#pages;
        loaded.then((rows) => {
          if (pages.get(number) === loaded) pages.set(number, rows);
          this.#later();
        }, () => pages.delete(number));
      }
    }
    return this.#pages.get(number);
  }

  #later = () => {
    cancelAnimationFrame(this.#frame);
    this.#frame = requestAnimationFrame(() => this.#paint());
  };

  #clear() {
    for (const node of this.#shown.values()) node.remove();
    this.#shown.clear();
  }

  #paint() {
    if (!this.#source || !this.isConnected) return;
    const {height, draw} = this.#source;
    const first = Math.max(0, Math.floor(this.scrollTop / height) - SPARE);
    const last = Math.min(this.#total, Math.ceil((this.scrollTop + this.clientHeight) / height) + SPARE);
    for (const [index, node] of this.#shown) {
      if (index >= first && index < last) continue;
      node.remove();
      this.#shown.delete(index);
    }
    for (let index = first; index < last; index += 1) {
      const page = Math.floor(index / PAGE);
      const rows = this.#page(page);
      const row = Array.isArray(rows) ? rows[index - page * PAGE] : null;
      const old = this.#shown.get(index);
      if (old && (!row || old.filled === row)) continue;
      const node = h('div', {
        class: `row ${row ? '' : 'waiting'} ${this.#marked.has(index) ? 'marked' : ''}`, role: 'option', id: `${this.id || 'row'}-${index}`,
        'aria-setsize': this.#total, 'aria-posinset': index + 1, 'aria-selected': index === this.#active,
        vars: {transform: `translateY(${index * height}px)`, height: `${height}px`},
      });
      node.filled = row;
      node.index = index;
      if (row) node.append(...draw(row, index));
      if (old) old.replaceWith(node);
      else this.#field.append(node);
      this.#shown.set(index, node);
    }
    this.#state();
  }

  #state() {
    for (const [index, node] of this.#shown) node.setAttribute('aria-selected', index === this.#active);
    const active = this.#shown.get(this.#active);
    if (active) this.setAttribute('aria-activedescendant', active.id);
    else this.removeAttribute('aria-activedescendant');
  }

  #keys = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const page = Math.max(1, Math.floor(this.clientHeight / this.#source.height) - 1);
    const moves = {ArrowDown: 1, ArrowUp: -1, j: 1, k: -1, PageDown: page, PageUp: -page};
    if (event.key === 'Home') this.select(0);
    else if (event.key === 'End') this.select(this.#total - 1);
    else if (event.key in moves) this.move(moves[event.key]);
    else if (event.key === 'Enter' || event.key === ' ') this.open();
    else return;
    event.preventDefault();
    event.stopPropagation();
  };

  #click = (event) => {
    const node = event.target.closest('.row');
    if (!node) return;
    this.select(node.index);
    this.open();
  };
}

customElements.define('k-rows', Rows);
