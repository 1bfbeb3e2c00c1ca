// Loads the page again and puts its content in place; what is written in forms, and the focus, stay.
(() => {
  const every = Number(document.body.dataset.live) * 1000;
  const fields = () => [...document.querySelectorAll("main input:not([type=hidden])")];
  const stops = () => [...document.querySelectorAll("main a, main button, main input, main summary, main [tabindex]")];
  const name = (field) => `${field.form?.getAttribute("action")} ${field.name}`;
  const put = (page) => {
    const written = new Map(fields().map((field) => [name(field), [field.value, field.checked]]));
    const focus = document.activeElement;
    const at = focus.type === "text" ? fields().findIndex((field) => field === focus) : stops().indexOf(focus);
    const range = [focus.selectionStart, focus.selectionEnd];
    for (const part of ["main", "header .side"]) document.querySelector(part).replaceWith(page.querySelector(part));
    for (const field of fields()) [field.value, field.checked] = written.get(name(field)) ?? [field.value, field.checked];
    const next = (focus.type === "text" ? fields() : stops())[at];
    next?.focus({ preventScroll: true });
    if (next?.type === "text") next.setSelectionRange(...range);
  };
  const look = async () => {
    try {
      if (!document.hidden && document.activeElement.tagName !== "SELECT") {
        const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        if (answer.ok) {
          document.title = page.title;
          put(page);
          if (!page.body.dataset.live) return;
        }
      }
    } catch { /* the worker is away: the page stays, with its time */ }
    setTimeout(look, every);
  };
  setTimeout(look, every);
})();
