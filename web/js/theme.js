// Sets the light or dark theme before the first paint. It exports nothing: modules run too late, so it is a classic
// script.
(function initTheme() {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  function apply() {
    let saved = null;
    try {
      saved = localStorage.getItem("quell.theme");
    } catch {
      // Without storage the preference of the browser applies.
    }
    document.documentElement.dataset.theme = saved || (dark.matches ? "dark" : "light");
  }
  apply();
  dark.addEventListener("change", apply);
})();
