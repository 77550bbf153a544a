//! Every SQL snippet of every page is run, each page from top to bottom in its own database. Statements that readers
//! should not see are in a comment that begins with `<!--sql`. A snippet followed by a block of `text` has to print
//! that text. A snippet can be marked:
//!
//! - `sql error=QX001`: its last statement fails with this code;
//! - `sql test=sharding`: it needs more than a database, and the suite of that name runs it.

use std::fmt::Write as _;
use std::fs;
use std::ops::Range;
use std::process::Command;

use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag};
use queue_ext_tests::cluster::{bindir, run_folder};
use queue_ext_tests::{Cluster, brief};

use super::pages::{Page, pages, root};

const STATEMENTS: [&str; 16] = [
    "ALTER", "BEGIN", "CALL", "COPY", "CREATE", "DELETE", "DO", "DROP", "GRANT", "INSERT", "LISTEN",
    "REVOKE", "SELECT", "UPDATE", "VACUUM", "WITH",
];

/// A part of a page that psql runs, or the reason why it does not.
struct Snippet {
    lines: Range<usize>,
    kind: Kind,
    /// Its end in the page, in bytes, and its expected output, if the page shows any.
    end: usize,
    prints: Option<String>,
}

enum Kind {
    Runs,
    Fails(String),
    RunByAnother,
}

#[test]
fn every_snippet_runs() {
    if brief() {
        return;
    }
    let cluster = Cluster::start("docs-snippets");
    let mut client = cluster.connect();
    client
        .batch_execute("CREATE ROLE web; CREATE ROLE mailer; CREATE ROLE oncall")
        .expect("the roles of the pages");
    let scripts = run_folder("docs-scripts");
    let _ = fs::remove_dir_all(&scripts);
    let (mut failed, mut ran) = (Vec::new(), 0);
    for page in pages() {
        let snippets = snippets(&page);
        if snippets.is_empty() {
            continue;
        }
        let name = page.path.display().to_string();
        client.batch_execute(&format!("CREATE DATABASE \"{name}\"")).expect("CREATE DATABASE");
        cluster.connect_to(&name).batch_execute("CREATE EXTENSION queue_ext").expect("CREATE EXTENSION");
        let file = scripts.join(&page.path);
        fs::create_dir_all(file.parent().expect("a folder")).expect("make the folder");
        fs::write(&file, script(&page, &snippets)).expect("write the script");
        let done = Command::new(bindir().join("psql"))
            .args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-U", "postgres", "-d", &name])
            .arg("-h")
            .arg(cluster.folder())
            .arg("-f")
            .arg(&page.path)
            .current_dir(&scripts)
            .env("PGOPTIONS", "-c statement_timeout=60s")
            .output()
            .expect("run psql");
        if !done.status.success() {
            failed.push(String::from_utf8_lossy(&done.stderr).into_owned());
        }
        for snippet in &snippets {
            let Some(expected) = &snippet.prints else { continue };
            let printed = fs::read_to_string(scripts.join(output(snippet))).unwrap_or_default();
            if plain(&printed) != plain(expected) {
                failed.push(format!("{name}:{} prints\n{printed}", snippet.lines.end));
            }
        }
        ran += snippets.iter().filter(|snippet| !matches!(snippet.kind, Kind::RunByAnother)).count();
    }
    assert!(failed.is_empty(), "the lines are those of the pages:\n{}", failed.join("\n"));
    println!("{ran} snippets");
}

/// The file for the output of a snippet.
fn output(snippet: &Snippet) -> String {
    format!("{}.out", snippet.lines.start)
}

/// Text without trailing spaces, which an editor may have removed.
fn plain(text: &str) -> String {
    text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n").trim_matches('\n').to_owned()
}

