"use strict";
// The page of `treemax serve`, and with its data inside, of `treemax explore`. Everything that comes from a model or a
// person is set as text, never as HTML.

const WAIT = 120; // milliseconds after a key, before asking
const ANSWERS = 8;
const FEW = 12; // children of a node, until more are asked for
const element = (id) => document.getElementById(id);
const number = new Intl.NumberFormat("en");
const percent = (p) => (p === 0 ? "0%" : p >= 0.9995 ? "100%" : p >= 0.0995 ? `${(100 * p).toFixed(0)}%` : p >= 0.0005 ? `${(100 * p).toFixed(1)}%` : "<0.1%");
const plural = (n, noun) => `${number.format(n)} ${noun}${n === 1 ? "" : "s"}`;
const calm = matchMedia("(prefers-reduced-motion: reduce)");

/** Make an element: make("p", {class: "quiet"}, "text", child). */
function make(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== false && value != null) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child != null));
  return made;
}

const some = (node) => node.labels.slice(0, 3).map(String).join(", ");
/** A label without the codes before its last colon, where room is short: "noun:09434308:river" is "river". */
const short = (label) => String(label).replace(/^(?=\S*\d)\S*:(?=\D)/, "").replaceAll("_", " ");
const nameOf = (node) => (node.n_labels > Math.min(3, node.labels.length) ? `${some(node) || "node"} …` : some(node));

// --- where answers come from ----------------------------------------------------------------------------

const state = {
  model: null, // of /models
  tree: 0,
  answers: [],
  explanation: null,
  wanted: null, // the label that is explained; null for the best one
  marked: [], // labels to teach together, if rows may have several
  progress: 0, // examples in the shown progress
  token: sessionStorageGet("treemax-token"),
};

function sessionStorageGet(name) {
  try { return sessionStorage.getItem(name); } catch { return null; }
}

class Refused extends Error {
  constructor(message, status) { super(message); this.status = status; }
}

const server = {
  learns: true,
  async ask(path, options = {}) {
    let reply;
    try { reply = await fetch(path, options); }
    catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Refused("The server does not answer.", 0);
    }
    const content = await reply.json().catch(() => ({}));
    if (!reply.ok) throw new Refused(content.error || `The server answered ${reply.status}.`, reply.status);
    return content;
  },
  headers() {
    return state.token ? { Authorization: `Bearer ${state.token}` } : {};
  },
  get(path, parameters, options = {}) {
    const own = Object.entries({ ...parameters, model: state.model?.name }).filter(([, value]) => value != null);
    return this.ask(`${path}?${new URLSearchParams(own)}`, { ...options, headers: this.headers() });
  },
  post(path, body, options = {}) {
    const headers = { "Content-Type": "application/json", ...this.headers() };
    return this.ask(path, { ...options, method: "POST", headers, body: JSON.stringify({ model: state.model?.name, ...body }) });
  },
  models() { return this.ask("models", { headers: this.headers() }).then((found) => found.models); },
  predict(row, options) { return this.post("predict", { ...row, k: ANSWERS }, options).then((found) => found.predictions[0]); },
  explain(row, label, options) {
    return this.post("explain", { ...row, k: 5, ...(label == null ? {} : { label }) }, options).then((found) => found.explanations[0]);
  },
  node(id, offset = 0, limit = 200) { return this.get("tree", { node: id, offset, limit }); },
  path(label) { return this.get("path", { label }); },
  labels(q, limit, options) { return this.get("labels", { q, limit }, options); },
};

let source = server;

/** The answers of a page that was written by `treemax explore`: pieces of compressed JSON, read when they are needed. */
async function offlineSource() {
  const pieces = new Map();
  const piece = (name) => {
    if (!pieces.has(name)) pieces.set(name, unpacked(element(`piece-${name}`).textContent.trim()));
    return pieces.get(name);
  };
  const about = await piece("about");
  const stored = about.examples ? await piece("examples") : [];
  const parents = new Map(); // of leaves that were asked for
  /** A leaf with one label, which is not stored by itself. */
  const leaf = async (id) => {
    const parent = parents.get(id) ?? map.known(id)?.parent;
    const place = parent == null ? null : (await piece("index"))[parent];
    const above = place == null ? null : (await piece(`tree-${place}`))[parent];
    const own = above?.children.find((child) => child.id === id && child.leaf);
    if (!own) throw new Refused("This part of the tree is not in the file: it was left out for its size.", 404);
    return { ...above, ...own, parent, path: [...above.path, parent], offset: 0, children: [], n_children: 0 };
  };
  const refuse = () => Promise.reject(new Refused("This page holds stored examples only.", 400));
  return {
    learns: false, offline: true, about, stored,
    models: async () => [about.model],
    predict: async (row) => row.example?.predictions ?? refuse(),
    explain: async (row, label) => {
      const found = row.example?.explanations ?? [];
      const own = label == null ? found[0] : found.find((each) => each.label === label);
      return own ?? Promise.reject(new Refused("This page holds no explanation of that label for this example.", 400));
    },
    async node(id, offset = 0, limit = 200) {
      const own = id === "root" ? about.root : id;
      const place = (await piece("index"))[own];
      if (place == null) return leaf(own);
      const node = (await piece(`tree-${place}`))[own];
      const part = (list) => list.slice(offset, offset + limit);
      return { ...node, offset, children: part(node.children), labels: node.n_children ? node.labels : part(node.labels) };
    },
    async path(label) {
      const home = (await piece("homes"))[(await piece("labels")).indexOf(label)];
      if (home == null) throw new Refused("This label is not in the part of the tree that the file holds.", 404);
      const node = await this.node(home, 0, Infinity);
      const own = node.children.find((child) => child.leaf && child.labels.includes(label));
      if (own) parents.set(own.id, node.id);
      const above = await Promise.all([...node.path, node.id].map((id) => this.node(id, 0, 0)));
      return { label, n_paths: 1, paths: [{ tree: node.tree, nodes: own ? [...above, own] : above }] };
    },
    async labels(q, limit) {
      const words = q.toLowerCase().split(/\s+/).filter(Boolean);
      const all = await piece("labels");
      const lowered = (pieces.lowered ??= all.map((label) => String(label).toLowerCase()));
      const found = [];
      let total = 0;
      for (let i = 0; i < all.length; i++)
        if (words.every((word) => lowered[i].includes(word)) && total++ < limit) found.push(all[i]);
      return { total, labels: found };
    },
  };
}

