// Loads the page again and puts its content in place, unless somebody is writing in it.
(() => {
  const every = Number(document.body.dataset.live) * 1000;
  const inputs = () => [...document.querySelectorAll("main input:not([type=hidden])")];
  const writing = () => inputs().some((input) => input === document.activeElement || input.value !== input.defaultValue || input.checked !== input.defaultChecked);
  const stops = () => [...document.querySelectorAll("main a, main button, main summary, main [tabindex]")];
  const look = async () => {
    try {
      if (!document.hidden && !writing()) {
        const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        if (answer.ok && !writing()) {
          const at = stops().indexOf(document.activeElement);
          for (const part of ["main", "header .side"]) document.querySelector(part).replaceWith(page.querySelector(part));
          if (at >= 0) stops()[at]?.focus({ preventScroll: true });
          document.title = page.title;
          if (!page.body.dataset.live) return;
        }
      }
    } catch { /* the worker is away: the page stays, with its time */ }
    setTimeout(look, every);
  };
  setTimeout(look, every);
})();
