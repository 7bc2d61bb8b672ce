"use strict";
// Shows the values of all lines at the nearest size, when somebody points at a picture.
(() => {
  const box = document.createElement("div");
  box.id = "read-out";
  document.body.append(box);
  const hide = () => { box.style.display = "none"; };
  window.readOut = {
    hide,
    show(text, event) {
      box.textContent = text;
      box.style.display = "block";
      const { width, height } = box.getBoundingClientRect();
      const x = event.clientX + 16 + width > innerWidth ? event.clientX - width - 12 : event.clientX + 16;
      const y = event.clientY + 16 + height > innerHeight ? event.clientY - height - 12 : event.clientY + 16;
      box.style.left = `${Math.max(4, x)}px`;
      box.style.top = `${Math.max(4, y)}px`;
    },
  };
  for (const svg of document.querySelectorAll(".grid svg")) {
    if (!svg.querySelector("g.p")) continue; // Bars have their own titles.
    const points = [...svg.querySelectorAll("g.p")].map((group) => {
      const title = group.querySelector("title");
      const point = { x: Number(group.dataset.x), text: title.textContent };
      title.remove(); // Else the browser shows a second one.
      return point;
    });
    svg.addEventListener("mousemove", (event) => {
      const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
      const near = points.reduce((best, point) =>
        !best || Math.abs(point.x - at.x) < Math.abs(best.x - at.x) ? point : best, null);
      if (!near || Math.abs(near.x - at.x) > 40) return hide();
      const texts = points.filter((point) => Math.abs(point.x - near.x) < 0.5).map((point) => point.text);
      window.readOut.show(texts.join("\n"), event);
    });
    svg.addEventListener("mouseleave", hide);
  }
})();
