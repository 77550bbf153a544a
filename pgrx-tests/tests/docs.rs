//! The documentation, held to what it says: every SQL snippet runs, the reference is what the comments say, every
//! link leads somewhere, and the site can be built.

#[path = "docs/pages.rs"]
mod pages;
#[path = "docs/reference.rs"]
mod reference;
#[path = "docs/site.rs"]
mod site;
#[path = "docs/snippets.rs"]
mod snippets;
