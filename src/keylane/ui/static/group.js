// One group: figures, members and lanes, partitions, what is in hand, what waits and why, failures, commands.

import { about, askForToken, onLock, unlocked } from "./asking.js";
import { openCommand, titleOf, verbs } from "./acting.js";
import { clock, count, el, named, place, put, rate, say, span } from "./dom.js";
import { Chart, Charts, drawStrip } from "./drawings.js";
import { Live } from "./live.js";
import { openKeys, openNamed, openRecord } from "./singles.js";
import { Table } from "./tables.js";

const WHY = {
  running: "running", store: "its handler waits for a connection of the store", pool: "its HTTP call waits for a place in the pool", queued: "with the workers", delivering: "its outputs wait for the broker", retry: "it failed", throttled: "its service asks for a slower pace", scheduled: "it is not time yet",
  rate: "the rate", service: "its service is down", paused: "paused", commit: "too far ahead of what is committed", ready: "no worker is free",
};

export function showGroup(main, status, group) {
  let view = null;
  const chosen = new Set(); // partitions, by name
  const dlq = () => view?.dead_letter_topics?.[0] ?? "";
  const open = (row) => openRecord(group, named(row), dlq());
  const parts = { members: membersTable(), partitions: partitionsTable(chosen, () => tools.update()), in_hand: workTable(open, "in hand", "Nothing is in hand."), waiting: waitingTable(open), queues: queuesTable(open, (row) => openKeys(group, row)), failures: failuresTable(), log: logTable() };
  const charts = new Charts();
  const unit = (text, word) => [text, el("small", { text: ` ${word}` })];
  new Chart(charts, "Processed", [(p) => p[1]], (p) => unit(rate(p[1]), "/s"));
  new Chart(charts, "Handlers took", [(p) => p[3], (p) => p[4]], (p) => [p[3] === null ? "–" : span(p[3]), el("small", { text: p[4] === null ? "" : ` p50 · ${span(p[4])} p99` })]).label = (most) => span(most);
  new Chart(charts, "Failed", [(p) => p[2]], (p) => unit(rate(p[2]), "/s"), { failing: true });
  new Chart(charts, "Remaining", [(p) => p[6]], (p) => [count(p[6])]);

  const state = el("span", { class: "state" });
  const problem = el("p", { class: "problem", role: "alert" });
  const down = el("p", { class: "problem", role: "status" });
  const holds = el("p", { class: "holds", hidden: true });
  const facts = el("dl", { class: "facts" });
  const dead = el("dl", { class: "facts", hidden: true });
  const note = el("p", { class: "note", hidden: true });
  const tools = toolbar(group, chosen, () => view, (name) => parts.partitions.rows.get(name)?.row, dlq);
  const filter = el("input", { type: "search", placeholder: "Filter", "aria-label": "Filter partitions", "data-filter": true, oninput: () => find() });
  const left = el("input", { type: "checkbox", oninput: () => find() });
  const strips = el("span", { class: "key wide" }, el("i", { class: "all" }), "complete", el("i", { class: "some" }), "in part", el("i", { class: "none" }), "not", el("i", { class: "rest" }), "behind the map");
  const sections = {
    members: section("Members", parts.members.node),
    partitions: section("Partitions", parts.partitions.node, strips, el("span", { class: "fill" }), el("label", { class: "check tools" }, left, "with something left"), filter),
    in_hand: section("In hand, the oldest first", parts.in_hand.node),
    queues: section("Keys that wait, the longest first", parts.queues.node),
    waiting: section("Records that have a time, the next first", parts.waiting.node),
    failures: section("Failures", parts.failures.node),
    log: section("Commands of the last seven days", parts.log.node),
  };

  function find() {
    const words = filter.value.toLowerCase();
    const keeps = (row) => (!left.checked || row.remaining > 0) && (words === "" || `${row.topic}-${row.partition} ${row.member ?? ""}`.toLowerCase().includes(words));
    parts.partitions.setFilter(words === "" && !left.checked ? null : keeps);
  }

  function shown(now) {
    view = now;
    say(problem, now.error ?? "");
    say(down, (now.down ?? []).join(" · "));
    if (now.head === undefined) return;
    const { head } = now;
    say(state, head.state);
    drawFacts(facts, now);
    drawDead(dead, now.dead_letter_topics ?? []);
    holds.hidden = !now.holds?.length;
    say(holds, `Holds: ${(now.holds ?? []).join(" · ")}`);
    note.hidden = head.reports;
    lines.classList.toggle("few", !head.reports); // what commits do not tell
    parts.partitions.node.classList.toggle("few", !head.reports);
    say(note, "The members of this group tell nothing of themselves: what is here comes from its commits. Those of keylane tell more with operations=Operations(…), or keylane run --operate.");
    for (const name of ["in_hand", "queues", "waiting", "failures", "log"]) sections[name].node.hidden = !head.reports;
    const rows = withLanes(now.members ?? new Map());
    parts.members.update(rows);
    parts.members.redraw(); // when each was heard
    parts.partitions.update(now.partitions ?? new Map());
    for (const name of ["in_hand", "waiting"]) parts[name].update(byName(now[name] ?? [], (one) => `${one.member} ${one.lane} ${place(one)}`));
    parts.queues.update(byName(now.queues ?? [], (one) => `${one.member} ${one.lane} ${place(one)}`));
    parts.failures.update(byName([...(now.breakers ?? []).map(asFailure), ...(now.failures ?? [])], (one) => `${one.member} ${one.error} ${one.where}`));
    parts.log.update(byName(answersOf(now.log ?? []), (one) => `${one.command} ${one.member}`));
    charts.draw(now.history ?? []);
    const silent = [...(now.members?.values() ?? [])].filter((one) => one.silent).length;
    say(sections.members.count, `${count(now.members?.size ?? 0)}${silent > 0 ? `, ${silent} silent` : ""}`);
    say(sections.partitions.count, count(now.partitions?.size ?? 0));
    for (const name of ["in_hand", "queues", "waiting"]) say(sections[name].count, now[name]?.length === 50 ? "the first 50" : count(now[name]?.length ?? 0));
    tools.update();
  }

  const lines = el("div", { class: "charts" }, ...charts.charts.map((chart) => chart.node));
  main.replaceChildren(
    el("div", { class: "line" }, el("h1", { text: group }), state, el("span", { class: "fill" }), tools.node),
    problem, down, el("div", { class: "about" }, facts, dead), holds, note,
    lines,
    sections.members.node, sections.partitions.node,
    el("div", { class: "pair" }, sections.in_hand.node, sections.queues.node),
    el("div", { class: "pair" }, sections.waiting.node, sections.failures.node),
    sections.log.node,
  );
  return new Live(group, shown, status);
}

