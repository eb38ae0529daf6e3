// Dead letters: a list, one of them, its payload when it is asked for, and the way back.

import { about, act, ask, askForToken, field, openAnswer, unlocked } from "./asking.js";
import { momentOf, openPurge, openRedrive, text } from "./acting.js";
import { count, el, say } from "./dom.js";
import { Table } from "./tables.js";

const LIKELY = /dead|dlq|dlt/i;

export function showLetters(main, status, topic) {
  const table = new Table({
    label: "Dead letters",
    empty: topic === "" ? "Name a dead-letter topic." : "No dead letters.",
    first: 500,
    columns: [
      { id: "letter", title: "Letter", draw: (td, row) => drawLetter(td, row) },
      { id: "written", title: "Written", show: "mid", cell: (row) => row.written.replace("T", " ").replace(/\.\d+\+00:00$/, " UTC") },
      { id: "from", title: "From", cell: (row) => (row.topic === null ? "–" : `${row.topic}${row.partition === null ? "" : `-${row.partition}`}${row.offset === null ? "" : `@${row.offset}`}`) },
      { id: "error", title: "Error", kind: "word", cell: (row) => row.error ?? "–" },
      { id: "reason", title: "Reason", show: "mid", kind: "text", cell: (row) => (row.reason ?? "–").split("\n")[0].slice(0, 160) },
      { id: "attempts", title: "Attempts", num: true, show: "wide", cell: (row) => count(row.attempts) },
      { id: "rounds", title: "Rounds", num: true, show: "wide", help: "how often it came back from the dead", cell: (row) => count(row.rounds) },
      { id: "redriven", title: "Redriven", cell: (row) => (row.redriven ? "yes" : "") },
    ],
  });
  const topics = el("datalist", { id: "topics" });
  const name = text("topic", { list: "topics", value: topic, required: true, "data-filter": true });
  const [error, reason, from, key] = ["error", "reason", "from", "key"].map((one) => text(one));
  const [since, until] = ["since", "until"].map((one) => el("input", { name: one, type: "datetime-local" }));
  const waiting = el("input", { type: "checkbox", name: "waiting" });
  const total = el("span", { class: "count" });
  const problem = el("p", { class: "problem", role: "alert" });
  const back = el("button", { type: "button", text: "Redrive…", onclick: () => redrive() });
  const away = el("button", { type: "button", text: "Purge…", onclick: () => (unlocked() ? openPurge(topic) : askForToken()) });
  const filters = () => ({ from: from.value, error: error.value, reason: reason.value, key: key.value });
  const redrive = () => (unlocked() ? openRedrive(topic, { ...filters(), since: since.value, until: until.value }) : askForToken());
  const form = el(
    "form", { class: "filters tools", role: "search", onsubmit: (event) => send(event) },
    field("Dead-letter topic", name), field("Error", error), field("Reason has", reason), field("From topic", from), field("Key", key), field("Written since", since), field("Written until", until),
    el("div", { class: "line" }, el("label", { class: "check" }, waiting, "only those that wait"), el("button", { text: "Show" }), topic !== "" && about.acts && back, topic !== "" && about.acts && away),
  );
  const likely = el("div", { class: "line tools" });

  function send(event) {
    event.preventDefault();
    if (name.value.trim() !== topic) location.hash = `#/letters/${encodeURIComponent(name.value.trim())}`;
    else load();
  }
  async function load() {
    say(problem, "");
    if (topic === "") return;
    status("reading", true);
    try {
      const report = await ask("/api/letters", { topic, ...filters(), since: momentOf(since.value) ?? "", until: momentOf(until.value) ?? "", waiting: waiting.checked ? "yes" : "", limit: 500 });
      table.update(new Map(report.letters.map((one) => [one.letter, one])));
      say(total, `${count(report.letters.length)} of ${count(report.matching)}, the oldest first`);
      status("read", true);
    } catch (raised) {
      say(problem, raised.message);
      status("refused", false);
    }
  }
  main.replaceChildren(el("div", { class: "line" }, el("h1", { text: "Dead letters" }), total), form, topics, likely, problem, el("section", {}, table.node));
  if (topic === "") table.update(new Map());
  status("", true);
  ask("/api/topics").then((known) => {
    topics.replaceChildren(...known.topics.map((one) => el("option", { value: one })));
    const shown = known.topics.filter((one) => LIKELY.test(one)).slice(0, 12);
    if (topic === "") likely.replaceChildren(...shown.map((one) => el("a", { href: `#/letters/${encodeURIComponent(one)}`, text: one })));
  }, (raised) => say(problem, raised.message));
  load();
  document.getElementById("dialog").onclose = () => topic !== "" && load();
  return { close: () => (document.getElementById("dialog").onclose = null) };
}

function drawLetter(td, row) {
  const button = td.firstElementChild ?? td.appendChild(el("button", { type: "button", class: "plain" }));
  say(button, row.letter);
  button.onclick = () => openLetter(row.letter);
}

function openLetter(letter) {
  const [, topic, partition, offset] = /^(.+):(\d+)@(\d+)$/.exec(letter);
  return openAnswer(letter, () => ask("/api/letter", { topic, partition, offset }), () => act("/api/payload", { topic, partition: Number(partition), offset: Number(offset) }));
}
