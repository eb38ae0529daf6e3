// Commands to members, redrives and purges: first what would be done, then the same again for real.

import { act, field, openDialog } from "./asking.js";
import { count, el } from "./dom.js";

const VERBS = {
  pause: ["Pause", "Members finish what is in handlers, commit, and start nothing more until they resume. Members that start later begin paused."],
  drain: ["Drain", "As pause; and this waits until nothing is in handlers and all that is complete is committed."],
  resume: ["Resume", "Members go on with what was paused."],
  adjust: ["Adjust", "Of each member, on Spark of each lane. It holds for members that start later, too. What is left empty stays as it is."],
  seek: ["Seek", "Members finish what is in handlers of these partitions, commit, and go on at the new offset. What was complete behind it runs again."],
};

export const verbs = Object.keys(VERBS);
export const titleOf = (verb) => VERBS[verb][0];

export const text = (name, props = {}) => el("input", { name, autocomplete: "off", spellcheck: "false", ...props });

/** The dialog of a command; `topics`: the partitions that are chosen, as flights:0,3-5. */
export function openCommand(group, verb, topics) {
  const [title, note] = VERBS[verb];
  const fields = verb === "adjust" ? adjustFields() : verb === "seek" ? seekFields(topics) : [partitions(topics, "all of them")];
  const read = (form) => ({ do: verb, ...(verb === "adjust" ? readAdjust(form) : { topics: readTopics(form) }), ...(verb === "seek" ? { to: readTarget(form) } : {}) });
  openOrder(group, title, note, fields, read);
}

/** The dialog of anything that members are told; `read` gives what is sent, without the group. */
export function openOrder(group, title, note, fields, read) {
  openSteps(`${title} · ${group}`, note, fields, (form) => ({ group, ...read(form) }), "/api/operate", {
    would: (report) => answers(report, false),
    did: (report) => answers(report, true),
    go: (report) => (report.members.length === 0 ? "Send: for members that start later" : `Send to ${report.members.length} ${report.members.length === 1 ? "member" : "members"}`),
    waits: "Waiting for the members' answers…",
  });
}

/** The dialog of a redrive. */
export function openRedrive(topic, filters) {
  const fields = [
    el("div", { class: "fields" }, field("Only records of topic", text("from", { value: filters.from })), field("Only this error", text("error", { value: filters.error })), field("Only reasons with", text("reason", { value: filters.reason })), field("Only this key", text("key", { value: filters.key }))),
    el("div", { class: "fields" }, ...["since", "until"].map((name) => field(`Only written ${name}`, el("input", { type: "datetime-local", name, value: filters[name] })))),
    el("div", { class: "fields" }, field("At most", text("limit", { inputmode: "numeric", placeholder: "all" })), field("A second at most", text("rate", { inputmode: "numeric", placeholder: "no limit" })), field("Rounds at most", text("max_rounds", { inputmode: "numeric", placeholder: "3" })), field("Run again in group", text("in_group", { placeholder: "none: copies go" }))),
  ];
  const read = (form) => ({
    topic, ...Object.fromEntries(["from", "error", "reason", "key", "in_group"].map((name) => [name, form.elements[name].value])),
    since: momentOf(value(form, "since")), until: momentOf(value(form, "until")), ...numbers(form, ["limit", "rate", "max_rounds"]),
  });
  const note = "Letters go back to their topics, each once, in transactions that hold the redrive's position. With a group its members run the records again where they are. Started again, it goes on.";
  openSteps(`Redrive · ${topic}`, note, fields, read, "/api/redrive", {
    would: redriven,
    did: redriven,
    go: (report) => (report.letters === 0 ? null : `Send ${count(report.letters)} back`),
    waits: "Sending letters back…",
  });
}

/** The dialog of a purge. */
export function openPurge(topic) {
  const kinds = [["redriven", "below the first that did not come back"], ["time", "before a time"], ["offset", "below an offset"], ["latest", "all"]];
  const note = "Letters are deleted for good, of every partition of the topic. Nothing brings them back.";
  openSteps(`Purge · ${topic}`, note, [targetFields("Delete", kinds)], (form) => ({ topic, to: readTarget(form) }), "/api/purge", {
    would: purged,
    did: purged,
    go: (report) => (deleted(report) === 0 ? null : `Delete ${count(deleted(report))} for good`),
    waits: "Deleting letters…",
  });
}

