// Keeps pages up to date by server-sent events, and filters the list. All HTML comes from the server's templates.
"use strict";
(() => {
  const { list, live, working } = document.body.dataset;
  const link = document.getElementById("link");

  function listen(address, handlers) {
    const source = new EventSource(address);
    source.onopen = () => { link.textContent = "live"; };
    source.onerror = () => { link.textContent = "not connected; trying again …"; };
    for (const [name, handle] of Object.entries(handlers)) {
      source.addEventListener(name, (event) => handle(JSON.parse(event.data), source));
    }
    addEventListener("pagehide", () => source.close());
  }

  // ---- the list

  const body = document.getElementById("runs");
  const filter = document.getElementById("filter");
  const shown = document.getElementById("shown");

  function sift() {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    for (const row of body.rows) {
      const text = row.dataset.words.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      count += row.hidden ? 0 : 1;
    }
    shown.textContent = words.length ? `${count} of ${body.rows.length} runs` : "";
  }

  function made(html) {
    const template = document.createElement("template");
    template.innerHTML = html.trim();
    return template.content.firstElementChild;
  }

  // Rows that did not change stay as they are, with their focus and what was chosen.
  function update({ order, rows }) {
    const known = new Map([...body.rows].map((row) => [row.dataset.run, row]));
    for (const { run, html } of rows) {
      const before = known.get(run);
      const after = made(html);
      if (before && before.outerHTML === after.outerHTML) continue;
      if (before) {
        after.querySelector("input").checked = before.querySelector("input").checked;
        before.replaceWith(after);
      }
      known.set(run, after);
    }
    order.forEach((run, place) => {
      const row = known.get(run);
      if (row && body.rows[place] !== row) body.insertBefore(row, body.rows[place] || null);
    });
    while (body.rows.length > order.length) body.lastElementChild.remove();
    document.getElementById("none").hidden = order.length > 0;
    sift();
  }

  if (list) {
    filter.addEventListener("input", sift);
    filter.addEventListener("keydown", (event) => { if (event.key === "Enter") event.preventDefault(); });
    sift();
    listen(list, { runs: update });
  }

  // ---- one run

  function refresh({ parts, rows }) {
    for (const [id, html] of Object.entries(parts)) {
      const place = document.getElementById(id);
      const position = [...place.querySelectorAll("details")].map((one) => one.open);
      place.innerHTML = html;
      place.querySelectorAll("details").forEach((one, i) => { one.open = position[i] || false; });
    }
    for (const [key, values] of Object.entries(rows)) {
      if (!window.stoker) continue;
      const { views: { [key]: view }, charts: { [key]: spec } } = window.stoker;
      if (spec) spec.data.values = values; // for when it is drawn anew, in other colours or on paper
      if (view) view.data("moments", values).resize().runAsync();
    }
    document.documentElement.dataset.refreshed = String(Number(document.documentElement.dataset.refreshed || 0) + 1);
  }

  if (live) {
    listen(live, {
      live: refresh,
      over: (_, source) => { source.close(); location.reload(); },
      broken: ({ text }, source) => { source.close(); link.textContent = `the record is broken: ${text}`; },
    });
  }

  // ---- a report that is being made

  if (working) {
    const said = document.getElementById("said");
    fetch(working).then(async (answer) => {
      if (answer.ok) {
        location.reload();
      } else {
        said.classList.remove("working");
        said.textContent = await answer.text();
      }
    }).catch(() => { said.textContent = "The dashboard does not answer any more."; });
  }
})();
