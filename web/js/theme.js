// Chooses light or dark before the first paint, so this one is no module. It knows nothing but the choice
// that is remembered.
(function chooseTheme() {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  function apply() {
    let chosen = null;
    try {
      chosen = localStorage.getItem("quell.theme");
    } catch {
      // A browser that keeps nothing for this page still has a preference of its own.
    }
    document.documentElement.dataset.theme = chosen || (dark.matches ? "dark" : "light");
  }
  apply();
  dark.addEventListener("change", apply);
})();
