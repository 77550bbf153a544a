//! Tests the documentation: every SQL snippet runs, the reference matches the COMMENTs, the table of rights has every function, every link has a target, and
//! the site can be built.

#[path = "docs/pages.rs"]
mod pages;
#[path = "docs/reference.rs"]
mod reference;
#[path = "docs/rights.rs"]
mod rights;
#[path = "docs/site.rs"]
mod site;
#[path = "docs/snippets.rs"]
mod snippets;
