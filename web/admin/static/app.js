// Improvements only: every page works without this file.
(() => {
  "use strict";

  const boxes = (form, name) => form.querySelectorAll(`input[type=checkbox][name="${CSS.escape(name)}"]`);

  // A box in the head of a table picks all rows of the page.
  for (const all of document.querySelectorAll("input[data-pick-all]")) {
    const form = all.form, name = all.dataset.pickAll;
    all.hidden = false;
    const sync = () => {
      const list = [...boxes(form, name)], picked = list.filter((b) => b.checked).length;
      all.checked = picked > 0 && picked === list.length;
      all.indeterminate = picked > 0 && picked < list.length;
    };
    all.addEventListener("change", () => {
      for (const box of boxes(form, name)) box.checked = all.checked;
    });
    form.addEventListener("change", sync);
    sync();
  }

  // Copying works without the clipboard interface too, which plain http lacks.
  for (const button of document.querySelectorAll("button[data-copy]")) {
    button.hidden = false;
    button.addEventListener("click", async () => {
      const source = document.getElementById(button.dataset.copy);
      try {
        await navigator.clipboard.writeText(source.textContent);
      } catch {
        const range = document.createRange();
        range.selectNodeContents(source);
        getSelection().removeAllRanges();
        getSelection().addRange(range);
        document.execCommand("copy");
      }
      button.textContent = button.dataset.copied;
    });
  }

  // A second press of the same button sends nothing.
  for (const form of document.querySelectorAll("form[method=post]")) {
    form.addEventListener("submit", (event) => {
      if (form.dataset.sent) event.preventDefault();
      form.dataset.sent = "yes";
    });
  }
  addEventListener("pageshow", () => {
    for (const form of document.querySelectorAll("form[data-sent]")) delete form.dataset.sent;
  });

  // What is not filtered by needs no place in the address.
  document.getElementById("filter")?.addEventListener("formdata", (event) => {
    for (const [name, value] of [...event.formData]) if (value === "") event.formData.delete(name);
  });

  // Keys for the list: j and k move, x picks, / goes to the filter.
  const table = document.getElementById("dead");
  const rows = table ? [...table.tBodies[0].rows] : [];
  let at = -1;
  const move = (to) => {
    if (!rows.length) return;
    at = Math.max(0, Math.min(rows.length - 1, to));
    rows[at].querySelector("a").focus();
  };
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, select, textarea")) return;
    if (event.key === "j") move(at + 1);
    else if (event.key === "k") move(at - 1);
    else if (event.key === "x" && at >= 0) rows[at].querySelector("input[name=id]")?.click();
    else if (event.key === "/" && document.getElementById("filter")) {
      document.querySelector("#filter input:not([type=hidden])").focus();
      event.preventDefault();
    }
  });
})();
