(function () {
  "use strict";
  var root = document.documentElement;
  var plots = Array.prototype.slice.call(document.querySelectorAll("[data-plot]"));
  var coarse = window.matchMedia("(pointer: coarse)").matches;
  function config(element) {
    return {
      responsive: true,
      displaylogo: false,
      // On a phone a bar over the plot hides it, and dragging must scroll the page.
      displayModeBar: element.dataset.zoom !== undefined && !coarse,
      modeBarButtons: [["zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"]],
      scrollZoom: false,
      doubleClick: "reset",
      showTips: false,
      showSendToCloud: false
    };
  }

  function text(id) { return document.getElementById(id).textContent; }

  function draw(element) {
    return Promise.resolve().then(function () {
      var spec = JSON.parse(text(element.dataset.plot));
      return Plotly.newPlot(element, spec.data, spec.layout, config(element));
    }).then(function () {
      element.dataset.drawn = "yes";
    }).catch(function (problem) {
      element.textContent = "This figure could not be drawn (" + problem + "). Its data is in the table below.";
      throw problem;
    });
  }

  Promise.allSettled(plots.map(draw)).then(function (results) {
    root.dataset.plots = String(document.querySelectorAll("[data-drawn]").length);
    // Thrown again one by one, for the watch in the page's head to count.
    results.forEach(function (result) { if (result.status === "rejected") { Promise.reject(result.reason); } });
  });

  document.querySelectorAll("button[data-group]").forEach(function (button) {
    button.addEventListener("click", function () {
      var element = document.getElementById(button.dataset.plotId);
      var shown = button.getAttribute("aria-pressed") !== "true";
      var traces = [];
      element.data.forEach(function (trace, index) {
        if (trace.legendgroup === button.dataset.group) { traces.push(index); }
      });
      button.setAttribute("aria-pressed", String(shown));
      Plotly.restyle(element, { visible: shown }, traces);
    });
  });

  document.querySelectorAll("a[data-download]").forEach(function (link) {
    link.addEventListener("click", function () {
      var blob = new Blob([text(link.dataset.download)], { type: "application/json" });
      var url = URL.createObjectURL(blob);
      link.href = url;
      window.setTimeout(function () { URL.revokeObjectURL(url); }, 60000);
    });
  });

  document.querySelectorAll("button[data-save]").forEach(function (button) {
    button.addEventListener("click", function () {
      var element = document.getElementById(button.dataset.save);
      Plotly.downloadImage(element, {
        format: "svg", filename: button.dataset.save, width: element.clientWidth, height: element.clientHeight
      });
    });
  });

  // A4 less its margins, in CSS pixels: the plots were laid out for the screen.
  function resize(width) {
    plots.forEach(function (element) {
      if (element.dataset.drawn) { Plotly.relayout(element, width ? { width: width } : { width: null, autosize: true }); }
    });
  }
  window.addEventListener("beforeprint", function () { resize(640); });
  window.addEventListener("afterprint", function () { resize(0); });
})();
