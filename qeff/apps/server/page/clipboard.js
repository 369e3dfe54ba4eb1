// Puts text on the clipboard, and says on the button that it did. Knows nothing of what is copied.

import { icon } from "./icons.js";


const SHOWN_MS = 1600;

export function copyButtonClicked(button, text, done) {
  write(text).then((isWritten) => {
    if (!isWritten) return;
    const before = [...button.childNodes];
    const label = button.getAttribute("aria-label");
    if (button.dataset.state === "copied") return;
    button.dataset.state = "copied";
    button.setAttribute("aria-label", "Copied");
    button.replaceChildren(icon("check"), ...(done ? [done] : []));
    setTimeout(() => {
      delete button.dataset.state;
      if (label === null) button.removeAttribute("aria-label");
      else button.setAttribute("aria-label", label);
      button.replaceChildren(...before);
    }, SHOWN_MS);
  });
}

// Browsers give the clipboard to pages of this machine and of https; elsewhere a selection is copied.
async function write(text) {
  if (navigator.clipboard) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      return false;
    }
  }
  const area = document.createElement("textarea");
  area.value = text;
  area.className = "unseen";
  document.body.append(area);
  area.select();
  const isWritten = document.execCommand("copy");
  area.remove();
  return isWritten;
}