function section(title, content, ...more) {
  const number = el("span", { class: "count" });
  return { node: el("section", { "aria-label": title }, el("div", { class: "line" }, el("h2", { text: title }), number, ...more), content), count: number };
}

// --- the head ---

function drawFacts(facts, view) {
  const { head } = view;
  const reports = [...(view.members?.values() ?? [])].filter((one) => !one.silent);
  const sum = (name) => reports.reduce((total, one) => total + (one[name] ?? 0), 0);
  const shown = [["remaining", count(head.remaining)], ["lag", count(head.lag)]];
  if (head.unassigned?.length) shown.push(["nobody has", head.unassigned.slice(0, 3).join(", ") + (head.unassigned.length > 3 ? " …" : "")]);
  if (head.reports) shown.push(["in flight", `${count(sum("in_flight"))} of ${count(sum("concurrency"))}`], ["buffered", count(sum("buffered"))], ["dead", count(sum("dead_lettered"))], ["failed attempts", count(sum("failed"))]);
  shown.push(["protocol", head.protocol]);
  if (head.assignor) shown.push(["assignor", head.assignor]);
  if (head.coordinator) shown.push(["coordinator", head.coordinator]);
  while (facts.children.length > shown.length) facts.lastElementChild.remove();
  shown.forEach(([name, value], index) => {
    const fact = facts.children[index] ?? facts.appendChild(el("div", {}, el("dt"), el("dd")));
    say(fact.firstElementChild, name);
    say(fact.lastElementChild, value);
  });
}

