// Sets the chosen theme before the page is drawn, so that a dark page never flashes light.

{
  const chosen = localStorage.getItem("qeff.theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
}
