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
    const href = element.getAttribute("href"), label = element.getAttribute("aria-label");
    const all = () => [...live.querySelectorAll(element.tagName)].filter((each) => each.getAttribute("href") === href && each.getAttribute("aria-label") === label);
    const at = all().indexOf(element);
    // Where it is gone, nothing is stood on: else Enter would lead where nobody meant to go.
    return () => { const now = all()[at]; if (now) now.focus({ preventScroll: true }); else element.blur(); };
  };
  // Only what differs is touched: whoever reads by ear is not thrown back to the beginning each second.
  const match = (old, fresh) => {
    for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name) && name !== "open") old.removeAttribute(name);
    for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    const olds = [...old.childNodes], fresher = [...fresh.childNodes];
    fresher.forEach((each, at) => {
      const stands = olds[at];
      if (!stands) old.append(each);
      else if (stands.nodeName !== each.nodeName || stands.id !== each.id) stands.replaceWith(each);
      else if (each.nodeType === Node.ELEMENT_NODE) match(stands, each);
      else if (stands.nodeValue !== each.nodeValue) stands.nodeValue = each.nodeValue;
    });
    olds.slice(fresher.length).forEach((each) => each.remove());
  };
  const change = (html) => {
    if (reading()) { pending = html; say("Waits while text is selected", false); return; }
    if (pending !== null) { pending = null; say("Live", false); }
    const focus = place(document.activeElement);
    const fresh = live.cloneNode(false);
    fresh.innerHTML = html;
    match(live, fresh);
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
