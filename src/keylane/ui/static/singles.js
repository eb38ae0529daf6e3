// Single keys and single records of a group: what members do with them, where a record stands, and what it is.

import { about, act, ask, askForToken, field, openAnswer, openDialog, unlocked } from "./asking.js";
import { number, openOrder, select, text, value } from "./acting.js";
import { el } from "./dom.js";

const KEYED = [["hold-key", "hold: none starts"], ["limit-key", "limit: so many start a second"], ["skip-key", "skip: complete without being processed"], ["release-key", "release: take the rule back"]];

const TYPED = /^[^\s\p{C}]([^\p{C}]*[^\s\p{C}])?$/u; // what a field of a form keeps as it is

/** The dialog of the commands by key, for the key of a row, or any; bytes that are no such text are an expression. */
export function openKeys(group, row = {}) {
  if (!unlocked()) return askForToken();
  const isTyped = TYPED.test(row.key ?? "");
  const fields = [
    field("Do", select("do", KEYED)),
    el("div", { class: "fields" }, field("Key", text("key", { value: isTyped ? row.key : "" })), field("… or expression", text("where", { value: isTyped ? "" : row.where ?? "", placeholder: "key=KL* header.tenant=acme" })), field("A second at most", text("per_s", { inputmode: "decimal", placeholder: "of a limit" }))),
    el("label", { class: "check" }, el("input", { type: "checkbox", name: "all" }), "Release every rule"),
  ];
  const note = "It holds on all members, through restarts and rebalances, until it is released. Order stays: what is behind a record of its key waits.";
  openOrder(group, "Keys", note, fields, (form) => readRule(form));
}

function readRule(form) {
  const verb = value(form, "do");
  const given = { do: verb, key: value(form, "key"), where: value(form, "where") };
  if (verb === "limit-key") return { ...given, per_s: number("a second at most", value(form, "per_s")) };
  return verb === "release-key" ? { ...given, all: form.elements.all.checked } : given;
}

const SINGLE = {
  "replay-record": ["Replay", "The record is complete, and runs again, alone: before later ones of its key that are not complete. Its partition finishes what is in handlers first."],
  "skip-record": ["Skip", "The record is complete without being processed, where it waits, and its key goes on."],
  "park-record": ["Park", "The record goes to a dead-letter topic and is complete then, where it waits; its key goes on, and a redrive brings it back."],
};

function openSingle(group, verb, record, dlq) {
  if (!unlocked()) return askForToken();
  const [title, note] = SINGLE[verb];
  const fields = [field("Record", text("records", { value: record, required: true, placeholder: "flights:3@1041" }))];
  if (verb === "park-record") fields.push(el("div", { class: "fields" }, field("Dead-letter topic", text("dlq", { value: dlq, required: true })), field("Reason", text("reason"))));
  openOrder(group, title, note, fields, (form) => ({
    do: verb, records: value(form, "records").split(/\s+/).filter(Boolean),
    ...(verb === "park-record" ? { dlq: value(form, "dlq"), reason: value(form, "reason") } : {}),
  }));
}

/** Asks for a record by its name, and opens it. */
export function openNamed(group, dlq) {
  const name = text("record", { required: true, placeholder: "flights:3@1041" });
  const box = openDialog(`Record · ${group}`, field("Record", name), el("div", { class: "ends" }, el("button", { type: "button", text: "Close", onclick: () => box.close() }), el("button", { class: "go", text: "Show" })));
  box.form.addEventListener("submit", (event) => {
    event.preventDefault();
    openRecord(group, name.value.trim(), dlq);
  });
}

/** Shows where a record stands, and what can be done with it. */
export function openRecord(group, record, dlq) {
  const acts = Object.entries(SINGLE).map(([verb, [title]]) => el("button", { type: "button", text: `${title}…`, hidden: !about.acts, onclick: () => openSingle(group, verb, record, dlq) }));
  const first = (report) => report.records[0];
  return openAnswer(record, () => ask("/api/record", { group, record }).then(first), () => act("/api/record", { group, record }).then(first), acts);
}
