// The theme makes a landmark without a name of the buttons of each block of code, and another one inside of the
// navigation for each of its sections. Who jumps from landmark to landmark is served better by the outer ones alone.
(() => {
  const plain = () => {
    for (const bar of document.querySelectorAll("nav.md-code__nav:not([role]), nav.md-nav nav.md-nav:not([role])")) {
      for (const name of ["aria-label", "aria-labelledby", "aria-expanded"]) {
        bar.removeAttribute(name);
      }
      bar.setAttribute("role", "none");
    }
  };
  plain();
  new MutationObserver(plain).observe(document.body, { childList: true, subtree: true });
})();
