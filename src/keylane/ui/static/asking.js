// What is asked of the server once, and the token that acting takes: this tab keeps it, and sends it to this page alone.

import { el, say } from "./dom.js";

const KEPT = "keylane.token";
const listeners = new Set();

export const about = { acts: false, servers: "", keylane: "" };

export const unlocked = () => about.acts && sessionStorage.getItem(KEPT) !== null;

export const onLock = (listener) => listeners.add(listener);

const changed = () => listeners.forEach((listener) => listener());

async function answer(response) {
  const said = await response.json().catch(() => ({ error: `the server answered ${response.status}` }));
  if (!response.ok) {
    if (response.status === 401) lock();
    throw new Error(said.error);
  }
  return said;
}

export async function ask(path, query = {}) {
  const wanted = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return answer(await fetch(`${path}?${new URLSearchParams(wanted)}`));
}

export async function act(path, body, token = sessionStorage.getItem(KEPT)) {
  const headers = { "Content-Type": "application/json", "X-Keylane-Token": token ?? "" };
  return answer(await fetch(path, { method: "POST", headers, body: JSON.stringify(body) }));
}

export function lock() {
  sessionStorage.removeItem(KEPT);
  changed();
}

/** Tries a token; throws when it is another one. */
export async function unlock(token) {
  await act("/api/unlock", {}, token);
  sessionStorage.setItem(KEPT, token);
  changed();
}

export async function begin() {
  const given = new URLSearchParams(location.hash.split("?")[1] ?? "").get("token");
  Object.assign(about, await ask("/api/about"));
  if (given !== null) {
    history.replaceState(null, "", location.pathname + location.hash.split("?")[0]);
    await unlock(given).catch(() => undefined);
  }
  changed();
}

// --- dialogs ---

const dialog = document.getElementById("dialog");

/** A dialog with a form; `send(form data, problem)` runs when it is sent. Escape closes it. */
export function openDialog(title, ...content) {
  const problem = el("p", { class: "problem", role: "alert" });
  const form = el("form", { method: "dialog" }, el("h2", { id: "dialog-title", text: title }), ...content, problem);
  dialog.replaceChildren(form);
  if (!dialog.open) dialog.showModal();
  else form.querySelector("input, select, [tabindex], button")?.focus(); // what had the focus is gone
  return { form, problem, close: () => dialog.close() };
}

/** A dialog that shows an answer, and by the token the `payload` as well; `acts` are buttons. None can be pressed before the answer is there: the dialog grows then. */
export async function openAnswer(title, answer, payload, acts = []) {
  const shown = el("pre", { tabindex: "0", text: "…" });
  const open = el("button", { type: "button", text: "Show key, value and headers", hidden: !about.acts, onclick: async () => (unlocked() ? (open.hidden = await show(payload)) : askForToken()) });
  const buttons = [...acts, open];
  const box = openDialog(title, shown, el("div", { class: "ends" }, ...buttons, el("button", { text: "Close" })));
  /** Whether there was an answer. */
  async function show(how) {
    buttons.forEach((button) => (button.disabled = true));
    try {
      say(shown, JSON.stringify(await how(), null, 2));
      say(box.problem, "");
      return true;
    } catch (raised) {
      say(box.problem, raised.message);
      return false;
    } finally {
      buttons.forEach((button) => (button.disabled = false));
    }
  }
  await show(answer);
}

export const field = (label, input) => el("label", { class: "field" }, el("span", { text: label }), input);

export function askForToken() {
  const input = el("input", { type: "password", name: "token", autocomplete: "off", required: true, spellcheck: "false" });
  const go = el("button", { class: "go", text: "Unlock" });
  const cancel = el("button", { type: "button", text: "Cancel", onclick: () => box.close() });
  const note = "The token of the members (KEYLANE_OPERATIONS_TOKEN). This tab keeps it until it is closed.";
  const box = openDialog("Unlock", el("p", { class: "note", text: note }), field("Token", input), el("div", { class: "ends" }, cancel, go));
  box.form.addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      await unlock(input.value);
      box.close();
    } catch (error) {
      box.problem.textContent = error.message;
      input.select();
    }
  });
}
