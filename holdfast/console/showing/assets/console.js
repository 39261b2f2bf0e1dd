// Keeps the part #live of a page as of now: the same address, asked for as a stream of events.
"use strict";
(() => {
  const live = document.getElementById("live");
  const box = document.getElementById("liveness");
  const state = document.getElementById("live-state");
  const toggle = document.getElementById("live-toggle");
  if (!live || !box || !window.EventSource) return;
  const AGAIN_MS = 10000;
  const HIDDEN_MS = 5000;
  let source = null;
  let lost = "";
  let again = 0;
  let pending = null;
  let away = false;

  const clock = () => new Date().toISOString().slice(11, 19);
  const say = (text, wrong) => {
    if (state.textContent !== text) state.textContent = text;
    box.classList.toggle("lost", wrong);
  };

  // What the reader is about to copy, or has opened, or stands on, must outlive the change.
  const reading = () => {
    const chosen = window.getSelection();
    return chosen && !chosen.isCollapsed && live.contains(chosen.anchorNode);
  };
  const place = (element) => {
    if (!element || !live.contains(element)) return null;
    const same = (each) => each.tagName === element.tagName && each.getAttribute("href") === element.getAttribute("href") && each.getAttribute("aria-label") === element.getAttribute("aria-label");
    const all = [...live.querySelectorAll(element.tagName)].filter(same);
    const at = all.indexOf(element);
    return () => { const now = [...live.querySelectorAll(element.tagName)].filter(same)[at]; if (now) now.focus({ preventScroll: true }); };
  };
  const change = (html) => {
    if (reading()) { pending = html; say("Waits while text is selected", false); return; }
    if (pending !== null) { pending = null; say("Live", false); }
    const focus = place(document.activeElement);
    const open = [...live.querySelectorAll("details[open]")].map((each) => each.id);
    const scrolled = [...live.querySelectorAll(".wide")].map((each) => each.scrollLeft);
    live.innerHTML = html;
    open.forEach((id) => { const each = document.getElementById(id); if (each) each.open = true; });
    live.querySelectorAll(".wide").forEach((each, at) => { each.scrollLeft = scrolled[at] || 0; });
    if (focus) focus();
  };

  // A browser asks again by itself when the connection is lost, but not when it was refused.
  const broken = () => {
    const refused = source.readyState === EventSource.CLOSED;
    const what = refused ? "Not live: sign in again, or too many pages are live; since " : "The console does not answer since ";
    if (lost !== what) say(what + clock() + " UTC", true);
    lost = what;
    if (refused) again = setTimeout(follow, AGAIN_MS);
  };
  const follow = () => {
    clearTimeout(again);
    source = new EventSource(window.location.href);
    source.onopen = () => { lost = ""; say("Live", false); };
    source.onerror = broken;
    source.addEventListener("live", (event) => change(event.data));
    source.addEventListener("point", (event) => document.dispatchEvent(new CustomEvent("holdfast-point", { detail: JSON.parse(event.data) })));
  };
  const stop = () => { clearTimeout(again); source.close(); source = null; pending = null; say("Paused at " + clock() + " UTC", false); };

  // A browser opens six connections to one place: pages that nobody sees must leave them to those that somebody opens.
  let left = 0;
  document.addEventListener("visibilitychange", () => {
    clearTimeout(left);
    if (document.visibilityState === "hidden") left = setTimeout(() => { if (source) { away = true; stop(); } }, HIDDEN_MS);
    else if (away) { away = false; follow(); }
  });

  document.addEventListener("selectionchange", () => { if (pending !== null && !reading()) change(pending); });
  toggle.addEventListener("click", () => {
    away = false;
    if (source) stop(); else follow();
    toggle.textContent = source ? "Pause" : "Go on";
  });
  window.addEventListener("pagehide", () => { clearTimeout(again); if (source) source.close(); });
  window.addEventListener("pageshow", (event) => { if (event.persisted && source) follow(); });
  box.hidden = false;
  follow();
})();
