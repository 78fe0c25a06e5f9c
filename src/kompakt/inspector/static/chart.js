// <k-growth>: tokens of each request, stacked by kind, with limits and compactions.

import {KINDS, h, kindClass, kindName, known, number, percent, short, svg} from './dom.js';

const LIMITS = {
  window: 'The most tokens that the model accepts', trigger: 'kompakt compacts a request that is larger', target: 'The size to which kompakt compacts',
};
const LEFT = 48, RIGHT = 12, TOP = 26, BOTTOM = 38, STRIP = 8;
const LABEL = 18; // labels of compactions are above this line, their marks below

class Growth extends HTMLElement {
  #data = null;
  #hidden = new Set();
  #whole = false;
  #at = -1;
  #width = 0;
  #resize = new ResizeObserver(([entry]) => {
    if (Math.round(entry.contentRect.width) !== this.#width) this.#draw();
  });

  connectedCallback() {
    this.#resize.observe(this);
  }

  disconnectedCallback() {
    this.#resize.disconnect();
  }

  /** The answer of `growth`. Events: `step` with the number of a step, `compaction` with an id. */
  set data(growth) {
    this.#data = growth;
    this.#at = Math.min(this.#at, growth.points.length - 1);
    this.#draw();
  }

  #shown() {
    return (this.#data.kinds ?? KINDS).filter((kind) => !this.#hidden.has(kind));
  }

  #totals() {
    const shown = this.#shown();
    return this.#data.points.map((point) => shown.reduce((sum, kind) => sum + (point.tokens[kind] ?? 0), 0));
  }

  #draw() {
    if (!this.#data || !this.isConnected) return;
    const {points, window: limit, reserve, trigger, target} = this.#data;
    this.#width = Math.round(this.clientWidth);
    const width = Math.max(280, this.#width), height = width < 560 ? 240 : 320;
    const totals = this.#totals();
    const compactions = this.#data.compactions ?? [];
    const peak = Math.max(1, ...totals, ...compactions.map((one) => one.before ?? 0));
    const lines = [['window', limit], ['trigger', trigger], ['target', target]].filter(([, at]) => at);
    const near = lines.map(([, at]) => at).filter((at) => at <= peak * 2);
    const top = nice(this.#whole && limit ? Math.max(limit, peak) : Math.max(peak, ...near) * 1.06);
    const inner = width - LEFT - RIGHT, floor = height - BOTTOM;
    const band = inner / Math.max(1, points.length);
    const gap = band > 6 ? Math.min(3, band * 0.2) : 0;
    const x = (index) => LEFT + index * band;
    const y = (tokens) => floor - (tokens / top) * (floor - TOP);
    const bar = Math.max(band - gap, 0.6);

    const chart = svg('svg', {
      class: 'growth-plot', width, height, viewBox: `0 0 ${width} ${height}`, role: 'img', tabindex: 0,
      'aria-label': this.#summary(totals), 'aria-keyshortcuts': 'ArrowLeft ArrowRight Enter',
    });
    if (limit && reserve && limit - reserve < top) {
      const from = y(Math.min(top, limit)), to = y(limit - reserve);
      chart.append(svg('rect', {class: 'reserve', x: LEFT, y: from, width: inner, height: Math.max(0, to - from)}));
    }
    for (const tick of ticks(top)) {
      chart.append(
        svg('line', {class: 'grid', x1: LEFT, x2: width - RIGHT, y1: y(tick), y2: y(tick)}),
        svg('text', {class: 'axis', x: LEFT - 8, y: y(tick) + 4, 'text-anchor': 'end', text: short(tick)}),
      );
    }
    const base = points.map(() => 0);
    for (const kind of this.#shown()) {
      let path = '';
      points.forEach((point, index) => {
        const size = point.tokens[kind] ?? 0;
        if (!size) return;
        const from = y(base[index]), to = y((base[index] += size));
        path += `M${x(index).toFixed(1)} ${from.toFixed(1)}h${bar.toFixed(1)}V${to.toFixed(1)}h${(-bar).toFixed(1)}Z`;
      });
      chart.append(svg('path', {class: `area ${kindClass(kind)}`, d: path}));
    }
    if (points.some((point) => known(point.cached))) {
      let path = '';
      points.forEach((point, index) => {
        const share = point.total ? Math.min(1, (point.cached ?? 0) / point.total) : 0;
        if (share) path += `M${x(index).toFixed(1)} ${floor + 6 + STRIP}h${bar.toFixed(1)}v${(-STRIP * share).toFixed(1)}h${(-bar).toFixed(1)}Z`;
      });
      chart.append(
        svg('rect', {class: 'cache-floor', x: LEFT, y: floor + 6, width: inner, height: STRIP}),
        svg('path', {class: 'cache', d: path}),
        svg('text', {class: 'axis', x: LEFT - 8, y: floor + 15, 'text-anchor': 'end', text: 'cache'}),
      );
    }
    this.#steps(chart, points, x, band, floor);
    const names = []; // above the markers, whose lines would cross them
    let below = -Infinity; // labels are placed from above; one that would touch another is below its line
    for (const [name, at] of lines) {
      if (at > top) continue;
      const place = y(at) - 4 < below + 13 ? y(at) + 12 : y(at) - 4;
      chart.append(svg('line', {class: `limit ${name}`, x1: LEFT, x2: width - RIGHT, y1: y(at), y2: y(at)}));
      if (place >= below + 13) names.push(svg('text', {class: `limit-name ${name}`, x: LEFT + 4, y: place, text: `${name} ${short(at)}`}, svg('title', {text: LIMITS[name]})));
      below = Math.max(below, place);
    }
    this.#markers(chart, points, compactions, x, y, floor, band, width);
    chart.append(...names);
    const cursor = svg('rect', {class: 'cursor', y: TOP, height: floor - TOP, width: Math.max(band, 1), visibility: 'hidden'});
    chart.append(cursor);
    this.#interact(chart, cursor, x, band, points, totals, width);
    this.replaceChildren(this.#legend(totals, limit, !this.#whole && limit <= top), h('div', {class: 'growth-frame'}, chart, this.tip));
  }

  #steps(chart, points, x, band, floor) {
    chart.append(svg('text', {class: 'axis', x: LEFT - 8, y: floor + STRIP + 22, 'text-anchor': 'end', text: 'step'}));
    const every = Math.max(1, Math.ceil(64 / band));
    points.forEach((point, index) => {
      if (index % every) return;
      chart.append(svg('text', {class: 'axis', x: x(index) + band / 2, y: floor + STRIP + 22, 'text-anchor': 'middle', text: point.step}));
    });
  }

  #markers(chart, points, compactions, x, y, floor, band, width) {
    let free = 0;
    for (const one of compactions) {
      const found = points.findIndex((point) => point.step >= one.step);
      const at = x(found < 0 ? points.length : found);
      const label = `${short(one.before)} → ${short(one.after)}`;
      const size = label.length * 6.4, start = Math.min(Math.max(LEFT, at - size / 2), width - RIGHT - size);
      const named = start >= free; // a mark without room for its label stays below the labels of others
      const link = svg('a', {
        class: `compaction-mark ${one.undone ? 'undone' : ''}`, href: '#', role: 'link', 'aria-label': `Compaction at step ${one.step}: ${number(one.before)} to ${number(one.after)} tokens${one.undone ? ', undone' : ''}`,
        on: {click: (event) => {
          event.preventDefault();
          this.dispatchEvent(new CustomEvent('compaction', {detail: one.id}));
        }},
      },
        svg('line', {class: 'hit', x1: at, x2: at, y1: named ? 4 : LABEL, y2: floor}),
        svg('line', {x1: at, x2: at, y1: LABEL, y2: floor}),
        named ? svg('text', {x: start, y: 13, text: label}) : svg('path', {class: 'tick', d: `M${at - 4} ${LABEL}h8l-4 7Z`}),
        known(one.before) ? svg('circle', {cx: at, cy: y(one.before), r: 3}) : null,
        known(one.after) ? svg('circle', {class: 'after', cx: at, cy: y(one.after), r: 3.5}) : null,
      );
      if (named) free = start + size + 12;
      chart.append(link);
    }
  }

  #interact(chart, cursor, x, band, points, totals, width) {
    this.tip = h('div', {class: 'tip', hidden: true});
    const show = (index) => {
      this.#at = index;
      const point = points[index];
      if (!point) {
        this.tip.hidden = true;
        cursor.setAttribute('visibility', 'hidden');
        return;
      }
      cursor.setAttribute('x', x(index));
      cursor.setAttribute('visibility', 'visible');
      this.tip.replaceChildren(
        h('div', {class: 'tip-title', text: `${point.step > this.#data.steps ? 'Next request' : `Step ${point.step}`} · ${number(point.total)} tokens`}),
        ...this.#shown().toReversed().filter((kind) => point.tokens[kind]).map((kind) =>
          h('div', {class: 'tip-row'}, h('span', {class: `dot ${kindClass(kind)}`}), h('span', {text: kindName(kind)}), h('b', {text: number(point.tokens[kind])}))),
        known(point.cached) ? h('div', {class: 'tip-row'}, h('span', {class: 'dot cache-dot'}), h('span', {text: 'From cache'}), h('b', {text: percent(point.total ? point.cached / point.total : 0)})) : '',
        h('div', {class: 'tip-hint', text: 'Click or press Enter for the request'}),
      );
      this.tip.hidden = false;
      const side = x(index) > width / 2;
      this.tip.classList.toggle('left', side);
      this.tip.style.setProperty('left', `${side ? x(index) - 8 : x(index) + band + 8}px`);
    };
    const locate = (event) => {
      const index = Math.floor((event.clientX - chart.getBoundingClientRect().left - LEFT) / band);
      return index >= 0 && index < points.length ? index : -1;
    };
    const open = () => points[this.#at] && this.dispatchEvent(new CustomEvent('step', {detail: points[this.#at].step}));
    chart.addEventListener('pointermove', (event) => show(locate(event)));
    chart.addEventListener('pointerleave', () => show(-1));
    chart.addEventListener('blur', () => show(-1));
    chart.addEventListener('click', (event) => {
      if (event.target.closest('.compaction-mark')) return;
      show(locate(event));
      open();
    });
    chart.addEventListener('keydown', (event) => {
      const moves = {ArrowLeft: -1, ArrowRight: 1, Home: -points.length, End: points.length};
      if (event.key in moves) {
        event.preventDefault();
        const from = this.#at < 0 ? (moves[event.key] < 0 ? points.length : -1) : this.#at;
        show(Math.max(0, Math.min(points.length - 1, from + moves[event.key])));
      } else if (event.key === 'Enter' && event.target === chart) {
        event.preventDefault();
        open();
      }
    });
  }

  #legend(totals, limit, fits) {
    const last = this.#data.points.at(-1);
    const entries = (this.#data.kinds ?? KINDS).map((kind) => h('button', {
      type: 'button', class: `legend-entry ${kindClass(kind)}`, 'aria-pressed': !this.#hidden.has(kind), title: 'Show or hide',
      on: {click: () => {
        if (!this.#hidden.delete(kind)) this.#hidden.add(kind);
        this.#draw();
        this.querySelectorAll('.legend-entry')[(this.#data.kinds ?? KINDS).indexOf(kind)].focus();
      }},
    }, h('span', {class: 'swatch'}), kindName(kind), h('b', {text: short(last?.tokens[kind] ?? 0)})));
    if (limit && last) {
      const free = Math.max(0, limit - (this.#data.reserve ?? 0) - (last.total ?? totals.at(-1)));
      entries.push(h('span', {class: 'legend-entry still'}, h('span', {class: 'swatch free'}), 'Free', h('b', {text: short(free)})));
      if (this.#data.reserve) {
        entries.push(h('span', {class: 'legend-entry still'}, h('span', {class: 'swatch reserve-swatch'}), 'Reserve', h('b', {text: short(this.#data.reserve)})));
      }
    }
    const whole = limit && !fits ? h('button', {
      type: 'button', class: 'button small', 'aria-pressed': this.#whole, text: 'Show whole window', title: 'Draw the sizes against the window of the model',
      on: {click: () => {
        this.#whole = !this.#whole;
        this.#draw();
        this.querySelector('.legend > .button').focus();
      }},
    }) : null;
    return h('div', {class: 'legend', role: 'group', 'aria-label': 'Kinds of content'}, h('div', {class: 'legend-entries'}, entries), whole);
  }

  #summary(totals) {
    const {points, compactions = [], window: limit} = this.#data;
    if (!points.length) return 'Growth of the context: no steps yet';
    const of = limit ? ` of a window of ${number(limit)}` : '';
    return `Growth of the context over ${number(points.length)} points up to step ${points.at(-1).step}: ` +
      `now ${number(totals.at(-1))} tokens${of}, at most ${number(Math.max(...totals))}, ${number(compactions.length)} compactions`;
  }
}

function nice(value) {
  const unit = 10 ** Math.floor(Math.log10(value));
  return [1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10].map((step) => step * unit).find((step) => step >= value);
}

function ticks(top) {
  const unit = 10 ** Math.floor(Math.log10(top));
  const step = [0.2, 0.25, 0.5, 1, 2, 2.5].map((part) => part * unit).find((part) => top / part <= 5);
  return Array.from({length: Math.floor(top / step) + 1}, (_, index) => index * step);
}

customElements.define('k-growth', Growth);