/** A form, a dry run, and the button that does it: it is there for what was tried and nothing else. */
function openSteps(title, note, fields, read, path, { would, did, go, waits }) {
  const result = el("div", { "aria-live": "polite" });
  const dry = el("button", { text: "Dry run" });
  const send = el("button", { type: "button", class: "go", hidden: true });
  const cancel = el("button", { type: "button", text: "Close", onclick: () => box.close() });
  const box = openDialog(title, el("p", { class: "note", text: note }), ...fields, result, el("div", { class: "ends" }, cancel, dry, send));
  let tried = null;

  const forget = () => {
    tried = null;
    send.hidden = true;
    result.replaceChildren();
  };
  const run = async (body, then) => {
    box.problem.textContent = "";
    dry.disabled = send.disabled = true;
    try {
      const report = await act(path, body);
      dry.disabled = send.disabled = false;
      then(report);
    } catch (error) {
      box.problem.textContent = error.message;
    } finally {
      dry.disabled = send.disabled = false;
    }
  };
  box.form.addEventListener("input", forget);
  box.form.addEventListener("submit", (event) => {
    event.preventDefault();
    let body;
    try {
      body = read(box.form);
    } catch (error) {
      box.problem.textContent = error.message;
      return;
    }
    run({ ...body, execute: false }, (report) => {
      tried = body;
      result.replaceChildren(would(report), line(report.line));
      const label = go(report);
      send.hidden = label === null;
      send.textContent = label ?? "";
      send.focus();
    });
  });
  send.addEventListener("click", () => {
    if (tried === null) return;
    const body = { ...tried, execute: true };
    forget();
    result.replaceChildren(el("p", { class: "note", text: waits }));
    run(body, (report) => {
      result.replaceChildren(did(report), line(report.line));
      cancel.focus();
    }).then(() => box.problem.textContent !== "" && result.replaceChildren());
  });
}

const line = (words) => el("pre", { text: words, "aria-label": "The same on the command line" });

// --- what is given ---

const partitions = (topics, all) => field("Partitions", text("topics", { value: topics.join(" "), placeholder: `${all}; or some, as flights:0,3-5` }));

export const value = (form, name) => form.elements[name].value.trim();

const readTopics = (form) => value(form, "topics").split(/\s+/).filter(Boolean);

function adjustFields() {
  return [
    el("div", { class: "fields" }, field("Concurrency", text("max_concurrency", { inputmode: "numeric", placeholder: "as it is" })), field("Records a second", text("records_per_s", { placeholder: "as it is" })), field("… of each partition", text("per_partition", { placeholder: "as it is" })), field("… of a key", text("per_key", { placeholder: "as it is" }))),
    el("label", { class: "check" }, el("input", { type: "checkbox", name: "as_in_pipeline" }), "Take back all that was adjusted"),
    el("p", { class: "note", text: "A rate may be “unlimited”." }),
  ];
}

function readAdjust(form) {
  const rates = {};
  for (const name of ["records_per_s", "per_partition", "per_key"]) {
    const given = value(form, name);
    if (given === "") continue;
    rates[name] = given === "unlimited" ? null : number(name, given);
  }
  return { ...numbers(form, ["max_concurrency"]), rates, as_in_pipeline: form.elements.as_in_pipeline.checked };
}

function seekFields(topics) {
  const kinds = [["earliest", "where the log starts"], ["latest", "where the log ends"], ["offset", "an offset"], ["time", "a time"]];
  return [partitions(topics, "which"), targetFields("To", kinds)];
}

export const select = (name, kinds) => el("select", { name }, ...kinds.map(([kind, label]) => el("option", { value: kind, text: label })));

