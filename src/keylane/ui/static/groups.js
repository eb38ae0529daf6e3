// The list of groups.

import { count, el, say } from "./dom.js";
import { Live } from "./live.js";
import { Table } from "./tables.js";

export function showGroups(main, status) {
  const table = new Table({
    label: "Groups",
    empty: "No consumer groups.",
    first: 200,
    sort: { id: "group", down: false },
    columns: [
      { id: "group", title: "Group", kind: "name", draw: drawName, sort: (row) => row.group },
      { id: "state", title: "State", cell: (row) => row.state, sort: (row) => row.state },
      { id: "protocol", title: "Protocol", show: "mid", cell: (row) => row.protocol, sort: (row) => row.protocol },
      { id: "members", title: "Members", num: true, cell: (row) => count(row.members), sort: (row) => row.members },
      { id: "lag", title: "Lag", num: true, show: "mid", help: "log end less committed offset", cell: (row) => count(row.lag), sort: (row) => row.lag },
      { id: "remaining", title: "Remaining", num: true, help: "what is really left: completed records above the committed offset are taken off", cell: (row) => count(row.remaining), sort: (row) => row.remaining },
      { id: "reports", title: "Members report", show: "mid", cell: (row) => (row.reports ? "yes" : ""), sort: (row) => row.reports },
    ],
  });
  const total = el("span", { class: "count" });
  const problem = el("p", { class: "problem", role: "alert" });
  const filter = el("input", { type: "search", placeholder: "Filter", "aria-label": "Filter groups", "data-filter": true, oninput: () => find() });
  const find = () => table.setFilter(filter.value === "" ? null : (row) => row.group.toLowerCase().includes(filter.value.toLowerCase()));
  main.replaceChildren(el("div", { class: "line" }, el("h1", { text: "Groups" }), total, el("span", { class: "fill" }), filter), problem, table.node);
  return new Live(
    "",
    (view) => {
      table.update(view.groups ?? new Map());
      say(total, count(view.groups?.size));
      say(problem, view.error ?? "");
    },
    status,
  );
}

function drawName(td, row) {
  const link = td.firstElementChild ?? td.appendChild(el("a"));
  say(link, row.group);
  link.href = `#/group/${encodeURIComponent(row.group)}`;
}
