"use strict";
// Hides whatever belongs to the arms whose boxes are not ticked: parts of pictures by their
// ids, rows and columns of tables by their data-arm. The choice is kept in the address: #hide=1,3
(() => {
  const boxes = [...document.querySelectorAll("input[data-toggles]")];
  const sheet = document.head.appendChild(document.createElement("style"));

  const apply = () => {
    const hidden = boxes.filter((box) => !box.checked).map((box) => box.dataset.toggles);
    const rules = hidden.flatMap((arm) => [`[id^="arm-${arm}-"]`, `[data-arm="${arm}"]`]);
    sheet.textContent = rules.length ? `${rules.join(",")}{display:none!important}` : "";
    return hidden;
  };

  const keep = () => {
    const hidden = apply();
    try {
      history.replaceState(null, "", hidden.length ? `#hide=${hidden.join(",")}` : "#");
    } catch {
      // some browsers refuse for files; the page works without
    }
  };

  const match = /^#hide=([\d,]+)$/.exec(location.hash);
  const asked = match ? match[1].split(",") : [];
  for (const box of boxes) {
    box.checked = !asked.includes(box.dataset.toggles);
    box.addEventListener("change", keep);
  }
  document.getElementById("show-all")?.addEventListener("click", () => {
    for (const box of boxes) box.checked = true;
    keep();
  });
  apply();
})();
