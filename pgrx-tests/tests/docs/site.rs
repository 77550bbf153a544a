//! The site builds without a warning, and every link has a target.

use std::process::Command;

use pulldown_cmark::{Event, Options, Parser, Tag};
use queue_ext_tests::brief;
use queue_ext_tests::cluster::home;

use super::pages::{pages, root};

#[test]
fn every_link_leads_somewhere() {
    let mut broken = Vec::new();
    let mut links = 0;
    for page in pages() {
        let folder = root().join(&page.path).parent().expect("a folder").to_owned();
        for event in Parser::new_ext(&page.text, Options::ENABLE_TABLES) {
            let target = match event {
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    dest_url.to_string()
                }
                _ => continue,
            };
            let path = target.split('#').next().unwrap_or_default();
            if path.is_empty() || path.contains(':') {
                continue;
            }
            links += 1;
            if !folder.join(path).exists() {
                broken.push(format!("{}: {target}", page.path.display()));
            }
        }
    }
    assert!(links > 50 && broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn the_site_builds() {
    if brief() {
        return;
    }
    let tools = home().join("docs");
    let out = root().join("target/site");
    let done = Command::new("python3")
        .args(["-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir"])
        .arg(&out)
        .current_dir(root())
        .env("PYTHONPATH", tools)
        .output()
        .expect("run mkdocs");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let reference = std::fs::read_to_string(out.join("reference/index.html")).expect("the reference");
    assert!(reference.contains("queue.claim"), "the reference has the functions");
}
