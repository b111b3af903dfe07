"use strict";
// What the page does beyond showing: it filters sample answers, and says which tables go on to the right.
(() => {
  const form = document.getElementById("filter");
  if (form) {
    const shown = document.getElementById("shown");
    const articles = [...document.querySelectorAll("article.asked")];
    const filter = () => {
      const words = form.elements.words.value.toLowerCase();
      let visible = 0, all = 0;
      for (const article of articles) {
        const asked = article.querySelector(".problem").textContent.toLowerCase();
        let some = false;
        for (const answer of article.querySelectorAll("details.sample")) {
          const fits = (form.elements.cell.value === "" || form.elements.cell.value === answer.dataset.cell)
            && (form.elements.verdict.value === "" || form.elements.verdict.value === answer.dataset.verdict)
            && (asked.includes(words) || answer.textContent.toLowerCase().includes(words));
          answer.hidden = !fits;
          some ||= fits;
          visible += fits;
          all += 1;
        }
        article.hidden = !some;
      }
      shown.textContent = `${visible} of ${all} answers shown`;
    };
    form.hidden = false;
    form.addEventListener("input", filter);
    form.addEventListener("submit", (event) => event.preventDefault());
    filter();
  }
  const cue = (frame) => frame.classList.toggle("goes-on", frame.scrollWidth > frame.clientWidth + 1);
  const observer = new ResizeObserver((entries) => entries.forEach((entry) => cue(entry.target)));
  for (const frame of document.querySelectorAll(".table")) {
    cue(frame);
    observer.observe(frame);
  }
})();
