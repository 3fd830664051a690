// Draws the charts of open sections, one after the other, where their pictures stand, and hides
// whatever belongs to the arms whose boxes are not ticked: in charts by their parameter `shown`, in
// tables by data-arm. The choice is kept in the address: #hide=1,3
const sheet = document.head.appendChild(document.createElement("style"));
const views = new Map(); // name of a chart → its view
window.views = views;
let config, charts, arms; // what the page says in data
let seeded = false; // whether each seed has its line
let axis = "", smooth = false; // what curves are drawn over: "" is their own unit
let queue = Promise.resolve();

const boxes = () => [...document.querySelectorAll("input[data-toggles]")];
const hidden = () => boxes().filter((box) => !box.checked).map((box) => box.dataset.toggles);
const shown = () => arms.filter((_, index) => !hidden().includes(String(index)));
const figureOf = (name) => document.getElementById(`chart-${name}`);
const nameOf = (figure) => figure.id.slice("chart-".length);
const isOpen = (figure) => figure.closest("details:not([open])") === null;

const tell = async (name, value) => {
  for (const view of views.values()) await view.signal(name, value).runAsync();
};

const apply = () => {
  const rules = hidden().map((arm) => `[data-arm="${arm}"]`);
  sheet.textContent = rules.length ? `${rules.join(",")}{display:none!important}` : "";
  return tell("shown", shown());
};

const keep = () => {
  apply();
  try {
    history.replaceState(null, "", hidden().length ? `#hide=${hidden().join(",")}` : "#");
  } catch {
    // some browsers refuse for files; the page works without
  }
};

// What a reader has chosen in a chart: signals of its layer and of where it is zoomed to.
const chosen = (view) => {
  const state = view.getState({ data: () => false, signals: (name) => /^(layer|zoom(_\d+)?)$/.test(name) });
  return state.signals;
};

const sized = (spec, width) => {
  if (!spec.concat) {
    spec.width = "container";
    return;
  }
  spec.columns = Math.min(spec.concat.length, Math.max(1, Math.floor(width / 350)));
  const room = Math.min(520, Math.floor(width / spec.columns) - 120); // without labels of an axis
  for (const own of spec.concat) own.width = room;
};

// Moves curves to the chosen axis, where they have it, and averages each point with its neighbours.
const mean = (values, half) => values.map((own, i) => {
  const near = values.slice(Math.max(0, i - half), i + half + 1).filter((value) => value !== null);
  return own === null ? null : near.reduce((sum, value) => sum + value, 0) / near.length;
});
// Where a curve is on the chosen axis at an x of its own unit.
const at = (curve, x) => {
  const next = curve.x.findIndex((own) => own >= x);
  if (next <= 0) return curve[axis].at(next);
  const share = (x - curve.x[next - 1]) / (curve.x[next] - curve.x[next - 1]);
  return curve[axis][next - 1] + share * (curve[axis][next] - curve[axis][next - 1]);
};
const moved = (spec) => {
  const { x, axes = [] } = spec.usermeta ?? {};
  const over = axes.includes(axis), curves = spec.datasets.curves ?? [];
  if (!x || !(over || smooth)) return spec;
  const curveOf = (own) => curves.find((other) => other[axis] && (!own.arm || other.arm === own.arm));
  const row = (own) => {
    const next = { ...own }, curve = curveOf(own);
    if (over && curve) next.x = Array.isArray(own.x) ? own.x.map((value) => at(curve, value)) : at(curve, own.x);
    const half = Array.isArray(own.y) ? Math.ceil(own.y.length / 20) : 0;
    for (const key of smooth && half ? ["y", "low", "high"] : []) if (own[key]) next[key] = mean(own[key], half);
    return next;
  };
  return JSON.parse(JSON.stringify(spec), (key, value) => {
    const name = axis.replace("_", " ");
    if (over && key === "title" && value === x) return name;
    if (over && key === "expr") return value.replaceAll(`${JSON.stringify(x)}:`, `${JSON.stringify(name)}:`); // a tooltip's
    if (!Array.isArray(value) || value[0]?.x === undefined) return value;
    return (over ? value.filter(curveOf) : value).map(row); // others would be in another unit
  });
};

