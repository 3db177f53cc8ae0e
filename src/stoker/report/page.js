// Draws every chart of the page, in the colours of the reader's scheme, and again when that changes or is printed.
"use strict";
(() => {
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const narrow = matchMedia("(max-width: 640px)");
  const held = document.getElementById("stoker-charts");
  const { charts, configs } = held ? JSON.parse(held.textContent) : { charts: {}, configs: {} };
  const views = {};
  let asked = 0;

  function look(scheme) {
    const config = structuredClone(configs[scheme]);
    if (narrow.matches) {
      config.legend.columns = 3;
      config.axis.tickCount = 4;
    }
    return config;
  }

  async function draw(scheme) {
    const mine = ++asked;
    root.dataset.drawn = "";
    for (const [key, spec] of Object.entries(charts)) {
      const place = document.getElementById(`chart-${key}`);
      if (!place || mine !== asked) continue;
      const result = await window.vegaEmbed(place, structuredClone(spec), {
        actions: false,
        renderer: "svg",
        ast: true, // expressions are interpreted: the page's policy allows no eval
        config: look(scheme),
        defaultStyle: false,
        tooltip: { disableDefaultStyle: true },
      });
      if (views[key]) views[key].finalize();
      views[key] = result.view;
    }
    if (mine === asked) root.dataset.drawn = scheme;
  }

  // The part of a chart that is seen: the signal of its selection `zoom`, or all of it.
  function seen(view) {
    return view.signal("zoom_x") || view.scale("x").domain();
  }

  function move(key, how) {
    const view = views[key];
    if (!view) return;
    const [from, to] = seen(view);
    const middle = (from + to) / 2;
    const half = (to - from) / 2;
    const next = {
      in: [middle - half / 2, middle + half / 2],
      out: [middle - half * 2, middle + half * 2],
      left: [from - half / 2, to - half / 2],
      right: [from + half / 2, to + half / 2],
      all: null,
    }[how];
    view.signal("zoom_x", next).runAsync();
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-zoom]");
    if (button) move(button.dataset.chart, button.dataset.zoom);
  });

  const scheme = () => (dark.matches ? "dark" : "light");
  dark.addEventListener("change", () => draw(scheme()));
  narrow.addEventListener("change", () => draw(scheme()));
  addEventListener("beforeprint", () => draw("light"));
  addEventListener("afterprint", () => draw(scheme()));
  window.stoker = { draw: () => draw(scheme()), views, charts };
  draw(scheme());
})();
