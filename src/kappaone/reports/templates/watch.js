(function () {
  "use strict";
  // Counts what went wrong, where a reader and a test can see it: <html data-errors="..."> .
  var root = document.documentElement;
  function note(text) {
    root.dataset.errors = (root.dataset.errors ? root.dataset.errors + " | " : "") + text;
  }
  window.addEventListener("error", function (event) { note(event.message || "error"); });
  window.addEventListener("unhandledrejection", function (event) { note(String(event.reason)); });
  document.addEventListener("securitypolicyviolation", function (event) {
    note("policy: " + event.violatedDirective + " " + event.blockedURI);
  });
})();
