// Loads the page again and puts its content in place; what is written, ticked, chosen and unfolded stays, and the focus.
(() => {
  const every = Number(document.body.dataset.live) * 1000;
  const ticks = (field) => field.type === "checkbox" || field.type === "radio";
  const state = (field) => (field.tagName === "DETAILS" ? "open" : ticks(field) ? "checked" : "value");
  const byName = (selector, nameOf) => {
    const found = new Map();
    for (const each of document.querySelectorAll(selector)) {
      let name = `${each.form?.getAttribute("action")} ${each.name} ${nameOf(each)}`;
      while (found.has(name)) name += "+"; // forms with one address have fields with one name
      found.set(name, each);
    }
    return found;
  };
  const fields = () =>
    byName("main :is(input:not([type=hidden]), select, textarea, details)", (field) => (ticks(field) ? field.value : ""));
  const stops = () =>
    byName(":is(main, footer) :is(a, button, summary, [tabindex])", (stop) => `${stop.tagName} ${stop.getAttribute("href") ?? stop.textContent} ${stop.value}`);
  const put = (page) => {
    const before = fields();
    const focus = document.activeElement;
    const named = (found) => [...found].find(([, each]) => each === focus)?.[0];
    const written = named(before);
    const stop = named(stops());
    const range = [focus.selectionStart, focus.selectionEnd];
    for (const part of ["main", "header .side", "footer"]) document.querySelector(part).replaceWith(page.querySelector(part));
    const after = fields();
    for (const [name, field] of after) if (before.has(name)) field[state(field)] = before.get(name)[state(field)];
    const next = written ? after.get(written) : stops().get(stop); // never another one in its place
    next?.focus({ preventScroll: true });
    if (next?.type === "text") next.setSelectionRange(...range);
  };
  const stay = (why) => {
    const side = document.querySelector("header .side"); // it has the time of what is shown
    side.dataset.time ??= side.textContent;
    side.textContent = `${side.dataset.time}, not live since: ${why}`;
    side.classList.add("bad");
    side.role = "alert";
  };
  const look = async () => {
    try {
      if (!document.hidden && !["SELECT", "TEXTAREA"].includes(document.activeElement.tagName)) {
        const answer = await fetch(location.href, { headers: { Accept: "text/html" }, redirect: "manual" });
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        if (answer.ok && page.querySelector("header .side")) {
          document.title = page.title;
          put(page);
          if (!page.body.dataset.live) return;
        } else if (answer.ok || answer.type === "opaqueredirect") {
          stay("another page answers, maybe to log in. Load this one again");
        } else {
          stay(`the answer is ${answer.status}. Load the page again to see why`);
        }
      }
    } catch {
      stay("no answer from this worker");
    }
    setTimeout(look, every);
  };
  setTimeout(look, every);
})();
