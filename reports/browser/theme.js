// Runs before the first paint, so that the page never flashes in the other theme.
try {
  const theme = localStorage.getItem("quantmedic-theme");
  if (theme === "light" || theme === "dark") document.documentElement.style.colorScheme = theme;
} catch {
  // No storage, as in some private windows: the system decides.
}
document.documentElement.classList.add("scripted");
