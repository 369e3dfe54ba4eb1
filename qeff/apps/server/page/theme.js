// The switch between light, dark and what the system says. Colours are in look.css.

import { icon } from "./icons.js";


const KEY = "qeff.theme";
const NEXT = { auto: "light", light: "dark", dark: "auto" };
const ICONS = { auto: "auto", light: "sun", dark: "moon" };
const NAMES = { auto: "as the system", light: "light", dark: "dark" };

export function startTheme(button) {
  const show = (theme) => {
    document.documentElement.dataset.theme = theme;
    const label = `Theme: ${NAMES[theme]}. Switch to ${NAMES[NEXT[theme]]}`;
    button.setAttribute("aria-label", label);
    button.title = label;
    button.replaceChildren(icon(ICONS[theme]));
  };
  let theme = localStorage.getItem(KEY);
  if (!(theme in NEXT)) theme = "auto";
  show(theme);
  button.addEventListener("click", () => {
    theme = NEXT[theme];
    if (theme === "auto") localStorage.removeItem(KEY);
    else localStorage.setItem(KEY, theme);
    show(theme);
  });
}
