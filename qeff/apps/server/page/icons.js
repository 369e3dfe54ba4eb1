// The icons: their paths on a square of 24, drawn with a line of the text's colour. A button that is
// only an icon has its name for screen readers and as a tooltip.

import { make, makeSvg } from "./dom.js";

const PATHS = {
  menu: "M4 7h16M4 12h16M4 17h10",
  plus: "M12 5v14M5 12h14",
  close: "M6 6l12 12M18 6L6 18",
  sun:
    "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 2.5v2M12 19.5v2M2.5 12h2M19.5 12h2" +
    "M5.3 5.3l1.4 1.4M17.3 17.3l1.4 1.4M5.3 18.7l1.4-1.4M17.3 6.7l1.4-1.4",
  moon: "M20 14.5A8.5 8.5 0 0 1 9.5 4 8.5 8.5 0 1 0 20 14.5z",
  auto: "M12 3.5a8.5 8.5 0 1 0 0 17 8.5 8.5 0 0 0 0-17z",
  sliders:
    "M4 8h9M19 8h1M16 5.5a2.5 2.5 0 1 0 0 5 2.5 2.5 0 0 0 0-5zM4 16h1M11 16h9" +
    "M8 13.5a2.5 2.5 0 1 0 0 5 2.5 2.5 0 0 0 0-5z",
  up: "M12 19V6M6 11.5L12 5.5l6 6",
  down: "M12 5v13M6 12.5l6 6 6-6",
  copy:
    "M9 9h10a1 1 0 0 1 1 1v9a1 1 0 0 1-1 1h-9a1 1 0 0 1-1-1z" +
    "M15 9V5a1 1 0 0 0-1-1H5a1 1 0 0 0-1 1v9a1 1 0 0 0 1 1h4",
  check: "M5 12.5l4.5 4.5L19 7.5",
  redo: "M19.5 12a7.5 7.5 0 1 1-2.2-5.3L20 9M20 4v5h-5",
  pencil: "M4 20l1-4.2L16.2 4.6a1.6 1.6 0 0 1 2.3 0l.9.9a1.6 1.6 0 0 1 0 2.3L8.2 19z",
  trash:
    "M4.5 7h15M9.5 7V4.5h5V7M6.5 7l.8 12a1 1 0 0 0 1 1h7.4a1 1 0 0 0 1-1l.8-12M10 11v5" +
    "M14 11v5",
  download: "M12 4v11M7 10.5l5 5 5-5M5 20h14",
  upload: "M12 16V5M7 9.5l5-5 5 5M5 20h14",
  left: "M14.5 6l-6 6 6 6",
  right: "M9.5 6l6 6-6 6",
  help:
    "M12 3.5a8.5 8.5 0 1 0 0 17 8.5 8.5 0 0 0 0-17z" +
    "M9.6 9.4a2.5 2.5 0 1 1 3.4 2.5c-.7.3-1 .8-1 1.6M12 16.6v.1",
  chat:
    "M5 5h14a1.5 1.5 0 0 1 1.5 1.5v8A1.5 1.5 0 0 1 19 16h-7l-4.5 4v-4H5" +
    "a1.5 1.5 0 0 1-1.5-1.5v-8A1.5 1.5 0 0 1 5 5z",
  chart: "M4 19.5h16M7 16v-5M12 16V5M17 16V9",
  call:
    "M9 4.5c-2 0-2.7.9-2.7 2.6v2c0 1.6-.9 2.9-2.3 2.9 1.4 0 2.3 1.3 2.3 2.9v2" +
    "c0 1.7.7 2.6 2.7 2.6" +
    "M15 4.5c2 0 2.7.9 2.7 2.6v2c0 1.6.9 2.9 2.3 2.9-1.4 0-2.3 1.3-2.3 2.9v2" +
    "c0 1.7-.7 2.6-2.7 2.6",
  stop: "M8 7h8a1 1 0 0 1 1 1v8a1 1 0 0 1-1 1H8a1 1 0 0 1-1-1V8a1 1 0 0 1 1-1z",
};

const FILLED = { auto: "M12 3.5a8.5 8.5 0 0 1 0 17z" };

export function icon(name) {
  return makeSvg(
    "svg",
    { viewBox: "0 0 24 24", class: `icon icon-${name}`, "aria-hidden": "true", focusable: "false" },
    makeSvg("path", { d: PATHS[name] }),
    FILLED[name] ? makeSvg("path", { d: FILLED[name], class: "filled" }) : null,
  );
}

export function iconButton(name, label, click, extra = {}) {
  return make(
    "button",
    {
      type: "button",
      class: "icon-button",
      "aria-label": label,
      title: label,
      on: { click },
      ...extra,
    },
    icon(name),
  );
}