/** Links to the dead-letter topics that members tell of. */
function drawDead(dead, topics) {
  dead.hidden = topics.length === 0;
  if (dead.dataset.topics === topics.join(" ")) return;
  dead.dataset.topics = topics.join(" ");
  const links = topics.map((topic) => el("a", { href: `#/letters/${encodeURIComponent(topic)}`, text: topic }));
  dead.replaceChildren(el("div", {}, el("dt", { text: "dead letters" }), el("dd", {}, ...links)));
}

function toolbar(group, chosen, viewOf, rowOf, dlq) {
  const words = el("span", { class: "quiet" });
  const buttons = verbs.map((verb) => el("button", { type: "button", text: titleOf(verb), "data-verb": verb, onclick: () => (unlocked() ? openCommand(group, verb, verb === "adjust" ? [] : topicsOf(chosen, rowOf)) : askForToken()) }));
  const keys = el("button", { type: "button", text: "Keys", onclick: () => openKeys(group) });
  const record = el("button", { type: "button", text: "Record", onclick: () => openNamed(group, dlq()) });
  const node = el("div", { class: "line tools", role: "group", "aria-label": "Commands", hidden: true }, words, ...buttons, keys, record);
  const update = () => {
    node.hidden = !about.acts || viewOf()?.head?.reports !== true;
    say(words, chosen.size === 0 ? "" : `${chosen.size} ${chosen.size === 1 ? "partition" : "partitions"}:`);
  };
  onLock(update);
  return { node, update };
}

/** As the command line has them: flights:0,3-5. */
function topicsOf(chosen, rowOf) {
  const topics = new Map();
  for (const row of [...chosen].map(rowOf).filter(Boolean)) topics.set(row.topic, [...(topics.get(row.topic) ?? []), row.partition]);
  return [...topics].map(([topic, numbers]) => `${topic}:${numbers.sort((a, b) => a - b).join(",")}`);
}

// --- tables ---

const byName = (rows, name) => new Map(rows.map((row) => [name(row), row]));

const withLane = (one) => (one.lane === null || one.lane === undefined ? one.member : `${one.member}, lane ${one.lane}`);

function heard(row) {
  if (row.heard_ms === undefined) return "";
  const ago = Date.now() - row.heard_ms;
  return row.silent ? `silent for ${span(ago)}` : ago < 3000 ? "now" : `${span(ago)} ago`;
}

function membersTable() {
  return new Table({
    label: "Members",
    empty: "No members.",
    rowClass: (row) => (row.silent ? "gone" : row.isLane ? "lane" : ""),
    columns: [
      { id: "member", title: "Member", kind: "name", draw: (td, row) => { say(td, row.isLane ? `lane ${row.lane}` : row.client ? `${row.client} · ${row.member}` : row.member); put(td, "title", row.member ?? ""); } },
      { id: "host", title: "Host", show: "mid", draw: (td, row) => drawHost(td, row) },
      { id: "heard", title: "Heard", draw: (td, row) => { say(td, row.isLane ? row.state : heard(row)); td.classList.toggle("bad", row.silent === true || ["backing off", "lost", "not heard"].includes(row.state)); } },
      { id: "in_flight", title: "In flight", num: true, cell: (row) => (row.in_flight === undefined ? "" : `${count(row.in_flight)} / ${count(row.concurrency)}`) },
      { id: "buffered", title: "Buffered", num: true, show: "mid", cell: (row) => number(row.buffered) },
      { id: "processed", title: "Processed", num: true, cell: (row) => number(row.processed) },
      { id: "failed", title: "Failed", num: true, show: "mid", cell: (row) => number(row.isLane ? row.failures : row.failed) },
      { id: "dead", title: "Dead", num: true, show: "wide", cell: (row) => number(row.dead_lettered) },
      { id: "oldest", title: "Oldest record", show: "wide", cell: (row) => (row.oldest ? `${place(row.oldest)} for ${span(row.oldest.age_ms)}` : "") },
      { id: "partitions", title: "Partitions", num: true, draw: (td, row) => { say(td, count(row.partitions)); put(td, "title", row.names.join(", ")); } },
      { id: "obeys", title: "Commands", show: "mid", cell: (row) => (row.isLane || row.obeys === undefined ? "" : row.obeys ? "takes them" : "only reports") },
    ],
  });
}

const number = (value) => (value === undefined ? "" : count(value));

