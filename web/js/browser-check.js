// Shows a notice when the browser is too old for the page. It exports nothing: it is a classic script in old
// syntax, so that old browsers can run it.
(function checkBrowser() {
  var supported =
    typeof Map.groupBy === "function" &&
    typeof Array.prototype.findLast === "function" &&
    typeof Element.prototype.checkVisibility === "function";
  document.getElementById("old-browser").hidden = supported;
})();
