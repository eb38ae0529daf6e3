// The page: which view the address names, the theme, the lock, and the keys.

import { about, askForToken, begin, lock, onLock, unlocked } from "./asking.js";
import { say } from "./dom.js";
import { showGroup } from "./group.js";
import { showGroups } from "./groups.js";
import { showLetters } from "./letters.js";

const main = document.getElementById("main");
const live = document.getElementById("live");
const lockButton = document.getElementById("lock");
let shown = null;

function status(text, isOn) {
  say(live, text);
  live.className = isOn ? "on" : "off";
}

function route() {
  shown?.close();
  const [, page = "", name = ""] = location.hash.split("?")[0].split("/").map(decodeURIComponent);
  const where = page === "letters" ? "letters" : "groups";
  for (const link of document.querySelectorAll("nav a")) link.dataset.page === where ? link.setAttribute("aria-current", "page") : link.removeAttribute("aria-current");
  document.title = name === "" ? "keylane" : `${name} · keylane`;
  status("connecting", true);
  if (page === "group" && name !== "") shown = showGroup(main, status, name);
  else if (page === "letters") shown = showLetters(main, status, name);
  else shown = showGroups(main, status);
}

// --- the theme ---

const THEME = "keylane.theme";

function setTheme(theme) {
  if (theme === null) document.documentElement.removeAttribute("data-theme");
  else document.documentElement.setAttribute("data-theme", theme);
}

setTheme(localStorage.getItem(THEME));
document.getElementById("theme").addEventListener("click", () => {
  const isDark = document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  localStorage.setItem(THEME, isDark ? "light" : "dark");
  setTheme(isDark ? "light" : "dark");
});

// --- the lock ---

lockButton.addEventListener("click", () => (unlocked() ? lock() : askForToken()));
onLock(() => {
  lockButton.hidden = !about.acts;
  say(lockButton, unlocked() ? "Lock" : "Unlock");
  say(document.getElementById("servers"), `${about.servers}${about.acts ? "" : " · only shows"}`);
});

// --- keys ---

document.getElementById("skip").addEventListener("click", () => main.focus());
document.addEventListener("keydown", (event) => {
  if (event.target.matches("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (event.key === "/") {
    event.preventDefault();
    document.querySelector("[data-filter]")?.focus();
  } else if (event.key === "g") location.hash = "#/";
  else if (event.key === "d") location.hash = "#/letters";
});

addEventListener("hashchange", () => {
  route();
  main.focus({ preventScroll: true });
  scrollTo(0, 0);
});

begin().then(route, (error) => {
  status("no answer", false);
  main.textContent = error.message;
});
