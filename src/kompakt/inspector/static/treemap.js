// <k-treemap>: what the context consists of, by group, tool and message. Each tile is a button.

import {h, kindClass, kindName, line, number, percent, plain, short} from './dom.js';

const HEAD = 22, SMALLEST = 5, MOST = 600;

class Treemap extends HTMLElement {
  #root = null;
  #path = [];
  #width = 0;
  #left = 0;
  #resize = new ResizeObserver(([entry]) => {
    if (Math.round(entry.contentRect.width) !== this.#width) this.#draw();
  });

  connectedCallback() {
    this.#resize.observe(this);
  }

  disconnectedCallback() {
    this.#resize.disconnect();
  }

  /** The `tree` of a context; a new one keeps the position. Event `open` has the node of a message. */
  set tree(root) {
    const names = this.#path.map((node) => node.name);
    this.#root = root;
    this.#path = [];
    for (const name of names) {
      const next = (this.#path.at(-1) ?? root).children.find((child) => child.name === name && child.children.length);
      if (!next) break;
      this.#path.push(next);
    }
    this.#draw();
  }

  #draw(focus = false) {
    if (!this.#root || !this.isConnected) return;
    this.#width = Math.round(this.clientWidth);
    const node = this.#path.at(-1) ?? this.#root;
    const height = this.#width < 560 ? 360 : 440;
    const field = h('div', {class: 'treemap-field', role: 'group', 'aria-label': `Context by size: ${node.name}`, vars: {height: `${height}px`}});
    this.#left = MOST;
    this.#place(field, node, {x: 0, y: 0, w: this.#width, h: height}, this.#path.length, node.kind);
    this.replaceChildren(this.#trail(), field);
    if (focus) this.querySelector('.tile, .crumb')?.focus();
  }

  #trail() {
    const all = [this.#root, ...this.#path];
    return h('nav', {class: 'crumbs', 'aria-label': 'Treemap position'}, all.map((node, depth) => {
      const name = depth ? label(node) : 'Whole context';
      const size = h('b', {text: short(node.tokens)});
      if (depth === all.length - 1) return h('span', {class: 'crumb', 'aria-current': 'location'}, line(name), size);
      return h('button', {type: 'button', class: 'crumb', on: {click: () => {
        this.#path = this.#path.slice(0, depth);
        this.#draw(true);
      }}}, line(name), size);
    }));
  }

  #place(field, node, box, depth, kind) {
    const children = (node.children ?? []).filter((child) => child.tokens > 0).toSorted((a, b) => b.tokens - a.tokens);
    const total = children.reduce((sum, child) => sum + child.tokens, 0);
    if (!total) return;
    for (const [child, at] of squarify(children, total, box)) {
      const name = label(child).startsWith(`${node.name}: `) ? label(child).slice(node.name.length + 2) : label(child);
      if (this.#left <= 0 || at.w < SMALLEST || at.h < SMALLEST) continue;
      this.#left -= 1;
      const own = child.kind ?? kind;
      const inner = child.children?.length > 0;
      const share = child.tokens / Math.max(1, this.#root.tokens);
      const room = at.w > 44 && at.h > 16;
      const tile = h('button', {
        type: 'button', class: `tile ${kindClass(own)} depth-${Math.min(3, depth + (inner ? 0 : 1))} ${inner ? 'parent' : 'leaf'} ${room ? '' : 'tiny'}`,
        'aria-label': `${label(child)}, ${number(child.tokens)} tokens, ${percent(share)}`,
        title: `${label(child)}\n${number(child.tokens)} tokens · ${percent(share)}`,
        vars: {left: `${at.x}px`, top: `${at.y}px`, width: `${Math.max(0, at.w - 2)}px`, height: `${Math.max(0, at.h - 2)}px`},
        on: {click: () => this.#open(child)},
      }, room ? [h('span', {class: 'tile-name'}, h('bdi', {}, plain(name))), at.w > 90 ? h('span', {class: 'tile-size', text: short(child.tokens)}) : null] : null);
      field.append(tile);
      if (inner && at.h > HEAD + 14 && at.w > 24) {
        this.#place(field, child, {x: at.x + 3, y: at.y + HEAD, w: at.w - 6, h: at.h - HEAD - 3}, depth + 1, own);
      }
    }
  }

  #open(node) {
    if (node.children?.length) {
      this.#path = [...this.#trailTo(node)];
      this.#draw(true);
    } else {
      this.dispatchEvent(new CustomEvent('open', {detail: node}));
    }
  }

  #trailTo(wanted, from = this.#root) {
    for (const child of from.children ?? []) {
      if (child === wanted) return [child];
      const rest = this.#trailTo(wanted, child);
      if (rest.length) return [child, ...rest];
    }
    return [];
  }
}

function label(node) {
  return node.name === node.kind ? kindName(node.kind) : String(node.name ?? '');
}

/** Yield `[child, box]` with areas in proportion to tokens and sides as equal as possible. */
function* squarify(children, total, box) {
  let {x, y, w, h: tall} = box;
  let rest = total, index = 0;
  while (index < children.length && w > 0 && tall > 0) {
    const side = Math.min(w, tall), scale = (w * tall) / rest;
    let row = [], sum = 0, worst = Infinity;
    while (index + row.length < children.length) {
      const next = children[index + row.length].tokens * scale;
      const largest = (row[0]?.tokens ?? children[index].tokens) * scale;
      const grown = sum + next;
      const ratio = Math.max((side * side * largest) / (grown * grown), (grown * grown) / (side * side * next));
      if (ratio > worst) break;
      worst = ratio;
      sum = grown;
      row.push(children[index + row.length]);
    }
    const thick = sum / side;
    let along = 0;
    for (const child of row) {
      const length = (child.tokens * scale) / thick;
      yield [child, w <= tall ? {x: x + along, y, w: length, h: thick} : {x, y: y + along, w: thick, h: length}];
      along += length;
    }
    if (w <= tall) [y, tall] = [y + thick, tall - thick];
    else [x, w] = [x + thick, w - thick];
    rest -= row.reduce((all, child) => all + child.tokens, 0);
    index += row.length;
  }
}

customElements.define('k-treemap', Treemap);
