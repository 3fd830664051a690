// Draws the charts when they come near the window, and hides whatever belongs to the arms whose
// boxes are not ticked: in charts by their parameter `shown`, in tables by data-arm. The choice is
// kept in the address: #hide=1,3
const { config, charts, arms } = JSON.parse(document.getElementById("data").textContent);
const boxes = [...document.querySelectorAll("input[data-toggles]")];
const seeds = document.getElementById("show-seeds");
const sheet = document.head.appendChild(document.createElement("style"));
const views = new Map(); // name of a chart → its view
window.views = views;

const hidden = () => boxes.filter((box) => !box.checked).map((box) => box.dataset.toggles);
const shown = () => arms.filter((_, index) => !hidden().includes(String(index)));

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

const draw = async (figure) => {
  const name = figure.id.slice("chart-".length);
  // the boxes above are the legend
  const copy = JSON.stringify(charts[name]);
  const spec = JSON.parse(copy, (key, value) => (key === "legend" ? null : value));
  const place = figure.querySelector(".drawing");
  const width = place.clientWidth;
  if (spec.concat) spec.columns = Math.max(1, Math.floor(width / 350));
  else spec.width = "container";
  const before = views.get(name);
  const layer = spec.params.find((own) => own.name === "layer");
  if (layer && before) layer.value = before.signal("layer");
  before?.finalize();
  const drawn = await vegaEmbed(place, spec, {
    config,
    ast: true, // expressions are interpreted, so the page may forbid eval
    renderer: "svg",
    actions: false,
    logLevel: 1,
    defaultStyle: false,
    tooltip: { disableDefaultStyle: true },
  });
  views.set(name, drawn.view);
  drawn.view.signal("shown", shown()).signal("seeds", seeds?.checked ?? false).signal("hover", true);
  drawn.view.addEventListener("dblclick", () => draw(figure)); // back to the whole
  await drawn.view.runAsync();
};

const match = /^#hide=([\d,]+)$/.exec(location.hash);
const asked = match ? match[1].split(",") : [];
for (const box of boxes) {
  box.checked = !asked.includes(box.dataset.toggles);
  box.addEventListener("change", keep);
}
for (const [id, all] of [["show-all", true], ["show-none", false]]) {
  document.getElementById(id)?.addEventListener("click", () => {
    for (const box of boxes) box.checked = all;
    keep();
  });
}
for (const label of document.querySelectorAll("label[data-points]")) {
  label.addEventListener("pointerenter", () => tell("focus", arms[label.dataset.points]));
  label.addEventListener("pointerleave", () => tell("focus", null));
}
seeds?.addEventListener("change", () => tell("seeds", seeds.checked));
apply();

const near = new IntersectionObserver(
  (entries) => {
    for (const { target, isIntersecting } of entries) {
      if (!isIntersecting) continue;
      near.unobserve(target);
      draw(target);
    }
  },
  { rootMargin: "600px" },
);
for (const figure of document.querySelectorAll("figure.chart")) near.observe(figure);
let width = innerWidth;
addEventListener("resize", () => {
  if (innerWidth === width) return; // phones change the height as their bars come and go
  width = innerWidth;
  for (const name of views.keys()) draw(document.getElementById(`chart-${name}`));
});
addEventListener("beforeprint", () => document.querySelectorAll("figure.chart").forEach(draw));

if (location.protocol.startsWith("http")) {
  // `rlplast report --serve` writes the page again when runs have gone on
  const stamp = async () => {
    const answer = await fetch(location.pathname, { method: "HEAD" });
    return answer.ok ? answer.headers.get("Last-Modified") : first;
  };
  let first;
  setInterval(async () => {
    const now = await stamp().catch(() => first);
    if (first !== undefined && now !== first) location.reload();
    first = now;
  }, 5000);
}
