// Makes elements. Text only ever becomes a text node here, so nothing written by a model, a person
// or a server is read as markup. Knows nothing of what the elements are for.

const SVG = "http://www.w3.org/2000/svg";

// make("button", {class: "quiet", "aria-label": "Stop", on: {click: stop}}, "Stop")
export function make(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function makeSvg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "on") {
      for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener);
    } else if (value === true) {
      node.setAttribute(name, "");
    } else if (value !== false && value !== null && value !== undefined) {
      node.setAttribute(name, String(value));
    }
  }
  node.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return node;
}

export function find(id) {
  const node = document.getElementById(id);
  if (!node) throw new Error(`the page has no element with the id ${id}`);
  return node;
}