function drawHost(td, row) {
  const where = [row.host, row.pid].filter((one) => one !== null && one !== undefined).join(" · ");
  const text = row.isLane && row.executorId !== null ? `${where} · executor ${row.executorId}` : where;
  if (!row.spark_ui) return say(td, text);
  const link = td.querySelector("a") ?? (td.replaceChildren("", el("a", { target: "_blank", rel: "noreferrer", text: "Spark" })), td.querySelector("a"));
  put(link, "href", `${row.spark_ui.replace(/\/$/, "")}/${row.isLane ? "executors" : "jobs"}/`);
  if (td.firstChild.data !== `${text} · `) td.firstChild.data = `${text} · `;
}

const lanesMade = new WeakMap(); // rows of lanes, by the row of their driver

/** Each driver of a query with its lanes behind it. */
function withLanes(members) {
  const rows = new Map();
  for (const [name, member] of members) {
    rows.set(name, member);
    if (!member.lanes?.length) continue;
    if (!lanesMade.has(member)) lanesMade.set(member, member.lanes.map((lane) => ({ ...lane, isLane: true, silent: member.silent, member: member.member, spark_ui: member.spark_ui, names: lane.partitions, partitions: lane.partitions.length })));
    for (const lane of lanesMade.get(member)) rows.set(`${name} lane ${lane.lane}`, lane);
  }
  return rows;
}

function partitionsTable(chosen, onChoose) {
  const choose = {
    id: "choose", title: "", kind: "tools",
    draw: (td, row) => {
      const name = `${row.topic}-${row.partition}`;
      const box = td.firstElementChild ?? td.appendChild(el("input", { type: "checkbox", "aria-label": `Choose ${name}`, onchange: (event) => { if (event.target.checked) chosen.add(name); else chosen.delete(name); onChoose(); } }));
      box.checked = chosen.has(name);
    },
  };
  const columns = [
    { id: "partition", title: "Partition", cell: (row) => `${row.topic}-${row.partition}`, sort: (row) => `${row.topic}-${row.partition}` },
    { id: "committed", title: "Committed", num: true, show: "mid", cell: (row) => plain(row.committed), sort: (row) => row.committed },
    { id: "strip", title: "Offset map", kind: "drawn", help: "from the committed offset to the highest that is complete", draw: drawStrip },
    { id: "incomplete", title: "Incomplete", num: true, show: "mid", help: "offsets in the map that are not complete", cell: (row) => count(row.incomplete), sort: (row) => row.incomplete },
    { id: "end", title: "Log end", num: true, show: "wide", cell: (row) => plain(row.end), sort: (row) => row.end },
    { id: "in_handlers", title: "In handlers", num: true, show: "wide", cell: (row) => count(row.in_handlers), sort: (row) => row.in_handlers },
    { id: "lag", title: "Lag", num: true, show: "mid", help: "log end less committed offset", cell: (row) => count(row.lag), sort: (row) => row.lag },
    { id: "remaining", title: "Remaining", num: true, help: "what is really left", cell: (row) => count(row.remaining), sort: (row) => row.remaining },
    { id: "paused", title: "", cell: (row) => (row.paused ? "paused" : "") },
    { id: "member", title: "Member", show: "wide", kind: "name", draw: (td, row) => { say(td, row.note ?? row.member ?? "–"); put(td, "title", row.note ?? row.member ?? ""); }, sort: (row) => row.member },
  ];
  return new Table({ label: "Partitions", empty: "Nothing committed, and nothing assigned.", first: 50, sort: { id: "partition", down: false }, columns: about.acts ? [choose, ...columns] : columns });
}

const plain = (value) => (value === null || value === undefined ? "–" : `${value}`); // an offset is a name, and no amount

/** A cell whose text is a button: of a record, which opens; of a key, for which there are commands. */
function drawButton(td, label, onclick) {
  const button = td.firstElementChild ?? td.appendChild(el("button", { type: "button", class: "plain" }));
  say(button, label);
  button.onclick = onclick;
}

const recordColumn = (title, open) => ({ id: "record", title, draw: (td, row) => drawButton(td, place(row), () => open(row)) });

