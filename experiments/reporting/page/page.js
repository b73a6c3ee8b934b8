// Sorts, filters and exports tables, filters charts, and shows tips and tokens. Without this script, everything except the tokens is readable.
"use strict";

// Tables: the button in a heading sorts by its column; missing values come last in either order.
function textOf(cell) { // without the value below it
  return cell.tagName === "TD" && cell.firstChild ? cell.firstChild.textContent.trim() : cell.textContent.trim();
}

function valueOf(cell, isText) {
  const text = textOf(cell);
  if (text === "" || text === "–") return null;
  if (isText) return text;
  const found = text.match(/[-+]?\d+(\.\d+)?/);
  return found ? Number(found[0]) : null;
}

for (const table of document.querySelectorAll("table.sortable")) {
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => {
    const button = heading.querySelector("button");
    if (!button) return;
    const isText = heading.hasAttribute("data-text");
    button.addEventListener("click", () => {
      const before = heading.getAttribute("aria-sort");
      const order = before ? (before === "ascending" ? "descending" : "ascending") : isText ? "ascending" : "descending";
      headings.forEach((other) => other.removeAttribute("aria-sort"));
      heading.setAttribute("aria-sort", order);
      const sign = order === "ascending" ? 1 : -1;
      const rows = [...table.tBodies[0].rows].map((row) => [valueOf(row.cells[column], isText), row]);
      rows.sort(([a], [b]) => {
        if (a === null || b === null) return (a === null) - (b === null);
        return sign * (isText ? a.localeCompare(b, undefined, { numeric: true }) : a - b);
      });
      table.tBodies[0].append(...rows.map(([, row]) => row));
    });
  });
}

// Filters: words, setting and drafters; tables and charts show the same points.
const search = document.getElementById("search");
const group = document.getElementById("group");
const toggles = [...document.querySelectorAll("[data-toggles]")];
const filtered = [...document.querySelectorAll("[data-text]:not(th)")];

function filter() {
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  const hidden = new Set(toggles.filter((each) => each.getAttribute("aria-pressed") === "false").map((each) => each.dataset.toggles));
  for (const element of filtered) {
    const { text, drafter, group: own } = element.dataset;
    const isShown = words.every((word) => text.toLowerCase().includes(word))
      && !hidden.has(drafter) && (!group || !group.value || !own || own === group.value);
    element.toggleAttribute("hidden", !isShown);
  }
  for (const panel of document.querySelectorAll("[data-panel]")) {
    panel.hidden = !panel.querySelector("[data-text]:not([hidden])");
  }
  const points = [...document.querySelectorAll("table.points tbody tr[data-drafter]")];
  const shown = points.filter((row) => !row.hidden).length;
  document.getElementById("count").textContent = shown === points.length ? `${shown} ${shown === 1 ? "point" : "points"}` : `${shown} of ${points.length} points`;
}

search.addEventListener("input", filter);
if (group) group.addEventListener("change", filter);
for (const toggle of toggles) {
  toggle.addEventListener("click", () => {
    toggle.setAttribute("aria-pressed", toggle.getAttribute("aria-pressed") !== "true");
    filter();
  });
}
filter();