async function unpacked(base64) {
  const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

// --- asking ------------------------------------------------------------------------------------------------

let timer = 0;
let asked = 0; // counts questions, so that a late answer to an earlier one is ignored
let asking = null;

/** The row to ask about: a text, or a vector of numbers ("0.5 1 0") or of pairs ("3:0.5 17:1"). */
function currentRow() {
  const text = element("text").value;
  if (source.offline) return source.example ? { example: source.example } : null;
  if (!text.trim()) return null;
  if (state.model.input === "text") return { texts: [text] };
  const parts = text.trim().replace(/^\[|\]$/g, "").split(/[\s,;]+/).filter(Boolean);
  const pairs = parts.some((part) => part.includes(":"));
  const numbers = parts.map((part) => Number(pairs ? part.split(":")[1] : part));
  if (numbers.some((value) => !Number.isFinite(value))) throw new Refused("Expected numbers such as 0.5 1 0, or pairs such as 3:0.5 17:1.", 400);
  return { vectors: [pairs ? Object.fromEntries(parts.map((part, i) => [part.split(":")[0], numbers[i]])) : numbers] };
}

function askSoon() {
  clearTimeout(timer);
  state.wanted = null;
  state.marked = [];
  paintText(); // colours that still fit
  timer = setTimeout(() => ask(), WAIT);
}

/** Ask for the best labels and an explanation; `before` has earlier probabilities, to show what learning changed. */
async function ask(before = null) {
  clearTimeout(timer);
  const turn = ++asked;
  asking?.abort();
  asking = new AbortController();
  const options = { signal: asking.signal };
  try {
    const row = currentRow();
    if (!row) return showNothing();
    const [answers] = await Promise.all([
      source.predict(row, options).then((found) => {
        if (turn !== asked) return found;
        state.answers = found;
        showAnswers(before);
        return found;
      }),
      source.explain(row, state.wanted, options).then(
        (told) => turn === asked && showExplanation(told),
        (error) => { if (error.name === "AbortError") throw error; if (turn === asked) showExplanation(null, error.message); },
      ),
    ]);
    return answers;
  } catch (error) {
    if (error.name !== "AbortError" && turn === asked) { say(error.message, true); showAnswers(null, true); }
    return null;
  }
}

function say(text, bad = false) {
  const status = element("status");
  status.textContent = text;
  status.classList.toggle("bad", bad);
}

function showNothing() {
  state.answers = [];
  element("answers").replaceChildren();
  element("teach").hidden = true;
  say("");
  showExplanation(null);
}

function showAnswers(before, failed = false) {
  const list = element("answers");
  if (failed) return list.replaceChildren();
  const best = state.answers[0];
  say(best ? "" : "No label has a probability.");
  const chosen = state.wanted ?? best?.label;
  list.replaceChildren(...state.answers.map(({ label, probability }) => {
    const was = before?.get(label);
    const bar = make("span", { class: "bar" }, make("i"));
    bar.firstChild.style.width = `${100 * probability}%`;
    if (was != null) {
      const ghost = make("i", { class: "ghost" });
      ghost.style.width = `${100 * was}%`;
      bar.append(ghost);
    }
    const changed = was != null && percent(was) !== percent(probability);
    const value = make("span", { class: "value" }, changed ? make("span", { class: "was" }, `${percent(was)} → `) : null, percent(probability));
    const answer = make("button", { type: "button", class: "answer", "aria-pressed": String(label === chosen), onclick: () => choose(label) },
      make("span", { class: "name" }, String(label)), value, bar);
    const right = canLearn()
      ? make("button", { type: "button", class: "right", "aria-label": `Teach that ${label} is right`, onclick: () => teach(label, true) }, "✓ Right")
      : null;
    return make("li", { class: label === chosen ? "chosen" : null }, answer, right);
  }));
  element("teach").hidden = !canLearn() || !state.answers.length;
  showMarked();
  if (best) element("status").textContent = `Best: ${best.label}, ${percent(best.probability)}`;
}

const canLearn = () => source.learns && state.model?.learns;

function choose(label) {
  state.wanted = label;
  for (const item of element("answers").children) {
    const button = item.querySelector(".answer");
    const own = button.querySelector(".name").textContent === String(label);
    item.classList.toggle("chosen", own);
    button.setAttribute("aria-pressed", String(own));
  }
  const turn = ++asked;
  source.explain(currentRow(), label).then(
    (told) => turn === asked && showExplanation(told),
    (error) => turn === asked && showExplanation(null, error.message),
  );
}

// --- why -----------------------------------------------------------------------------------------------------

function showExplanation(told, trouble = "") {
  state.explanation = told;
  element("hint").textContent = trouble || (told?.notes ?? [])[0] || (told ? `Why ${told.label}: words in colour added to its score, or took from it.` : hintFor());
  paintText();
  showWords();
  showPath();
  showBackoff();
  map.light(litIds());
  element("to-answer").disabled = !map.lit.size;
}

const hintFor = () => (source.offline ? "Choose an example; the path and the words show why." : state.model?.input === "vectors"
  ? "Type numbers, such as 0.5 1 0, or pairs of column and value, such as 3:0.5 17:1." : "Type, and the best labels appear.");

const colour = (value, most) => `rgba(var(--${value > 0 ? "for" : "against"}), ${(0.1 + 0.6 * Math.min(1, Math.abs(value) / most)).toFixed(2)})`;

/** Colour the characters behind the text by what their features added. */
function paintText() {
  const text = element("text").value;
  const mirror = element("mirror");
  const told = state.explanation;
  if (!told?.spans?.length) { mirror.replaceChildren(text + "\n"); return; }
  const characters = Array.from(told.text); // Python counts characters, JavaScript halves of some
  const shown = new Float64Array(characters.length);
  for (const { start, end, feature, share } of told.spans)
    for (let i = start; i < end; i++) shown[i] += share * told.features[feature].added;
  const most = Math.max(...Array.from(shown, Math.abs), 1e-9);
  const now = Array.from(text);
  let same = 0; // what was typed since then has no colour yet
  while (same < now.length && now[same] === characters[same]) same++;
  const pieces = [];
  for (let i = 0; i < same; ) {
    let stop = i + 1;
    while (stop < same && shown[stop] === shown[i]) stop++;
    const words = now.slice(i, stop).join("");
    if (shown[i]) {
      const mark = make("mark", {}, words);
      mark.style.background = colour(shown[i], most);
      pieces.push(mark);
    } else pieces.push(words);
    i = stop;
  }
  mirror.replaceChildren(...pieces, now.slice(same).join("") + "\n");
  mirror.scrollTop = element("text").scrollTop;
}

function chips(pairs, most) {
  return pairs.map(([name, value]) => {
    const chip = make("span", { class: "chip strong" }, String(name), make("b", {}, (value > 0 ? "+" : "−") + Math.abs(value).toFixed(2)));
    chip.style.background = colour(value, most);
    return chip;
  });
}

function showWords() {
  const features = (state.explanation?.features ?? []).filter((each) => each.added)
    .sort((a, b) => Math.abs(b.added) - Math.abs(a.added)).slice(0, 8);
  const most = Math.abs(features[0]?.added ?? 1);
  element("words").replaceChildren(...chips(features.map((each) => [each.feature, each.added]), most));
}

/** The path that the page shows: that of the chosen tree, or of the best route to a candidate. */
function shownPath() {
  const told = state.explanation;
  if (!told) return null;
  const own = told.paths.find((path) => path.tree === state.tree) ?? told.paths[0];
  const route = told.routes[0];
  if (!own) return null;
  return { tree: own.tree, steps: route ? [...route.steps, ...own.steps] : own.steps };
}

const idOf = (tree, node) => (tree ? `${tree}.${node}` : String(node));

/** Steps with the id of their node, the probability of everything up to there, and whether they end at a label. */
function placesOnPath() {
  const path = shownPath();
  let reached = 1;
  return (path?.steps ?? []).map((step, i) => {
    const last = i === path.steps.length - 1;
    reached = step.node < 0 && i && last ? Math.min(reached, step.probability) : reached * step.probability;
    const isNode = !(last && step.node < 0) && !(last && /class|leaf/.test(step.branch));
    return { step, reached, last, parent: idOf(path.tree, step.node), id: isNode ? idOf(path.tree, step.child) : null };
  });
}

const litIds = () => new Map(placesOnPath().filter((place) => place.id).map((place) => [place.id, place]));

function showPath() {
  const places = placesOnPath();
  const told = state.explanation;
  element("path-card").hidden = !places.length || !state.model.tree;
  element("path").replaceChildren(...places.map(({ step, id, last, parent }, i) => {
    const added = (step.added ?? []).map((value, at) => [told.features[at]?.feature, value]).filter(([, value]) => value)
      .sort((a, b) => Math.abs(b[1]) - Math.abs(a[1])).slice(0, 4);
    const title = last ? String(told.label) : step.labels.length ? step.labels.slice(0, 3).join(", ") : step.branch;
    const count = step.n_labels > 1 ? ` ${plural(step.n_labels, "label")}` : "";
    const target = id ?? (step.node >= 0 ? parent : null);
    const name = target ? make("button", { type: "button", onclick: () => open(target, true) }, title) : make("b", {}, title);
    return make("li", { "data-place": i },
      make("span", { class: "p" }, percent(step.probability)),
      make("div", { class: "what" }, name, make("span", { class: "quiet small" }, count),
        make("div", { class: "chips" }, ...chips(added, Math.abs(added[0]?.[1] ?? 1)))));
  }));
}

/** The deepest node on the path that is probable enough. */
function showBackoff() {
  const places = placesOnPath();
  const told = state.explanation;
  const usable = places.length > 0 && told != null && state.model.tree;
  element("backoff").hidden = !usable;
  if (!usable) return;
  const least = Number(element("confidence").value) / 100;
  element("confidence-value").textContent = `${element("confidence").value}%`;
  const sure = (place) => (place.last ? told.probability : Math.max(place.reached, told.probability));
  let at = places.length - 1;
  while (at >= 0 && sure(places[at]) < least) at--;
  const backed = element("backed");
  if (at === places.length - 1) backed.replaceChildren(make("b", {}, String(told.label)), `, ${percent(told.probability)}`);
  else if (at >= 0) {
    const { step, id } = places[at];
    const what = step.n_labels ? `one of ${plural(step.n_labels, "label")}` : "a part of the tree";
    const names = step.labels.length ? `: ${step.labels.slice(0, 4).join(", ")}${step.n_labels > 4 ? " …" : ""}` : "";
    backed.replaceChildren(id ? make("button", { type: "button", onclick: () => open(id, true) }, what) : what, `, ${percent(sure(places[at]))}${names}`);
  } else backed.replaceChildren(`any of the ${plural(state.model.n_labels, "label")}: no part of the tree is that probable`);
  [...element("path").children].forEach((item, i) => item.classList.toggle("below", i > at));
}

// --- learning ----------------------------------------------------------------------------------------------

/** Learn a label at once, or mark it where a row may have several: the labels that are not taught are wrong. */
function teach(label, toggle) {
  if (!state.model.multi_label) return learn([label]);
  const others = state.marked.filter((each) => each !== label);
  state.marked = toggle && others.length < state.marked.length ? others : [...others, label];
  showMarked();
}

function showMarked() {
  const several = state.model.multi_label;
  element("correct-title").textContent = several ? "Mark all right labels, or search for others" : "None of these? Teach the right label";
  element("teach-marked").hidden = !state.marked.length;
  element("teach-marked").textContent = `Teach ${state.marked.join(", ")}`;
  if (several) element("answers").querySelectorAll(".right").forEach((button, i) => button.setAttribute("aria-pressed", String(state.marked.includes(state.answers[i].label))));
}

async function learn(labels) {
  const row = currentRow();
  if (!row) return;
  const label = labels[0];
  const before = new Map(state.answers.map((each) => [each.label, each.probability]));
  const note = element("learned");
  note.textContent = "Learning …";
  try {
    await source.post("learn", { ...row, labels: [labels] });
    element("token-form").hidden = true;
    state.marked = [];
    const after = await changedAnswers(before, label);
    const now = after?.find((each) => each.label === label);
    const was = before.get(label);
    const change = now ? `${was == null ? "not among the best" : percent(was)} → ${percent(now.probability)}` : "not among the best yet";
    const told = labels.length > 1 ? labels.join(", ") : `${label} (${change})`;
    note.replaceChildren(`Learned: ${told}. `, make("button", { type: "button", onclick: () => undo(labels) }, "Undo"));
    afterChange();
  } catch (error) {
    note.textContent = error.message;
    if (error.status === 401) { element("token-form").hidden = false; element("token").focus(); element("token-form").onsubmit = (event) => useToken(event, labels); }
  }
}

function useToken(event, labels) {
  event.preventDefault();
  state.token = element("token").value;
  try { sessionStorage.setItem("treemax-token", state.token); } catch { /* only for this visit */ }
  learn(labels);
}

async function undo(labels) {
  try {
    const before = new Map(state.answers.map((each) => [each.label, each.probability]));
    await source.post("undo", { n: 1 });
    await changedAnswers(before, labels[0]);
    element("learned").textContent = `Undone: ${labels.join(", ")}.`;
    afterChange();
  } catch (error) { element("learned").textContent = error.message; }
}

/** Ask again until what was learned shows: the server learns in order, a moment after it has acknowledged. */
async function changedAnswers(before, label) {
  let answers = null;
  for (const pause of [0, 100, 300, 900]) {
    await new Promise((done) => setTimeout(done, pause));
    answers = await ask(before);
    const now = answers?.find((each) => each.label === label)?.probability;
    if (now !== before.get(label)) break;
  }
  return answers;
}

async function afterChange() {
  showProgress([0, 300, 1200]); // the server stores how an example was answered within a second
  await loadModels();
  map.reload();
}

async function showProgress(pauses = [0]) {
  const card = element("progress-card");
  if (!canLearn()) { card.hidden = true; return; }
  let found;
  for (const pause of pauses) {
    await new Promise((done) => setTimeout(done, pause));
    try { found = await source.get("progress", {}); } catch { card.hidden = true; return; }
    if (found.n !== state.progress) break;
  }
  state.progress = found.n;
  const points = found.points;
  card.hidden = false;
  const last = points.at(-1);
  element("progress-text").textContent = last
    ? `Of ${plural(last.n, "example")} in the log, ${percent(last.accuracy)} were answered right before they were learned.`
    : "Nothing was taught yet. Each example counts before it is learned.";
  element("progress").replaceChildren(...(points.length > 1 ? [curve(points)] : []));
}

function curve(points) {
  const svg = (tag, attributes, text) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    if (text) made.textContent = text;
    return made;
  };
  const [width, height, left, bottom] = [420, 120, 36, 20];
  const most = points.at(-1).n;
  const x = (n) => left + ((width - left - 4) * n) / most;
  const y = (a) => 6 + (height - bottom - 6) * (1 - a);
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Progressive accuracy, from ${percent(points[0].accuracy)} to ${percent(points.at(-1).accuracy)}` });
  for (const a of [0, 0.5, 1]) {
    picture.append(svg("line", { class: "grid", x1: left, x2: width, y1: y(a), y2: y(a) }));
    picture.append(svg("text", { x: left - 6, y: y(a) + 4, "text-anchor": "end" }, percent(a)));
  }
  picture.append(svg("text", { x: width, y: height - 4, "text-anchor": "end" }, plural(most, "example")));
  picture.append(svg("polyline", { class: "curve", points: points.map((p) => `${x(p.n).toFixed(1)},${y(p.accuracy).toFixed(1)}`).join(" ") }));
  return picture;
}

// --- search -------------------------------------------------------------------------------------------------

/** A text field with a list of labels, by the pattern of an editable combobox. */
function combobox(name, onchoose, mayBeNew) {
  const box = element(name);
  const input = box.querySelector("input");
  const options = make("div", { class: "options", role: "listbox", id: `${name}-options`, "aria-label": "Labels", hidden: true });
  box.append(options);
  for (const [key, value] of Object.entries({ role: "combobox", "aria-expanded": "false", "aria-controls": `${name}-options`, "aria-autocomplete": "list" })) input.setAttribute(key, value);
  let turn = 0;
  let at = -1;
  let wait = 0;
  const items = () => [...options.querySelectorAll("[role=option]")];
  const close = () => { turn++; clearTimeout(wait); options.hidden = true; input.setAttribute("aria-expanded", "false"); input.removeAttribute("aria-activedescendant"); at = -1; };
  const pick = (label) => { close(); input.value = ""; onchoose(label); };
  const mark = (next) => {
    const list = items();
    if (!list.length) return;
    at = (next + list.length) % list.length;
    list.forEach((item, i) => item.setAttribute("aria-selected", String(i === at)));
    list[at].scrollIntoView({ block: "nearest" });
    input.setAttribute("aria-activedescendant", list[at].id);
  };
  const find = async () => {
    const words = input.value.trim();
    const own = ++turn;
    if (!words) return close();
    let found;
    try { found = await source.labels(words, 20); } catch (error) { found = { total: 0, labels: [], error: error.message }; }
    if (own !== turn) return;
    const option = (label, text, i) => make("div", { role: "option", id: `${name}-${i}`, "aria-selected": "false", onmousedown: (event) => { event.preventDefault(); pick(label); } }, text);
    const made = found.labels.map((label, i) => option(label, String(label), i));
    const isNew = mayBeNew && !found.labels.some((label) => String(label) === words);
    const rest = found.total - found.labels.length;
    const note = found.error ?? (rest > 0 ? `and ${plural(rest, "other")}` : found.total ? "" : "No label has these words.");
    options.replaceChildren(...made, ...(isNew ? [option(newLabel(words), `New label: ${words}`, made.length)] : []), ...(note ? [make("div", { class: "note" }, note)] : []));
    options.hidden = false;
    input.setAttribute("aria-expanded", "true");
    at = -1;
  };
  input.addEventListener("input", () => { clearTimeout(wait); wait = setTimeout(find, WAIT); });
  input.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") { event.preventDefault(); mark(at + (event.key === "ArrowDown" ? 1 : at < 0 ? 0 : -1)); }
    else if (event.key === "Enter" && !options.hidden && items().length) { event.preventDefault(); items()[Math.max(at, 0)].dispatchEvent(new MouseEvent("mousedown", { cancelable: true })); }
    else if (event.key === "Escape") close();
  });
  input.addEventListener("blur", close);
}

const newLabel = (words) => (typeof state.answers[0]?.label === "number" ? Number(words) : words);

async function goTo(label) {
  try {
    const { paths } = await source.path(label);
    if (!paths.length) return announce(`${label} is at no leaf of the tree.`);
    const own = paths.find((path) => path.tree === state.tree) ?? paths[0];
    if (own.tree !== state.tree) await chooseTree(own.tree);
    await open(own.nodes.at(-1).id, true);
    element("node-title").focus();
  } catch (error) { announce(error.message); }
}

function announce(text) { element("map-said").textContent = text; say(text); }

// --- the node -----------------------------------------------------------------------------------------------

let opened = 0;
let shownNode = null;

/** Show a node in the panel, and in the map where asked. */
async function open(id, fly = false) {
  const turn = ++opened;
  let node;
  try { node = await map.outline(id); } catch (error) { if (turn === opened) announce(error.message); return; }
  if (turn !== opened) return;
  shownNode = node.id;
  showNode(node);
  map.select(node.id);
  if (fly) await map.fly(node.id);
}

function showNode(node) {
  const [testRows, wrong] = source.about?.errors?.[node.id] ?? [node.test_rows, (node.error ?? 0) * node.test_rows];
  element("node-title").textContent = node.n_labels === 1 ? String(node.labels[0] ?? "Label") : node.path.length ? nameOf(node) : "All labels";
  element("trail").replaceChildren(...node.path.flatMap((id, i) => [
    make("button", { type: "button", onclick: () => open(id, true) }, i ? nameOf(map.known(id) ?? { labels: [`node ${id}`], n_labels: 1 }) : "All labels"), i < node.path.length - 1 ? " › " : "",
  ]));
  const facts = [["Labels", number.format(node.n_labels)]];
  if (node.rows != null) facts.push([node.rows_are === "labels" ? "Labels of training rows" : "Training rows", number.format(node.rows)]);
  if (node.n_children) facts.push(["Children", number.format(node.n_children)]);
  if (testRows) facts.push(["Error here", percent(wrong / testRows)], ["Test rows here", number.format(testRows)]);
  const lit = map.lit.get(node.id);
  if (lit) facts.push(["For this text", percent(Math.max(lit.reached, lit.last ? state.explanation.probability : 0))]);
  element("node-facts").replaceChildren(...facts.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))));
  element("node-words").replaceChildren(...(node.words?.length
    ? [make("h3", {}, "Words that lead here"), make("div", { class: "chips" }, ...chips(node.words, node.words[0][1]))] : []));
  const shown = node.n_children ? node.labels.slice(0, 12) : node.labels;
  const labels = shown.map((label) => make("button", { type: "button", class: "chip", onclick: () => goTo(label) }, String(label)));
  const rest = node.n_labels - shown.length;
  element("node-labels").replaceChildren(...(node.n_labels > 1
    ? [make("h3", {}, rest > 0 ? "Frequent labels below" : "Labels"), make("div", { class: "chips" }, ...labels, rest > 0 ? make("span", { class: "quiet small" }, `and ${plural(rest, "other")}`) : null)] : []));
  if (!node.n_children && rest > 0)
    element("node-labels").append(moreButton(() => source.node(node.id, node.labels.length).then((more) => { node.labels.push(...more.labels); showNode(node); })));
  showChildren(node);
}

const moreButton = (work) => make("button", { type: "button", class: "plain", onclick: async (event) => { event.target.disabled = true; await work(); } }, "Show more");

function showChildren(node) {
  const size = (child) => child.rows ?? child.n_labels;
  const widest = Math.max(...node.children.map(size), 1);
  const few = node.all || node.children.length <= FEW + 4 ? node.children : node.children.slice(0, FEW);
  const list = make("ul", { class: "children" }, ...few.map((child) => {
    const bar = make("span", { class: "bar" }, make("i"));
    bar.firstChild.style.width = `${(100 * size(child)) / widest}%`;
    const words = (child.words ?? []).slice(0, 4).map(([word]) => word).join(" · ");
    return make("li", {}, make("button", { type: "button", class: map.lit.has(child.id) ? "lit" : null, onclick: () => open(child.id, true).then(() => element("node-title").focus({ preventScroll: true })) },
      make("span", { class: "name" }, nameOf(child)), make("span", { class: "n" }, [child.n_labels > 1 ? plural(child.n_labels, "label") : null, child.rows != null ? plural(child.rows, "row") : null].filter(Boolean).join(" · ")),
      child.n_labels > 1 ? bar : null, words ? make("span", { class: "more" }, words) : null));
  }));
  const rest = node.n_children - few.length;
  element("node-children").replaceChildren(...(node.n_children ? [make("h3", {}, "Children"), list] : []));
  if (few.length < node.children.length) element("node-children").append(moreButton(async () => { node.all = true; showNode(node); }));
  else if (rest > 0) element("node-children").append(moreButton(() => map.loadMore(node.id).then(() => open(node.id))));
}

// --- the map ------------------------------------------------------------------------------------------------

const map = (() => {
  const canvas = element("map");
  const context = canvas.getContext("2d");
  const nodes = new Map(); // by id: those that were heard of
  const pending = new Map();
  let ROW = 42;
  const GAP = 1;
  let root = null;
  let view = { x0: 0, x1: 1, d: 0 };
  let flight = 0;
  let scheduled = false;
  let selected = null;
  let cursor = null; // of the keyboard
  let lit = new Map();
  let colours = {};
  let boxes = []; // what was drawn, for the pointer

  function remember(id, parent, depth, facts) {
    const found = nodes.get(id) ?? { id, parent, depth, n_labels: 0, labels: [], children: null, n_children: null, full: null };
    Object.assign(found, facts);
    nodes.set(id, found);
    return found;
  }

  /** Take in an answer: the node, its children, and the sizes of theirs. */
  function absorb(answer) {
    const depth = answer.path.length;
    const known = nodes.get(answer.id)?.full;
    if (known && answer.offset > 0) { known.children.push(...answer.children); answer = known; }
    const node = remember(answer.id, answer.parent, depth, { n_labels: answer.n_labels, labels: answer.labels, n_children: answer.n_children, full: answer });
    node.children = answer.children.map((child) => {
      const own = remember(child.id, answer.id, depth + 1, { n_labels: child.n_labels, labels: child.labels, n_children: child.n_children });
      if (!own.full && child.children.length === child.n_children)
        own.children = child.children.map(([id, n]) => remember(id, child.id, depth + 2, { n_labels: n }));
      return own;
    });
    return answer;
  }

  function outline(id) {
    const known = nodes.get(id)?.full;
    if (known) return Promise.resolve(known);
    if (!pending.has(id))
      pending.set(id, source.node(id).then(absorb).finally(() => pending.delete(id)));
    return pending.get(id);
  }

  async function loadMore(id) {
    const node = await outline(id);
    absorb(await source.node(id, node.children.length));
    schedule();
  }

  /** The extent of a node, from the shares of its ancestors; null while one of them is not known. */
  function extent(node) {
    if (node === root) return [0, 1];
    const parent = nodes.get(node.parent);
    const above = parent?.children && extent(parent);
    if (!above) return null;
    const [shares, total] = sharesOf(parent);
    let before = 0;
    for (const [i, child] of parent.children.entries()) {
      if (child === node) return [above[0] + ((above[1] - above[0]) * before) / total, above[0] + ((above[1] - above[0]) * (before + shares[i])) / total];
      before += shares[i];
    }
    return null;
  }

  function sharesOf(node) {
    const shares = node.children.map((child) => Math.max(child.n_labels, 1e-9));
    const loaded = shares.reduce((a, b) => a + b, 0);
    const missing = node.n_children > node.children.length ? Math.max(node.n_labels - loaded, loaded * (node.n_children / Math.max(1, node.children.length) - 1), 0) : 0;
    return [shares, loaded + missing || 1];
  }

  // drawing

  function schedule() {
    if (!scheduled) { scheduled = true; requestAnimationFrame(draw); }
  }

  function readColours() {
    const style = getComputedStyle(document.documentElement);
    for (const name of ["card", "soft", "ink", "quiet", "accent", "accent-ink", "accent-soft", "cell", "cell-2", "cell-ink"]) colours[name] = style.getPropertyValue(`--${name}`).trim();
    colours.font = getComputedStyle(document.body).fontFamily;
  }

  function draw() {
    scheduled = false;
    const width = canvas.clientWidth;
    const height = canvas.clientHeight;
    const scale = devicePixelRatio || 1;
    if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) { canvas.width = Math.round(width * scale); canvas.height = Math.round(height * scale); }
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, width, height);
    if (!root) return;
    boxes = [];
    const wanted = [];
    const deepest = Math.max(2, ...Array.from(lit.values(), (place) => nodes.get(place.id)?.depth ?? 0), selected ? (nodes.get(selected)?.depth ?? 0) + 1 : 0);
    ROW = Math.max(46, Math.min(96, Math.floor(height / (Math.ceil(deepest - view.d) + 1))));
    const px = (x) => ((x - view.x0) / (view.x1 - view.x0)) * width;
    const visit = (node, x0, x1) => {
      const a = px(x0);
      const b = px(x1);
      const y = (node.depth - view.d) * ROW;
      const onPath = lit.has(node.id);
      if ((b < 0 || a > width || y > height) || (b - a < 0.6 && !onPath)) return;
      if (y > -ROW) box(node, a, b, y, width, onPath);
      if (node.n_children !== 0 && !node.full && b - a > 70) wanted.push([b - a, node.id]);
      if (!node.children?.length || (b - a < 2.5 && !onPath)) return;
      const [shares, total] = sharesOf(node);
      let before = 0;
      for (const [i, child] of node.children.entries()) {
        const from = x0 + ((x1 - x0) * before) / total;
        before += shares[i];
        visit(child, from, x0 + ((x1 - x0) * before) / total);
      }
      if (before < total * 0.999) rest(node, px(x0 + ((x1 - x0) * before) / total), b, y + ROW, width);
    };
    visit(root, 0, 1);
    wanted.sort((a, b) => b[0] - a[0]);
    for (const [, id] of wanted.slice(0, Math.max(0, 4 - pending.size)))
      outline(id).then(schedule, (error) => { const node = nodes.get(id); if (node) node.n_children = 0; announce(error.message); });
  }

  function box(node, a, b, y, width, onPath) {
    const left = Math.max(a, -2);
    const right = Math.min(Math.max(b, onPath ? a + 3 : a), width + 2);
    const w = Math.max(right - left - (b - a > 3 ? GAP : 0), onPath ? 3 : 0.5);
    const leaf = node.n_children === 0;
    context.fillStyle = onPath ? colours.accent : `rgba(${node.depth % 2 ? colours["cell-2"] : colours.cell}, ${leaf ? 0.75 : 1})`;
    context.beginPath();
    if (w > 6) context.roundRect(left, y + GAP, w, ROW - 2 * GAP, 4);
    else context.rect(left, y + GAP, w, ROW - 2 * GAP);
    context.fill();
    if (node.id === selected || node.id === cursor) {
      context.strokeStyle = node.id === cursor && document.activeElement === canvas ? colours.ink : colours.accent;
      context.lineWidth = 2;
      if (w > 3) context.stroke();
    }
    boxes.push({ node, left, right: left + w, y });
    if (w > 28 && node.labels.length) {
      context.save();
      context.beginPath();
      context.rect(left, y, w - 6, ROW);
      context.clip();
      context.fillStyle = onPath ? colours["accent-ink"] : colours["cell-ink"];
      const lines = Math.floor((ROW - 12) / 15);
      const names = node === root ? ["All labels"] : node.n_labels > 1 && w < 110 ? node.labels.slice(0, lines - 1).map(short) : [node.labels.slice(0, 3).map(short).join(", ")];
      context.font = `${onPath ? 600 : 500} 12px ${colours.font}`;
      names.forEach((name, i) => context.fillText(shortened(name, w - 10), left + 6, y + 17 + 15 * i));
      if (node.n_labels > 1 && names.length < lines) {
        context.globalAlpha = 0.8;
        context.font = `11px ${colours.font}`;
        context.fillText(shortened(w < 70 ? number.format(node.n_labels) : plural(node.n_labels, "label"), w - 10), left + 6, y + 17 + 15 * names.length);
      }
      context.restore();
    }
  }

  function rest(node, a, b, y, width) {
    const left = Math.max(a, 0);
    const w = Math.min(b, width) - left;
    if (w < 1) return;
    context.strokeStyle = `rgba(${colours.cell}, 1)`;
    context.setLineDash([4, 3]);
    context.strokeRect(left + 1, y + 2, w - 2, ROW - 4);
    context.setLineDash([]);
    boxes.push({ node, left, right: left + w, y, more: true });
    if (w > 90) {
      context.fillStyle = colours.quiet;
      context.font = `12px ${colours.font}`;
      context.fillText(shortened(`${number.format(node.n_children - node.children.length)} more: click to load`, w - 16), left + 8, y + 25);
    }
  }

  function shortened(text, room) {
    if (context.measureText(text).width <= room) return text;
    let [least, most] = [0, text.length];
    while (least < most) {
      const middle = (least + most + 1) >> 1;
      if (context.measureText(`${text.slice(0, middle)}…`).width <= room) least = middle;
      else most = middle - 1;
    }
    return least > 1 ? `${text.slice(0, least)}…` : "";
  }

  // moving

  function moveTo(target, quickly = false) {
    const from = { ...view };
    const own = ++flight;
    if (quickly || calm.matches) { view = target; schedule(); return Promise.resolve(); }
    const start = performance.now();
    return new Promise((done) => {
      const step = (now) => {
        if (own !== flight) return done();
        const t = Math.min(1, (now - start) / 420);
        const e = t < 0.5 ? 4 * t ** 3 : 1 - (-2 * t + 2) ** 3 / 2;
        const size0 = from.x1 - from.x0;
        const size1 = target.x1 - target.x0;
        const size = size0 * (size1 / size0) ** e; // zooming looks even in the logarithm
        const share = Math.abs(size0 - size1) < 1e-12 ? e : (size - size0) / (size1 - size0);
        const x0 = from.x0 + (target.x0 - from.x0) * share;
        view = { x0, x1: x0 + size, d: from.d + (target.d - from.d) * e };
        schedule();
        if (t < 1) requestAnimationFrame(step);
        else { view = target; done(); }
      };
      requestAnimationFrame(step);
    });
  }

  function around(node) {
    const [a, b] = extent(node);
    const margin = (b - a) * 0.04;
    const rows = canvas.clientHeight / ROW;
    const d = Math.max(0, Math.min(node.depth - 1, node.depth + 2 - rows + 2));
    return { x0: Math.max(0, a - margin), x1: Math.min(1, b + margin), d: Math.max(d, node.depth - (rows - 3)) > 0 ? Math.max(0, node.depth - 2) : 0 };
  }

  async function fly(id) {
    const full = await outline(id);
    for (const above of full.path) await outline(above);
    let node = nodes.get(id);
    for (let tries = 0; !extent(node) && tries < 50; tries++) { // among children that are not loaded yet
      const gap = [...full.path].reverse().find((above) => nodes.get(above).children.length < nodes.get(above).n_children);
      if (!gap) return;
      await loadMore(gap);
      node = nodes.get(id);
    }
    if (extent(node)) await moveTo(around(node.full?.n_children || !node.parent ? node : nodes.get(node.parent)));
  }

  function zoom(factor, at = 0.5, quickly = false) {
    const size = Math.min(1, Math.max(1e-9, (view.x1 - view.x0) * factor));
    const middle = view.x0 + (view.x1 - view.x0) * at;
    const x0 = Math.max(0, Math.min(1 - size, middle - size * at));
    moveTo({ x0, x1: x0 + size, d: depthFor(x0, x0 + size) }, quickly);
  }

  /** Rows above the view are left out where a single node fills its width. */
  function depthFor(x0, x1) {
    let node = root;
    let [a, b] = [0, 1];
    for (;;) {
      const [shares, total] = node.children?.length ? sharesOf(node) : [[], 1];
      let before = 0;
      let next = null;
      for (const [i, child] of (node.children ?? []).entries()) {
        const from = a + ((b - a) * before) / total;
        before += shares[i];
        const to = a + ((b - a) * before) / total;
        if (from <= x0 + 1e-12 && to >= x1 - 1e-12) { next = [child, from, to]; break; }
      }
      if (!next) break;
      [node, a, b] = next;
    }
    const rows = canvas.clientHeight / ROW;
    return node.depth > rows - 4 ? Math.max(0, node.depth - 2) : 0;
  }

  // pointer and keyboard

  const hit = (event) => {
    const frame = canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - frame.left, event.clientY - frame.top];
    return boxes.findLast((each) => x >= each.left - 1 && x <= each.right + 1 && y >= each.y && y < each.y + ROW);
  };
  let drag = null;
  canvas.addEventListener("pointerdown", (event) => { drag = { x: event.clientX, view: { ...view }, moved: false }; });
  addEventListener("pointerup", () => { setTimeout(() => (drag = null)); });
  canvas.addEventListener("pointermove", (event) => {
    if (drag && Math.abs(event.clientX - drag.x) > 4) {
      drag.moved = true;
      flight++;
      const size = drag.view.x1 - drag.view.x0;
      const x0 = Math.max(0, Math.min(1 - size, drag.view.x0 - ((event.clientX - drag.x) / canvas.clientWidth) * size));
      view = { x0, x1: x0 + size, d: depthFor(x0, x0 + size) };
      schedule();
    }
    const found = drag?.moved || event.pointerType === "touch" ? null : hit(event);
    const tip = element("tip");
    tip.hidden = !found || found.more;
    if (!found || found.more) return;
    const { node } = found;
    tip.textContent = `${node === root ? "All labels" : node.labels.slice(0, 3).join(", ") || "…"}${node.n_labels > 1 ? ` · ${plural(node.n_labels, "label")}` : ""}`;
    const frame = canvas.getBoundingClientRect();
    tip.style.left = `${Math.max(0, Math.min(event.clientX - frame.left + 12, frame.width - tip.offsetWidth - 4))}px`;
    tip.style.top = `${found.y + ROW + 4}px`;
  });
  canvas.addEventListener("pointerleave", () => { element("tip").hidden = true; });
  canvas.addEventListener("click", (event) => {
    if (drag?.moved) return;
    const found = hit(event);
    if (!found) return;
    if (found.more) loadMore(found.node.id);
    else { cursor = found.node.id; window.treemaxOpen(found.node.id, true); }
  });
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    const at = (event.clientX - canvas.getBoundingClientRect().left) / canvas.clientWidth;
    zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY / 300))), at, true);
  }, { passive: false });
  canvas.addEventListener("keydown", async (event) => {
    if (!root) return;
    const node = nodes.get(cursor) ?? root;
    const siblings = nodes.get(node.parent)?.children ?? [node];
    const at = siblings.indexOf(node);
    let next = null;
    if (event.key === "ArrowLeft") next = siblings[Math.max(0, at - 1)];
    else if (event.key === "ArrowRight") next = siblings[Math.min(siblings.length - 1, at + 1)];
    else if (event.key === "ArrowUp" || event.key === "Escape") next = nodes.get(node.parent) ?? root;
    else if (event.key === "Home") next = root;
    else if (event.key === "ArrowDown") { event.preventDefault(); await outline(node.id).catch(() => null); next = node.children?.[0] ?? node; }
    else if (event.key === "Enter" || event.key === " ") { event.preventDefault(); return window.treemaxOpen(node.id, true); }
    else if (event.key === "+" || event.key === "-") return zoom(event.key === "+" ? 0.5 : 2);
    else return;
    event.preventDefault();
    await outline(next.id).catch(() => null);
    cursor = next.id;
    const [a, b] = extent(next) ?? [0, 1];
    const small = (b - a) / (view.x1 - view.x0) < 0.03;
    if (small || a < view.x0 || b > view.x1 || event.key === "Escape" || event.key === "Home") moveTo(around(nodes.get(next.parent) ?? root));
    element("map-said").textContent = `${next === root ? "All labels" : next.labels.slice(0, 3).join(", ")}, ${plural(next.n_labels, "label")}, level ${next.depth}${lit.has(next.id) ? ", on the path" : ""}`;
    schedule();
  });
  canvas.addEventListener("focus", () => { cursor ??= selected ?? root?.id; schedule(); });
  canvas.addEventListener("blur", schedule);
  new ResizeObserver(schedule).observe(canvas);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readColours(); schedule(); });

  return {
    get lit() { return lit; },
    known: (id) => nodes.get(id),
    outline, loadMore, fly, zoom,
    toRoot: () => moveTo({ x0: 0, x1: 1, d: 0 }),
    select(id) { selected = cursor = id; schedule(); },
    async start(id) {
      readColours();
      nodes.clear();
      pending.clear();
      const answer = absorb(await source.node(id));
      root = nodes.get(answer.id);
      view = { x0: 0, x1: 1, d: 0 };
      schedule();
      return answer;
    },
    /** Show a path; its nodes are loaded, so that it can be seen as deep as it goes. */
    async light(ids) {
      lit = ids;
      schedule();
      for (const place of ids.values()) {
        if (lit !== ids) return;
        if (root && place.step.node >= 0) await outline(place.parent).catch(() => null);
        schedule();
      }
    },
    /** Forget what is known of the tree after it has changed, and stay where we are. */
    async reload() {
      if (!root) return;
      const place = view;
      const id = shownNode;
      await this.start(root.id).catch(() => null);
      view = place;
      await this.light(litIds());
      if (id) open(id);
    },
  };
})();
window.treemaxOpen = open;

// --- start --------------------------------------------------------------------------------------------------

async function loadModels() {
  const models = await source.models();
  const names = models.map((model) => model.name);
  const choice = element("model");
  if ([...choice.options].map((option) => option.value).join("\n") !== names.join("\n"))
    choice.replaceChildren(...names.map((name) => make("option", { value: name }, name)));
  element("model-choice").hidden = models.length < 2;
  state.model = models.find((model) => model.name === state.model?.name) ?? models[0];
  choice.value = state.model.name;
  element("facts").textContent = `${state.model.model} · ${plural(state.model.n_labels, "label")}`;
  return models;
}

async function useModel() {
  asked++;
  state.marked = [];
  showNothing();
  document.title = `${state.model.name} · Treemax`;
  element("facts").textContent = `${state.model.model} · ${plural(state.model.n_labels, "label")}`;
  element("hint").textContent = hintFor();
  element("ask-title").textContent = state.model.input === "text" ? "Text" : "Vector";
  element("tree-column").hidden = !state.model.tree;
  document.querySelector("main").classList.toggle("single", !state.model.tree);
  element("search").hidden = !state.model.tree;
  state.tree = 0;
  showProgress();
  if (state.model.tree) await chooseTree(0).catch((error) => announce(error.message));
  if (element("text").value || source.example) ask();
}

async function chooseTree(tree) {
  state.tree = tree;
  const root = await map.start(tree ? `${tree}.0` : "root").catch(async (error) => { if (tree) return map.start((await source.path(state.answers[0].label)).paths[tree].nodes[0].id); throw error; });
  const choice = element("tree");
  element("tree-choice").hidden = root.n_trees < 2;
  choice.replaceChildren(...Array.from({ length: root.n_trees }, (_, i) => make("option", { value: i }, `Tree ${i + 1} of ${root.n_trees}`)));
  choice.value = tree;
  await open(root.id);
  if (state.explanation) showExplanation(state.explanation);
}

function showExample(i) {
  source.example = source.stored[i];
  element("example").value = i;
  element("text").value = source.example.text;
  state.wanted = null;
  ask();
}

function startOffline() {
  const { about, stored } = source;
  element("text").readOnly = true;
  element("ask").hidden = !stored.length;
  element("answers").closest(".card").hidden = !stored.length;
  element("examples").hidden = !stored.length;
  element("example").replaceChildren(...stored.map((each, i) => make("option", { value: i },
    `${each.right === false ? "✗ " : each.right ? "✓ " : ""}${each.text.slice(0, 70)}`)));
  element("example").addEventListener("change", (event) => showExample(Number(event.target.value)));
  element("another").addEventListener("click", () => showExample((Number(element("example").value) + 1) % stored.length));
  if (about.report) {
    const { report } = about;
    element("report-card").hidden = false;
    element("report-text").textContent = `${plural(report.rows, "test row")}; the best label is right for ${percent(report.accuracy)}.`;
    element("worst").replaceChildren(...report.worst.map((each) => make("li", {}, make("button", { type: "button", onclick: () => open(each.id, true) },
      make("span", { class: "name" }, each.name), make("span", { class: "n" }, make("b", {}, percent(each.wrong / each.rows)), ` of ${plural(each.rows, "row")}`)))));
    element("confusions").replaceChildren(...report.confusions.map((each) => make("li", {}, make("button", { type: "button", onclick: () => { goTo(each.truth); if (each.example != null) showExample(each.example); } },
      make("span", { class: "name" }, `${each.truth} taken for ${each.answer}`), make("span", { class: "n" }, plural(each.n, "time"))))));
  }
  if (stored.length) showExample(0);
}

async function start() {
  try {
    if (element("piece-about")) source = await offlineSource();
    await loadModels();
  } catch (error) { say(error.message, true); return; }
  const text = element("text");
  text.addEventListener("input", askSoon);
  text.addEventListener("scroll", () => { element("mirror").scrollTop = text.scrollTop; });
  element("confidence").addEventListener("input", showBackoff);
  element("model").addEventListener("change", (event) => {
    const name = event.target.value;
    loadModels().then((models) => { state.model = models.find((model) => model.name === name) ?? models[0]; element("model").value = name; useModel(); });
  });
  element("tree").addEventListener("change", (event) => chooseTree(Number(event.target.value)));
  element("to-root").addEventListener("click", () => { map.toRoot(); });
  element("zoom-in").addEventListener("click", () => map.zoom(0.5));
  element("zoom-out").addEventListener("click", () => map.zoom(2));
  element("to-answer").addEventListener("click", () => { const last = [...map.lit.keys()].at(-1); if (last) open(last, true); });
  combobox("search", goTo, false);
  combobox("correct", teach, true);
  element("teach-marked").addEventListener("click", () => learn(state.marked));
  await useModel();
  if (source.offline) startOffline();
  document.documentElement.dataset.ready = "yes";
}

start();