/// The snippets of a page, in order.
fn snippets(page: &Page) -> Vec<Snippet> {
    let mut found: Vec<Snippet> = Vec::new();
    let mut fence: Option<(String, Range<usize>)> = None;
    for (event, range) in Parser::new_ext(&page.text, Options::ENABLE_TABLES).into_offset_iter() {
        match event {
            Event::Start(Tag::CodeBlock(kind)) => {
                let said = match kind {
                    CodeBlockKind::Fenced(said) => said.to_string(),
                    CodeBlockKind::Indented => String::new(),
                };
                fence = Some((said, range));
            }
            Event::Text(text) => {
                let Some((said, block)) = fence.take() else { continue };
                let line = line_of(&page.text, block.start);
                let mut words = said.split_whitespace();
                if words.next() == Some("sql") {
                    let kind = words.fold(Kind::Runs, |_, word| kind(page, line, word));
                    found.push(Snippet {
                        lines: inner_lines(&page.text, &block),
                        kind,
                        end: block.end,
                        prints: None,
                    });
                } else if said == "text" {
                    let before =
                        found.last_mut().filter(|last| page.text[last.end..block.start].trim().is_empty());
                    before.into_iter().for_each(|last| last.prints = Some(text.to_string()));
                } else {
                    let first = text.split_whitespace().next().unwrap_or_default();
                    let sql = STATEMENTS.contains(&first.trim_end_matches(';'));
                    assert!(
                        !sql,
                        "{}:{line}: SQL that nobody runs; begin it with ```sql",
                        page.path.display()
                    );
                }
            }
            Event::Html(text) | Event::InlineHtml(text) if text.starts_with("<!--sql") => {
                let end = page.text[range.start..].find("-->").expect("the comment ends") + range.start;
                let lines = inner_lines(&page.text, &(range.start..end + 3));
                found.push(Snippet { lines, kind: Kind::Runs, end, prints: None });
            }
            _ => {}
        }
    }
    found
}

fn kind(page: &Page, line: usize, word: &str) -> Kind {
    match word.split_once('=') {
        Some(("error", code)) => Kind::Fails(code.to_owned()),
        Some(("test", suite)) => {
            let file = root().join("pgrx-tests/tests").join(format!("{suite}.rs"));
            assert!(file.exists(), "{}:{line}: there is no suite {suite}", page.path.display());
            Kind::RunByAnother
        }
        _ => panic!("{}:{line}: what is {word}?", page.path.display()),
    }
}

/// The lines between the first and the last of a range of bytes, counted from 0.
fn inner_lines(text: &str, bytes: &Range<usize>) -> Range<usize> {
    line_of(text, bytes.start)..line_of(text, bytes.end.saturating_sub(1)) - 1
}

/// The number of the line that a byte is in, counted from 1.
fn line_of(text: &str, byte: usize) -> usize {
    text[..byte].matches('\n').count() + 1
}

/// The script for psql: the page with all lines blank except its snippets, so that psql reports the line numbers of
/// the page. The statements before and after a snippet replace its two fences.
fn script(page: &Page, snippets: &[Snippet]) -> String {
    let mut lines: Vec<String> = vec![String::new(); page.text.lines().count() + 1];
    let text: Vec<&str> = page.text.lines().collect();
    for snippet in snippets {
        if matches!(snippet.kind, Kind::RunByAnother) {
            continue;
        }
        for line in snippet.lines.clone() {
            text[line].clone_into(&mut lines[line]);
        }
        if snippet.prints.is_some() {
            lines[snippet.lines.start - 1] = format!("\\o {}", output(snippet));
            lines[snippet.lines.end] = "\\o".to_owned();
        }
        if let Kind::Fails(code) = &snippet.kind {
            lines[snippet.lines.start - 1] = "\\set ON_ERROR_STOP 0".to_owned();
            lines[snippet.lines.end] = format!(
                "SELECT 1 / (:'SQLSTATE' = '{code}')::int AS \"fails with {code}\" \\g /dev/null \\set ON_ERROR_STOP 1"
            );
        }
    }
    lines.iter().fold(String::new(), |mut script, line| {
        let _ = writeln!(script, "{line}");
        script
    })
}