const targetFields = (label, kinds) => el("div", { class: "fields" }, field(label, select("kind", kinds)), field("Offset", text("offset", { inputmode: "numeric" })), field("Time (of this browser)", el("input", { type: "datetime-local", step: "1", name: "time" })));

function readTarget(form) {
  const kind = value(form, "kind");
  if (kind === "offset") return { kind, value: number("offset", value(form, "offset")) };
  if (kind !== "time") return { kind };
  const at = momentOf(value(form, "time"));
  if (at === null) throw new Error("time: give a day and a time");
  return { kind, value: at };
}

/** Milliseconds since the epoch, of a day and a time of this browser; null of none. */
export const momentOf = (given) => (given === "" ? null : new Date(given).getTime());

export function number(name, given) {
  const found = Number(given);
  if (given === "" || !Number.isFinite(found)) throw new Error(`${name} ${given}: give a number`);
  return found;
}

function numbers(form, names) {
  return Object.fromEntries(names.filter((name) => value(form, name) !== "").map((name) => [name, number(name, value(form, name))]));
}

// --- what came of it ---

function answers(report, executed) {
  const heads = ["Member", ...(executed ? ["Result", "Why"] : ["Client", "Partitions"])];
  const row = (one) => (executed ? [one.member, one.state, one.text ?? ""] : [one.member, one.client_id ?? "–", count(one.partitions)]);
  const missed = report.partitions.filter((one) => executed && one.member === null).map((one) => `${one.topic}-${one.partition}`);
  const left = report.records.filter((one) => executed && one.member === null).map((one) => one.record);
  const done = report.members.filter((one) => one.state === "done").length;
  const said = executed ? `${report.do}: done by ${done} of ${report.members.length}.` : report.members.length === 0 ? "No member is heard." : "These would get it; nothing was changed.";
  return el(
    "div",
    {},
    el("p", { class: executed && !report.done ? "bad" : "note", text: said }),
    missed.length > 0 && el("p", { class: "bad", text: `Not sought, since no member had them: ${missed.join(", ")}` }),
    left.length > 0 && el("p", { class: "bad", text: `Not done: ${left.join(", ")}` }),
    report.members.length > 0 && el("div", { class: "scroll" }, el("table", {}, el("thead", {}, el("tr", {}, ...heads.map((head) => el("th", { scope: "col", text: head })))), el("tbody", {}, ...report.members.map((one) => el("tr", {}, ...row(one).map((cell, index) => el("td", { class: index === 2 && executed ? "text" : index === 0 ? "name" : null, title: cell, text: cell }))))))),
  );
}

const LEFT = {
  rounds: "came back as often as allowed", "no topic": "do not say where the record was", "missing topic": "are of a topic that does not exist",
  "own topic": "are of the dead-letter topic itself", "no copy": "have neither key nor value", "too far": "are too far behind letters that wait",
  "no map": "are of partitions of which the group has no offset map", "not complete": "are of records that are not complete: they run without that", deleted: "are of records that the log has no longer",
  "other record": "are of another log: the topic has another record there now; send the letters' copies",
  unknown: "were begun by a member that did not say how that ended: look where their records stand", refused: "were not replayed: the log of commands says why",
};

function redriven(report) {
  const to = Object.entries(report.to).map(([topic, letters]) => `${count(letters)} to ${topic}`).join(", ");
  const words = report.executed ? `${count(report.letters)} letters sent back${to && `: ${to}`}.` : `${count(report.letters)} letters would go back${to && `: ${to}`}. Nothing was changed.`;
  const left = Object.entries(report.left).map(([reason, letters]) => el("p", { class: "note", text: `${count(letters)} ${LEFT[reason] ?? reason}.` }));
  return el("div", {}, el("p", { class: "note", text: `${words} ${count(report.redriven_before)} came back before, ${count(report.not_selected)} are not selected.` }), ...left);
}

const deleted = (report) => report.partitions.reduce((total, one) => total + one.records, 0);

const purged = (report) => el("p", { class: "note", text: report.executed ? `${count(deleted(report))} offsets deleted.` : `${count(deleted(report))} offsets would be deleted. Nothing was changed.` });
