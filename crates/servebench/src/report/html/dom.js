// Elements. Text only ever enters as text nodes, so no name or error message can become markup.
const SVG = "http://www.w3.org/2000/svg";

const fill = (element, attributes, children) => {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat()) {
    if (child === null || child === undefined) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
};
const html = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);
const byId = (id) => document.getElementById(id);
const announce = (text) => { byId("announce").textContent = text; };

// A colour, a dash and a marker for each run: any one of them tells runs apart.
const DASHES = ["", "7 4", "2 4", "10 4 2 4", "4 3", "12 5", "2 2", "8 3 2 3 2 3"];
const MARKERS = [
  "M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0", "M-3.6,-3.6h7.2v7.2h-7.2z", "M0,-4.8L4.6,3.6H-4.6z", "M0,-5L5,0L0,5L-5,0z",
  "M0,4.8L4.6,-3.6H-4.6z", "M-1.6,-4.6h3.2v3h3v3.2h-3v3h-3.2v-3h-3v-3.2h3z", "M-5,-2.4h10v4.8h-10z", "M-2.4,-5h4.8v10h-4.8z",
];
const colour = (run) => `s${run % 8}`;
const dash = (run) => DASHES[(run + Math.floor(run / 8)) % 8];
const marker = (run) => MARKERS[(run + 3 * Math.floor(run / 8)) % 8];

const swatch = (run) => svg("svg", { class: `swatch ${colour(run)}`, viewBox: "0 0 26 12", "aria-hidden": "true" },
  svg("line", { x1: 0, y1: 6, x2: 26, y2: 6, "stroke-width": 2, "stroke-dasharray": dash(run) }),
  svg("path", { d: marker(run), transform: "translate(13 6)", style: null, class: "dot" }));

// Radio buttons that look like one switch.
const choice = (label, options, value, onPick) => {
  const name = `choice-${choice.count = (choice.count || 0) + 1}`;
  const inputs = options.map(([key, text]) => html("label", {},
    html("input", { type: "radio", name, value: key, checked: key === value, onchange: () => onPick(key) }), text));
  return html("div", { class: "choice-label", role: "radiogroup", "aria-label": label }, html("span", { "aria-hidden": "true" }, label),
    html("fieldset", { class: "choice" }, inputs));
};

const setOptions = (select, options, value) => {
  select.replaceChildren(...options.map(([key, text]) => html("option", { value: key, selected: String(key) === String(value) }, text)));
};
