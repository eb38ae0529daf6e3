// Tables that change in place: a row that has not changed costs nothing, and one that has changes only what is other.
//
// A column: id, title, `cell(row)` for its text or `draw(td, row)` for more, `num`, `show` ("mid", "wide": only where
// there is room), `sort(row)`.

import { el, say } from "./dom.js";

const RESORT_MS = 3000; // rows that jump each second cannot be read
const inOrder = new Intl.Collator("en", { numeric: true });

export class Table {
  constructor({ columns, empty, label, first = 100, sort = null, rowClass = null }) {
    Object.assign(this, { columns, emptyText: empty, first, rowClass });
    this.sorted = sort; // { id, down }
    this.rows = new Map(); // name -> { row, tr, cells }
    this.given = []; // names, as they came last
    this.order = [];
    this.filter = null;
    this.all = false;
    this.isLoaded = false; // until there are rows, or is none
    this.sortedAt = 0;
    this.heads = new Map();
    const heads = columns.map((column) => this.#head(column));
    this.body = el("tbody");
    this.more = el("button", { type: "button", class: "tools", hidden: true, onclick: () => this.#showAll() });
    this.node = el("div", {}, el("div", { class: "scroll" }, el("table", { "aria-label": label }, el("thead", {}, el("tr", {}, ...heads)), this.body)), this.more);
    this.#markSort();
    this.#arrange();
  }

  /** Shows these rows, by name; a row whose object is the same has not changed. */
  update(rows) {
    this.isLoaded = true;
    let others = this.sorted === null && !same(this.given, (this.given = [...rows.keys()]));
    for (const [name, kept] of this.rows) {
      if (!rows.has(name)) {
        kept.tr?.remove();
        this.rows.delete(name);
        others = true;
      }
    }
    for (const [name, row] of rows) {
      const kept = this.rows.get(name);
      if (kept === undefined) {
        this.rows.set(name, { row, tr: null, cells: null, stale: true });
        others = true;
      } else if (kept.row !== row) {
        kept.row = row;
        kept.stale = true;
      }
    }
    const due = this.sorted !== null && performance.now() - this.sortedAt > RESORT_MS;
    if (others || due || this.order.length === 0 || this.filter !== null) this.#arrange();
    for (const name of this.shown) this.#refresh(this.rows.get(name));
  }

  /** Draws all shown rows again: what they show hangs on more than the row. */
  redraw() {
    for (const name of this.shown ?? []) {
      this.rows.get(name).stale = true;
      this.#refresh(this.rows.get(name));
    }
  }

  /** Only rows for which `keeps(row)` says so; null for all. */
  setFilter(keeps) {
    this.filter = keeps;
    this.#arrange();
    for (const name of this.shown) this.#refresh(this.rows.get(name));
  }

  #head(column) {
    const title = column.sort ? el("button", { type: "button", text: column.title, onclick: () => this.#sortBy(column.id) }) : el("span", { text: column.title });
    const head = el("th", { scope: "col", class: classes(column), title: column.help }, title);
    this.heads.set(column.id, head);
    return head;
  }

  #sortBy(id) {
    const down = this.sorted?.id === id ? !this.sorted.down : this.columns.find((one) => one.id === id).num === true;
    this.sorted = { id, down };
    this.#markSort();
    this.#arrange();
    for (const name of this.shown) this.#refresh(this.rows.get(name));
  }

  #markSort() {
    for (const [id, head] of this.heads) {
      if (this.sorted?.id === id) head.setAttribute("aria-sort", this.sorted.down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    }
  }

  #showAll() {
    this.all = true;
    this.#arrange();
    for (const name of this.shown) this.#refresh(this.rows.get(name));
  }

  #arrange() {
    this.sortedAt = performance.now();
    let names = this.sorted === null ? this.given : [...this.rows.keys()];
    if (this.filter !== null) names = names.filter((name) => this.filter(this.rows.get(name).row));
    if (this.sorted !== null) {
      const by = this.columns.find((one) => one.id === this.sorted.id).sort;
      const keys = new Map(names.map((name) => [name, by(this.rows.get(name).row)]));
      const turn = this.sorted.down ? -1 : 1;
      names.sort((a, b) => turn * compare(keys.get(a), keys.get(b)));
    }
    const shown = this.all ? names : names.slice(0, this.first);
    this.more.hidden = shown.length === names.length;
    say(this.more, `Show all ${names.length}`);
    this.order = names;
    if (same(this.shown, shown) && shown.length > 0) return;
    const wanted = new Set(shown);
    for (const name of this.shown ?? []) if (!wanted.has(name)) this.rows.get(name)?.tr?.remove();
    this.shown = shown;
    this.body.querySelector("tr.empty")?.remove();
    let before = this.body.firstElementChild;
    for (const name of shown) {
      const kept = this.rows.get(name);
      if (kept.tr === null) this.#make(kept);
      if (kept.tr === before) before = before.nextElementSibling;
      else this.body.insertBefore(kept.tr, before);
    }
    if (shown.length === 0) {
      const text = !this.isLoaded ? "Loading …" : this.rows.size === 0 ? this.emptyText : "None of them matches.";
      this.body.append(el("tr", { class: "empty" }, el("td", { colspan: this.columns.length, text })));
    }
  }

  #make(kept) {
    kept.cells = this.columns.map((column) => el("td", { class: classes(column) }));
    kept.tr = el("tr", {}, ...kept.cells);
    kept.stale = true;
  }

  #refresh(kept) {
    if (!kept.stale) return;
    kept.stale = false;
    if (this.rowClass !== null) {
      const name = this.rowClass(kept.row);
      if (kept.tr.className !== name) kept.tr.className = name;
    }
    this.columns.forEach((column, index) => {
      if (column.draw !== undefined) column.draw(kept.cells[index], kept.row);
      else say(kept.cells[index], column.cell(kept.row));
    });
  }
}

const classes = (column) => [column.num && "num", column.show, column.kind].filter(Boolean).join(" ") || null;

function compare(a, b) {
  if (a === b) return 0;
  if (a === null || a === undefined) return -1;
  if (b === null || b === undefined) return 1;
  return typeof a === "string" && typeof b === "string" ? inOrder.compare(a, b) : a < b ? -1 : 1;
}

const same = (a, b) => a !== undefined && a.length === b.length && a.every((one, index) => one === b[index]);
