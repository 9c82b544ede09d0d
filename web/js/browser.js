// Says so when the browser is too old for the page, which would else stay empty without a word. It is no
// module and in the words of old browsers, because those have to read it. It knows nothing but what the page
// needs.
(function sayIfTooOld() {
  var enough =
    typeof Map.groupBy === "function" &&
    typeof Array.prototype.findLast === "function" &&
    typeof Element.prototype.checkVisibility === "function";
  document.getElementById("old-browser").hidden = enough;
})();