const draw = async (figure, before = {}) => {
  const name = nameOf(figure);
  // the boxes above are the legend
  const spec = JSON.parse(JSON.stringify(moved(charts[name])), (key, value) => {
    if (key === "legend") return null;
    const own = value?.name === "layer" ? before.layer : value?.select && before[value.name];
    return own && Object.keys(own).length ? { ...value, value: own } : value;
  });
  const place = figure.querySelector(".drawing");
  sized(spec, place.clientWidth);
  const axes = { ...config.axis, labelLimit: place.clientWidth < 500 ? 110 : config.axis.labelLimit };
  views.get(name)?.finalize();
  const drawn = await vegaEmbed(place, spec, {
    config: { ...config, axis: axes },
    ast: true, // expressions are interpreted, so the page may forbid eval
    renderer: "svg",
    actions: false,
    logLevel: 1,
    defaultStyle: false,
    tooltip: { disableDefaultStyle: true },
  });
  views.set(name, drawn.view);
  drawn.view.signal("shown", shown()).signal("seeds", seeded).signal("hover", true);
  drawn.view.addEventListener("dblclick", () => draw(figure)); // back to the whole
  await drawn.view.runAsync();
};

// Each in a task of its own, so that the page answers in between.
const later = (work) => {
  queue = queue.then(work).catch(console.error).then(() => new Promise((done) => setTimeout(done)));
};
const drawOpen = (root) => {
  for (const figure of root.querySelectorAll("figure.chart")) {
    const due = () => isOpen(figure) && figure.isConnected && !views.has(nameOf(figure));
    later(() => due() && draw(figure));
  }
};
const redraw = () => {
  for (const [name, view] of views) later(() => draw(figureOf(name), chosen(view)));
};

// Makes the page answer.
const begin = () => {
  ({ config, charts, arms } = JSON.parse(document.getElementById("data").textContent));
  const match = /^#hide=([\d,]+)$/.exec(location.hash);
  const asked = match ? match[1].split(",") : [];
  for (const box of boxes()) {
    box.checked = !asked.includes(box.dataset.toggles);
    box.addEventListener("change", keep);
  }
  for (const [id, all] of [["show-all", true], ["show-none", false]]) {
    document.getElementById(id)?.addEventListener("click", () => {
      for (const box of boxes()) box.checked = all;
      keep();
    });
  }
  for (const label of document.querySelectorAll("label[data-points]")) {
    label.addEventListener("pointerenter", () => tell("focus", arms[label.dataset.points]));
    label.addEventListener("pointerleave", () => tell("focus", null));
  }
  const seeds = document.getElementById("show-seeds");
  if (seeds) seeds.checked = seeded;
  seeds?.addEventListener("change", () => tell("seeds", (seeded = seeds.checked)));
  for (const [id, key] of [["smooth", "checked"], ["axis", "value"]]) {
    const box = document.getElementById(id);
    if (!box) continue;
    box[key] = id === "axis" ? axis : smooth;
    box.addEventListener("change", () => {
      if (id === "axis") axis = box.value;
      else smooth = box.checked;
      for (const name of views.keys()) if (charts[name].usermeta?.x) later(() => draw(figureOf(name)));
    });
  }
  for (const link of document.querySelectorAll("nav a[href^='#']")) {
    link.addEventListener("click", () => (document.querySelector(link.hash).open = true));
  }
  apply();
  drawOpen(document);
};

// Runs the library that draws, which a page with charts has compressed.
const load = async () => {
  const text = document.getElementById("vega").textContent;
  if (!text) return;
  const packed = Uint8Array.from(atob(text), (own) => own.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(stream).text();
  document.head.append(script);
};

later(load);
begin();
document.addEventListener("toggle", (event) => drawOpen(event.target), true);
let width = innerWidth;
addEventListener("resize", () => {
  if (innerWidth === width) return; // phones change the height as their bars come and go
  width = innerWidth;
  redraw();
});
addEventListener("beforeprint", () => {
  for (const own of document.querySelectorAll(".section, .card details")) own.open = true;
});
