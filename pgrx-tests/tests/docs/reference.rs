//! `docs/reference.md` is generated from the catalog of a new database: signatures and COMMENTs of the public
//! objects. With REFERENCE=write in the environment (`make reference`) the page is written, otherwise compared.

use std::fmt::Write as _;
use std::fs;

use postgres::Client;
use queue_ext_tests::Cluster;

use super::pages::root;

const HEAD: &str = "# Reference

Every public function, table, view and setting. psql shows the same with `\\df+ queue.*`, `\\d+` and `\\dconfig+ queue.*`.
`make reference` generates this page from the comments in the catalog.
";

#[test]
fn the_reference_matches_the_comments() {
    let cluster = Cluster::start("docs-reference");
    let made = reference(&mut cluster.connect());
    let file = root().join("docs/reference.md");
    if std::env::var("REFERENCE").is_ok_and(|said| said == "write") {
        fs::write(&file, &made).expect("write the reference");
    }
    let there = fs::read_to_string(&file).expect("read the reference");
    let differ = made.lines().zip(there.lines()).find(|(made, there)| made != there);
    assert!(
        made == there,
        "docs/reference.md is not what the comments say: make reference. First: {differ:?}"
    );
}

fn reference(client: &mut Client) -> String {
    let mut page = HEAD.to_owned();
    page.push_str("\n## Functions and procedures\n");
    let functions = client
        .query(
            "SELECT p.proname::text, CASE p.prokind WHEN 'p' THEN 'CALL ' ELSE '' END || 'queue.' || p.proname
                    || '(' || pg_get_function_arguments(p.oid) || ')'
                    || coalesce(' -> ' || pg_get_function_result(p.oid), ''), d.description
             FROM pg_proc AS p JOIN pg_description AS d ON d.objoid = p.oid AND d.classoid = 'pg_proc'::regclass
             WHERE p.pronamespace = 'queue'::regnamespace ORDER BY 1, 2",
            &[],
        )
        .expect("the functions");
    let mut last = String::new();
    for row in &functions {
        let (name, signature, comment): (String, String, String) = (row.get(0), row.get(1), row.get(2));
        if name != last {
            let _ = write!(page, "\n### {name}\n");
        }
        let _ = write!(page, "\n```text\n{}\n```\n\n{}\n", wrapped(&signature), listed(&comment));
        last = name;
    }
    page.push_str("\n## Tables, views and types\n");
    let relations = client
        .query(
            "SELECT c.oid::bigint, 'queue.' || c.relname, coalesce(d.description, '') FROM pg_class AS c
             LEFT JOIN pg_description AS d ON d.objoid = c.oid AND d.classoid = 'pg_class'::regclass AND d.objsubid = 0
             WHERE c.relnamespace = 'queue'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'c') AND NOT c.relispartition
             ORDER BY 2",
            &[],
        )
        .expect("the relations");
    for relation in &relations {
        let (oid, name, comment): (i64, String, String) = (relation.get(0), relation.get(1), relation.get(2));
        let _ = write!(page, "\n### {name}\n\n{comment}\n\n| Column | Type | |\n| --- | --- | --- |\n");
        for column in columns(client, oid) {
            let (column, kind, comment): (String, String, String) =
                (column.get(0), column.get(1), column.get(2));
            let _ = writeln!(page, "| `{column}` | {kind} | {} |", comment.replace('|', "\\|"));
        }
    }
    page.push_str("\n## Settings\n\n| Setting | Default | Changed by | |\n| --- | --- | --- | --- |\n");
    let settings = client
        .query(
            "SELECT name, boot_val || coalesce(' ' || unit, ''),
                    CASE context WHEN 'postmaster' THEN 'a restart' WHEN 'sighup' THEN 'a reload'
                                 WHEN 'superuser' THEN 'superusers' ELSE 'everybody' END, short_desc
             FROM pg_settings WHERE name LIKE 'queue.%' ORDER BY name",
            &[],
        )
        .expect("the settings");
    for row in &settings {
        let cell = |n| row.get::<_, String>(n);
        let _ = writeln!(page, "| `{}` | `{}` | {} | {} |", cell(0), cell(1), cell(2), cell(3));
    }
    page
}

fn columns(client: &mut Client, relation: i64) -> Vec<postgres::Row> {
    client
        .query(
            "SELECT a.attname::text, format_type(a.atttypid, a.atttypmod), coalesce(d.description, '')
             FROM pg_attribute AS a
             LEFT JOIN pg_description AS d
               ON d.objoid = a.attrelid AND d.classoid = 'pg_class'::regclass AND d.objsubid = a.attnum
             WHERE a.attrelid = $1::bigint::oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum",
            &[&relation],
        )
        .expect("the columns")
}

/// A comment whose list of parameters has their names as code.
fn listed(comment: &str) -> String {
    let line = |line: &str| match line.strip_prefix("- ").and_then(|item| item.split_once(':')) {
        Some((names, text)) => format!("- `{}`:{text}", names.replace(", ", "`, `")),
        None => line.to_owned(),
    };
    comment.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// A signature with its arguments on lines of their own, where one line would be too long.
fn wrapped(signature: &str) -> String {
    if signature.len() <= 100 {
        return signature.to_owned();
    }
    let (open, close) =
        (signature.find('(').expect("arguments"), signature.find(") -> ").unwrap_or(signature.len() - 1));
    let arguments = signature[open + 1..close].replace(", ", ",\n    ");
    format!("{}(\n    {arguments}){}", &signature[..open], &signature[close + 1..])
}