function workTable(open, label, empty) {
  return new Table({
    label,
    empty,
    first: 15,
    columns: [
      recordColumn("Record", open),
      { id: "why", title: "Is", kind: "word", cell: (row) => WHY[row.why] ?? row.why },
      { id: "age", title: "For", num: true, cell: (row) => span(row.age_ms) },
      { id: "attempt", title: "Attempt", num: true, cell: (row) => count(row.attempt) },
      { id: "behind", title: "Behind it", num: true, show: "mid", cell: (row) => (row.behind ? count(row.behind) : "") },
      { id: "member", title: "Member", show: "mid", kind: "name", cell: withLane },
    ],
  });
}

function waitingTable(open) {
  return new Table({
    label: "Records that have a time",
    empty: "No record waits for a time.",
    first: 15,
    columns: [
      recordColumn("Record", open),
      { id: "why", title: "Waits, since", kind: "word", cell: (row) => WHY[row.why] ?? row.why },
      { id: "due", title: "Goes on in", num: true, cell: (row) => span(row.due_in_ms) },
      { id: "attempt", title: "Attempt", num: true, cell: (row) => count(row.attempt) },
      { id: "behind", title: "Behind it", num: true, show: "mid", cell: (row) => (row.behind ? count(row.behind) : "") },
      { id: "member", title: "Member", show: "mid", kind: "name", cell: withLane },
    ],
  });
}

const shownKey = (row) => row.key || row.where; // what is no text as the expression for it

function queuesTable(open, openKey) {
  return new Table({
    label: "Keys that wait",
    empty: "No record waits for another one.",
    first: 15,
    columns: [
      recordColumn("Head", open),
      { id: "key", title: "Key", kind: "name", draw: (td, row) => (shownKey(row) && about.acts ? drawButton(td, shownKey(row), () => openKey(row)) : say(td, shownKey(row) || "–")) },
      { id: "behind", title: "Behind it", num: true, cell: (row) => count(row.behind) },
      { id: "why", title: "Its head waits, since", kind: "word", cell: (row) => WHY[row.why] ?? row.why },
      { id: "age", title: "For", num: true, show: "mid", cell: (row) => (row.age_ms === null ? "" : span(row.age_ms)) },
      { id: "due", title: "Goes on in", num: true, show: "mid", cell: (row) => (row.due_in_ms === null ? "" : span(row.due_in_ms)) },
      { id: "member", title: "Member", show: "wide", kind: "name", cell: withLane },
    ],
  });
}

const asFailure = (one) => ({ member: one.member, error: one.target || "the service", where: `down for ${span(one.open_ms)}`, count: null });

function failuresTable() {
  return new Table({
    label: "Failures",
    empty: "No attempt has failed since the members started.",
    columns: [
      { id: "error", title: "Error", kind: "word", cell: (row) => row.error },
      { id: "times", title: "Times", num: true, cell: (row) => count(row.count) },
      { id: "where", title: "Where", kind: "text", cell: (row) => row.where },
      { id: "member", title: "Member", show: "mid", kind: "name", cell: (row) => row.member },
    ],
  });
}

const answersOf = (commands) => commands.flatMap((command) => command.members.map((one) => ({ ...command, ...one, members: null })));

function logTable() {
  return new Table({
    label: "Commands",
    empty: "No member has answered a command in the last seven days.",
    first: 30,
    columns: [
      { id: "sent", title: "Sent", draw: (td, row) => { say(td, clock(Date.parse(row.sent))); put(td, "title", row.sent); } },
      { id: "what", title: "Command", kind: "text", cell: (row) => `${row.do} ${row.about}` },
      { id: "by", title: "By", show: "mid", cell: (row) => row.by },
      { id: "member", title: "Member", show: "mid", kind: "name", cell: (row) => row.member },
      { id: "accepted", title: "Accepted", show: "wide", draw: (td, row) => { say(td, row.accepted ? clock(Date.parse(row.accepted)) : ""); put(td, "title", row.accepted ?? ""); } },
      { id: "state", title: "Result", draw: (td, row) => { say(td, row.state); td.classList.toggle("bad", row.state === "failed" || row.state === "refused"); } },
      { id: "why", title: "Why", show: "mid", kind: "text", cell: (row) => row.text ?? "" },
    ],
  });
}
