// Applies the remembered colours. A classic script in the head, so that the page never flashes in the other ones.
document.documentElement.dataset.theme = localStorage.getItem("theme") || "system";
