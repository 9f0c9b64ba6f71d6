// The index of the search is most of what a visit would move, and most visits search nothing. The theme asks for it at
// once; here its request waits until somebody is about to search.
(() => {
  const { open, send } = XMLHttpRequest.prototype;
  const waiting = [];
  let wanted = false;

  XMLHttpRequest.prototype.open = function (method, address, ...others) {
    this.asksForIndex = new URL(address, location.href).pathname.endsWith("/search.json");
    return open.call(this, method, address, ...others);
  };
  XMLHttpRequest.prototype.send = function (body) {
    if (wanted || !this.asksForIndex) {
      return send.call(this, body);
    }
    waiting.push(this);
  };

  const ask = () => {
    wanted = true;
    for (const request of waiting.splice(0)) {
      send.call(request);
    }
  };
  const isButton = (target) => target instanceof Element && target.closest(".md-search");
  for (const kind of ["pointerover", "focusin", "click"]) {
    document.addEventListener(kind, (event) => isButton(event.target) && ask());
  }
  // The theme takes this key only once it has the index; until then the button does the same.
  document.addEventListener("keydown", (event) => {
    if (!wanted && (event.ctrlKey || event.metaKey) && event.key === "k") {
      event.preventDefault();
      ask();
      document.querySelector(".md-search__button").click();
    }
  });
})();
