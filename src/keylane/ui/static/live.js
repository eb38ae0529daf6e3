// What the server tells, as it comes: the whole view first, then what has changed.

const ROWS = ["groups", "members", "partitions"];

/** Listens while the page is visible. `shown(view, changed)` is called for each change, `status(text, isOn)` for more. */
export class Live {
  constructor(group, shown, status) {
    Object.assign(this, { group, shown, status });
    this.view = null;
    this.onVisible = () => (document.hidden ? this.#stop() : this.#start());
    document.addEventListener("visibilitychange", this.onVisible);
    if (!document.hidden) this.#start();
  }

  close() {
    document.removeEventListener("visibilitychange", this.onVisible);
    this.#stop();
  }

  #start() {
    if (this.source) return;
    this.source = new EventSource(`/api/events?group=${encodeURIComponent(this.group)}`);
    this.source.onmessage = (event) => this.#take(JSON.parse(event.data));
    this.source.onopen = () => this.status("live", true);
    this.source.onerror = () => {
      this.status("no answer", false);
      if (this.source?.readyState === EventSource.CLOSED) {
        this.#stop(); // the server refused it: try again later
        this.again = setTimeout(() => this.#start(), 3000);
      }
    };
  }

  #stop() {
    clearTimeout(this.again);
    this.source?.close();
    this.source = null;
  }

  #take(told) {
    if (told.whole === true) {
      this.view = { history: [] };
      for (const [section, now] of Object.entries(told)) this.view[section] = ROWS.includes(section) ? new Map(Object.entries(now)) : now;
    } else if (this.view !== null) {
      for (const [section, now] of Object.entries(told)) this.#merge(section, now);
    } else return;
    if (told.whole !== true && told.point !== undefined) {
      this.view.history.push(told.point);
      while (this.view.history[0][0] < told.point[0] - 600_000) this.view.history.shift();
    }
    this.shown(this.view, told);
  }

  #merge(section, now) {
    if (!ROWS.includes(section)) {
      this.view[section] = now;
      return;
    }
    const rows = (this.view[section] ??= new Map());
    for (const [name, row] of Object.entries(now)) {
      if (row === null) rows.delete(name);
      else rows.set(name, row);
    }
  }
}
