//! The table of rights in `docs/security.md` has every public function, with the roles that may call it. The suite
//! `security` tests that these are all functions, and that other roles cannot call them.

use std::fs;

use super::pages::root;
use crate::security::verbs::VERBS;

const HEAD: &str = "| | producer | worker | operator | `pg_monitor` |\n";

#[test]
fn the_table_of_rights_has_every_function() {
    let page = fs::read_to_string(root().join("docs/security.md")).expect("read the page");
    let (_, table) = page.split_once(HEAD).expect("the table of rights");
    let rows: Vec<Vec<&str>> = table
        .lines()
        .take_while(|line| line.starts_with('|'))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    // In the letters of verbs.rs.
    let roles = |row: &[&str]| {
        let allowed = ["P", "W", "O", "M"].into_iter().zip(&row[1..]).filter(|(_, cell)| !cell.is_empty());
        allowed.map(|(letter, _)| letter).collect::<Vec<_>>().join(" ")
    };
    let mut wrong = Vec::new();
    for (name, expected, _) in VERBS {
        let named = format!("`{name}`");
        let first = rows.iter().find(|row| row[0].contains(&named)).map(|row| roles(row));
        if first.as_deref() != Some(expected) {
            wrong.push(format!("{name}: {expected:?} is expected, {first:?} is listed"));
        }
    }
    assert!(wrong.is_empty(), "docs/security.md:\n{}", wrong.join("\n"));
}