// Export of the points that the table shows, in its order.
function fieldOf(text) {
  const value = text.trim().replace(/^‼ /, "");
  if (value === "–") return "";
  const percent = value.match(/^(-?\d+)%$/);
  const plain = percent ? String(Number(percent[1]) / 100) : value;
  return /[",\r\n]/.test(plain) ? `"${plain.replaceAll('"', '""')}"` : plain;
}

function csvOf(table) {
  const [drafter, ...others] = table.tHead.rows[0].cells;
  const withBelow = (cells, textOf, belowOf) => cells.flatMap((cell, column) =>
    others[column].dataset.below ? [textOf(cell), belowOf(cell)] : [textOf(cell)]);
  const small = (cell) => cell.querySelector("small")?.textContent ?? "";
  const lines = [...table.tBodies[0].rows].filter((row) => !row.hidden).map((row) => {
    const [first, ...cells] = row.cells;
    return [first.querySelector(".name").textContent, small(first), ...withBelow(cells, textOf, small)];
  });
  const names = withBelow(others, (heading) => heading.textContent, (heading) => heading.dataset.below);
  return [[drafter.textContent, "rule", ...names], ...lines].map((line) => line.map(fieldOf).join(",")).join("\r\n") + "\r\n";
}

document.getElementById("csv").addEventListener("click", () => {
  const link = document.createElement("a");
  const text = "\ufeff" + csvOf(document.querySelector("table.points")); // a byte order mark, from which spreadsheets infer UTF-8
  link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  link.download = "outrider.csv";
  link.click();
  URL.revokeObjectURL(link.href);
});

// Tips of the element under the pointer, of the nearest mark of a plot, or of the focused element.
const REACH = 24; // pixels from the pointer to a mark
const tip = document.getElementById("tip");
let pointed = null; // the element that the tip describes

function showTip(described, content) {
  tip.replaceChildren(...content);
  tip.hidden = false;
  pointed = described;
  placeTip();
}

function placeTip() {
  if (tip.hidden) return;
  const at = pointed.getClientRects()[0];
  const left = Math.min(at.left, innerWidth - tip.offsetWidth - 8);
  const below = at.bottom + 6;
  tip.style.left = `${Math.max(8, left)}px`;
  tip.style.top = `${below + tip.offsetHeight < innerHeight ? below : at.top - tip.offsetHeight - 6}px`;
}

function hideTip() {
  tip.hidden = true;
}

function nearestMark(plot, event) {
  let nearest = null;
  let least = REACH;
  for (const mark of plot.querySelectorAll("[data-tip]")) {
    const box = mark.getBoundingClientRect();
    const away = Math.hypot((box.left + box.right) / 2 - event.clientX, (box.top + box.bottom) / 2 - event.clientY);
    if (box.width && away < least) [nearest, least] = [mark, away]; // a filtered mark has no box
  }
  return nearest;
}

function pointAt(event) {
  const plot = event.target.closest?.(".plot");
  const described = plot ? nearestMark(plot, event) : event.target.closest?.("[data-tip], .token");
  if (!described) hideTip();
  else if (described !== pointed || tip.hidden) describe(described);
}

function describe(described) {
  if (described.token) showTip(described, tokenTip(described.token));
  else showTip(described, [element("p", "", described.dataset.tip)]);
}

// Not pointerover, which also follows from scrolling to a focused element.
for (const name of ["pointerdown", "pointermove"]) document.addEventListener(name, pointAt, { passive: true });
document.documentElement.addEventListener("pointerleave", hideTip);
document.addEventListener("focusin", (event) => {
  const described = event.target.closest("[data-tip], .token");
  if (described) describe(described);
});
document.addEventListener("focusout", hideTip);
document.addEventListener("keydown", (event) => event.key === "Escape" && hideTip());
addEventListener("scroll", placeTip, { passive: true });
for (const button of document.querySelectorAll("button[data-tip]")) button.setAttribute("aria-description", button.dataset.tip);

// Tokens of one prompt and point. One token is in the tab order; arrow keys move to the others.
const [tracedPoints, producers, promptTexts] = JSON.parse(document.getElementById("token-data").textContent);
const text = document.getElementById("text");
const SHOWN_LINES = 8; // of a prompt, before its button is pressed

function numberOf(probability) {
  return probability === null ? "–" : probability === 0 || probability >= 0.001 ? String(Number(probability.toFixed(3))) : probability.toExponential(1);
}

function visible(piece) {
  return piece === "" ? "▯" : piece.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replace(/^ +| +$/g, (spaces) => "␣".repeat(spaces.length));
}

function spoken([piece, producer, p, q, lost]) {
  const likely = [p === null ? "" : `p ${numberOf(p)}`, q === null ? "" : `q ${numberOf(q)}`].filter(Boolean);
  const instead = lost ? [`instead of ${visible(lost[0])}, p ${numberOf(lost[1])}, q ${numberOf(lost[2])}`] : [];
  return [visible(piece), producer, ...likely, ...instead].join(", ");
}

function element(name, className, content = "") {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.textContent = content;
  return made;
}

function bars(p, q) {
  const list = element("dl");
  for (const [name, value] of [["p", p], ["q", q]]) {
    const bar = element("dd", "bar");
    bar.style.setProperty("--share", `${100 * (value ?? 0)}%`);
    list.append(element("dt", "", name), bar, element("dd", "", numberOf(value)));
  }
  return list;
}

function tokenTip([piece, producer, p, q, lost]) {
  const name = element("p");
  name.append(element("b", "", visible(piece)), ` ${producer}: ${producers[producer]}`);
  tip.style.setProperty("--edge", `var(--${producer}-edge)`);
  const content = [name];
  if (p !== null) content.push(bars(p, q));
  if (lost) {
    const instead = element("div", "lost");
    const instead_of = element("p", "", "instead of ");
    instead_of.append(element("b", "", visible(lost[0])));
    instead.append(instead_of, bars(lost[1], lost[2]));
    content.push(instead);
  }
  return content;
}

function focusToken(span) {
  for (const other of text.querySelectorAll(".token[tabindex='0']")) {
    other.tabIndex = -1;
    other.setAttribute("aria-selected", "false");
  }
  span.tabIndex = 0;
  span.setAttribute("aria-selected", "true");
  span.focus();
}

function showPrompt(whole) {
  const prompt = document.getElementById("prompt");
  prompt.hidden = !whole;
  const end = whole.split(/(?<=\n)/).slice(-SHOWN_LINES).join("");
  prompt.replaceChildren(end);
  if (end === whole) return;
  const more = element("button", "", "Show the whole prompt");
  more.type = "button";
  more.addEventListener("click", () => prompt.replaceChildren(whole));
  prompt.prepend(more, "\n");
}

function showText(tokens) {
  const spans = tokens.map((token, index) => {
    const span = element("span", `token ${token[1]}`);
    span.token = token;
    span.setAttribute("role", "option");
    span.setAttribute("aria-label", spoken(token));
    span.setAttribute("aria-selected", index === 0 ? "true" : "false");
    span.tabIndex = index === 0 ? 0 : -1;
    const pieces = token[0] === "" ? ["▯"] : token[0].split(/(?<=\n)/);
    for (const piece of pieces) {
      if (piece.endsWith("\n")) span.append(piece.slice(0, -1), element("span", "break", "⏎"), "\n");
      else span.append(piece);
    }
    return span;
  });
  text.replaceChildren(...spans);
  const legend = document.getElementById("producers");
  legend.replaceChildren();
  for (const [producer, meaning] of Object.entries(producers)) {
    const number = tokens.filter((token) => token[1] === producer).length;
    const entry = element("span");
    entry.append(element("span", `swatch ${producer}`), `${number} ${producer}: ${meaning}`);
    legend.append(entry);
  }
}

if (text) {
  const points = document.getElementById("token-point");
  const prompts = document.getElementById("token-prompt");
  points.append(...tracedPoints.map((point, index) => new Option(point.name, index)));
  const choosePrompt = () => {
    const row = tracedPoints[points.value].prompts[prompts.value];
    showPrompt(promptTexts[row.prompt] ?? "");
    showText(row.tokens);
  };
  const choosePoint = () => {
    const before = prompts.selectedIndex;
    const rows = tracedPoints[points.value].prompts;
    prompts.replaceChildren(...rows.map((row, index) => new Option(row.name, index)));
    prompts.selectedIndex = Math.min(Math.max(0, before), rows.length - 1); // keep the prompt when the point changes
    choosePrompt();
  };
  points.addEventListener("change", choosePoint);
  prompts.addEventListener("change", choosePrompt);
  choosePoint();

  text.addEventListener("click", (event) => event.target.closest(".token") && focusToken(event.target.closest(".token")));
  text.addEventListener("keydown", (event) => {
    const spans = [...text.querySelectorAll(".token")];
    const at = spans.indexOf(document.activeElement);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: spans.length - 1 }[event.key];
    if (to === undefined || !spans[to]) return;
    event.preventDefault();
    focusToken(spans[to]);
  });
}
