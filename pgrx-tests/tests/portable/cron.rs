//! There are two parsers of cron expressions: in Rust, and in SQL where there is no library. Random expressions,
//! valid and invalid, have the same meaning in both.

use super::*;
use queue_ext_tests::brief;
use queue_ext_tests::torture::random::Random;
use std::fs;

const MONTHS: [&str; 12] =
    ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"];
const DAYS: [&str; 7] = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];
const BOUNDS: [(u64, u64); 6] = [(0, 59), (0, 59), (0, 23), (1, 31), (1, 12), (0, 7)];
const SIGNS: &[u8] = b"*/,-#L?W+0123456789 MONFRIJAN";

fn pick<'a>(random: &mut Random, from: &[&'a str]) -> &'a str {
    from[random.roll(from.len() as u64) as usize]
}

fn value(random: &mut Random, place: usize) -> String {
    let (first, last) = BOUNDS[place];
    match place {
        4 if random.chance(30) => pick(random, &MONTHS).into(),
        5 if random.chance(40) => pick(random, &DAYS).into(),
        _ if random.chance(3) => pick(random, &["60", "32", "0", "007", "65535", "65536", ""]).into(),
        _ => random.between(first, last).to_string(),
    }
}

fn range(random: &mut Random, place: usize) -> String {
    let (first, last) = BOUNDS[place];
    if random.chance(20) {
        return format!("{}-{}", value(random, place), value(random, place));
    }
    let start = random.between(first, last);
    format!("{start}-{}", random.between(start, last))
}

fn item(random: &mut Random, place: usize) -> String {
    let mut item = match random.roll(100) {
        0..40 => value(random, place),
        40..60 => range(random, place),
        60..75 => format!("*/{}", random.roll(21)),
        75..85 => format!("{}/{}", range(random, place), random.roll(10)),
        _ => match place {
            3 => match random.roll(4) {
                0 => "L".into(),
                1 => "LW".into(),
                2 => format!("{}W", value(random, place)),
                _ => pick(random, &["L-3", "W", "?", "1W", "31W"]).into(),
            },
            5 => match random.roll(4) {
                0 => format!("{}L", value(random, place)),
                1 => format!("{}#{}", value(random, place), random.roll(7)),
                2 => format!("{}#{}", value(random, place), pick(random, &["L", "2L"])),
                _ => pick(random, &["L", "?", "1-5#2", "*/2#3", "SUNL", "#L"]).into(),
            },
            _ => value(random, place),
        },
    };
    if place == 5 && random.chance(10) {
        item += pick(random, &["#1", "#5", "L", "#L"]);
    }
    item
}

fn field(random: &mut Random, place: usize) -> String {
    if random.chance(if place > 2 { 55 } else { 30 }) {
        return "*".into();
    }
    let items: Vec<String> =
        (0..random.weighted(&[(3, 1), (1, 2), (1, 3)])).map(|_| item(random, place)).collect();
    let all = if place == 5 && random.chance(20) { "+" } else { "" };
    format!("{all}{}", items.join(","))
}

fn expression(random: &mut Random) -> String {
    let first = random.weighted(&[(1, 0), (3, 1)]);
    let mut text = (first..6).map(|place| field(random, place)).collect::<Vec<_>>().join(" ");
    if random.chance(15) {
        let at = random.roll(text.len() as u64 + 1) as usize;
        text.insert(at, SIGNS[random.roll(SIGNS.len() as u64) as usize] as char);
    }
    if random.chance(20) { text.to_lowercase() } else { text }
}

#[test]
fn cron_expressions_mean_the_same_in_sql_and_in_the_library() {
    let seed = std::env::var("SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or_else(|| std::time::UNIX_EPOCH.elapsed().expect("a clock after 1970").as_secs());
    println!("SEED={seed}");
    let mut random = Random::new(seed, 0);
    let cluster = Edition::NoPreload.cluster("portable-cron", Worker::Off);
    Edition::NoPreload.install(&cluster, "postgres");
    let mut client = cluster.connect();
    // The parser of the SQL-only edition beside that of the library.
    let source = fs::read_to_string(target().join("../sql/editions/sql_only/internal/cron.sql"))
        .expect("read cron.sql");
    client
        .batch_execute(&format!("CREATE SCHEMA portable; {}", source.replace("queue_internal.", "portable.")))
        .expect("both side by side");
    let macros = [
        "@yearly",
        "@annually",
        "@monthly",
        " @Weekly ",
        "@daily",
        "@midnight",
        "@hourly",
        "@never",
        "",
        " ",
        "1 2 3",
        "0 0 30 2 *",
        "* * * * * * *",
        "0 0 * * + ",
        "0 0 29 2 MON#5",
        "0 0 13 * +fri",
        "0 0 15W*,LW?3 * *",
        "ſ * * * *",
        "\u{b}* * * * *",
    ];
    let count = if brief() { 1000 } else { 5000 };
    let crons: Vec<String> =
        macros.iter().map(|text| (*text).into()).chain((0..count).map(|_| expression(&mut random))).collect();
    let years = [2026, 2027, 2024, 1999, 1, 4999];
    let times: Vec<String> = crons
        .iter()
        .map(|_| {
            let year =
                if random.chance(20) { random.between(1, 4999) } else { years[random.roll(6) as usize] };
            format!(
                "{year:04}-{:02}-{:02} {:02}:{:02}:{:02}.5",
                random.between(1, 12),
                random.between(1, 28),
                random.roll(24),
                random.roll(60),
                random.roll(60)
            )
        })
        .collect();
    client.batch_execute("CREATE TABLE crons (cron text, after timestamp, error text)").expect("a table");
    client
        .execute(
            "INSERT INTO crons SELECT c, t::timestamp, queue_internal.cron_error(c)
                    FROM unnest($1::text[], $2::text[]) AS u (c, t)",
            &[&crons, &times],
        )
        .expect("the expressions");
    let differ = client.query(
        "SELECT format('%L: %L and %L', c.cron, c.error, portable.cron_error(c.cron)) FROM crons AS c
         WHERE c.error IS DISTINCT FROM portable.cron_error(c.cron)
         UNION ALL
         SELECT format('%L after %s: %s and %s', c.cron, c.after, n.native, n.portable) FROM crons AS c,
             LATERAL (SELECT queue_internal.cron_next(c.cron, c.after) AS native, portable.cron_next(c.cron, c.after) AS portable
                      WHERE c.error IS NULL) AS n
         WHERE n.native IS DISTINCT FROM n.portable", &[]).expect("compare");
    let differ: Vec<String> = differ.iter().map(|row| row.get(0)).collect();
    assert!(differ.is_empty(), "{}", differ.join("\n"));
    let [good, bad]: [i64; 2] = ["", "NOT"]
        .map(|not| ask(&mut client, &format!("SELECT count(*) FROM crons WHERE {not} error IS NULL")));
    assert!(good > count / 3 && bad > count / 10, "{good} good ones, {bad} bad ones");
}
